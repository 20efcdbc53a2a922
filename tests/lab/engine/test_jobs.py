"""Many runs: how many at a time, in what order, and what happens to those that fail, are killed or stopped."""

import io
import os
import signal
import time
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from advdrop.lab.data import load
from advdrop.lab.engine import RunDirectory, jobs, worker
from advdrop.lab.engine.jobs import Jobs, available_memory, fitting, jobs_of, on_cpu, run_cells
from advdrop.lab.engine.progress import Line, makespan, overall
from advdrop.lab.engine.run import StoppedError, train
from advdrop.lab.engine.training import DivergedError
from advdrop.lab.engine.worker import Cell, Worker, start_worker
from processes import MortalCell, wait_for
from runs import rings, tiny

WILD = ("optimizer.learning_rate=1e30", "optimizer.ramp_down=0")


class AtOnce(Executor):
    """Runs what is submitted there and then; the cells named in ``dies`` lose their process so many times."""

    def __init__(self, dies=()):
        self.dies = dict(dies)

    def submit(self, fn, /, cell):
        future = Future()
        if self.dies.get(cell.name, 0):
            self.dies[cell.name] -= 1
            future.set_exception(BrokenExecutor("killed"))
            return future
        try:
            future.set_result(fn(cell))
        except BaseException as error:
            future.set_exception(error)
        return future


@pytest.fixture(autouse=True)
def _known_data(monkeypatch):
    monkeypatch.setattr(worker, "cached_data", lambda dataset, data_dir: rings())


def cells_in(folder, *names, force=False):
    """A cell for each name: ``METHOD`` or ``METHOD wild``, which diverges."""
    return {
        name: Cell(name, tiny(*WILD * name.endswith("wild"), method=name.split()[0]), folder / name, force)
        for name in names
    }


def fakes(executor):
    """Workers that all hand their cells to one executor, and what was started, with how many threads."""
    started = []

    def start(threads):
        started.append(threads)
        return Worker(executor)

    return start, started


# ----------------------------------------------------------------------------------------------- how many at a time


def test_auto_takes_what_cores_memory_and_runs_allow(tmp_path, monkeypatch):
    cells = cells_in(tmp_path, "dropout", "pi", "vadd-kl")
    monkeypatch.setattr(jobs, "available_cores", lambda: 8)
    monkeypatch.setattr(jobs, "available_memory", lambda: 64e9)
    monkeypatch.setattr(jobs.torch, "get_num_threads", lambda: 8)
    assert jobs_of("auto", cells.values()) == Jobs(3, 2)
    assert jobs_of(1, cells.values()) == Jobs(1, 8)
    assert jobs_of(16, cells.values()) == Jobs(16, 1)
    train(cells["pi"].config, cells["pi"].path, data=rings(), progress=False)
    assert jobs_of("auto", cells.values()) == Jobs(2, 4)
    assert jobs_of("auto", cells_in(tmp_path, "dropout", "pi", "vadd-kl", force=True).values()) == Jobs(3, 2)
    monkeypatch.setattr(jobs.torch, "get_num_threads", lambda: 1)  # OMP_NUM_THREADS=1 is respected
    assert jobs_of("auto", cells.values()) == Jobs(2, 1)
    assert str(Jobs(2, 1)) == "2 at a time, 1 thread each"
    assert str(Jobs(2, 4)) == "2 at a time, 4 threads each"


def test_an_accelerator_is_not_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "available_cores", lambda: 8)
    monkeypatch.setattr(jobs.torch.accelerator, "is_available", lambda: True)
    assert on_cpu(tiny("engine.accelerator=cpu"))
    assert not on_cpu(tiny("engine.accelerator=auto"))
    assert not on_cpu(tiny("engine.accelerator=gpu"))
    config = tiny("engine.accelerator=auto")
    assert jobs_of("auto", [Cell(name, config, tmp_path / name) for name in "abc"]).count == 1
    monkeypatch.setattr(jobs.torch.accelerator, "is_available", lambda: False)
    assert on_cpu(config)


def test_memory_is_read_where_it_is_told(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 24000 kB\nMemAvailable:   2000 kB\nHugePages_Total: 0\n")
    assert available_memory(tmp_path / "meminfo") == 2000 * 1024
    assert available_memory(tmp_path / "nothing") is None
    (tmp_path / "odd").write_text("nothing of the kind")
    assert available_memory(tmp_path / "odd") is None
    assert fitting(9, 4, None) == 4


# ------------------------------------------------------------------------------------------------------------ running


def test_one_job_is_this_process_and_an_error_stops_no_other_run(tmp_path, capsys):
    cells = cells_in(tmp_path, "dropout wild", "dropout", "pi")
    (tmp_path / "pi").mkdir()
    (tmp_path / "pi" / "config.yaml").write_text(tiny(method="vadd-kl").dump())
    found = dict(run_cells(cells, Jobs(1, 1), rings(), start=None))
    assert isinstance(found["dropout wild"], DivergedError)
    assert found["dropout"] == RunDirectory.open(tmp_path / "dropout").result
    assert isinstance(found["pi"], ValueError)
    assert "[2/3] dropout  update 12/12" in capsys.readouterr().err


def test_one_job_that_is_stopped_stops_all(tmp_path, monkeypatch):
    def stop(*_, **__):
        raise StoppedError("stopped after update 3 of 12; go on")

    monkeypatch.setattr(worker, "train", stop)
    with pytest.raises(StoppedError, match="update 3 of 12"):
        list(run_cells(cells_in(tmp_path, "dropout", "pi"), Jobs(1, 1), rings(), progress=False))


def test_finished_runs_are_read_and_started_ones_gone_on_with(tmp_path, capsys):
    cells = cells_in(tmp_path, "dropout", "pi", "vadd-kl", "vat wild")
    for name in ("dropout", "pi"):
        train(cells[name].config, cells[name].path, data=rings(), progress=False)
    whole = load_file(RunDirectory.open(tmp_path / "pi").model)
    for name in ("result.json", "model.safetensors"):
        (tmp_path / "pi" / name).unlink()
    before = (tmp_path / "dropout" / "result.json").stat().st_mtime_ns
    with ThreadPoolExecutor(1) as pool:
        start, started = fakes(pool)
        found = list(run_cells(cells, Jobs(2, 3), start=start))
        assert started == [3, 3]  # a worker is kept for the next cell
    assert found[0][0] == "dropout"  # what is there comes first
    assert dict(found).keys() == cells.keys()
    assert isinstance(dict(found)["vat wild"], DivergedError)
    assert (tmp_path / "dropout" / "result.json").stat().st_mtime_ns == before
    weights = load_file(RunDirectory.open(tmp_path / "pi").model)
    assert all(torch.equal(weights[name], whole[name]) for name in whole)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "4 of 4 runs done (1 failed)"
    assert 1 <= len(lines) <= 3  # only when a run is over


def test_a_run_whose_process_dies_is_gone_on_with_once(tmp_path):
    cells = cells_in(tmp_path, "dropout", "pi", "vat")
    start, started = fakes(AtOnce({"pi": 1, "vat": 2}))
    found = dict(run_cells(cells, Jobs(2, 1), progress=False, start=start))
    assert found["pi"]["method"] == "pi"
    assert isinstance(found["vat"], RuntimeError)
    assert "fewer --jobs" in str(found["vat"])
    assert found["dropout"] == RunDirectory.open(tmp_path / "dropout").result
    assert len(started) == 3  # the one that died is not used again


def test_a_run_that_was_replaced_is_not_replaced_again_after_a_kill(tmp_path):
    (cell,) = cells_in(tmp_path, "dropout", force=True).values()
    train(cell.config, cell.path, data=rings(), progress=False)
    task = jobs._Task("dropout", cell, jobs._stamp(cell.path))
    assert task.again().cell.force  # killed before it began: the old run is still there
    time.sleep(0.01)
    RunDirectory.create(cell.path, cell.config, RunDirectory.open(cell.path).split, force=True)
    assert not task.again().cell.force
    assert not task.again().cell.finished


def test_an_error_that_cannot_be_pickled_still_arrives():
    class OwnError(Exception):
        pass

    found = worker.portable(OwnError("of mine"))
    assert type(found) is RuntimeError
    assert str(found) == "OwnError: of mine"
    found = DivergedError(7, "a loss", "the last one")
    assert worker.portable(found) is found


def test_a_signal_stops_the_workers_and_a_second_one_kills_them(tmp_path, monkeypatch, capsys):
    """The cells never end by themselves; their process is a fake that hears signals."""
    now, heard, submitted = [0.0], [], []
    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Process:
        def __init__(self, future):
            self.future = future

        def terminate(self):
            heard.append("terminate")
            signal.raise_signal(signal.SIGINT)  # too soon after the first one to be a second one
            if len(heard) == 2:
                now[0] += 2 * jobs.AT_ONCE
                signal.raise_signal(signal.SIGINT)

        def kill(self):
            heard.append("kill")
            self.future.set_exception(BrokenExecutor("killed"))

    class Endless(Executor):
        def submit(self, fn, /, cell):
            self.future = Future()
            self.future.set_running_or_notify_cancel()
            submitted.append(cell)
            if len(submitted) == 2:
                signal.raise_signal(signal.SIGTERM)
            return self.future

    class Hears(Worker):
        def submit(self, cell):
            future = super().submit(cell)
            self.process = Process(future)
            return future

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(StoppedError, match="stopped with 0 of 3 runs done; the same command goes on"):
        list(run_cells(cells_in(tmp_path, "dropout", "pi", "vat"), Jobs(2, 1), start=lambda _: Hears(Endless())))
    assert heard == ["terminate", "terminate", "kill", "kill"]
    assert signal.getsignal(signal.SIGINT) is before
    assert "once more stops at once\nstopping at once\n" in capsys.readouterr().err


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


def cell_of(files, name, *settings):
    config = tiny(*settings, method=name.split()[0]).model_copy(update={"dataset": str(files)})
    return Cell(name, config, files.parent / "runs" / name)


@pytest.mark.usefixtures("quick_processes")
def test_processes_give_the_bits_of_one_process_and_survive_a_kill(files):
    """Four cells in two processes: one diverges, one is killed on the way, all get their due."""
    slow = ("training.updates=60", "training.epoch_updates=20", "engine.checkpoint_seconds=0")
    cells = {
        name: cell_of(files, name, *settings)
        for name, settings in {"vadd-kl": slow, "dropout wild": WILD, "pi": (), "dropout": ()}.items()
    }
    cells["vadd-kl"] = MortalCell(**vars(cells["vadd-kl"]))
    started = []

    def start(threads):
        started.append(start_worker(threads))
        return started[-1]

    try:
        found = dict(run_cells(cells, Jobs(2, 3), progress=False, start=start))
    finally:
        for each in started:
            each.kill()
    assert (files.parent / "killed").exists()
    assert started[0].process.exitcode == -signal.SIGKILL
    assert isinstance(found["dropout wild"], DivergedError)
    assert "lower the learning rate" in str(found["dropout wild"])
    assert found["vadd-kl"]["machine"]["threads"] == 3  # these networks are too small for threads to change a bit
    assert not any(each.process.is_alive() for each in started)
    data = load(files)
    for name in ("vadd-kl", "pi", "dropout"):
        cell = cells[name]
        again = train(cell.config, files.parent / "again" / name, data=data, progress=False)
        assert again["test_error_percent"] == found[name]["test_error_percent"]
        one, two = (load_file(RunDirectory.open(path).model) for path in (cell.path, files.parent / "again" / name))
        assert all(torch.equal(one[key], two[key]) for key in one)


def test_a_process_ignores_ctrl_c_and_saves_when_asked(files):
    cell = cell_of(
        files, "pi", "training.updates=1000000", "training.epoch_updates=1000000", "engine.checkpoint_seconds=1e6"
    )
    one = start_worker(1)
    try:
        future = one.submit(cell)
        wait_for(lambda: one.updates.value > 3)
        os.kill(one.process.pid, signal.SIGINT)
        seen = one.updates.value
        wait_for(lambda: one.updates.value > seen + 20)
        for _ in range(5):
            with suppress(ProcessLookupError):
                os.kill(one.process.pid, signal.SIGTERM)
        assert isinstance(future.exception(timeout=240), StoppedError)
        saved = RunDirectory.open(cell.path).load_checkpoint()["update"]
        assert saved > seen + 20
        one.updates.value = 0
        future = one.submit(cell)  # the process is as good as new
        wait_for(lambda: one.updates.value > saved + 3)
        one.kill()
        assert isinstance(future.exception(timeout=240), BrokenExecutor)
        one.close()
        assert isinstance(one.submit(cell).exception(), BrokenExecutor | RuntimeError)
    finally:
        one.kill()


# ----------------------------------------------------------------------------------------------------------- progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_line_is_written_again_on_a_terminal_and_fits_it(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    file = Terminal()
    line = Line(file)
    line.rewrite("short")
    line.say("1 of 4 runs done, 2 running")
    line.close()
    assert file.getvalue() == "\rshort\x1b[K\r1 of 4 runs done, …\x1b[K\r\x1b[K"


def test_elsewhere_only_what_is_said_is_a_line():
    file = io.StringIO()
    line = Line(file)
    line.rewrite("now and then")
    line.say("a run is over")
    line.close()
    assert file.getvalue() == "a run is over\n"
    line = Line(file := Terminal(), show=False)
    line.rewrite("a")
    line.say("b")
    line.note("c")
    line.close()
    assert file.getvalue() == ""


def test_how_far_it_is():
    assert overall(0, 2, {"pi": 0.0}, None) == "0 of 2 runs done, 1 running: pi 0 %"
    assert overall(2, 2, {}, 0.0) == "2 of 2 runs done"
    assert makespan([], 3) == 0.0
    assert makespan([5.0, 1.0], 4) == 5.0


def test_the_time_that_is_left_is_guessed_from_the_paces_seen(tmp_path):
    crew = jobs._Crew(cells_in(tmp_path, "dropout", "pi", "vat"), 3, Jobs(2, 1), False, None)
    tasks = list(crew.waiting)
    assert crew.seconds_left(tasks) is None
    tasks[0].look(0, now=0.0)
    tasks[0].look(2, now=10.0)  # starting took its time, which says nothing of the updates
    tasks[0].look(6, now=18.0)
    assert tasks[0].pace == 2.0
    crew.paces[tasks[1].kind] = 4.0
    # dropout: 6 updates of 2 s; pi: 12 of 4 s; vat: 12 of 3 s, the average
    assert crew.seconds_left(tasks) == max(12 + 36, 48)
