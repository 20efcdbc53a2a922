"""Processes that start at once: forked from a server that has imported torch and Lightning once and for all.

Whatever a test starts is ended when the test is over, also when it failed: by ``started`` itself, or by the fixture
``quick_processes`` of ``conftest.py`` for what others start.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from advdrop.lab.engine.cluster import Tell
from advdrop.lab.engine.jobs import Cell, Result

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "lightning_fabric",
        "advdrop.lab.engine.run",
        "advdrop.lab.cli.reproduce",
        "advdrop.lab.cli.compare",
        "sklearn.datasets",
        "distributed",
    ]
)


@contextmanager
def started(function: Callable[..., Any], *arguments: Any) -> Iterator[BaseProcess]:
    """Run a function of a module in a process of its own, which is killed at the end of the block."""
    process = CONTEXT.Process(target=function, args=arguments)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def ended(function: Callable[..., Any], *arguments: Any, seconds: float = 240) -> int:
    """Run a function of a module in a process of its own and return its exit code."""
    with started(function, *arguments) as process:
        process.join(seconds)
        assert process.exitcode is not None, "it did not come to an end"
        return process.exitcode


def advdrop(words: list[str], log: Path) -> None:
    """Run a command in this folder; what it says is written to a file."""
    import torch

    from advdrop.lab.cli.main import main

    sys.stdout = sys.stderr = log.open("w", buffering=1)
    torch.set_num_threads(1)  # as the tests do: the bits depend on it
    sys.exit(main(words))


def quick_advdrop(words: list[str], log: Path, address: str) -> None:
    """Run a command whose own processes are forked from the server at this address, too."""
    import dask
    import distributed  # noqa: F401  its settings have to be there before one of them is changed

    tempfile.tempdir = str(log.parent)  # a command that is killed leaves an empty folder there
    server = forkserver._forkserver  # type: ignore[attr-defined]
    server._forkserver_address, server.ensure_running = address, lambda: None
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        advdrop(words, log)


def impatient_advdrop(words: list[str], log: Path) -> None:
    """Run a command that gives a silent scheduler up after a few seconds."""
    from advdrop.lab.engine import cluster

    cluster.PING, cluster.SILENCE, cluster.TIMEOUT = 0.5, 3.0, 3.0
    advdrop(words, log)


def server_address() -> str:
    """Where the server listens, for the processes of a process."""
    forkserver.ensure_running()
    address: str = forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]
    return address


def mortal_advdrop(words: list[str], log: Path, folder: Path, moment: int, name: str = "") -> None:
    """Run a command that is killed at the moment-th file that it opens or renames in a folder.

    Args:
        words: of the command.
        log: what it says.
        folder: whose files count.
        moment: counts from 1.
        name: only files with this in their names count.
    """
    left = [moment]

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename") or not isinstance(arguments[0], str | os.PathLike):
            return
        path = Path(os.fspath(arguments[0]))
        if folder in path.absolute().parents and name in path.name:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    advdrop(words, log)


@dataclass(frozen=True)
class MortalCell(Cell):
    """A cell whose process is killed so many times; files called ``killed-0`` and so on tell that it was."""

    deaths: int = 1

    def __call__(self, tell: Tell) -> Result:
        def mortal(updates: int) -> bool:
            for death in range(self.deaths):
                killed = self.path.with_name(f"{self.path.name}.killed-{death}")
                if updates >= self.updates * (death + 1) // 4 and not killed.exists():
                    killed.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            return tell(updates)

        return super().__call__(mortal)


def wait_for(condition: Callable[[], Any], seconds: float = 240) -> None:
    """Look again and again; the limit is for a test that will not end, not for a slow machine."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def kill_the_rest() -> None:
    """End every process that the server has forked and that is still there."""
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if server is None:
        return
    for child in Path(f"/proc/{server}/task/{server}/children").read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGKILL)
