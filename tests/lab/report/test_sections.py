from advdrop.lab.report.collect import results_of
from advdrop.lab.report.sections import HELD, REVERSED, UNKNOWN, Cell, Table, confusions, in_words, sections, verdicts
from ledger import loose_of, run_of


def found(suite, vadd, pi):
    runs = [run_of(suite, "vadd", seed, (40.0, error)) for seed, error in enumerate(vadd)]
    runs += [run_of(suite, "pi", seed, (40.0, error)) for seed, error in enumerate(pi)]
    (results,) = results_of(runs, {suite.key: suite})
    return verdicts(results)


def test_a_lower_error_on_every_seed_held(suite):
    seen = found(suite, [4.0, 4.1, 4.2], [5.0, 5.1, 5.3])
    assert [line.split(":")[0] for line in seen[HELD]] == ["VAdD (KL) below Π model, 20 labels"]
    assert "difference -1.03 ± 0.14, n = 3, p: " in seen[HELD][0]
    assert REVERSED not in seen


def test_a_higher_one_is_the_other_way_round(suite):
    seen = found(suite, [5.0, 5.1, 5.3], [4.0, 4.1, 4.2])
    assert HELD not in seen
    assert "difference +1.03" in seen[REVERSED][0]


def test_what_could_be_chance_or_was_not_run_is_not_known(suite):
    assert "difference -0.07" in found(suite, [4.0, 4.4, 4.2], [4.3, 4.2, 4.3])[UNKNOWN][0]
    assert "difference -1.00 in a single run" in found(suite, [4.0], [5.0])[UNKNOWN][0]
    seen = found(suite, [4.0, 4.1], [])
    assert any(line.endswith("Π model, 20 labels: not run") for line in seen[UNKNOWN])
    assert list(seen) == ["What is not known yet"]


def test_columns_of_dashes_are_left_out():
    table = Table(["name", "a", "b", "c"], [["x", "–", "1", ""], ["y", "–", "–", Cell("–", "soft")]])
    assert table.without_dashes.head == ["name", "b"]
    assert [[cell.text for cell in row] for row in table.without_dashes.cells] == [["x", "1"], ["y", "–"]]
    assert Table(["name", "a"], [["x", "–"]]).without_dashes.rows == []


def test_runs_of_no_suite_have_their_errors_first_and_statistics_behind():
    (results,) = results_of([loose_of("dropout", 0), loose_of("pi", 0)])
    first, *others = sections(results)
    assert first.table.head == ["Method", "test error %", "seeds", "ms per update"]
    assert [[cell.text for cell in row] for row in first.table.cells] == [
        ["dropout", "10.00", "1", "2"],
        ["pi", "10.00", "1", "2"],
    ]
    assert not first.folded
    assert all(part.folded for part in others)
    assert [part.heading for part in others] == ["Run it again"]
    assert in_words(results) == []  # no row of a loose table is compared unless it has adversarial dropout


def test_the_most_frequent_mistakes_come_first(answer):
    classes, counts = ("a", "b", "c"), ((9, 2, 5), (0, 9, 5), (1, 0, 9))
    table = confusions(answer.model_copy(update={"classes": classes, "confusion": counts}))
    assert table.head == ["true class", "vadd-qe predicts", "test images"]
    assert table.rows == [["a", "c", "5"], ["b", "c", "5"], ["a", "b", "2"], ["c", "a", "1"]]
