"""What runs in a worker of a Dask cluster: a task, the news of its updates, and the request to stop it.

Dask runs a task again on another worker when its worker dies. The run directory holds the last checkpoint, and the
lock on it ends with the dead process: nothing is lost, and nothing is trained twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from advdrop.lab.config.config import RunConfig
from advdrop.lab.data.examples import DataSet
from advdrop.lab.data.sources import load
from advdrop.lab.engine.run import train
from advdrop.lab.engine.rundir import BusyError, RunDirectory
from advdrop.lab.engine.signals import StoppedError

TOPIC = "advdrop"
"""The topic of the events that workers send."""
INTERVAL = 1.0
"""Seconds between two events of a task."""
PATIENCE = 120.0
"""Seconds to wait for the lock of a worker that the scheduler has given up but that still finishes an update."""
GRACE = 60.0
"""Seconds to wait for runs that have to stop: they finish an update and save."""

Result = dict[str, Any]
Tell = Callable[[int], bool]
"""Takes the number of updates that are done and returns True if the task has to stop."""
T_co = TypeVar("T_co", covariant=True)


class Task(Protocol[T_co]):
    """Work for one worker process; it has to survive pickling."""

    @property
    def name(self) -> str:
        """What the user sees."""

    @property
    def updates(self) -> int:
        """How many updates there are in all."""

    def __call__(self, tell: Tell) -> T_co:
        """Do the work, calling ``tell`` after each update; a StoppedError if it says to stop."""


@dataclass(frozen=True)
class Cell:
    """A run among many.

    Args:
        name: such as ``vadd-kl seed 0``.
        config: the run.
        path: its directory.
        force: replace the run that is there now, instead of reading or resuming it.
    """

    name: str
    config: RunConfig
    path: Path
    force: bool = False
    replaced: tuple[int, int] | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "replaced", _stamp(self.path / "config.yaml") if self.force else None)

    @property
    def updates(self) -> int:
        """How many updates there are in all."""
        return self.config.training.updates

    @property
    def there(self) -> bool:
        """Whether there is a run to read or to resume; with ``force``, only one that has begun since."""
        return self.path.exists() and not (self.force and _stamp(self.path / "config.yaml") == self.replaced)

    @property
    def finished(self) -> bool:
        """Whether there is nothing to do but to read the result."""
        return self.there and RunDirectory.open(self.path).finished

    @property
    def result(self) -> Result:
        """The result of the finished run."""
        return RunDirectory.open(self.path).result

    def run(self, data: DataSet | None, **options: Any) -> Result:
        """Read the run if it is finished, resume it if it has begun, else train it, with these options of ``train``."""
        if self.finished:
            return self.result
        resume = self.there
        return train(self.config, self.path, resume=resume, force=self.force and not resume, data=data, **options)

    def __call__(self, tell: Tell) -> Result:
        """Run it in a worker; if it has to stop, it saves first."""
        data = cached_data(self.config.dataset, self.config.data_dir)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self.run(data, tell=tell, progress=False)
            except BusyError:
                if time.monotonic() > deadline:
                    raise
            if tell(0):
                raise StoppedError(f"{self.path} was stopped")
            time.sleep(INTERVAL)


def _stamp(file: Path) -> tuple[int, int] | None:
    """What tells a file from the one that replaces it."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


@lru_cache(maxsize=1)
def cached_data(dataset: str, data_dir: Path | None) -> DataSet:
    """Read the data once per process, not once per run; the command has made sure that the files are there."""
    return load(dataset, data_dir, download=False)


_alone = threading.Lock()  # runs share the random state of their process


def work(task: Task[T_co], name: str, threads: int) -> T_co:
    """Run a task in this Dask worker with so many threads, and send events about it.

    Args:
        task: what to run.
        name: what Dask calls it.
        threads: to compute with.
    """
    from distributed import Status, get_worker

    worker, sent = get_worker(), float("-inf")

    def tell(updates: int) -> bool:
        nonlocal sent
        if worker.status is Status.closing:
            raise StoppedError("its worker was closed")
        if time.monotonic() - sent > INTERVAL:
            sent = time.monotonic()
            worker.log_event(TOPIC, {"name": name, "what": updates})
        state = worker.state.tasks.get(name)
        return state is None or state.state == "cancelled"

    worker.log_event(TOPIC, {"name": name, "what": "started"})
    try:
        with _alone:
            torch.set_num_threads(threads)
            return task(tell)
    finally:
        worker.log_event(TOPIC, {"name": name, "what": "ended"})
