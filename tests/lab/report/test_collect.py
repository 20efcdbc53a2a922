import pytest

from advdrop.lab.config.values import ConfigError
from advdrop.lab.records.record import Ledger
from advdrop.lab.report.collect import ORDER, check, collect, results_of
from advdrop.lab.suites.suite import suites
from ledger import loose_of, reconfigured, refusal, run_of, suite_of, tables


def test_a_record_of_a_quoted_row_is_refused(suite):
    forged = run_of(suite, "vadd").model_copy(update={"row": "ladder"}).sealed()
    assert refusal(check, forged, suite) == (
        "the record small short paper 20 ladder seed 0 is of a run that small does not have: "
        "Ladder is quoted from Rasmus et al. 2015; there is nothing to run"
    )


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
    record = reconfigured(run_of(suite), settings)
    if keys is None:
        check(record, suite)
        return
    expected = f"the record small short paper 20 vadd seed 0 is of a run with another {keys} than the suite's"
    assert refusal(check, record, suite) == expected
    assert refusal(tables, suite, record) == expected


def test_a_record_of_another_length_is_refused(suite):
    record = run_of(suite, protocol="paper").model_copy(update={"protocol": "short"}).sealed()
    assert "another training.epoch_updates, training.updates than" in refusal(check, record, suite)


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
    assert refusal(tables, suite, record).startswith(message)


def test_an_invalid_configuration_is_refused_with_the_name_of_its_record(suite):
    record = reconfigured(run_of(suite), {"network": {"delta": "much"}})
    assert refusal(tables, suite, record).startswith(
        "the record small short paper 20 vadd seed 0 has an invalid configuration: network.delta should be"
    )
    loose = loose_of().model_copy(update={"method": "<b>", "config": {"method": "<b>"}}).sealed()
    assert refusal(results_of, [loose]).startswith("the record digits 20 <b> seed 0 has an invalid configuration")


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


def test_runs_on_data_that_have_changed_are_not_in_one_table(suite):
    now = {"dataset_checksum": "a" * 64}
    old, new = [loose_of("pi"), loose_of("vadd-kl")], [loose_of("pi", **now), loose_of("vadd-kl", **now)]
    tables_now, tables_old = results_of([old[0], *new, old[1]])
    assert (tables_now.records, tables_old.records) == (new, old)
    assert tables_now.suite.title == "digits, 20 labels, data aaaaaaaa"
    assert tables_old.suite.title == "digits, 20 labels, data dddddddd"
    assert refusal(tables, suite, run_of(suite, "pi"), run_of(suite, "vadd", **now)) == (
        "the records small short paper 20 pi seed 0 and small short paper 20 vadd seed 0 are of different data, though "
        "both are called digits; leave one of them out"
    )
    tables(suite, run_of(suite, "pi"), run_of(suite, "vadd", column="all", **now))  # no pairs across columns


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
    assert refusal(collect, [tmp_path / "results"]).startswith("there are records of the suite 'small', which is unk")


def test_a_place_without_records_is_named(tmp_path):
    (tmp_path / "step.json").write_text("{}")
    assert collect([tmp_path]) == []
    assert refusal(collect, [tmp_path / "nowhere"]) == f"{tmp_path / 'nowhere'} does not exist"
    assert refusal(collect, [tmp_path / "step.json"]).startswith(f"{tmp_path / 'step.json'} is not a record: ")


def test_a_suite_that_is_none_is_named(tmp_path):
    (tmp_path / "bad.yaml").write_text("title: [")
    with pytest.raises(ConfigError, match=r"bad\.yaml is not YAML"):
        collect([tmp_path / "bad.yaml"])


def test_two_suites_of_one_key_are_refused_and_copies_are_not(tmp_path):
    (tmp_path / "copy").mkdir()
    files = [tmp_path / "small.yaml", tmp_path / "copy" / "small.yaml"]
    suite = suite_of(tmp_path)
    suite_of(tmp_path / "copy")
    Ledger(tmp_path / "results").add(run_of(suite))
    assert len(collect([*files, tmp_path / "results"])) == 1
    suite_of(tmp_path / "copy", title="Another")
    assert refusal(collect, [*files, tmp_path / "results"]) == (
        f"{files[0]} and {files[1]}: two different suites have the key 'small'"
    )
