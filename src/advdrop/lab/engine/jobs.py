"""Many runs, one after the other in this process or side by side in several.

Side by side, each run has fewer threads. Its numbers are those of a run with as many threads in any process, bit by
bit; those of another number of threads may differ in rounding, which ``result.json`` tells (``machine.threads``).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Generic, Literal, TypeVar

import torch

from advdrop.lab.config.config import RunConfig
from advdrop.lab.data.examples import DataSet
from advdrop.lab.engine.progress import Line, makespan, overall
from advdrop.lab.engine.run import StoppedError
from advdrop.lab.engine.worker import AnyWorker, Cell, Result, run_cell, start_worker

MEMORY = 1.5e9
"""Bytes of memory that a job is taken to need."""
TICK = 0.5
"""Seconds between looks at the workers."""
AT_ONCE = 1.0
"""Seconds within which two signals are one: ``timeout`` and others send theirs twice."""

Key = TypeVar("Key")
Outcome = Result | Exception
"""What ``result.json`` of a run holds, or what went wrong."""


# ----------------------------------------------------------------------------------------------- how many at a time


@dataclass(frozen=True)
class Jobs:
    """How many runs there are at a time, and with how many threads each."""

    count: int
    threads: int

    def __str__(self) -> str:
        """For example ``2 at a time, 1 thread each``."""
        return f"{self.count} at a time, {self.threads} thread{'s' if self.threads > 1 else ''} each"


def jobs_of(wanted: int | Literal["auto"], cells: Iterable[Cell]) -> Jobs:
    """The jobs for those of the cells that are not finished.

    A number is taken as it is, so that a command that is given again computes with as many threads as before.

    Args:
        wanted: the number of jobs; ``auto`` for as many as there are cores, memory and runs, and one on an accelerator.
        cells: what is to be run.
    """
    cores, limit = available_cores(), torch.get_num_threads()
    if wanted == "auto":
        left = [cell for cell in cells if not cell.finished]
        count = fitting(len(left), cores, available_memory()) if all(on_cpu(cell.config) for cell in left) else 1
    else:
        count = wanted
    return Jobs(count, limit if count == 1 else max(1, min(limit, cores // count)))


def fitting(runs: int, cores: int, memory: float | None) -> int:
    """How many runs the machine takes at a time; one at least.

    >>> fitting(9, 4, 16e9), fitting(3, 4, 16e9), fitting(9, 4, 4e9), fitting(9, 4, 1e9), fitting(0, 4, None)
    (4, 3, 2, 1, 1)
    """
    return max(1, min(runs, cores, runs if memory is None else int(memory / MEMORY)))


def on_cpu(config: RunConfig) -> bool:
    """Whether a run computes on a CPU on this machine."""
    accelerator = config.engine.accelerator
    return accelerator == "cpu" or (accelerator == "auto" and not torch.accelerator.is_available())


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory(file: Path = Path("/proc/meminfo")) -> float | None:
    """Bytes that can be had without swapping; None where the system does not say."""
    try:
        lines = dict(line.split(":", 1) for line in file.read_text().splitlines())
        return 1024.0 * int(lines["MemAvailable"].split()[0])
    except (OSError, ValueError, LookupError):
        return None


# ------------------------------------------------------------------------------------------------------------ running


@dataclass(eq=False)
class _Task(Generic[Key]):
    """A cell on its way.

    Args:
        key: what it is called outside.
        cell: the run.
        stamp: the run that was there before.
        attempts: how often it was started.
        seen: when its first updates were seen, and how many.
        pace: seconds an update.
    """

    key: Key
    cell: Cell
    stamp: tuple[int, int] | None
    attempts: int = 0
    updates: int = 0
    seen: tuple[float, int] | None = None
    pace: float | None = None

    @property
    def kind(self) -> tuple[str, str]:
        """Runs of one kind take one time."""
        return self.cell.config.dataset, self.cell.config.method

    @property
    def left(self) -> int:
        """The updates that are to be done."""
        return self.cell.config.training.updates - self.updates

    def look(self, updates: int, now: float) -> None:
        """So many updates are done."""
        self.updates = updates
        if self.seen is None and updates:
            self.seen = now, updates
        elif self.seen is not None and updates > self.seen[1]:
            self.pace = (now - self.seen[0]) / (updates - self.seen[1])

    def again(self) -> _Task[Key]:
        """The same after its process died: what it has begun is gone on with, even if it replaced another run."""
        force = self.cell.force and _stamp(self.cell.path) == self.stamp
        return replace(self, cell=replace(self.cell, force=force), seen=None)


def run_cells(
    cells: Mapping[Key, Cell],
    jobs: Jobs,
    data: DataSet | None = None,
    progress: bool = True,
    start: Callable[[int], AnyWorker] | None = None,
) -> Iterator[tuple[Key, Outcome]]:
    """Run all cells and yield what each came to, when it did: a result, or the error that ended it.

    Finished runs are read and others gone on with. No error stops the rest. A run whose process is killed is gone on
    with once, in a new process. A signal stops all of them after a checkpoint, with a StoppedError.

    Args:
        cells: the runs; their data must be on this machine.
        jobs: how many at a time; one job is this process, more are processes of their own.
        data: the examples of all cells, if they are here already; processes of their own read them again.
        progress: whether to show how far it is.
        start: from a number of threads to a worker, if not a process of this machine.
    """
    for key, cell in cells.items():
        if cell.finished:
            yield key, cell.result
    left = {key: cell for key, cell in cells.items() if not cell.finished}
    if not left:
        return
    if jobs.count == 1 and start is None:
        titles = {key: f"[{number}/{len(cells)}] {cell.name}" for number, (key, cell) in enumerate(cells.items(), 1)}
        yield from _in_turn(left, titles, data, progress)
    else:
        yield from _Crew(left, len(cells), jobs, progress, start or start_worker).run()


def _in_turn(
    cells: Mapping[Key, Cell], titles: Mapping[Key, str], data: DataSet | None, progress: bool
) -> Iterator[tuple[Key, Outcome]]:
    for key, cell in cells.items():
        outcome: Outcome
        try:
            outcome = run_cell(cell, data, progress=progress, name=titles[key])
        except StoppedError:
            raise
        except Exception as error:
            outcome = error
        yield key, outcome


class _Crew(Generic[Key]):
    """Cells that wait, cells that run and workers that are free."""

    def __init__(
        self, cells: Mapping[Key, Cell], total: int, jobs: Jobs, progress: bool, start: Callable[[int], AnyWorker]
    ) -> None:
        self.waiting = deque(_Task(key, cell, _stamp(cell.path)) for key, cell in cells.items())
        self.running: dict[Future[Result], tuple[_Task[Key], AnyWorker]] = {}
        self.free: list[AnyWorker] = []
        self.paces: dict[tuple[str, str], float] = {}
        self.total, self.done, self.failed = total, total - len(cells), 0
        self.jobs, self.start, self.line = jobs, start, Line(show=progress)

    def run(self) -> Iterator[tuple[Key, Outcome]]:
        """All cells, each when it ends."""
        stopped = 0
        try:
            with _signals() as asked:
                while self.waiting or self.running:
                    if not asked():
                        self.employ()
                    wait(self.running, timeout=TICK, return_when=FIRST_COMPLETED)
                    if asked() > stopped:
                        stopped = asked()
                        self.stop(at_once=stopped > 1)
                    ended = list(self.collect(stopping=stopped > 0))
                    if not stopped:
                        self.employ()
                        self.report(ended)
                    yield from ended
                    if stopped and not self.running:
                        break
        finally:
            self.line.close()
            self.close()
        if stopped and self.done < self.total:
            raise StoppedError(f"stopped with {self.done} of {self.total} runs done; the same command goes on")

    def employ(self) -> None:
        """Give every free worker something to do."""
        while self.waiting and len(self.running) < self.jobs.count:
            task = self.waiting.popleft()
            task.attempts += 1
            worker = self.free.pop() if self.free else self.start(self.jobs.threads)
            self.running[worker.submit(task.cell)] = task, worker

    def collect(self, stopping: bool) -> Iterator[tuple[Key, Outcome]]:
        """The cells that came to an end; those that were stopped or killed wait again."""
        for future in [future for future in self.running if future.done()]:
            task, worker = self.running.pop(future)
            outcome = _outcome(future)
            if isinstance(outcome, BrokenExecutor):
                worker.close()
            else:
                self.free.append(worker)
            if isinstance(outcome, BrokenExecutor | StoppedError):
                if stopping or task.attempts == 1:
                    self.waiting.appendleft(task.again())
                    continue
                outcome = RuntimeError(
                    "its process died twice, perhaps for want of memory; the same command with fewer --jobs goes on"
                )
            if task.pace is not None:
                self.paces[task.kind] = task.pace
            self.done += 1
            self.failed += isinstance(outcome, Exception)
            yield task.key, outcome

    def report(self, ended: list[tuple[Key, Outcome]]) -> None:
        """Show how far it is: at any time on a terminal, elsewhere when a run is over."""
        now = time.monotonic()
        tasks = [task for task, _ in self.running.values()]
        for task, worker in self.running.values():
            task.look(worker.updates.value, now)
        shares = {task.cell.name: task.updates / task.cell.config.training.updates for task in tasks}
        text = overall(self.done, self.total, shares, self.seconds_left([*tasks, *self.waiting]), self.failed)
        if ended:
            self.line.say(text)
        else:
            self.line.rewrite(text)

    def seconds_left(self, tasks: list[_Task[Key]]) -> float | None:
        """A guess from the paces that were seen; a kind of run that was not seen yet is taken for the average one."""
        paces = self.paces | {task.kind: task.pace for task in tasks if task.pace is not None}
        if not paces:
            return None
        average = sum(paces.values()) / len(paces)
        return makespan([task.left * (task.pace or paces.get(task.kind, average)) for task in tasks], self.jobs.count)

    def stop(self, at_once: bool) -> None:
        """Save and stop, or just stop."""
        gently = "finishing these updates, then saving; once more stops at once"
        self.line.note("stopping at once" if at_once else gently)
        for _, worker in self.running.values():
            if at_once:
                worker.kill()
            else:
                worker.stop()

    def close(self) -> None:
        """End all processes; those that still run, because the caller has gone away, save and stop."""
        for _, worker in self.running.values():
            worker.stop()
        wait(self.running)
        workers = [*self.free, *(worker for _, worker in self.running.values())]
        with ThreadPoolExecutor(len(workers) or 1) as together:  # each takes a second or two to leave
            list(together.map(lambda worker: worker.close(), workers))


def _outcome(future: Future[Result]) -> Outcome:
    try:
        error = future.exception()
    except CancelledError:
        return StoppedError("it was stopped")
    if error is None:
        return future.result()
    return error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")


def _stamp(path: Path) -> tuple[int, int] | None:
    """What tells a run from the one that replaces it."""
    try:
        found = (path / "config.yaml").stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


@contextmanager
def _signals() -> Iterator[Callable[[], int]]:
    """How often SIGINT or SIGTERM came, instead of what they do; only in the main thread may they be caught."""
    times: list[float] = []

    def count(number: int, frame: FrameType | None) -> None:
        del number, frame
        if not times or time.monotonic() - times[-1] > AT_ONCE:
            times.append(time.monotonic())

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, count) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    try:
        yield lambda: len(times)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
