"""Many runs, one after the other in this process or side by side on a Dask cluster.

Side by side, each run has fewer threads. Its numbers are bit-identical to those of any run with as many threads. With
another number of threads they may differ in rounding; ``result.json`` has the number (``machine.threads``).
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import psutil  # type: ignore[import-untyped]
import torch

from advdrop.lab.choices import Color
from advdrop.lab.config.config import RunConfig
from advdrop.lab.data.examples import DataSet
from advdrop.lab.data.picture_files import Size
from advdrop.lab.data.sources import load
from advdrop.lab.engine.cluster import INTERVAL, Tell, side_by_side
from advdrop.lab.engine.devices import device_of
from advdrop.lab.engine.run import train
from advdrop.lab.engine.rundir import BusyError, RunDirectory
from advdrop.lab.engine.signals import StoppedError

MEMORY, WHITENED = 1.5e9, 3e9
"""Bytes of memory that a job is expected to need, and one that whitens its images, as on CIFAR-10."""
PATIENCE = 120.0
"""Seconds to wait for the lock of a lost worker that still finishes its update."""

Key = TypeVar("Key")
Result = dict[str, Any]
Outcome = Result | Exception
"""What ``result.json`` of a run holds, or what went wrong."""


@dataclass(frozen=True)
class Cell:
    """A run among many."""

    name: str  # such as vadd-kl seed 0
    config: RunConfig
    path: Path  # its directory

    @property
    def updates(self) -> int:
        """How many updates there are in all."""
        return self.config.training.updates

    @property
    def there(self) -> bool:
        """Whether there is a run to read or to resume."""
        return self.path.exists()

    @property
    def finished(self) -> bool:
        """Whether the run is finished, so that its result can be read."""
        return self.there and RunDirectory.open(self.path).finished

    @property
    def result(self) -> Result:
        """The result of the finished run."""
        return RunDirectory.open(self.path).result

    def run(self, data: DataSet | None, **options: Any) -> Result:
        """Read the run if it is finished, resume it if it has begun, else train it, with these options of ``train``."""
        if self.finished:
            return self.result
        return train(self.config, self.path, resume=self.there, data=data, **options)

    def __call__(self, tell: Tell) -> Result:
        """Run it in a worker; if it has to stop, it saves first."""
        # A worker has Python's own format, with a path and a line of code, and no name of a run.
        warnings.formatwarning = lambda message, *_, **__: f"advdrop: {self.name}: {message}\n"
        config = self.config
        data = cached_data(config.dataset, config.data_dir, config.data.size, config.data.color, config.unlabeled)
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


@lru_cache(maxsize=1)
def cached_data(
    dataset: str, data_dir: Path | None, size: Size | None, color: Color | None, unlabeled: Path | None
) -> DataSet:
    """Read the data once per process, not once per run; the command has made sure that the files are there."""
    return load(dataset, data_dir, size=size, color=color, unlabeled=unlabeled, download=False)


@dataclass(frozen=True)
class Jobs:
    """The number of runs at a time, and the number of threads of each."""

    count: int
    threads: int

    def __str__(self) -> str:
        """For example ``2 at a time, 1 thread each``."""
        return f"{self.count} at a time, {self.threads} thread{'s' if self.threads > 1 else ''} each"


def jobs_of(wanted: int | Literal["auto"], cells: Iterable[Cell]) -> Jobs:
    """Return the jobs for those of the cells that are not finished.

    ``auto`` is as many as there are cores, memory and runs, and one on an accelerator. A number is taken as it is, so
    that a command that is given again computes with as many threads as before.
    """
    cores, limit = available_cores(), torch.get_num_threads()
    if wanted == "auto":
        left = [cell for cell in cells if not cell.finished]
        each = WHITENED if any(cell.config.data.zca for cell in left) else MEMORY
        fitting = int(psutil.virtual_memory().available / each)
        on_cpu = all(device_of(cell.config.engine) == "cpu" for cell in left)
        count = max(1, min(len(left), cores, fitting)) if on_cpu else 1
    else:
        count = wanted
    return Jobs(count, limit if count == 1 else max(1, min(limit, cores // count)))


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_cells(
    cells: Mapping[Key, Cell],
    jobs: Jobs,
    data: DataSet | None = None,
    progress: bool = True,
    scheduler: str | None = None,
) -> Iterator[tuple[Key, Outcome]]:
    """Run all cells and yield the result of each, or the error that ended it, as soon as it ends.

    Finished runs are read and others resumed. No error stops the rest. A signal stops all of them after a checkpoint,
    with a StoppedError.

    Args:
        cells: the runs; their data must be on this machine.
        jobs: how many at a time; one job is this process, more are processes of their own.
        data: the examples of all cells, if they are here already; processes of their own read them again.
        progress: whether to show how far it is.
        scheduler: the address of a Dask scheduler whose workers run the cells, if not this machine.
    """
    left = {key: cell for key, cell in cells.items() if not cell.finished}
    for key, cell in cells.items():
        if key not in left:
            yield key, cell.result
    if jobs.count > 1 or scheduler is not None:
        away = {key: replace(cell, path=cell.path.absolute()) for key, cell in left.items()}
        yield from side_by_side(away, jobs.count, jobs.threads, scheduler, len(cells) - len(left), progress)
        return
    for number, (key, cell) in enumerate(cells.items(), start=1):
        if key not in left:
            continue
        try:
            outcome: Outcome = cell.run(data, progress=progress, name=f"[{number}/{len(cells)}] {cell.name}")
        except StoppedError:
            raise
        except Exception as error:
            outcome = error
        yield key, outcome
