"""How far it is: a bar on a terminal, a line an epoch elsewhere; how long it will take in both."""

from __future__ import annotations

import sys
import time
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
    """

    def __init__(self, updates: int, done: int, name: str, file: TextIO | None = None, show: bool = True) -> None:
        self.updates, self.started_at, self.name, self.show = updates, done, name, show
        self.file = file or sys.stderr
        self.start = time.monotonic()
        terminal = show and self.file.isatty()
        self.bar = tqdm(total=updates, initial=done, desc=name, unit="update", file=self.file) if terminal else None

    def advance(self) -> None:
        """One more update is done."""
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
