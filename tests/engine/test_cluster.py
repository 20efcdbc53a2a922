"""A suite on a real Dask cluster: a scheduler and two workers in processes of their own, on loopback."""

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from advdrop.cli.main import main
from advdrop.engine import cluster
from advdrop.engine.cluster import ClusterWorker, connect, work_on_cluster
from advdrop.engine.jobs import Jobs, run_cells
from advdrop.engine.run import StoppedError
from advdrop.engine.rundir import RunDirectory
from advdrop.engine.worker import Cell
from advdrop.report.records import ERROR, Ledger
from runs import rings, tiny
from suites import small_suite

DASK = [sys.executable, "-m", "dask"]


@pytest.fixture
def dask_cluster(tmp_path):
    """The address of a scheduler and its two workers."""
    file, processes = tmp_path / "scheduler.json", []

    def start(*words):
        log = (tmp_path / f"dask-{len(processes)}.log").open("w")
        processes.append(subprocess.Popen([*DASK, *words], stdout=log, stderr=log, cwd=tmp_path))
        log.close()
        return processes[-1]

    start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))
    workers = [
        start("worker", "--scheduler-file", str(file), "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny",
              "--no-dashboard", "--local-directory", str(tmp_path / f"dask-{number}"))
        for number in range(2)
    ]  # fmt: skip
    deadline = time.monotonic() + 60
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    yield json.loads(file.read_text())["address"], workers
    for process in processes:
        process.kill()
        process.wait()


def told(folder):
    return {(record.row, record.seed): record.curve[ERROR] for record in Ledger(Path(folder)).records()}


def test_a_suite_on_two_workers_of_which_one_is_killed(tmp_path, monkeypatch, dask_cluster, capsys):
    monkeypatch.chdir(tmp_path)
    address, workers = dask_cluster
    suite = str(small_suite(tmp_path, updates=150))
    command = [sys.executable, "-m", "advdrop", "reproduce", suite, "--quiet", "--scheduler", address, "--out", "there"]
    process = subprocess.Popen(
        [*command, "--results", "there-results"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    deadline = time.monotonic() + 120
    while len(begun := list(tmp_path.glob("there/*/last.ckpt"))) < 2 and time.monotonic() < deadline:
        assert process.poll() is None, process.stdout.read().decode()
        time.sleep(0.02)
    assert len(begun) >= 2, "both workers have begun"
    workers[0].send_signal(signal.SIGKILL)  # in the middle of its cell
    said, _ = process.communicate(timeout=180)
    assert process.returncode == 0, said.decode()
    assert said.decode().count("recorded in") == 6  # nothing lost, nothing twice
    assert workers[1].poll() is None
    assert main(["reproduce", suite, "--quiet", "--jobs", "1", "--out", "here", "--results", "here-results"]) == 0
    assert told("there-results") == told("here-results")
    assert len(told("there-results")) == 6


def cell_in(folder):
    return Cell("vadd-kl seed 0", tiny("training.updates=3000"), folder / "run")


def test_cells_stop_when_they_are_asked_to_and_go_on_from_their_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "cached_data", lambda *_: rings())
    cell, stop_file = cell_in(tmp_path), tmp_path / "there" / ".stop"
    with ThreadPoolExecutor(1) as executor:
        worker = ClusterWorker(executor, stop_file, threads=1)
        future = worker.submit(cell)
        deadline = time.monotonic() + 30
        while not worker.updates.value and time.monotonic() < deadline:
            time.sleep(0.01)
        seen = worker.updates.value
        worker.stop()
        with pytest.raises(StoppedError, match="was stopped"):
            future.result(timeout=30)
        stop_file.unlink()
    state = RunDirectory.open(cell.path).load_checkpoint()
    assert seen <= state["update"] < 3000
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
