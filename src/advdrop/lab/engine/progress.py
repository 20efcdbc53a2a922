"""How far the runs are and how long they will take: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import heapq
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Self, TextIO, TypeVar

import rich.progress as rich
from rich.console import Console

Key = TypeVar("Key")
SPEED_SECONDS = 600.0  # the time that is left is computed from the speed in the last 10 minutes
SHOWN = (
    ("train/loss", "loss", 4, ""),
    ("validation/error_percent", "validation error", 2, " %"),
    ("test/error_percent", "test error", 2, " %"),
)


class Bars:
    """Bars with names and these columns on a terminal; elsewhere they are counted but not drawn."""

    def __init__(self, *columns: rich.ProgressColumn, show: bool, file: TextIO | None, **options: Any) -> None:
        console = Console(file=file or sys.stderr, quiet=not show)
        self.drawn = show and console.is_terminal and not console.is_dumb_terminal
        name = rich.TextColumn("{task.description}", markup=False)
        options |= {"get_time": lambda: time.monotonic(), "speed_estimate_period": SPEED_SECONDS}
        self.bars = rich.Progress(
            name, rich.BarColumn(), *columns, console=console, disable=not self.drawn, refresh_per_second=2, **options
        )

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # the terminal was closed
            self.bars.stop()

    def say(self, text: str) -> None:
        """Write a line that stays."""
        with suppress(OSError):
            self.bars.console.print(text, markup=False, highlight=False, soft_wrap=True)


@dataclass
class Progress(Bars):
    """Shows the updates of one run: a bar on a terminal, elsewhere a line after each epoch."""

    updates: int  # the number of all updates
    done: int  # the number of updates done before
    name: str
    show: bool = True
    file: TextIO | None = None  # stderr by default
    tell: Callable[[int], bool | None] | None = None  # called with the number of updates done; True asks to stop

    def __post_init__(self) -> None:
        numbers = rich.TextColumn("{task.fields[numbers]}", markup=False)
        columns = (rich.MofNCompleteColumn(), rich.TimeElapsedColumn(), rich.TimeRemainingColumn(), numbers)
        super().__init__(*columns, show=self.show, file=self.file)
        self.task = self.bars.add_task(self.name, total=self.updates, completed=self.done, numbers="")
        if self.tell is not None:
            self.tell(self.done)

    def advance(self) -> bool:
        """Count one more update. Return True if the run is asked to stop."""
        self.done += 1
        self.bars.update(self.task, completed=self.done)
        return bool(self.tell is not None and self.tell(self.done))

    def epoch(self, numbers: Mapping[str, float]) -> None:
        """Show the metrics of an epoch."""
        shown = "  ".join(
            f"{label} {numbers[key]:.{digits}f}{unit}" for key, label, digits, unit in SHOWN if key in numbers
        )
        if self.drawn:
            self.bars.update(self.task, numbers=shown)
            return
        task = self.bars.tasks[0]
        clock = f"{duration(task.elapsed or 0.0)} done, {duration(task.time_remaining or 0.0)} left"
        self.say(f"{self.name}  update {self.done}/{self.updates}  {shown}  {clock}")


class Overview(Bars, Generic[Key]):
    """Shows how far many runs are: on a terminal, a bar for each that runs and for all; elsewhere, a line for each end.

    ``runs`` are the names and the numbers of updates of the runs to come; others are done.
    """

    def __init__(
        self, runs: Mapping[Key, tuple[str, int]], done: int = 0, show: bool = True, file: TextIO | None = None
    ) -> None:
        redirect = sys.stdout.isatty()
        super().__init__(rich.TaskProgressColumn(), show=show, file=file, transient=True, redirect_stdout=redirect)
        self.runs, self.done, self.total, self.failed = dict(runs), done, done + len(runs), 0
        self.all = self.bars.add_task("", total=sum(updates for _, updates in runs.values()))
        self.tasks = {key: self.bars.add_task(name, total=total, visible=False) for key, (name, total) in runs.items()}
        self.seen: dict[Key, int] = {}
        self._count(0)

    def __str__(self) -> str:
        """For example ``4 of 9 runs done (1 failed); about 0:12:00 left``."""
        failed = f" ({self.failed} failed)" if self.failed else ""
        left = self.bars.tasks[0].time_remaining
        return f"{self.count} runs done{failed}" + (f"; about {duration(left)} left" if left else "")

    @property
    def count(self) -> str:
        """For example ``4 of 9``."""
        return f"{self.done} of {self.total}"

    def saw(self, key: Key, updates: int) -> None:
        """Note how many updates of a run are done. The number of the first call was done before this command."""
        self.bars.update(self.tasks[key], completed=updates, visible=True)
        if key not in self.seen:
            self._leave_out(updates)
        self._count(updates - self.seen.get(key, updates))
        self.seen[key] = updates

    def ended(self, key: Key, failed: bool) -> None:
        """Note the end of a run."""
        name, updates = self.runs[key]
        left = updates - self.seen.get(key, 0)
        self.done, self.failed = self.done + 1, self.failed + failed
        self.bars.remove_task(self.tasks[key])
        if failed:
            self._leave_out(left)
        self._count(0 if failed else left)
        if not self.drawn:
            self.say(f"{name} {'failed' if failed else 'done'}: {self}")

    def _count(self, updates: int) -> None:
        self.bars.update(self.all, advance=updates)
        self.bars.update(self.all, description=str(self))

    def _leave_out(self, updates: int) -> None:
        """Subtract updates that will not be done from the sum."""
        task = self.bars.tasks[0]
        task.total = (task.total or 0) - updates


def makespan(seconds: Iterable[float], jobs: int) -> float:
    """Return how long tasks take in their order if ``jobs`` of them run at a time.

    >>> makespan([3.0, 1.0, 1.0, 4.0], 2)
    6.0
    """
    ends = [0.0] * jobs
    for each in seconds:
        heapq.heapreplace(ends, ends[0] + each)
    return max(ends)


def duration(seconds: float) -> str:
    """Return hours, minutes and seconds.

    >>> duration(3725.4)
    '1:02:05'
    """
    return str(timedelta(seconds=round(seconds)))
