import shutil

import pytest

from advdrop.lab.engine import RunDirectory, train
from advdrop.lab.engine.rundir import RunError
from advdrop.lab.records.record import ERROR, Record, RecordError, curve_of, record_of
from runs import rings, tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("record") / "run"
    train(tiny(), path, data=rings(), progress=False)
    return RunDirectory.open(path)


def test_a_record_says_what_the_run_directory_says(run, tmp_path):
    record = record_of(run)
    assert list(record.complaints()) == []
    result, rows = run.result, run.metrics()
    for name in ("method", "labels", "seed", "updates", ERROR, "milliseconds_per_update", "versions", "machine"):
        assert getattr(record, name) == result[name]
    assert record.curve["update"] == [4, 8, 12]
    assert record.curve[ERROR] == pytest.approx([row["test/error_percent"] for row in rows], rel=1e-5)
    flips = [row["search/vadd_kl/flips"] for row in rows]
    assert record.curve["search_vadd_kl_flips"] == pytest.approx(flips, rel=1e-5)
    assert (record.examples, record.shape, record.test_images) == (60, (6,), 30)
    assert record.suite is None
    assert "data_dir" not in record.config
    (tmp_path / "a.json").write_text(record.dump())
    assert Record.read(tmp_path / "a.json") == record


def test_a_record_knows_how_far_a_companion_trusted_unlabeled_images(run, tmp_path):
    assert "companion_trust" not in record_of(run).curve
    train(tiny(preset="robust"), tmp_path / "run", data=rings(), progress=False)
    blended = RunDirectory.open(tmp_path / "run")
    trust = [row["companion/trust"] for row in blended.metrics()]
    assert record_of(blended).curve["companion_trust"] == pytest.approx(trust, rel=1e-5)


def test_a_record_has_its_place_in_a_suite_and_the_digest_knows_it(run):
    place = {"suite": "table1", "protocol": "short", "preset": "authors", "column": "1000", "row": "vadd-kl"}
    loose, placed = record_of(run), record_of(run, **place)
    assert placed.name == "table1 short authors 1000 vadd-kl seed 0"
    assert (placed.preset, placed.config["preset"]) == ("authors", "paper")
    assert placed.digest != loose.digest
    assert placed.split_checksum == loose.split_checksum


def test_the_split_is_told_by_its_rows(run, tmp_path):
    config = tiny("training.updates=1")
    checksums = []
    for seed in (0, 0, 1):
        path = tmp_path / str(len(checksums))
        train(config.model_copy(update={"seed": seed}), path, data=rings(), progress=False)
        checksums.append(record_of(RunDirectory.open(path)).split_checksum)
    assert checksums[0] == checksums[1] == record_of(run).split_checksum
    assert checksums[2] != checksums[0]


def test_what_was_not_measured_is_none_and_the_last_error_has_all_its_digits():
    rows = [{"update": 4, "seconds": 1.0}, {"update": 8, "test/error_percent": 3.3333333, "seconds": 2.0}]
    curve = curve_of(rows, 10 / 3)
    assert curve[ERROR] == [None, 10 / 3]
    assert curve["train_loss"] == [None, None]


@pytest.mark.parametrize("field", ["method", "shape", "versions"])
def test_a_result_without_a_field_is_named(field, run, tmp_path):
    """It has the digest of its content, as a stranger can make it."""
    path = shutil.copytree(run.path, tmp_path / "r")
    RunDirectory.open(path).write_result({key: run.result[key] for key in run.result if key not in (field, "sha256")})
    with pytest.raises(RecordError, match=rf"r/result\.json: {field} Field required; train the run again with --force"):
        record_of(RunDirectory.open(path))


def test_a_run_that_is_not_finished_has_no_record(run, tmp_path):
    (tmp_path / "config.yaml").write_text((run.path / "config.yaml").read_text())
    with pytest.raises(RunError, match="is not finished"):
        record_of(RunDirectory.open(tmp_path))
