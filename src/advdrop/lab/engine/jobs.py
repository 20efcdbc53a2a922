"""Many runs, one after the other in this process or side by side on a Dask cluster.

Side by side, each run has fewer threads. Its numbers are bit-identical to those of any run with as many threads. With
another number of threads they may differ in rounding; ``result.json`` has the number (``machine.threads``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import psutil  # type: ignore[import-untyped]
import torch

from advdrop.lab.data.examples import DataSet
from advdrop.lab.engine.cluster import side_by_side
from advdrop.lab.engine.devices import device_of
from advdrop.lab.engine.signals import StoppedError
from advdrop.lab.engine.worker import Cell, Result

MEMORY = 1.5e9
"""Bytes of memory that a job is taken to need."""

Key = TypeVar("Key")
Outcome = Result | Exception
"""What ``result.json`` of a run holds, or what went wrong."""


@dataclass(frozen=True)
class Jobs:
    """How many runs there are at a time, and with how many threads each."""

    count: int
    threads: int

    def __str__(self) -> str:
        """For example ``2 at a time, 1 thread each``."""
        return f"{self.count} at a time, {self.threads} thread{'s' if self.threads > 1 else ''} each"


def jobs_of(wanted: int | Literal["auto"], cells: Iterable[Cell]) -> Jobs:
    """Return the jobs for those of the cells that are not finished.

    A number is taken as it is, so that a command that is given again computes with as many threads as before.

    Args:
        wanted: the number of jobs; ``auto`` for as many as there are cores, memory and runs, and one on an accelerator.
        cells: what is to be run.
    """
    cores, limit = available_cores(), torch.get_num_threads()
    if wanted == "auto":
        left = [cell for cell in cells if not cell.finished]
        fitting = int(psutil.virtual_memory().available / MEMORY)
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
