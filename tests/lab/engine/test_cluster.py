"""Runs on real Dask clusters, here and there: what is killed, what is stopped, and what the same command does then."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from advdrop.lab.cli.main import main
from advdrop.lab.engine import cluster
from advdrop.lab.engine.cluster import places
from advdrop.lab.engine.rundir import BusyError, RunDirectory
from advdrop.lab.records.record import ERROR, Ledger
from processes import advdrop, impatient_advdrop, quick_advdrop, server_address, started, wait_for
from suites import small_suite


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# ------------------------------------------------------------------------------------------------- another's scheduler


def scheduler(file):
    """Run a scheduler and write its address to a file."""
    from distributed import Scheduler

    async def run():
        options = {"dashboard_address": "127.0.0.1:0", "local_directory": str(file.parent / "dask")}
        async with Scheduler(host="127.0.0.1", port=0, **options) as served:
            file.with_suffix(".part").write_text(served.address)
            file.with_suffix(".part").rename(file)
            await served.finished()

    asyncio.run(run())


def dask_worker(address, folder, log, threads=1):
    """Run a worker."""
    from distributed import Worker

    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)

    async def run():
        options = {"dashboard_address": "127.0.0.1:0", "local_directory": str(folder)}
        async with Worker(address, nthreads=threads, **options) as working:
            folder.with_suffix(".ready").touch()
            await working.finished()

    asyncio.run(run())


@contextmanager
def dask_cluster(folder, workers=2, threads=1):
    """A scheduler, its address and its workers, which are not in the folder of whoever gives them work."""
    file = folder / f"address-{time.monotonic_ns()}"
    with ExitStack() as stack:
        process = stack.enter_context(started(scheduler, file))
        wait_for(file.exists)
        address = file.read_text()
        folders = [Path(f"{file}-{number}") for number in range(workers)]
        log = folder / "dask.log"
        there = [stack.enter_context(started(dask_worker, address, each, log, threads)) for each in folders]
        wait_for(lambda: all(each.with_suffix(".ready").exists() for each in folders))
        yield process, address, there


def told(folder):
    return {(record.row, record.seed): record.curve[ERROR] for record in Ledger(Path(folder)).records()}


def begun(process, log, folder="there", runs=2):
    """Wait until so many runs of a command have a checkpoint and none is over."""
    wait_for(lambda: process.exitcode is not None or len(list(Path(folder).glob("*/last.ckpt"))) >= runs)
    assert process.exitcode is None, log.read_text()


def test_a_suite_on_two_workers_of_which_one_is_killed(tmp_path):
    suite, log = str(small_suite(tmp_path, updates=150)), tmp_path / "log"
    words = ["reproduce", suite, "--quiet", "--seeds", "1"]
    with dask_cluster(tmp_path) as (_, address, workers):
        there = ["--scheduler", address, "--out", "there", "--results", "there-results"]
        with started(advdrop, [*words, *there], log) as process:
            begun(process, log)
            workers[0].kill()  # in the middle of its cell
            process.join(240)
            assert process.exitcode == 0, log.read_text()
        assert workers[0].exitcode == -signal.SIGKILL
        assert workers[1].exitcode is None
    assert log.read_text().count("recorded in") == 3  # nothing lost, nothing twice
    assert main([*words, "--jobs", "1", "--out", "here", "--results", "here-results"]) == 0
    assert told("there-results") == told("here-results")
    assert len(told("there-results")) == 3


LOST = re.compile(
    r"advdrop: the Dask scheduler is gone \(tcp://127\.0\.0\.1:\d+\), with 0 of 3 runs done; "
    r"the others are unfinished, not failed: run the same command again to continue\n"
)


def test_a_scheduler_that_is_killed_is_told_and_the_same_command_goes_on(tmp_path):
    suite, log = str(small_suite(tmp_path, updates=600)), tmp_path / "log"
    words = ["reproduce", suite, "--quiet", "--seeds", "1", "--out", "there", "--scheduler"]
    with dask_cluster(tmp_path) as (process, address, workers):
        with started(advdrop, [*words, address], log) as command:
            begun(command, log)
            process.kill()
            command.join(60)
            assert command.exitcode == 1, log.read_text()
        assert LOST.fullmatch(log.read_text())
        for worker in workers:  # a worker without a scheduler goes away
            worker.join(60)
            assert worker.exitcode is not None
    assert not list(Path("there").glob("*.failed"))
    with dask_cluster(tmp_path) as (_, address, _), started(advdrop, [*words, address], log) as command:
        command.join(240)
        assert command.exitcode == 0, log.read_text()
    assert len(told("results")) == 3
    for path in Path("there").glob("*/metrics.csv"):
        assert RunDirectory(path.parent).finished


def test_a_scheduler_that_is_silent_is_lost_too(tmp_path):
    suite, log = str(small_suite(tmp_path, updates=100_000)), tmp_path / "log"
    with dask_cluster(tmp_path) as (process, address, workers):
        words = ["reproduce", suite, "--quiet", "--seeds", "1", "--out", "there", "--scheduler", address]
        with started(impatient_advdrop, words, log) as command:
            begun(command, log)
            os.kill(process.pid, signal.SIGSTOP)
            command.join(60)
            assert command.exitcode == 1, log.read_text()
        assert LOST.fullmatch(log.read_text())
        os.kill(process.pid, signal.SIGCONT)
        # The scheduler notices that the command has gone away, and the workers stop what nobody waits for.
        wait_for(lambda: not any(map(busy, Path("there").glob("*-*"))))
        assert all(worker.exitcode is None for worker in workers)
    assert not list(Path("there").glob("*.failed"))


def test_clusters_that_cannot_be_used_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "TIMEOUT", 0.5)
    with pytest.raises(ValueError, match=r"--scheduler tcp://127\.0\.0\.1:1: no Dask scheduler answers there"):
        places("tcp://127.0.0.1:1")
    monkeypatch.setattr(cluster, "TIMEOUT", 60.0)
    with dask_cluster(tmp_path, workers=0) as (_, address, _):
        with pytest.raises(ValueError, match=f"has no workers; start some: dask worker {address} --nthreads 1"):
            places(address)
        with started(dask_worker, address, tmp_path / "wide", tmp_path / "dask.log", 2):
            wait_for(lambda: "several threads" in refused(address))


def refused(address):
    with pytest.raises(ValueError, match="--scheduler") as error:
        places(address)
    return str(error.value)


# --------------------------------------------------------------------------------------------------------- this machine


ENDLESS = [
    "compare", "--dataset", "digits", "--labels", "20", "--set", "network.name=mlp", "--set", "network.hidden=[16,8]",
    "--set", "network.delta=0.3", "--set", "training.epoch_updates=20", "--set", "engine.accelerator=cpu",
    "--set", "engine.checkpoint_seconds=0.5", "--updates", "1000000", "--methods", "dropout,pi",
    "--out", "c", "--jobs", "2",
]  # fmt: skip


def busy(path):
    """Whether a process trains the run."""
    try:
        with RunDirectory(path).locked():
            return False
    except BusyError:
        return True


def saved():
    return {path: RunDirectory(path.parent).load_checkpoint()["update"] for path in Path("c").glob("*/last.ckpt")}


def test_ctrl_c_is_for_the_parent_alone_and_all_runs_save(tmp_path, monkeypatch):
    """A command as a user starts it, in a terminal of its own: every process of it gets the signal."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = os.environ | {"TMPDIR": str(scratch), "OMP_NUM_THREADS": "1"}
    with (tmp_path / "log").open("w") as log:
        command = subprocess.Popen(
            [sys.executable, "-m", "advdrop", *ENDLESS], stderr=log, env=environment, start_new_session=True
        )
    try:
        wait_for(lambda: command.poll() is not None or len(list(Path("c").glob("*/last.ckpt"))) == 2)
        assert command.poll() is None, (tmp_path / "log").read_text()
        processes = [psutil.Process(command.pid), *psutil.Process(command.pid).children(recursive=True)]
        heard = [
            each.laddr.ip for process in processes for each in process.net_connections() if each.status == "LISTEN"
        ]
        assert set(heard) == {"127.0.0.1"}
        before = saved()
        os.killpg(command.pid, signal.SIGINT)
        assert command.wait(120) == 130
        assert (tmp_path / "log").read_text().splitlines() == [
            "finishing this update, then saving; a second signal stops at once",
            "advdrop: stopped with 0 of 2 runs done; the same command continues",
        ]
        assert all(update > before[path] for path, update in saved().items())
        assert not psutil.wait_procs(processes[1:], timeout=60)[1]
        assert [path for path in scratch.iterdir() if not path.name.startswith("torchinductor")] == []  # torch's own
    finally:
        with_all_of_it(command)


def with_all_of_it(command):
    """End a command and its processes, whatever has become of them."""
    if command.poll() is None:
        os.killpg(command.pid, signal.SIGKILL)
        command.wait()


@pytest.mark.usefixtures("quick_processes")
def test_a_killed_parent_takes_its_workers_with_it_and_the_same_command_goes_on(tmp_path):
    log = tmp_path / "log"
    with started(quick_advdrop, ENDLESS, log, server_address()) as command:
        begun(command, log, "c")
        assert all(map(busy, Path("c").glob("*-0")))
    wait_for(lambda: not any(map(busy, Path("c").glob("*-0"))))
    before = saved()
    assert all(update > 0 for update in before.values())
    with started(quick_advdrop, ENDLESS, log, server_address()) as command:
        wait_for(lambda: command.exitcode is not None or all(saved()[path] > before[path] for path in before))
        assert command.exitcode is None, log.read_text()
        os.kill(command.pid, signal.SIGHUP)
        command.join(cluster.GRACE + 60)
        assert command.exitcode == 130, log.read_text()
