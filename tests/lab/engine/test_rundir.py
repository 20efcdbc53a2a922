import contextlib
import errno
import io
import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from advdrop.lab.config.values import ConfigError
from advdrop.lab.engine import rundir
from advdrop.lab.engine.run import split_of
from advdrop.lab.engine.rundir import RunDirectory, RunError
from advdrop.lab.engine.seal import digest_of
from runs import rings, tiny


def create(path, force=False, **settings):
    return RunDirectory.create(path, tiny(**settings), split_of(tiny(), rings()), force)


def finished(path):
    create(path).write_result({"test_error_percent": 1.0})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_new_run_has_its_configuration_and_its_split_at_once(tmp_path):
    run = create(tmp_path / "deep" / "r")
    assert names(run.path) == [".lock", "config.yaml", "split.npz"]
    assert run.config == tiny()
    assert run.split.labeled.tolist() == split_of(tiny(), rings()).labeled.tolist()
    assert not run.finished
    assert run.metrics() == []
    assert run.load_checkpoint() is None


def test_a_run_that_is_opened_from_inside_has_its_name(tmp_path, monkeypatch):
    create(tmp_path / "run")
    (tmp_path / "link").symlink_to("run")
    monkeypatch.chdir(tmp_path / "run")
    for path in (".", "../run", "../link"):
        assert RunDirectory.open(Path(path)).path == (tmp_path / "run").resolve()


def test_what_fails_half_way_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(rundir, "write_text", full)
    with pytest.raises(RunError, match=r"deep/r cannot be written: no space left; solve this or choose another --out"):
        create(tmp_path / "deep" / "r")
    assert names(tmp_path) == []


def test_force_replaces_a_run_and_nothing_else(tmp_path, monkeypatch):
    finished(tmp_path / "r")
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
    finished(tmp_path / "r")
    monkeypatch.setattr(rundir.LabelSplit, "save", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(RunError, match="no space"):
        create(tmp_path / "r", force=True)
    assert RunDirectory(tmp_path / "r").result["test_error_percent"] == 1
    assert names(tmp_path) == ["r"]


def test_metrics_come_back_as_they_were(tmp_path):
    run = create(tmp_path / "r")
    rows = [{"update": 1, "train/loss": 0.1 + 0.2}, {"update": 2, "train/loss": 1e-300, "test/error_percent": 3.25}]
    run.write_metrics(rows)
    assert run.metrics() == rows
    assert (run.path / "metrics.csv").read_text().splitlines()[0] == "update,train/loss,test/error_percent"


def test_the_lock_is_free_again_afterwards(tmp_path):
    run = create(tmp_path / "r")
    with run.locked(), pytest.raises(RunError, match="another process"), run.locked():
        pass
    with run.locked():
        pass


def test_what_a_killed_process_was_writing_into_a_run_is_removed_and_nothing_else(tmp_path):
    run = create(tmp_path / "r")
    for name in (".last.ckpt.0123456789ab.part", ".mine.part"):
        (run.path / name).write_text("half")
    with run.locked():
        assert [name for name in names(run.path) if name.endswith("part")] == [".mine.part"]


def test_a_result_that_is_not_there_says_how_to_get_it(tmp_path):
    run = create(tmp_path / "r")
    with pytest.raises(RunError, match=r"not finished; resume it with: advdrop train --resume .*r$"):
        _ = run.result
    (run.path / "result.json").write_text("{")
    with pytest.raises(ValueError, match=r"result\.json is not a JSON file"):
        _ = run.result


# ------------------------------------------------------------------------------------------------ nothing of the user's


def precious(folder):
    folder.mkdir()
    (folder / "config.yaml").write_text("mine\n")
    (folder / "thesis.txt").write_text("years of work\n")


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("out", ["precious", "new/../precious", "link", ".", "precious/config.yaml", "loop", "/"])
def test_a_folder_of_somebody_else_is_never_replaced(out, force, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    precious(tmp_path / "precious")
    Path("link").symlink_to("precious")
    Path("loop").symlink_to("loop")
    before = names(tmp_path)
    with pytest.raises(RunError):
        create(Path(out), force)
    assert names(tmp_path) == before
    assert names(tmp_path / "precious") == ["config.yaml", "thesis.txt"]


@pytest.mark.parametrize("out", ["r", "new/../r", "new/deep/../../r", "link", "r/../r"])
def test_a_finished_run_is_not_replaced_by_a_roundabout_way(out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finished(tmp_path / "r")
    Path("link").symlink_to("r")
    with pytest.raises(RunError, match=r"exists; resume it \(advdrop train --resume .*\), replace it \(--force\)"):
        create(Path(out))
    assert RunDirectory.open(tmp_path / "r").result["test_error_percent"] == 1
    assert names(tmp_path) == ["link", "r"]


@pytest.mark.parametrize("name", ["notes.txt", ".notes", ".mine.part"])
def test_a_run_with_a_file_of_the_user_is_not_replaced(name, tmp_path):
    (create(tmp_path / "r").path / name).write_text("mine")
    with pytest.raises(RunError, match=rf"r also holds {name}, so --force will not replace it; move that away first"):
        create(tmp_path / "r", force=True)
    assert (tmp_path / "r" / name).read_text() == "mine"


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_that_is_no_run_is_not_offered_for_replacement(force, tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(RunError, match=r"mine exists and is not a run that this program wrote; choose another --out"):
        create(tmp_path / "mine", force)


def test_no_run_is_made_inside_another(tmp_path):
    create(tmp_path / "r")
    with pytest.raises(RunError, match="is inside the run"):
        create(tmp_path / "r" / "deep" / "s")
    assert "deep" not in names(tmp_path / "r")


def test_a_run_that_is_trained_is_not_replaced(tmp_path):
    with create(tmp_path / "r").locked(), pytest.raises(rundir.BusyError):
        create(tmp_path / "r", force=True)
    assert names(tmp_path) == ["r"]


# ---------------------------------------------------------------------------------------------------------------- kills


def killed_after(path, steps):
    """Replace a run in a process that ends without a word at one of its steps; return True if it came that far."""
    child = os.fork()
    if not child:
        left = [steps]

        def count(event, arguments):
            if event.partition(".")[0] in ("os", "shutil", "fcntl") or (
                event == "open" and str(path) in str(arguments)
            ):
                left[0] -= 1
                if not left[0]:
                    os._exit(9)

        sys.addaudithook(count)
        create(path, force=True)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("at_once", [True, False], ids=["exchanged", "set aside"])
def test_a_kill_at_any_step_leaves_the_old_run_or_the_new_one(at_once, tmp_path, monkeypatch):
    if not at_once:
        monkeypatch.setattr(sys, "platform", "other")
    path, step, found = tmp_path / "r", 0, set()
    finished(path)
    while killed_after(path, step := step + 1):
        assert path.exists() or not at_once
        run = RunDirectory.open(path)
        run.refuse_edited()
        found.add(run.finished)
        if run.finished:
            assert run.result["test_error_percent"] == 1
        with run.locked():
            assert names(tmp_path) == ["r"]
        run.write_result({"test_error_percent": 1})
    assert found == {True, False}
    assert step > 30
    assert names(tmp_path) == ["r"]


def test_what_a_living_process_or_somebody_else_has_there_stays(tmp_path):
    mine = tmp_path / ".mine.0123456789ab.part"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    other, dead = tmp_path / ".other.0123456789ab.part", tmp_path / ".dead.0123456789ab.part"
    (tmp_path / "photos.part").mkdir()
    create(other)
    create(dead)
    with RunDirectory(other).locked(), create(tmp_path / "r").locked():
        assert names(tmp_path) == [mine.name, other.name, "photos.part", "r"]
    assert names(mine) == ["thesis.txt"]


# ---------------------------------------------------------------------------------------------------------------- seals


def changed(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new"),
    [("seed: 0", "seed: 1"), ("updates: 12", "updates: 10"), ("learning_rate: 0.001", "learning_rate: 0.01"),
     ("precision: '32'", "precision: bf16"), ("# advdrop run 1", "# "), ("seal ", "seal 0")],
)  # fmt: skip
def test_an_edited_configuration_is_refused(old, new, tmp_path):
    finished(tmp_path / "r")
    changed(tmp_path / "r" / "config.yaml", old, new)
    with pytest.raises(RunError, match=r"config\.yaml (or split\.npz was changed|has lost its first line)"):
        RunDirectory.open(tmp_path / "r").refuse_edited()
    with pytest.raises(RunError, match=r"config\.yaml"):
        _ = RunDirectory.open(tmp_path / "r").result


@pytest.mark.parametrize(
    ("old", "new"),
    [("data_dir: null", "data_dir: /data"), ("devices: 1", "devices: 2"), ("dataset: rings", "dataset: /new/rings"),
     ("checkpoint_seconds: 0.0", "checkpoint_seconds: 9"), ("accelerator: cpu", "accelerator: auto")],
)  # fmt: skip
def test_what_depends_on_the_machine_may_be_edited(old, new, tmp_path):
    finished(tmp_path / "r")
    changed(tmp_path / "r" / "config.yaml", old, new)
    RunDirectory.open(tmp_path / "r").refuse_edited()
    assert RunDirectory.open(tmp_path / "r").result["test_error_percent"] == 1


@pytest.mark.parametrize("section", ["engine:", "training:", "network:"])
def test_a_configuration_that_was_cut_off_is_refused(section, tmp_path):
    finished(tmp_path / "r")
    file = tmp_path / "r" / "config.yaml"
    file.write_text(file.read_text().partition(f"\n{section}")[0])
    with pytest.raises(RunError, match=r"config\.yaml or split\.npz was changed"):
        RunDirectory.open(tmp_path / "r").refuse_edited()


def test_a_split_of_another_run_is_refused(tmp_path):
    run = create(tmp_path / "r")
    split_of(OTHER, rings()).save(run.path / "split.npz")
    with pytest.raises(RunError, match=r"or split\.npz was changed after the start of the run; put it back as it was"):
        run.refuse_edited()


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 no longer a zip file", b"[" * 9999])
def test_a_split_that_is_none_is_named(content, tmp_path):
    finished(tmp_path / "r")
    (tmp_path / "r" / "split.npz").write_bytes(content)
    with pytest.raises(RunError, match=r"split\.npz: cannot be read .*; train the run again with --force"):
        RunDirectory.open(tmp_path / "r").refuse_edited()


def test_a_split_that_needs_too_much_memory_is_named(tmp_path, monkeypatch):
    finished(tmp_path / "r")
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=100))
    with pytest.raises(RunError, match=r"split\.npz: needs .* GiB of memory"):
        RunDirectory.open(tmp_path / "r").refuse_edited()


def test_a_split_without_an_array_is_named(tmp_path):
    finished(tmp_path / "r")
    np.savez(tmp_path / "r" / "split.npz", labeled=np.arange(3))
    with pytest.raises(RunError, match=r"split\.npz.*; train the run again with --force"):
        RunDirectory.open(tmp_path / "r").refuse_edited()


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([[1, 2], [3, 4]], r"labeled must hold whole numbers \(N,\), got int64 of shape \(2, 2\)"),
        ([0.5], r"labeled must hold whole numbers \(N,\), got float64"),
        (["a"], r"labeled must hold whole numbers"),
        ([-5, 3], "labeled must hold positions in ascending order, each once"),
        ([3, 3], "labeled must hold positions in ascending order, each once"),
        (np.zeros(0, np.int64), "it has no labeled row"),
    ],
)
def test_rows_that_are_none_are_named(rows, why, tmp_path):
    run = create(tmp_path / "r")
    arrays = dict(np.load(run.path / "split.npz"))
    np.savez(run.path / "split.npz", **{**arrays, "labeled": np.array(rows)})
    with pytest.raises(RunError, match=rf"split\.npz: cannot be read \(ValueError: {why}.*; train the run again"):
        _ = run.split


def test_a_configuration_that_cannot_be_read_is_named(tmp_path):
    run = create(tmp_path / "r")
    changed(run.path / "config.yaml", "seed: 0", "seed: x")
    with pytest.raises(ConfigError, match=r"r/config\.yaml: seed should be a valid integer"):
        _ = run.config


OTHER = tiny().model_copy(update={"seed": 1})
STATE = {"update": 3, "network": {"w": torch.ones(2, 3)}, "betas": (0.9, 0.5), "empty": torch.zeros(0), "bad": None}


@pytest.mark.parametrize(
    "other",
    [{"update": 10**9}, {"network": {"w": torch.ones(3, 2)}}, {"network": {"w": torch.ones(2, 3) + 1e-7}},
     {"betas": (0.9, 0.6)}, {"more": 1}],
)  # fmt: skip
def test_a_checkpoint_with_another_content_is_refused(other, tmp_path):
    run = create(tmp_path / "r")
    run.save_checkpoint(STATE)
    assert digest_of(run.load_checkpoint()) == digest_of(STATE)
    saved = torch.load(run.checkpoint, weights_only=True)
    torch.save({**saved, **other}, run.checkpoint)
    with pytest.raises(RunError, match=r"last\.ckpt is damaged or belongs to another run; delete it to start"):
        run.load_checkpoint()


@pytest.mark.parametrize("content", [[1, 2], {"update": 3}, 7, print], ids=["list", "no digest", "number", "code"])
def test_a_checkpoint_that_is_something_else_is_refused(content, tmp_path):
    run = create(tmp_path / "r")
    torch.save(content, run.checkpoint)
    with pytest.raises(RunError, match=r"last\.ckpt: cannot be read \(.*\); delete it to start the run again"):
        run.load_checkpoint()


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    create(tmp_path / "r").save_checkpoint(STATE)
    other = RunDirectory.create(tmp_path / "s", OTHER, split_of(OTHER, rings()))
    other.checkpoint.write_bytes((tmp_path / "r" / "last.ckpt").read_bytes())
    with pytest.raises(RunError, match="belongs to another run"):
        other.load_checkpoint()


@pytest.mark.parametrize("name", ["result.json", *rundir.RESULTS])
def test_results_that_were_edited_are_refused(name, tmp_path):
    run = create(tmp_path / "r")
    run.write_metrics([{"update": 4, "train/loss": 1.5}])
    for other in {*rundir.RESULTS} - {"metrics.csv"}:
        (run.path / other).write_bytes(b"1.5")
    run.write_result({"test_error_percent": 1.5})
    changed(run.path / name, "1.5", "2.5")
    run = RunDirectory.open(run.path)
    with pytest.raises(RunError, match=rf"{name} is damaged or belongs to another run; train the run again"):
        _ = run.result if name == "result.json" else run.read(run.path / name)


@pytest.mark.parametrize("text", ["[1, 2, 3]", "7", "{}", '{"sha256": 3, "test_error_percent": 1}', "[" * 100_000])
def test_a_result_that_is_none_is_refused(text, tmp_path):
    run = create(tmp_path / "r")
    (run.path / "result.json").write_text(text)
    with pytest.raises(ValueError, match=r"r/result\.json is "):
        _ = run.result


@pytest.mark.parametrize("value", ["x", None, [1], True, float("nan"), float("inf"), -1, 1e300])
def test_a_result_with_an_impossible_number_is_refused(value, tmp_path):
    """It has the digest of its content, as a stranger can make it."""
    create(tmp_path / "r").write_result({"test_error_percent": 1.0, "seconds": value})
    with pytest.raises(RunError, match=r"r/result\.json has seconds=.*, which cannot be right; train the run again"):
        _ = RunDirectory.open(tmp_path / "r").result


def test_a_result_without_a_field_is_named_when_the_field_is_needed(tmp_path):
    finished(tmp_path / "r")
    found = RunDirectory.open(tmp_path / "r").result
    for same in (found, pickle.loads(pickle.dumps(found))):  # workers send results
        with pytest.raises(RunError, match=r"r/result\.json has no seconds; train the run again with --force"):
            _ = same["seconds"]


@pytest.mark.parametrize("text", ["a list\n[1]\n", "update,loss\n1,2,3\n", "update\nnan\n", "update\n1.5\n"])
def test_metrics_that_are_none_are_refused(text, tmp_path):
    run = create(tmp_path / "r")
    (run.path / "metrics.csv").write_text(text)
    with pytest.raises(RunError, match=r"metrics\.csv"):
        run.metrics()


def test_a_disk_that_fills_up_during_a_checkpoint_is_told_as_such(tmp_path, monkeypatch):
    class Full(io.BytesIO):
        def write(self, data):
            if self.tell() + len(data) > 1000:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    monkeypatch.setattr(rundir, "written", lambda _: contextlib.nullcontext(Full()))
    with pytest.raises(OSError, match="No space left on device"):
        create(tmp_path / "r").save_checkpoint({"network": torch.zeros(10_000)})


def test_weights_that_are_none_are_refused(tmp_path):
    """They have the digest of their content, as a stranger can make it."""
    run = create(tmp_path / "r")
    run.model.write_bytes(b"no weights")
    run.write_result({"test_error_percent": 1.0})
    with pytest.raises(RunError, match=r"model\.safetensors: cannot be read .*; train the run again with --force"):
        RunDirectory.open(run.path).weights()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes")
@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("split.npz", lambda run: run.split),
        ("metrics.csv", lambda run: run.metrics()),
        ("model.safetensors", lambda run: run.weights()),
    ],
)
def test_a_pipe_in_a_run_is_refused_and_not_waited_for(name, use, tmp_path):
    finished(tmp_path / "r")
    (tmp_path / "r" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "r" / name)
    with pytest.raises(RunError, match=f"{name} is a pipe or a device, not a file; train the run again with --force"):
        use(RunDirectory.open(tmp_path / "r"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes")
def test_a_pipe_beside_a_new_run_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.yaml")
    assert create(tmp_path / "r").path.is_dir()
