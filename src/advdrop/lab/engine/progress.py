"""How far it is: a bar on a terminal, a line an epoch elsewhere; how long it will take in both."""

from __future__ import annotations

import heapq
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Generic, Self, TextIO, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

Key = TypeVar("Key")


@dataclass
class Progress:
    """Shows the updates of one run: a bar on a terminal, elsewhere a line after each epoch."""

    updates: int  # the number of all updates
    done: int  # the number of updates done before
    name: str
    file: TextIO = field(default_factory=lambda: sys.stderr)
    show: bool = True
    tell: Callable[[int], bool | None] | None = None  # called with the number of updates done; True asks to stop

    def __post_init__(self) -> None:
        self.start, self.before = time.monotonic(), self.done
        terminal = self.show and self.file.isatty() and os.environ.get("TERM") != "dumb"
        self.bar = _bar(self.file, self.name, self.updates, self.done) if terminal else None
        if self.tell is not None:
            self.tell(self.done)

    def __enter__(self) -> Progress:
        """Show the bar."""
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the terminal as it was."""
        if self.bar is not None:
            with suppress(OSError):  # the terminal was closed
                self.bar.stop()

    def advance(self) -> bool:
        """Count one more update. Return True if the run is asked to stop."""
        self.done += 1
        if self.bar is not None:
            self.bar.advance(self.bar.task_ids[0])
        return bool(self.tell is not None and self.tell(self.done))

    def epoch(self, numbers: dict[str, float]) -> None:
        """Show the metrics of an epoch."""
        shown = "  ".join(
            f"{label} {numbers[key]:.{digits}f}{unit}" for key, label, digits, unit in SHOWN if key in numbers
        )
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], numbers=shown)
            return
        spent = time.monotonic() - self.start
        left = spent / max(self.done - self.before, 1) * (self.updates - self.done)
        clock = f"{duration(spent)} done, {duration(left)} left"
        self.say(f"{self.name}  update {self.done}/{self.updates}  {shown}  {clock}")

    def say(self, text: str) -> None:
        """Write a line."""
        with suppress(OSError):  # the terminal was closed
            if self.bar is not None:
                self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
            elif self.show:
                print(text, file=self.file, flush=True)


def _bar(file: TextIO, name: str, updates: int, done: int) -> Bars:
    title, numbers = (TextColumn(f"{{task.{text}}}", markup=False) for text in ("description", "fields[numbers]"))
    columns = (title, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), numbers)
    bar = Bars(*columns, console=Console(file=file, force_terminal=True), refresh_per_second=2)
    bar.add_task(name, total=updates, completed=done, numbers="")
    return bar


class Overview(Generic[Key]):
    """Shows how far many runs are: on a terminal, a bar for each that runs and for all; elsewhere, a line for each end.

    Args:
        runs: the name and the number of updates of each run to come.
        done: how many other runs are done.
        show: whether anything is shown at all.
        file: where to.
    """

    def __init__(
        self, runs: Mapping[Key, tuple[str, int]], done: int = 0, show: bool = True, file: TextIO | None = None
    ) -> None:
        self.left, self.done, self.total, self.failed = dict(runs), done, done + len(runs), 0
        self.updates: dict[Key, int] = {}
        self.trained, self.start = 0, 0.0
        self.console = Console(file=file or sys.stderr, quiet=not show)
        self.bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            console=self.console,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
            disable=not (show and self.console.is_terminal),
        )
        self.bar_of: dict[Key | None, TaskID] = {None: self.bars.add_task(str(self), total=self.updates_left)}

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def __str__(self) -> str:
        """For example ``4 of 9 runs done (1 failed); about 0:12:00 left``."""
        failed = f" ({self.failed} failed)" if self.failed else ""
        known = self.left and self.trained
        left = self.updates_left * (time.monotonic() - self.start) / self.trained if known else 0.0
        return f"{self.count} runs done{failed}" + (f"; about {duration(left)} left" if known else "")

    @property
    def count(self) -> str:
        """For example ``4 of 9``."""
        return f"{self.done} of {self.total}"

    @property
    def updates_left(self) -> int:
        """The updates of all runs that are still to be done."""
        return sum(updates - self.updates.get(key, 0) for key, (_, updates) in self.left.items())

    def saw(self, key: Key, updates: int) -> None:
        """Take the number of updates of a run that are done; those of its first call were done before."""
        if key not in self.bar_of:
            name, total = self.left[key]
            self.bar_of[key] = self.bars.add_task(name, total=total)
        self.start = self.start or time.monotonic()
        self.trained += max(updates - self.updates.get(key, updates), 0)
        self.updates[key] = updates
        self.bars.update(self.bar_of[key], completed=updates)
        self._all()

    def ended(self, key: Key, failed: bool) -> None:
        """Take the end of a run."""
        name, _ = self.left.pop(key)
        self.done, self.failed = self.done + 1, self.failed + failed
        if key in self.bar_of:
            self.bars.remove_task(self.bar_of.pop(key))
        self._all()
        if self.bars.disable:
            self.note(f"{name} {'failed' if failed else 'done'}: {self}")

    def _all(self) -> None:
        total = self.bars.tasks[0].total or 0
        self.bars.update(self.bar_of[None], completed=total - self.updates_left, description=str(self))

    def note(self, text: str) -> None:
        """Write a line that stays."""
        self.console.out(text, highlight=False)


def makespan(seconds: Iterable[float], jobs: int) -> float:
    """How long tasks take, so many at a time, in their order.

    >>> makespan([3.0, 1.0, 1.0, 4.0], 2)
    6.0
    """
    ends = [0.0] * jobs
    for each in seconds:
        heapq.heapreplace(ends, ends[0] + each)
    return max(ends)


SHOWN = (
    ("train/loss", "loss", 4, ""),
    ("validation/error_percent", "validation error", 2, " %"),
    ("test/error_percent", "test error", 2, " %"),
)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> duration(3725.4)
    '1:02:05'
    """
    return str(timedelta(seconds=round(seconds)))
