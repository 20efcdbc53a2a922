import pytest

from advdrop.lab.report.collect import results_of
from advdrop.lab.report.costs import at_cost, same_machine
from advdrop.lab.report.sections import cost_table
from ledger import loose_of, run_of, tables


def test_the_cost_of_an_update_is_that_of_the_fastest_run(suite):
    (table,) = tables(
        suite,
        run_of(suite, "pi", 0, milliseconds_per_update=1.0),
        run_of(suite, "pi", 1, milliseconds_per_update=5.0),
    )
    entry = table.entries["pi", "20"]
    assert entry.milliseconds == 1.0  # a busy machine made the other run slower


def test_a_stretch_without_other_programs_tells_the_cost_of_a_run(suite):
    def cost(update, seconds, whole=9.0):
        record = run_of(suite, "pi", 0, milliseconds_per_update=whole)
        curve = record.curve | {"update": update, "seconds": seconds}
        (found,) = results_of([record.model_copy(update={"curve": curve})], {suite.key: suite})
        return found.entries["pi", "20"].milliseconds

    ends = [10.0, 20.0, 30.0, 40.0]
    assert cost(ends, [0.08, 0.20, 0.23, 0.36]) == pytest.approx(3.0)  # 30 ms for the third ten updates
    assert cost(ends, [0.02, 0.20, 0.23, 0.36]) == pytest.approx(2.0)  # the first stretch begins with the run
    assert cost(ends, [0.08, None, 0.18, 0.36]) == pytest.approx(5.0)  # 100 ms for twenty updates
    assert cost(ends, [0.2, 0.4, 0.6, 0.8], whole=4.0) == 4.0  # evaluations take time, too
    assert cost(ends, [0.0, 0.0, 0.4, 0.8]) == 9.0  # a clock that stood still


def trusting(record, trust, seconds):
    """The record of a run with a companion: how far it trusts unlabeled images after each epoch, and the time."""
    return record.model_copy(update={"curve": record.curve | {"companion_trust": trust, "seconds": seconds}})


@pytest.mark.parametrize(
    ("method", "trust", "seconds", "cost"),
    [
        ("pi", [0.5, 0.6, 0.6, 0.7], [0.1, 0.5, 0.8, 1.2], 30.0),  # 10, 40, 30 and 40 ms; the first is without them
        ("pi", [0.5, 0.6, 0.0, 0.7], [0.3, 0.7, 1.2, 1.3], 40.0),  # 30, 40, 50 and 10 ms; a collapse before the last
        ("pi", [0.0, 0.5, 0.6, 0.6], [0.4, None, 0.9, 1.6], 70.0),  # the second stretch is partly without them
        ("pi", [0.0, 0.0, 0.0, 0.9], [0.4, 0.7, 1.2, 1.5], 25.0),  # never used; the mean has no evaluations
        ("dropout", [0.5, 0.6, 0.6, 0.7], [0.1, 0.5, 0.8, 1.2], 10.0),  # has no terms that could not run
        ("sadd", [0.5, 0.6, 0.6, 0.7], [0.1, 0.5, 0.8, 1.2], 10.0),
    ],
)
def test_the_cost_of_an_update_is_with_the_terms_for_unlabeled_images(method, trust, seconds, cost):
    run = trusting(loose_of(method, milliseconds_per_update=25.0), trust, seconds)
    (table,) = results_of([run])
    assert table.entries[method, "runs"].milliseconds == pytest.approx(cost)


def test_one_seed_that_used_unlabeled_images_tells_their_cost():
    never = trusting(loose_of("pi", 0, milliseconds_per_update=9.0), [0.0] * 4, [0.1, 0.2, 0.3, 0.4])
    soon = trusting(loose_of("pi", 1, milliseconds_per_update=30.0), [0.5] * 4, [0.1, 0.5, 0.9, 1.3])
    (table,) = results_of([never, soon])
    assert table.entries["pi", "runs"].milliseconds == pytest.approx(40.0)


def test_equal_cost_adds_up_what_the_updates_cost_with_and_without_unlabeled_images():
    seconds = [0.1, 0.2, 0.3, 0.4]
    runs = [
        trusting(loose_of("dropout", errors=(9.0, 8.0, 7.0, 6.0), milliseconds_per_update=20.0), [0.5] * 4, seconds)
    ]
    # The cheapest training takes 400 ms. Π: 100 ms without unlabeled images, then 250 ms for each ten updates.
    seconds = [0.1, 0.35, 0.6, 0.85]
    for seed in range(2):
        run = loose_of("pi", seed, (5.0, 4.0, 3.0, 2.0), milliseconds_per_update=20.0)
        runs.append(trusting(run, [0.5] * 4, [second * (1 + seed) for second in seconds]))
    # Never used in this seed: the whole training costs 400 ms.
    never = loose_of("pi", 2, (5.0, 4.0, 3.0, 1.5), milliseconds_per_update=20.0)
    runs.append(trusting(never, [0.0] * 4, [0.2, 0.4, 0.6, 0.8]))
    (table,) = results_of(runs)
    entry = table.entries["pi", "runs"]
    assert table.entries["dropout", "runs"].equal_cost == 6.0
    assert entry.milliseconds == pytest.approx(25.0)
    assert entry.equal_cost == pytest.approx((4.0 + 4.0 + 1.5) / 3)
    assert entry.cost_until(20.0) == pytest.approx((350.0 + 350.0 + 200.0) / 3)


def test_equal_cost_is_the_whole_training_of_the_cheapest_row(suite):
    # Dropout: 40 updates of 1 ms, so the budget is 40 ms. Π: 40/1.9 = 21 updates, the second measurement: (20 + 24)/2.
    # VAdD: 40/3.9 = 10.3 updates, the first one.
    runs = [
        run_of(suite, "dropout", 0, (30.0, 25.0, 22.0, 21.0), milliseconds_per_update=1.0),
        run_of(suite, "pi", 0, (40.0, 20.0, 15.0, 10.0), milliseconds_per_update=1.9),
        run_of(suite, "pi", 1, (44.0, 24.0, 14.0, 11.0), milliseconds_per_update=2.1),
        run_of(suite, "vadd", 0, (38.0, 18.0, 9.0, 5.0), milliseconds_per_update=3.9),
        run_of(suite, "pi", 0, column="all", protocol="short", milliseconds_per_update=0.001),  # another column
    ]
    (table,) = tables(suite, *runs)
    found = {row: table.entries[row, "20"].equal_cost for row in suite.trained}
    assert found == {"dropout": 21.0, "pi": 22.0, "vadd": 38.0}


def test_what_was_not_measured_before_the_budget_was_spent_is_unknown(suite):
    (table,) = tables(
        suite,
        run_of(suite, "dropout", 0, milliseconds_per_update=1.0),
        run_of(suite, "vadd", 0, milliseconds_per_update=4.1),  # 9.8 updates; the first measurement is after 10
        run_of(suite, "pi", 0, milliseconds_per_update=4.0),
        run_of(suite, "pi", 1, (None, 20.0, 15.0, 10.0), milliseconds_per_update=4.0),
    )
    assert table.entries["vadd", "20"].equal_cost is None
    assert table.entries["pi", "20"].equal_cost is None


@pytest.mark.parametrize(
    ("each", "budget", "error"),
    [
        (1.0, 30.0, 2.0),  # 30 updates: the last one measured is that of 20
        (1.0, 20.0, 2.0),
        (1.0, 19.9, 3.0),
        (2.0, 30.0, 3.0),  # 15 updates
        (1.0, 9.9, None),
        (1.0, 1000.0, 1.0),
    ],
)
def test_the_error_at_a_cost_is_the_last_one_measured_before(each, budget, error):
    run = loose_of("pi", 0, (3.0, 2.0, None, 1.0))
    assert at_cost([run], {True: each, False: each}, budget) == error
    assert at_cost([], {True: each, False: each}, budget) is None


SLOW = {"processor": "AMD EPYC, family 25, model 17", "cores": 2, "instructions": "AVX512", "threads": 1}
FAST = SLOW | {"processor": "AMD EPYC, family 26, model 2"}
OLD = {"processor": "AMD EPYC", "cores": 2, "threads": 1}  # without family and instructions


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (SLOW, True),
        (OLD, True),
        (FAST, False),
        (SLOW | {"instructions": "AVX2"}, False),
        (SLOW | {"threads": 2}, False),
        (SLOW | {"accelerators": ["A100"]}, False),
        (OLD | {"processor": "AMD EPYC 7763"}, False),
        ({}, False),
    ],
)
def test_machines_are_the_same_as_far_as_their_records_tell(other, same):
    assert same_machine(SLOW, other) == same_machine(other, SLOW) == same


def test_times_are_those_of_the_machine_on_which_most_rows_were_run(suite):
    runs = [
        run_of(suite, "dropout", 0, (9.0, 8.0), machine=SLOW, milliseconds_per_update=2.0),
        run_of(suite, "dropout", 1, (9.0, 8.0), machine=SLOW, milliseconds_per_update=3.0),
        run_of(suite, "pi", 0, (7.0, 6.0), machine=OLD, milliseconds_per_update=5.0),
        run_of(suite, "pi", 1, (9.0, 8.0), machine=SLOW, milliseconds_per_update=4.0),
        run_of(suite, "pi", 2, (9.0, 8.0), machine=FAST, milliseconds_per_update=1.0),
        run_of(suite, "vadd", 2, machine=FAST, milliseconds_per_update=1.0),
    ]
    for given in (runs, runs[::-1]):
        (table,) = tables(suite, *given)
        entries = {row: table.entries[row, "20"] for row in suite.trained}
        assert {row: entry.milliseconds for row, entry in entries.items()} == {"dropout": 2.0, "pi": 4.0, "vadd": None}
        # 80 ms: 20 updates of 4 ms. The errors of other machines count, their times do not.
        assert entries["pi"].equal_cost == pytest.approx((7.0 + 9.0 + 9.0) / 3)
        assert entries["vadd"].equal_cost is None
        shown = {str(row[0]): row[1:4] for row in cost_table(table).rows}
        assert shown["VAdD (KL)"] == ["–", "10.00", "–"]
