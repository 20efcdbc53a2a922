"""How far it is: a bar on a terminal, a line an epoch elsewhere; how long it will take in both."""

from __future__ import annotations

import heapq
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    import rich.progress


@dataclass
class Progress:
    """Shows the updates of one run: a bar on a terminal, elsewhere a line after each epoch."""

    updates: int  # the number of all updates
    done: int  # the number of updates done before
    name: str
    file: TextIO = field(default_factory=lambda: sys.stderr)
    show: bool = True
    tell: Callable[[int], None] | None = None  # called with the number of updates done, after each update

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

    def advance(self) -> None:
        """Count one more update."""
        self.done += 1
        if self.tell is not None:
            self.tell(self.done)
        if self.bar is not None:
            self.bar.advance(self.bar.task_ids[0])

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


def _bar(file: TextIO, name: str, updates: int, done: int) -> rich.progress.Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    title, numbers = (TextColumn(f"{{task.{text}}}", markup=False) for text in ("description", "fields[numbers]"))
    columns = (title, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), numbers)
    bar = Bar(*columns, console=Console(file=file, force_terminal=True), refresh_per_second=2)
    bar.add_task(name, total=updates, completed=done, numbers="")
    return bar


class Line:
    """How far many runs are: one line that is written again and again on a terminal, a line now and then elsewhere.

    Args:
        file: where to.
        show: whether anything is shown at all.
    """

    def __init__(self, file: TextIO | None = None, show: bool = True) -> None:
        self.file, self.show = file or sys.stderr, show
        self.terminal = show and self.file.isatty()

    def rewrite(self, text: str) -> None:
        """Show this instead of the last one; only on a terminal."""
        if self.terminal:
            width = shutil.get_terminal_size().columns - 1
            shown = text if len(text) <= width else f"{text[: width - 1]}…"
            print(f"\r{shown}\x1b[K", end="", file=self.file, flush=True)

    def say(self, text: str) -> None:
        """Show this instead of the last one, and elsewhere as a line."""
        if self.terminal:
            self.rewrite(text)
        elif self.show:
            print(text, file=self.file, flush=True)

    def note(self, text: str) -> None:
        """A line that stays."""
        self.close()
        if self.show:
            print(text, file=self.file, flush=True)

    def close(self) -> None:
        """Leave the terminal an empty line."""
        if self.terminal:
            print("\r\x1b[K", end="", file=self.file, flush=True)


def overall(done: int, total: int, running: Mapping[str, float], left: float | None, failed: int = 0) -> str:
    """How far many runs are.

    Args:
        done: the runs that are over.
        total: all of them.
        running: the names of those that run, and the share of each that is done.
        left: seconds until all are over, if that is known.
        failed: how many of those that are over failed.

    >>> overall(4, 9, {"vadd-kl seed 0": 0.41, "pi seed 1": 0.38}, 720)
    '4 of 9 runs done, 2 running: vadd-kl seed 0 41 %, pi seed 1 38 %; about 0:12:00 left'
    >>> overall(4, 9, {}, None, failed=1)
    '4 of 9 runs done (1 failed)'
    """
    names = ", ".join(f"{name} {int(100 * share)} %" for name, share in running.items())
    text = f"{done} of {total} runs done" + (f" ({failed} failed)" if failed else "")
    text += f", {len(running)} running: {names}" if running else ""
    return text if left is None or done == total else f"{text}; about {duration(left)} left"


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
