"""How far it is: a bar on a terminal, a line an epoch elsewhere; how long it will take in both."""

from __future__ import annotations

import heapq
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TextIO

from tqdm import tqdm


class Progress:
    """Shows updates as they are done.

    Args:
        updates: how many there are in all.
        done: how many were done before.
        name: what is being trained.
        file: where to; a bar if it is a terminal.
        show: whether anything is shown at all.
        tell: is told how many updates are done, at the start and after each of them.
    """

    def __init__(
        self,
        updates: int,
        done: int,
        name: str,
        file: TextIO | None = None,
        show: bool = True,
        tell: Callable[[int], None] | None = None,
    ) -> None:
        self.updates, self.started_at, self.name, self.show = updates, done, name, show
        self.done, self.tell = done, tell
        self.file = file or sys.stderr
        self.start = time.monotonic()
        terminal = show and self.file.isatty()
        self.bar = tqdm(total=updates, initial=done, desc=name, unit="update", file=self.file) if terminal else None
        if tell is not None:
            tell(done)

    def advance(self) -> None:
        """One more update is done."""
        self.done += 1
        if self.tell is not None:
            self.tell(self.done)
        if self.bar is not None:
            self.bar.update()

    def evaluating(self) -> None:
        """The test images are being looked at: on a large network that takes a while."""
        if self.bar is not None:
            self.bar.set_postfix_str("evaluating ...")

    def epoch(self, done: int, numbers: dict[str, float]) -> None:
        """An epoch is over."""
        shown = "  ".join(
            f"{label} {numbers[key]:.{digits}f}{unit}" for key, label, digits, unit in SHOWN if key in numbers
        )
        if self.bar is not None:
            self.bar.set_postfix_str(shown)
        elif self.show:
            spent = time.monotonic() - self.start
            left = spent / max(done - self.started_at, 1) * (self.updates - done)
            clock = f"{duration(spent)} done, {duration(left)} left"
            print(f"{self.name}  update {done}/{self.updates}  {shown}  {clock}", file=self.file, flush=True)

    def say(self, text: str) -> None:
        """A line between the others."""
        if self.bar is not None:
            self.bar.write(text, file=self.file)
        elif self.show:
            print(text, file=self.file, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.bar is not None:
            self.bar.close()


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
