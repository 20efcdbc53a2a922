from advdrop.lab.config.values import merged
from advdrop.lab.report.collect import results_of
from advdrop.lab.report.results import LOOSE
from ledger import loose_of, reconfigured, run_of


def test_a_run_that_was_repeated_with_other_errors_is_a_row_named_by_its_date():
    (table,) = results_of([loose_of(), loose_of("vadd-kl", 0, (40.0, 11.0), finished="2027-01-01")])
    assert [row.name for row in table.suite.rows.values()] == ["vadd-kl", "vadd-kl, finished 2027-01-01"]
    assert [entry.errors for entry in table.entries.values()] == [{0: 10.0}, {0: 11.0}]


def test_records_of_no_suite_make_a_table_of_their_own(suite):
    runs = [loose_of("vadd-kl", 0), loose_of("vadd-kl", 1), loose_of("pi", 0), loose_of("vat", 0, labels=50)]
    found = results_of([run_of(suite), *runs], {suite.key: suite})
    assert [table.suite.title for table in found] == ["A small table", "digits, 20 labels", "digits, 50 labels"]
    table = found[1]
    assert table.suite.key == LOOSE
    assert list(table.suite.rows) == ["vadd-kl", "pi"]
    assert table.entries["vadd-kl", "runs"].errors == {0: 10.0, 1: 10.0}
    assert [(c.one, c.other, c.found.n) for c in table.comparisons] == [("vadd-kl", "pi", 1)]
    assert table.deviations == []
    assert table.suite.protocols["own"].about == "40 updates"


def test_only_adversarial_dropout_is_compared_with_its_rivals():
    methods = ("sadd", "vadd-qe", "vat+vadd-kl", "ladder", "no-flips", "entropy", "dropout", "pi")
    (table,) = results_of([loose_of(method) for method in methods])
    assert {c.one for c in table.comparisons} == {"sadd", "vadd-qe", "vat+vadd-kl"}
    assert {c.other for c in table.comparisons} == {"dropout", "pi"}


def longer(record, updates):
    """The record of the same run with more updates."""
    curve = record.curve | {"update": [*record.curve["update"][:-1], updates]}
    whole = {"updates": updates, "curve": curve, "config": merged(record.config, {"training": {"updates": updates}})}
    return record.model_copy(update=whole).sealed()


def test_runs_of_several_lengths_are_tables_named_by_their_length():
    runs = [loose_of("vadd-kl"), loose_of("pi"), longer(loose_of("vadd-kl"), 2000), longer(loose_of("pi"), 2000)]
    short, long = results_of(runs)
    assert short.suite.title == "digits, 20 labels, 40 updates"
    assert long.suite.title == "digits, 20 labels, 2,000 updates"
    assert [record.updates for record in long.records] == [2000, 2000]
    assert [(c.one, c.other) for c in long.comparisons] == [("vadd-kl", "pi")]


def test_other_data_with_the_same_name_in_another_folder_are_told_apart():
    first = loose_of(dataset="/a/photos.npz")
    found = results_of([first, loose_of(dataset="/b/photos.npz", dataset_checksum="a" * 64)])
    assert [table.suite.title for table in found] == [f"photos, 20 labels, data {8 * letter}" for letter in "da"]
    assert results_of([first])[0].suite.title == "photos, 20 labels"


def test_runs_of_one_method_with_other_settings_are_rows_named_by_what_differs():
    base = loose_of("vadd-kl")
    delta = float(base.config["network"]["delta"])
    (table,) = results_of([base, reconfigured(base, {"network": {"delta": delta / 2}}), loose_of("pi")])
    assert [row.name for row in table.suite.rows.values()] == [
        f"vadd-kl, network.delta={delta}",
        f"vadd-kl, network.delta={delta / 2}",
        "pi",
    ]
    assert [len(entry.records) for entry in table.entries.values()] == [1, 1, 1]
    assert len(table.comparisons) == 2


def test_presets_of_one_method_are_rows_named_by_the_preset():
    authors = reconfigured(loose_of("pi"), {"preset": "authors", "objective": {"entropy": 1.0}})
    (table,) = results_of([loose_of("pi"), authors])
    assert [row.name for row in table.suite.rows.values()] == ["pi, preset=robust", "pi, preset=authors"]


def test_machines_of_one_run_make_no_rows():
    (table,) = results_of([loose_of("pi"), reconfigured(loose_of("pi", 1), {"engine": {"accelerator": "cpu"}})])
    assert list(table.suite.rows) == ["pi"]


def test_rows_whose_names_differ_in_punctuation_alone_are_rows_of_their_own():
    def run(folder, seed, error):
        record = loose_of("pi", seed, (40.0, error))
        return record.model_copy(update={"config": {**record.config, "unlabeled": folder}})

    (table,) = results_of([run("/a b", 0, 1.0), run("/a b", 1, 2.0), run("/a-b", 2, 9.0)])
    assert [table.entries[row, "runs"].summary.mean for row in table.measured] == [1.5, 9.0]
    assert len({row.name for row in table.suite.rows.values()}) == 2


def test_records_of_no_suite_stay_as_they_are(suite):
    records = [loose_of("vadd-kl", 0), loose_of("pi", 0)]
    (table,) = results_of(records)
    assert table.records == records
    assert all(record.digest == record.computed_digest() for record in table.records)
