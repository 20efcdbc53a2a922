"""Many runs: how many at a time, in what order, and what happens to those that fail, are killed or stopped."""

import io
import os
import re
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from advdrop.lab.data import load
from advdrop.lab.engine import RunDirectory, jobs, progress
from advdrop.lab.engine.cluster import side_by_side
from advdrop.lab.engine.jobs import Cell, Jobs, jobs_of, run_cells
from advdrop.lab.engine.loop import DivergedError
from advdrop.lab.engine.progress import Overview, makespan
from advdrop.lab.engine.run import train
from advdrop.lab.engine.rundir import BusyError
from advdrop.lab.engine.signals import StoppedError
from processes import MortalCell
from runs import rings, tiny

WILD = ("optimizer.learning_rate=1e30", "optimizer.ramp_down=0")


def cells_in(folder, *names):
    """A cell for each name: ``METHOD`` or ``METHOD wild``, which diverges."""
    return {
        name: Cell(name, tiny(*WILD * name.endswith("wild"), method=name.split()[0]), folder / name) for name in names
    }


# ----------------------------------------------------------------------------------------------- how many at a time


def test_auto_takes_what_cores_memory_and_runs_allow(tmp_path, monkeypatch):
    cells = cells_in(tmp_path, "dropout", "pi", "vadd-kl")
    monkeypatch.setattr(jobs, "available_cores", lambda: 8)
    memory = SimpleNamespace(available=64e9, total=2**40)
    monkeypatch.setattr(jobs.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(jobs.torch, "get_num_threads", lambda: 8)
    assert jobs_of("auto", cells.values()) == Jobs(3, 2)
    memory.available = 4e9
    assert jobs_of("auto", cells.values()) == Jobs(2, 4)
    white = tiny("data.zca=true", method="pi")
    assert jobs_of("auto", [*cells.values(), Cell("white", white, tmp_path / "white")]) == Jobs(1, 8)
    memory.available = 1e9
    assert jobs_of("auto", cells.values()) == Jobs(1, 8)
    memory.available = 64e9
    assert jobs_of("auto", []) == Jobs(1, 8)
    assert jobs_of(1, cells.values()) == Jobs(1, 8)
    assert jobs_of(16, cells.values()) == Jobs(16, 1)
    train(cells["pi"].config, cells["pi"].path, data=rings(), progress=False)
    assert jobs_of("auto", cells.values()) == Jobs(2, 4)
    monkeypatch.setattr(jobs.torch, "get_num_threads", lambda: 1)  # OMP_NUM_THREADS=1 is respected
    assert jobs_of("auto", cells.values()) == Jobs(2, 1)
    assert str(Jobs(2, 1)) == "2 at a time, 1 thread each"
    assert str(Jobs(2, 4)) == "2 at a time, 4 threads each"


def test_an_accelerator_is_not_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "available_cores", lambda: 8)
    monkeypatch.setattr(jobs, "device_of", lambda engine: "cpu" if engine.accelerator == "cpu" else "cuda")
    for accelerator, count in (("cpu", 3), ("auto", 1), ("gpu", 1)):
        config = tiny(f"engine.accelerator={accelerator}")
        assert jobs_of("auto", [Cell(name, config, tmp_path / name) for name in "abc"]).count == count


# ------------------------------------------------------------------------------------------------------------ running


def test_dask_is_imported_only_when_several_runs_are_wanted():
    code = "import sys, advdrop.lab.cli.compare, advdrop.lab.cli.reproduce; sys.exit('distributed' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_one_job_is_this_process_and_an_error_stops_no_other_run(tmp_path, capsys):
    cells = cells_in(tmp_path, "dropout wild", "dropout", "pi")
    (tmp_path / "pi").mkdir()
    (tmp_path / "pi" / "config.yaml").write_text(tiny(method="vadd-kl").dump())
    found = dict(run_cells(cells, Jobs(1, 1), rings()))
    assert isinstance(found["dropout wild"], DivergedError)
    assert found["dropout"] == RunDirectory.open(tmp_path / "dropout").result
    assert isinstance(found["pi"], ValueError)
    assert "[2/3] dropout  update 12/12" in capsys.readouterr().err


def test_one_job_that_is_stopped_stops_all(tmp_path, monkeypatch):
    def stop(*_, **__):
        raise StoppedError("stopped after update 3 of 12; go on")

    monkeypatch.setattr(jobs, "train", stop)
    with pytest.raises(StoppedError, match="update 3 of 12"):
        list(run_cells(cells_in(tmp_path, "dropout", "pi"), Jobs(1, 1), rings(), progress=False))


# -------------------------------------------------------------------------------------------------------------- cells


@pytest.fixture
def _known_data(monkeypatch):
    monkeypatch.setattr(jobs, "cached_data", lambda *_: rings())


def test_a_cell_is_trained_then_resumed_then_read(tmp_path):
    (cell,) = cells_in(tmp_path, "dropout").values()
    assert not cell.there
    with pytest.raises(StoppedError):
        cell.run(rings(), progress=False, tell=lambda updates: updates == 4)
    assert cell.there
    assert not cell.finished
    found = cell.run(rings(), progress=False)  # resumed, not refused
    assert cell.finished
    assert cell.result == found == cell.run(None)


@pytest.mark.usefixtures("_known_data")
def test_a_cell_that_has_to_stop_saves_first(tmp_path):
    cell = Cell("pi", tiny("training.updates=1000", "engine.checkpoint_seconds=1e6", method="pi"), tmp_path / "run")
    with pytest.raises(StoppedError, match="stopped after update 10 of 1000"):
        cell(lambda updates: updates >= 10)
    assert RunDirectory.open(cell.path).load_checkpoint()["update"] == 10


@pytest.mark.usefixtures("_known_data")
def test_a_warning_in_a_worker_names_its_run(tmp_path, monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # what the worker sets ends with this test
    cell = Cell("pi seed 1", tiny(method="pi"), tmp_path / "run")
    with pytest.raises(StoppedError):
        cell(lambda updates: updates >= 1)
    assert warnings.formatwarning("some text", UserWarning, "a.py", 7, "code()") == "advdrop: pi seed 1: some text\n"


@pytest.mark.usefixtures("_known_data")
def test_a_run_that_another_worker_still_has_is_waited_for(tmp_path, monkeypatch):
    cell, waited = Cell("vadd-kl seed 0", tiny(), tmp_path / "run"), []

    def busy_at_first(*_, **__):
        if len(waited) < 2:
            raise BusyError("busy")
        return {"done": True}

    monkeypatch.setattr(jobs, "train", busy_at_first)
    monkeypatch.setattr(jobs.time, "sleep", waited.append)
    assert cell(lambda _: False) == {"done": True}
    assert len(waited) == 2
    waited.clear()
    with pytest.raises(StoppedError):
        cell(lambda _: True)
    monkeypatch.setattr(jobs, "PATIENCE", -1.0)
    with pytest.raises(BusyError):
        cell(lambda _: False)


# ----------------------------------------------------------------------------------------------------- real processes


@pytest.fixture
def files(tmp_path):
    """The data where other processes find them."""
    data = rings()
    arrays = {
        f"{kind}_{part}": getattr(getattr(data, part), kind).numpy() for kind in "xy" for part in ("train", "test")
    }
    np.savez(tmp_path / "rings.npz", **arrays)
    return tmp_path / "rings.npz"


@pytest.mark.usefixtures("quick_processes")
def test_processes_give_the_bits_of_one_process_and_survive_kills(files, capfd, monkeypatch):
    """Two processes: one run is finished, one has begun, one diverges, one is killed once and one again and again."""
    scratch = files.with_name("scratch")
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    slow = ("training.updates=60", "training.epoch_updates=20", "engine.checkpoint_seconds=0")

    def cell_of(name, *settings, kind=Cell, **more):
        config = tiny(*settings, method=name.split()[0]).model_copy(update={"dataset": str(files)})
        return kind(name, config, files.parent / "runs" / name, **more)

    cells = {
        "dropout": cell_of("dropout"),
        "vadd-kl": cell_of("vadd-kl", *slow, kind=MortalCell),
        "vat": cell_of("vat", *slow, kind=MortalCell, deaths=3),
        "dropout wild": cell_of("dropout wild", *WILD),
        "pi": cell_of("pi"),
    }
    data = load(files)
    for name in ("dropout", "pi"):
        train(cells[name].config, cells[name].path, data=data, progress=False)
    for name in ("result.json", "model.safetensors"):
        (cells["pi"].path / name).unlink()
    before = (cells["dropout"].path / "result.json").stat().st_mtime_ns
    found = list(run_cells(cells, Jobs(2, 3)))
    said = capfd.readouterr()

    assert found[0][0] == "dropout"  # what is there comes first
    assert (cells["dropout"].path / "result.json").stat().st_mtime_ns == before
    results = dict(found)
    assert len(found) == len(results) == 5
    assert isinstance(results["dropout wild"], DivergedError)
    assert "lower the learning rate" in str(results["dropout wild"])
    assert isinstance(results["vat"], RuntimeError)
    assert str(results["vat"]).startswith(
        "its worker died twice, perhaps for lack of memory; run the same command again"
    )
    assert len(list(files.parent.glob("runs/vadd-kl.killed-*"))) == 1
    assert len(list(files.parent.glob("runs/vat.killed-*"))) >= 2
    assert results["vadd-kl"]["machine"]["threads"] == 3  # these networks are too small for threads to change a bit
    for name in ("vadd-kl", "pi"):
        again = train(cells[name].config, files.parent / "again" / name, data=data, progress=False)
        assert again["test_error_percent"] == results[name]["test_error_percent"]
        one, two = (load_file(path / "model.safetensors") for path in (cells[name].path, files.parent / "again" / name))
        assert all(torch.equal(one[key], two[key]) for key in one)

    lines = said.err.splitlines()
    assert len(lines) == 4, said.err  # one for each end, and nothing of Dask
    assert all(re.match(r"(vadd-kl|vat|dropout wild|pi) (done|failed): \d of 5 runs done", line) for line in lines)
    assert "5 of 5 runs done (2 failed)" in lines[-1]
    assert list(scratch.iterdir()) == []
    assert not list(Path().glob("dask*"))


@dataclass(frozen=True)
class Look:
    """A task that tells what its process is like; it fails if it is number 1."""

    number: int
    updates: int = 1

    @property
    def name(self):
        return f"look {self.number}"

    def __call__(self, tell):
        if self.number == 1:
            raise KeyError("of its own")
        names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")
        return [os.environ[name] for name in names], torch.get_num_threads(), os.getpid(), tell(1)


@pytest.mark.usefixtures("quick_processes")
def test_each_worker_has_its_threads_and_this_process_keeps_its_environment():
    before = dict(os.environ)
    found = dict(side_by_side({number: Look(number) for number in range(3)}, 2, 3, progress=False))
    assert isinstance(found[1], KeyError)
    for number in (0, 2):
        environment, threads, process, stop = found[number]
        assert environment == ["3", "PASSIVE"]
        assert threads == 3
        assert process != os.getpid()
        assert not stop
    assert {name for name in os.environ if os.environ[name] != before.get(name)} <= {
        "PYTHONHASHSEED",
        "__DASK_PARENT_PID",
    }
    assert dict(side_by_side({}, 2, 3)) == {}


# ----------------------------------------------------------------------------------------------------------- progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_each_run_that_runs_has_a_line_and_all_have_one(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    with Overview({1: ("pi seed 0", 10), 2: ("vat [x] seed 1", 10)}, done=1, file=(file := Terminal())) as overview:
        for updates in range(6):
            overview.saw(1, updates)
        overview.saw(2, 0)
        overview.saw(2, 4)
        overview.bars.refresh()
        shown = file.getvalue()
        overview.say("a word")
        overview.ended(1, failed=False)
        overview.ended(2, failed=True)
    assert re.search(r"pi seed 0 .*50%", shown)
    assert re.search(r"vat \[x\] seed 1 .*40%", shown)
    assert re.search(r"1 of 3 runs done; about 0:00:0\d left .*45%", shown)
    assert "a word\n" in file.getvalue()
    assert str(overview) == "3 of 3 runs done (1 failed)"


def test_elsewhere_there_is_a_line_when_a_run_is_over_with_the_time_that_is_left(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    runs = {1: ("pi seed 0", 100), 2: ("vat seed 0", 100), 3: ("pi seed 1", 100)}
    overview = Overview(runs, file=(file := io.StringIO()))
    assert str(overview) == "0 of 3 runs done"
    overview.saw(1, 60)  # resumed: these were done before
    for updates in range(61, 101):
        overview.saw(1, updates)
        now[0] += 0.5
    overview.ended(1, failed=False)  # an update takes half a second, 200 are left
    overview.ended(2, failed=True)
    assert file.getvalue().splitlines() == [
        "pi seed 0 done: 1 of 3 runs done; about 0:01:40 left",
        "vat seed 0 failed: 2 of 3 runs done (1 failed); about 0:00:50 left",
    ]
    quiet = Overview(runs, show=False, file=(file := Terminal()))
    with quiet:
        quiet.saw(1, 1)
        quiet.say("a word")
        quiet.ended(1, failed=False)
    assert file.getvalue() == ""


def test_how_long_it_takes():
    assert makespan([], 3) == 0.0
    assert makespan([5.0, 1.0], 4) == 5.0
