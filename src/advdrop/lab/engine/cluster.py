"""Runs on a Dask cluster: workers that may be on other machines and share a folder with this one.

Dask starts a cell again on another worker when one dies; its run directory holds the last checkpoint, and a lock that
went with the dead process, so nothing is lost and nothing trained twice.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from advdrop.lab.engine.run import StoppedError
from advdrop.lab.engine.rundir import BusyError, RunDirectory, RunError
from advdrop.lab.engine.worker import Cell, Result, cached_data, portable, run_cell

TIMEOUT = 10.0
"""Seconds to wait for the scheduler."""
PATIENCE = 120.0
"""Seconds to wait for the lock of a worker that the cluster gave up but that still finishes an update."""


class _Seen:
    """How far a run is, as its metrics tell."""

    def __init__(self) -> None:
        self.path: Path | None = None

    @property
    def value(self) -> int:
        try:
            rows = RunDirectory(self.path).metrics() if self.path is not None else []
        except RunError:
            rows = []
        return int(rows[-1]["update"]) if rows else 0


@dataclass
class ClusterWorker:
    """A place on the cluster, with the same face as a process of this machine.

    Args:
        executor: hands functions to the cluster.
        stop_file: is written to ask all cells to stop.
        threads: of each cell.
    """

    executor: Any
    stop_file: Path
    threads: int

    def __post_init__(self) -> None:
        self.updates = _Seen()
        self.future: Future[Result] | None = None

    def submit(self, cell: Cell) -> Future[Result]:
        """Start with a cell."""
        self.updates.path = cell.path
        there = replace(cell, path=cell.path.absolute())  # a worker may be in another folder
        self.future = self.executor.submit(work_on_cluster, there, self.stop_file.absolute(), self.threads)
        assert self.future is not None
        return self.future

    def stop(self) -> None:
        """Ask for the end; what the last checkpoint has is kept."""
        self.stop_file.parent.mkdir(parents=True, exist_ok=True)
        self.stop_file.touch()

    def kill(self) -> None:
        """Do not wait for the end."""
        self.stop()
        if self.future is not None:
            self.future.cancel()

    def close(self) -> None:
        """Nothing to wait for: the cluster stays."""


def connect(address: str) -> tuple[Any, int]:
    """An executor of a running cluster, and how many cells it takes at a time.

    Args:
        address: of the scheduler, such as ``tcp://10.0.0.1:8786``.
    """
    try:
        from distributed import Client
    except ImportError:
        raise ValueError("--scheduler needs a package that is not here: pip install 'advdrop[cluster]'") from None
    try:
        client: Any = Client(address, timeout=TIMEOUT)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as error:
        reason = str(error).split("\n")[0] or type(error).__name__
        raise ValueError(f"--scheduler {address}: no Dask scheduler answers there ({reason})") from None
    places = sum(client.nthreads().values())
    if not places:
        raise ValueError(f"--scheduler {address} has no workers; start some: dask worker {address}")
    return client.get_executor(pure=False), places


def work_on_cluster(cell: Cell, stop_file: Path, threads: int) -> Result:
    """Run a cell in a worker of the cluster, or raise an error that can travel."""
    looked = time.monotonic()

    def tell(updates: int) -> None:
        nonlocal looked
        del updates
        if time.monotonic() - looked > 1.0:
            looked = time.monotonic()
            if stop_file.exists():
                raise StoppedError(f"{cell.path} was stopped")

    torch.set_num_threads(threads)
    data = cached_data(cell.config.dataset, cell.config.data_dir)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return run_cell(cell, data, tell=tell, progress=False)
        except BusyError as error:
            if time.monotonic() > deadline:
                raise portable(error) from error
            time.sleep(1.0)
            cell = replace(cell, force=False)
        except Exception as error:
            raise portable(error) from error
