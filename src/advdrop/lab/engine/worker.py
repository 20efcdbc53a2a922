"""A process that runs cells, seen from both of its ends.

Each worker is a pool of one process: when one is killed, the others do not notice. Ctrl-C in a terminal is for the
parent alone; SIGTERM asks a worker to save and stop, however often it comes, and ends it at once where there is nothing
to save; a worker whose parent is gone does the same.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import torch

from advdrop.lab.config.config import RunConfig
from advdrop.lab.data.examples import DataSet
from advdrop.lab.data.sources import load
from advdrop.lab.engine.run import StoppedError, train
from advdrop.lab.engine.rundir import RunDirectory

Result = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """A run among many.

    Args:
        name: such as ``vadd-kl seed 0``.
        config: the run; what is ``auto`` in it about speed each process would choose by its own clock.
        path: its directory.
        force: replace the run that is there, instead of reading it or going on with it.
    """

    name: str
    config: RunConfig
    path: Path
    force: bool = False

    @property
    def there(self) -> bool:
        """Whether there is a run to read or to go on with."""
        return self.path.exists() and not self.force

    @property
    def finished(self) -> bool:
        """Whether there is nothing to do but to read the result."""
        return self.there and RunDirectory.open(self.path).finished

    @property
    def result(self) -> Result:
        """What the finished run came to."""
        return RunDirectory.open(self.path).result


# ------------------------------------------------------------------------------------------------- in the parent


class Counter(Protocol):
    """A number that someone else counts."""

    @property
    def value(self) -> int:
        """As far as it is."""


class AnyWorker(Protocol):
    """What runs cells, one after the other: a process of this machine, or a place on a cluster."""

    @property
    def updates(self) -> Counter:
        """How many updates of its cell are done."""

    def submit(self, cell: Cell) -> Future[Result]:
        """Start with a cell."""

    def stop(self) -> None:
        """Ask for a checkpoint and the end."""

    def kill(self) -> None:
        """Stop at once."""

    def close(self) -> None:
        """No more cells."""


@dataclass
class Worker:
    """The parent's end.

    Args:
        executor: what runs the cells; of one process.
        updates: how many updates of its cell are done, which the process writes down.
        process: what signals go to.
    """

    executor: Executor
    updates: ctypes.c_int64 = field(default_factory=ctypes.c_int64)
    process: BaseProcess | None = None

    def submit(self, cell: Cell) -> Future[Result]:
        """Start with a cell."""
        self.updates.value = 0
        try:
            return self.executor.submit(work, cell)
        except BrokenExecutor as error:  # killed between two cells
            future: Future[Result] = Future()
            future.set_exception(error)
            return future

    def stop(self) -> None:
        """Ask for a checkpoint after this update, and no more updates."""
        if self.process is not None:
            self.process.terminate()

    def kill(self) -> None:
        """Stop at once."""
        if self.process is not None:
            self.process.kill()

    def close(self) -> None:
        """Wait for the end of the process."""
        self.executor.shutdown(wait=True, cancel_futures=True)


def start_worker(threads: int) -> Worker:
    """A new process that computes with so many threads."""
    context = multiprocessing.get_context("spawn")
    updates = context.RawValue(ctypes.c_int64, 0)
    executor = ProcessPoolExecutor(1, context, _begin, (threads, updates))
    before = multiprocessing.active_children()
    # OpenMP reads these when torch is imported; threads that wait must not keep a core from those that work.
    with _environment({"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}), _without_interrupts():
        executor.submit(os.getpid)  # the first call starts the process
    process = next((child for child in multiprocessing.active_children() if child not in before), None)
    return Worker(executor, updates, process)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """What a process that is started meanwhile finds in its environment."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process that is started meanwhile never gets SIGINT; here it comes a moment later."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# -------------------------------------------------------------------------------------------------- in the child


_updates = ctypes.c_int64()
"""How far the cell of this process is; the parent reads it."""


def _begin(threads: int, updates: ctypes.c_int64) -> None:
    global _updates
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(threads)
    _updates = updates
    threading.Thread(target=_follow_the_parent, daemon=True).start()


def work(cell: Cell) -> Result:
    """Run a cell in this process, or raise an error that can travel to the parent."""
    try:
        return run_cell(cell, cached_data(cell.config.dataset, cell.config.data_dir), tell=_tell, progress=False)
    except SystemExit:  # what Lightning makes of a second signal
        raise StoppedError(f"{cell.path} was stopped") from None
    except Exception as error:
        raise portable(error) from error
    finally:
        if _orphaned():
            os._exit(1)


def run_cell(cell: Cell, data: DataSet | None, **options: Any) -> Result:
    """Read the cell's run if it is finished, go on with it if it is there, train it if it is not.

    Args:
        cell: the run.
        data: its examples, if they are here already.
        options: of ``train``.
    """
    if cell.finished:
        return cell.result
    return train(cell.config, cell.path, resume=cell.there, force=cell.force, data=data, **options)


@lru_cache(maxsize=1)
def cached_data(dataset: str, data_dir: Path | None) -> DataSet:
    """Read once a process and not once a cell; the parent has seen to it that the files are there."""
    return load(dataset, data_dir, download=False)


def _tell(updates: int) -> None:
    """So many updates are done."""
    _updates.value = updates


def _follow_the_parent() -> None:
    """A parent that was killed takes its workers with it: they save and stop."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


def _orphaned() -> bool:
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()


def portable(error: Exception) -> Exception:
    """The error itself if it survives the way to another process, else one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever is wrong with a pickle
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
