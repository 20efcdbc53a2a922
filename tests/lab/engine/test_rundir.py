import pytest

from advdrop.lab.engine import rundir
from advdrop.lab.engine.run import split_of
from advdrop.lab.engine.rundir import RunDirectory, RunError
from runs import rings, tiny


def create(path, force=False, **settings):
    return RunDirectory.create(path, tiny(**settings), split_of(tiny(), rings()), force)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_new_run_has_its_configuration_and_its_split_at_once(tmp_path):
    run = create(tmp_path / "deep" / "r")
    assert names(run.path) == ["config.yaml", "split.npz"]
    assert run.config == tiny()
    assert run.split.labeled.tolist() == split_of(tiny(), rings()).labeled.tolist()
    assert not run.finished
    assert run.metrics() == []
    assert run.load_checkpoint() is None


def test_what_fails_half_way_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(rundir, "write_text", full)
    with pytest.raises(OSError, match="no space"):
        create(tmp_path / "r")
    assert names(tmp_path) == []


def test_force_replaces_a_run_and_nothing_else(tmp_path, monkeypatch):
    create(tmp_path / "r").write_result({"x": 1})
    assert create(tmp_path / "r", force=True).finished is False
    assert names(tmp_path) == ["r"]
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(RunError, match="is not a run"):
        create(tmp_path / "photos", force=True)
    assert names(tmp_path / "photos") == ["cat.jpg"]
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError):
        create(tmp_path / "file", force=True)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_replacement_that_fails_keeps_the_old_run(tmp_path, monkeypatch):
    create(tmp_path / "r").write_result({"x": 1})
    monkeypatch.setattr(rundir.LabelSplit, "save", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space"):
        create(tmp_path / "r", force=True)
    assert RunDirectory(tmp_path / "r").result == {"x": 1}
    assert names(tmp_path) == ["r"]


def test_metrics_come_back_as_they_were(tmp_path):
    run = create(tmp_path / "r")
    rows = [{"epoch": 1, "train/loss": 0.1 + 0.2}, {"epoch": 2, "train/loss": 1e-300, "test/error_percent": 3.25}]
    run.write_metrics(rows)
    assert run.metrics() == rows
    assert (run.path / "metrics.csv").read_text().splitlines()[0] == "epoch,train/loss,test/error_percent"


def test_the_lock_is_free_again_afterwards(tmp_path):
    run = create(tmp_path / "r")
    with run.locked(), pytest.raises(RunError, match="another process"), run.locked():
        pass
    with run.locked():
        pass


def test_a_result_that_is_not_there_says_how_to_get_it(tmp_path):
    run = create(tmp_path / "r")
    with pytest.raises(RunError, match=r"not finished; resume it with: advdrop train --resume .*r$"):
        _ = run.result
    (run.path / "result.json").write_text("{")
    with pytest.raises(ValueError, match=r"result\.json is not a JSON file"):
        _ = run.result
