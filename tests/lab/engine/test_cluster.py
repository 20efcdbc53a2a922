"""A suite on a real Dask cluster: a scheduler and two workers in processes of their own, on loopback."""

import asyncio
import signal
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from advdrop.lab.cli.main import main
from advdrop.lab.engine import cluster
from advdrop.lab.engine.cluster import ClusterWorker, connect, work_on_cluster
from advdrop.lab.engine.jobs import Jobs, run_cells
from advdrop.lab.engine.run import StoppedError
from advdrop.lab.engine.rundir import RunDirectory
from advdrop.lab.engine.worker import Cell
from advdrop.lab.records.record import ERROR, Ledger
from processes import advdrop, started, wait_for
from runs import rings, tiny
from suites import small_suite


def scheduler(file):
    """Run a scheduler and write its address to a file."""
    from distributed import Scheduler

    async def run():
        async with Scheduler(host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0") as served:
            file.with_suffix(".part").write_text(served.address)
            file.with_suffix(".part").rename(file)
            await served.finished()

    asyncio.run(run())


def dask_worker(address, folder):
    """Run a worker of one thread."""
    from distributed import Worker

    async def run():
        async with Worker(address, nthreads=1, dashboard_address="127.0.0.1:0", local_directory=str(folder)) as working:
            folder.with_suffix(".ready").touch()  # the scheduler knows it
            await working.finished()

    asyncio.run(run())


@pytest.fixture
def dask_cluster(tmp_path):
    """The address of a scheduler and its two workers, which are not in the folder of whoever gives them work."""
    file = tmp_path / "address"
    with ExitStack() as stack:
        stack.enter_context(started(scheduler, file))
        wait_for(file.exists)
        address = file.read_text()
        folders = [tmp_path / f"dask-{number}" for number in range(2)]
        workers = [stack.enter_context(started(dask_worker, address, folder)) for folder in folders]
        wait_for(lambda: all(folder.with_suffix(".ready").exists() for folder in folders))
        yield address, workers


def told(folder):
    return {(record.row, record.seed): record.curve[ERROR] for record in Ledger(Path(folder)).records()}


def test_a_suite_on_two_workers_of_which_one_is_killed(tmp_path, monkeypatch, dask_cluster):
    monkeypatch.chdir(tmp_path)
    address, workers = dask_cluster
    suite, log = str(small_suite(tmp_path, updates=60)), tmp_path / "log"
    words = ["reproduce", suite, "--quiet", "--seeds", "1"]
    there = ["--scheduler", address, "--out", "there", "--results", "there-results"]
    with started(advdrop, [*words, *there], log) as process:
        wait_for(lambda: process.exitcode is not None or len(list(tmp_path.glob("there/*/last.ckpt"))) >= 2)
        assert process.exitcode is None, log.read_text()  # both workers have begun
        workers[0].kill()  # in the middle of its cell
        process.join(240)
        assert process.exitcode == 0, log.read_text()
    assert log.read_text().count("recorded in") == 3  # nothing lost, nothing twice
    assert workers[0].exitcode == -signal.SIGKILL
    assert workers[1].exitcode is None
    assert main([*words, "--jobs", "1", "--out", "here", "--results", "here-results"]) == 0
    assert told("there-results") == told("here-results")
    assert len(told("there-results")) == 3


def cell_in(folder):
    return Cell("vadd-kl seed 0", tiny("training.updates=3000"), folder / "run")


def test_cells_stop_when_they_are_asked_to_and_go_on_from_their_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "cached_data", lambda *_: rings())
    cell, stop_file = cell_in(tmp_path), tmp_path / "there" / ".stop"
    with ThreadPoolExecutor(1) as executor:
        worker = ClusterWorker(executor, stop_file, threads=1)
        future = worker.submit(cell)
        try:
            wait_for(lambda: worker.updates.value or future.done())
            seen = worker.updates.value
        finally:
            worker.stop()
        with pytest.raises(StoppedError, match="was stopped"):
            future.result(timeout=240)
        stop_file.unlink()
    state = RunDirectory.open(cell.path).load_checkpoint()
    assert 0 < seen <= state["update"] < 3000
    short = replace(cell, config=cell.config)
    monkeypatch.setattr(cluster, "run_cell", lambda cell, data, **_: {"resumes": cell.there})
    assert work_on_cluster(short, stop_file, 1) == {"resumes": True}


def test_a_run_that_another_worker_still_has_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "cached_data", lambda *_: rings())
    cell = Cell("vadd-kl seed 0", tiny(), tmp_path / "run")
    waited = []

    def busy_at_first(cell, data, **_):
        if len(waited) < 2:
            raise cluster.BusyError("busy")
        return {"done": True}

    monkeypatch.setattr(cluster, "run_cell", busy_at_first)
    monkeypatch.setattr(cluster.time, "sleep", waited.append)
    assert work_on_cluster(cell, tmp_path / ".stop", 1) == {"done": True}
    assert len(waited) == 2
    waited.clear()
    monkeypatch.setattr(cluster, "PATIENCE", -1.0)
    with pytest.raises(cluster.BusyError):
        work_on_cluster(cell, tmp_path / ".stop", 1)


def test_any_executor_will_do_even_with_one_place(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "cached_data", lambda *_: rings())
    cells = {
        seed: Cell(f"seed {seed}", tiny(f"training.updates={8 + seed}"), tmp_path / str(seed)) for seed in range(2)
    }
    with ThreadPoolExecutor(1) as executor:
        start = partial(ClusterWorker, executor, tmp_path / ".stop")
        found = dict(run_cells(cells, Jobs(1, 1), progress=False, start=start))
    assert {seed: result["updates"] for seed, result in found.items()} == {0: 8, 1: 9}


def test_a_cell_that_the_cluster_gave_up_is_told(tmp_path):
    class Gone:
        def submit(self, *_):
            future = Future()
            future.cancel()
            future.set_running_or_notify_cancel()
            return future

    cells = {0: Cell("seed 0", tiny(), tmp_path / "run")}
    start = partial(ClusterWorker, Gone(), tmp_path / ".stop")
    ((_, outcome),) = run_cells(cells, Jobs(2, 1), progress=False, start=start)
    assert "died twice" in str(outcome)


def test_a_cluster_without_workers_or_a_package_is_named(monkeypatch):
    class Empty:
        def __init__(self, *_, **__):
            pass

        def nthreads(self):
            return {}

    monkeypatch.setattr("distributed.Client", Empty)
    with pytest.raises(ValueError, match="has no workers; start some: dask worker tcp://x:1"):
        connect("tcp://x:1")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ValueError, match="pip install 'advdrop\\[cluster\\]'"):
        connect("tcp://x:1")
