import pytest

from advdrop.lab.config.values import ConfigError, merged
from advdrop.lab.records.record import Ledger, RecordError
from advdrop.lab.report.collect import LOOSE, ORDER, check, collect, results_of
from advdrop.lab.report.statistics import Difference
from advdrop.lab.suites.suite import Reported, suites
from ledger import loose_of, run_of, suite_of


def tables(suite, *records):
    return results_of(records, {suite.key: suite})


def complaint(call, *arguments):
    with pytest.raises(RecordError) as error:
        call(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def changed(record, settings):
    return record.model_copy(update={"config": merged(record.config, settings)}).sealed()


def test_every_cell_of_the_suite_is_there_whether_it_was_run_or_not(suite):
    (table,) = tables(suite, run_of(suite, "vadd", 1), run_of(suite, "vadd", 0))
    assert set(table.entries) == {(row, column) for row in suite.rows for column in suite.columns}
    assert [record.seed for record in table.entries["vadd", "20"].records] == [0, 1]
    assert table.entries["pi", "20"].records == ()
    assert table.entries["pi", "20"].summary is None
    assert table.entries["pi", "20"].gap is None
    assert table.entries["pi", "20"].equal_cost is None
    assert (table.name, table.protocol, table.preset) == ("small-short-paper", "short", "paper")


def test_columns_in_which_nothing_was_run_are_left_out(suite):
    (table,) = tables(suite, run_of(suite, "vadd"))
    assert table.columns == ["20"]
    (table,) = tables(suite, run_of(suite, "vadd", column="all"), run_of(suite, "vadd"))
    assert table.columns == ["20", "all"]


def test_a_cell_has_the_papers_number_and_the_gap_to_it(suite):
    runs = [run_of(suite, "pi", seed, (50.0, last)) for seed, last in enumerate((5.0, 5.2, 5.4))]
    (table,) = tables(suite, *runs)
    entry = table.entries["pi", "20"]
    assert entry.reported == (5.1, 0.2, True)
    assert entry.errors == {0: 5.0, 1: 5.2, 2: 5.4}
    assert entry.summary == (pytest.approx(5.2), pytest.approx(0.2), 3)
    # 0.2²/3 = 0.0133333 (2 free) and, from five repetitions, 0.2²/5 = 0.008 (4 free): 0.0213333² / (8.88889e-5 +
    # 1.6e-5) = 4.3390 degrees of freedom, t = 2.6921; sqrt(0.0213333) = 0.146059. Their product is 0.3932.
    assert entry.gap == (pytest.approx(0.1), pytest.approx(0.3932, abs=2e-4), 3)


def test_a_number_without_a_spread_in_the_paper_is_taken_for_exact(suite):
    runs = [run_of(suite, "dropout", seed, (50.0, last)) for seed, last in enumerate((12.0, 12.2, 12.4))]
    (table,) = tables(suite, *runs)
    # 4.302653 · 0.2/sqrt(3)
    assert table.entries["dropout", "20"].gap == (pytest.approx(-0.16), pytest.approx(0.496828, abs=1e-6), 3)


def test_a_single_run_has_a_gap_without_an_interval(suite):
    (table,) = tables(suite, run_of(suite, "pi", 0, (50.0, 5.0)))
    assert table.entries["pi", "20"].gap == (pytest.approx(-0.1), None, 1)


def test_a_quoted_row_has_the_papers_number_and_none_of_ours(suite):
    (table,) = tables(suite, run_of(suite, "vadd"))
    entry = table.entries["ladder", "20"]
    assert (entry.reported, entry.records, entry.gap) == ((1.06, 0.37, False), (), None)
    assert "ladder" not in suite.trained


def test_a_record_of_a_quoted_row_is_refused(suite):
    forged = run_of(suite, "vadd").model_copy(update={"row": "ladder"}).sealed()
    assert complaint(check, forged, suite) == (
        "the record small short paper 20 ladder seed 0 is of a run that small does not have: "
        "Ladder is quoted from Rasmus et al. 2015; there is nothing to run"
    )


def test_rows_are_compared_on_the_seeds_they_share(suite):
    runs = [run_of(suite, "vadd", seed, (50.0, last)) for seed, last in enumerate((4.1, 4.2, 4.3))]
    runs += [run_of(suite, "pi", seed, (50.0, last)) for seed, last in enumerate((4.0, 4.0, 4.0, 9.0))]
    runs += [run_of(suite, "dropout", 0, (50.0, 12.0))]
    (table,) = tables(suite, *runs)
    one, two = table.comparisons
    assert (one.column, one.one, one.other, one.found.n) == ("20", "vadd", "pi", 3)
    # Differences 0.1, 0.2, 0.3: see the tests of the statistics.
    assert one.found.t_p == pytest.approx(0.074180, abs=1e-6)
    assert one.holm_p == one.found.t_p  # the other comparison has no p
    assert (two.other, two.found.n, two.found.difference) == ("dropout", 1, Difference(pytest.approx(-7.9), None))
    assert two.holm_p is None


def test_the_comparisons_of_a_column_are_corrected_together(suite):
    runs = [run_of(suite, "vadd", seed, (50.0, last)) for seed, last in enumerate((4.1, 4.2, 4.3))]
    for row in ("pi", "dropout"):
        runs += [run_of(suite, row, seed, (50.0, 4.0)) for seed in range(3)]
    (table,) = tables(suite, *runs)
    assert [c.holm_p for c in table.comparisons] == [pytest.approx(2 * 0.074180, abs=1e-5)] * 2


def test_rows_that_were_not_run_are_not_compared(suite):
    (table,) = tables(suite, run_of(suite, "vadd", 0), run_of(suite, "pi", 1))
    assert table.comparisons == []


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ({"network": {"delta": 0.9}}, "network.delta"),
        (
            {"network": {"delta": 0.9}, "optimizer": {"learning_rate": 0.5}},
            "network.delta, optimizer.learning_rate",
        ),
        ({"training": {"labeled": 64}}, "training.labeled"),
        ({"preset": "authors"}, "preset"),
        ({"engine": {"precision": "bf16"}}, "engine.precision"),
        ({"engine": {"accelerator": "cpu", "checkpoint_seconds": 7.0}}, None),  # the machine's own
    ],
)
def test_a_record_of_another_configuration_is_refused(suite, settings, keys):
    record = changed(run_of(suite), settings)
    if keys is None:
        check(record, suite)
        return
    expected = f"the record small short paper 20 vadd seed 0 is of a run with another {keys} than the suite's"
    assert complaint(check, record, suite) == expected
    assert complaint(tables, suite, record) == expected


def test_a_record_of_another_length_is_refused(suite):
    record = run_of(suite, protocol="paper").model_copy(update={"protocol": "short"}).sealed()
    assert "another training.epoch_updates, training.updates than" in complaint(check, record, suite)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row": "vat"}, "the record small short paper 20 vat seed 0 has a row that small does not have"),
        ({"row": None}, "the record small short paper 20 None seed 0 has a row that small does not have"),
        ({"column": "50"}, "the record small short paper 50 vadd seed 0 has a column that small does not have"),
        (
            {"protocol": "brief"},
            "the record small brief paper 20 vadd seed 0 is of a run that small does not have: prot",
        ),
        (
            {"preset": "ours"},
            "the record small short ours 20 vadd seed 0 is of a run that small does not have: row vadd: preset",
        ),
        ({"suite": "tiny"}, "there are records of the suite 'tiny', which is unknown; name its YAML file as well"),
    ],
)
def test_a_record_without_a_place_in_its_suite_is_refused(suite, changes, message):
    record = run_of(suite).model_copy(update=changes).sealed()
    assert complaint(tables, suite, record).startswith(message)


def test_an_invalid_configuration_is_refused_with_the_name_of_its_record(suite):
    record = changed(run_of(suite), {"network": {"delta": "much"}})
    assert complaint(tables, suite, record).startswith(
        "the record small short paper 20 vadd seed 0 has an invalid configuration: network.delta should be"
    )
    loose = loose_of().model_copy(update={"method": "<b>", "config": {"method": "<b>"}}).sealed()
    assert complaint(results_of, [loose]).startswith("the record digits 20 <b> seed 0 has an invalid configuration")


def test_copies_of_a_record_count_once(suite):
    (table,) = tables(suite, run_of(suite), run_of(suite, finished="2027-01-01"))
    assert table.records == [run_of(suite)]
    (table,) = results_of([loose_of(), loose_of(finished="2027-01-01")])
    assert table.records == [loose_of()]


def test_two_results_of_one_cell_are_refused(suite):
    assert complaint(tables, suite, run_of(suite), run_of(suite, "vadd", 0, (40.0, 11.0))) == (
        "the record small short paper 20 vadd seed 0 is there twice, with different errors; leave one of them out"
    )


def test_a_run_that_was_repeated_with_other_errors_is_a_row_named_by_its_date():
    (table,) = results_of([loose_of(), loose_of("vadd-kl", 0, (40.0, 11.0), finished="2027-01-01")])
    assert [row.name for row in table.suite.rows.values()] == ["vadd-kl", "vadd-kl, finished 2027-01-01"]
    assert [entry.errors for entry in table.entries.values()] == [{0: 10.0}, {0: 11.0}]


def test_protocols_and_presets_are_tables_of_their_own(suite):
    runs = [run_of(suite), run_of(suite, protocol="paper"), run_of(suite, preset="authors")]
    found = tables(suite, *runs)
    assert {table.name for table in found} == {"small-short-paper", "small-paper-paper", "small-short-authors"}
    assert all(len(table.records) == 1 for table in found)


def test_a_row_with_a_preset_of_its_own_keeps_it(tmp_path):
    suite = suite_of(tmp_path, rows={"vadd": {"preset": "authors"}})
    (table,) = tables(suite, run_of(suite, "vadd"), run_of(suite, "pi"))
    assert table.entries["vadd", "20"].records[0].config["preset"] == "authors"
    assert table.entries["pi", "20"].records[0].config["preset"] == "paper"


def test_what_differs_from_the_papers_protocol_is_listed_once(suite):
    (table,) = tables(suite, run_of(suite, "vadd", 0), run_of(suite, "vadd", 1), run_of(suite, "pi", 0))
    whole = run_of(suite, protocol="paper")
    rows = ("pi", "vadd")
    assert table.deviations == [
        ("training.epoch_updates", "10", "100", rows),
        ("training.updates", "40", str(whole.updates), rows),
    ]


def test_the_settings_of_a_row_differ_from_the_paper_only_if_the_paper_has_no_number_for_it(suite):
    settings = {"settings": {"optimizer": {"learning_rate": 0.5}}}
    for paper in ({}, {"20": "1.0"}):
        row = suite.rows["vadd"].model_copy(update=settings | {"paper": {c: Reported.of(n) for c, n in paper.items()}})
        changed = suite.model_copy(update={"rows": suite.rows | {"vadd": row}})
        (table,) = tables(changed, run_of(changed, "vadd"), run_of(changed, "pi"))
        found = [each for each in table.deviations if each.key == "optimizer.learning_rate"]
        assert found == ([] if paper else [("optimizer.learning_rate", "0.5", "0.001", ("vadd",))])


def test_what_differs_from_the_papers_preset_is_listed(suite):
    (table,) = tables(suite, run_of(suite, "vadd", preset="authors"))
    keys = {each.key: (each.here, each.paper) for each in table.deviations}
    assert keys["training.updates"] == ("40", "1000")
    assert keys["data.overlap"] == ("True", "False")
    assert "preset" not in keys


def test_a_run_as_in_the_paper_has_no_deviations(suite):
    (table,) = tables(suite, run_of(suite, protocol="paper"))
    assert table.deviations == []


def test_a_suite_without_the_papers_protocol_lists_no_deviations(tmp_path):
    suite = suite_of(tmp_path)
    suite = suite.model_copy(update={"protocols": {"short": suite.protocols["short"]}})
    (table,) = tables(suite, run_of(suite))
    assert table.deviations == []


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


def test_runs_on_data_that_have_changed_are_not_in_one_table(suite):
    now = {"dataset_checksum": "a" * 64}
    old, new = [loose_of("pi"), loose_of("vadd-kl")], [loose_of("pi", **now), loose_of("vadd-kl", **now)]
    tables_now, tables_old = results_of([old[0], *new, old[1]])
    assert (tables_now.records, tables_old.records) == (new, old)
    assert tables_now.suite.title == "digits, 20 labels, data aaaaaaaa"
    assert tables_old.suite.title == "digits, 20 labels, data dddddddd"
    assert complaint(tables, suite, run_of(suite, "pi"), run_of(suite, "vadd", **now)) == (
        "the records small short paper 20 pi seed 0 and small short paper 20 vadd seed 0 are of different data, though "
        "both are called digits; leave one of them out"
    )
    tables(suite, run_of(suite, "pi"), run_of(suite, "vadd", column="all", **now))  # no pairs across columns


def test_runs_of_one_method_with_other_settings_are_rows_named_by_what_differs():
    base = loose_of("vadd-kl")
    delta = float(base.config["network"]["delta"])
    (table,) = results_of([base, changed(base, {"network": {"delta": delta / 2}}), loose_of("pi")])
    assert [row.name for row in table.suite.rows.values()] == [
        f"vadd-kl, network.delta={delta}",
        f"vadd-kl, network.delta={delta / 2}",
        "pi",
    ]
    assert [len(entry.records) for entry in table.entries.values()] == [1, 1, 1]
    assert len(table.comparisons) == 2


def test_presets_of_one_method_are_rows_named_by_the_preset():
    authors = changed(loose_of("pi"), {"preset": "authors", "objective": {"entropy": 1.0}})
    (table,) = results_of([loose_of("pi"), authors])
    assert [row.name for row in table.suite.rows.values()] == ["pi, preset=robust", "pi, preset=authors"]


def test_machines_of_one_run_make_no_rows():
    (table,) = results_of([loose_of("pi"), changed(loose_of("pi", 1), {"engine": {"accelerator": "cpu"}})])
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


def test_the_headline_comes_first():
    assert set(ORDER) == set(suites())
    assert next(iter(ORDER)) == "table1"


def test_records_are_found_in_folders_and_files_and_with_a_suite_of_the_users_own(tmp_path, suite):
    ledger = Ledger(tmp_path / "results")
    runs = [run_of(suite, "vadd"), run_of(suite, "pi")]
    for run in runs:
        ledger.add(run)
    (tmp_path / "results" / "step.json").write_text("{}")
    yaml = tmp_path / "small.yaml"
    (table,) = collect([yaml, tmp_path / "results"])
    assert {record.digest for record in table.records} == {run.digest for run in runs}
    (table,) = collect(iter([ledger.path(runs[0]), yaml]))
    assert table.records == [runs[0]]
    assert complaint(collect, [tmp_path / "results"]).startswith("there are records of the suite 'small', which is unk")


def test_a_place_without_records_is_named(tmp_path):
    (tmp_path / "step.json").write_text("{}")
    assert collect([tmp_path]) == []
    assert complaint(collect, [tmp_path / "nowhere"]) == f"{tmp_path / 'nowhere'} does not exist"
    assert complaint(collect, [tmp_path / "step.json"]).startswith(f"{tmp_path / 'step.json'} is not a record: ")


def test_a_suite_that_is_none_is_named(tmp_path):
    (tmp_path / "bad.yaml").write_text("title: [")
    with pytest.raises(ConfigError, match=r"bad\.yaml is not YAML"):
        collect([tmp_path / "bad.yaml"])
