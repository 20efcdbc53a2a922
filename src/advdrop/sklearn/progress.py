"""The progress of a fit."""

from __future__ import annotations

import sys
import time
from math import ceil
from typing import Literal, Self

SLOW = 2.0
"""A fit that takes longer, in seconds, shows its progress in a terminal."""
WIDTH = 30


class Progress:
    """Writes the progress of the trainings of a fit to the standard error.

    Args:
        verbose: True always writes: one line in a terminal, elsewhere four lines for each training. ``"auto"`` writes
            only in a terminal, and only if the fit takes longer than two seconds. False never writes.

    Attributes:
        answer: what to write at the end with ``verbose=True``.
    """

    def __init__(self, verbose: bool | int | Literal["auto"]) -> None:
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self.always = verbose != "auto" and bool(verbose)
        self.lines, self.bar = self.always and not terminal, terminal and bool(verbose)
        self.start = time.monotonic()
        self.shown = False
        self.answer = ""

    def __enter__(self) -> Self:
        return self

    def training(self, what: str, part: int, parts: int, loss: float) -> None:
        """Show how many parts of a training are done."""
        text = f"{what}: {100 * part // parts} %, loss {loss:.4f}"
        if self.lines and (part % ceil(parts / 4) == 0 or part == parts):
            print(text, file=sys.stderr, flush=True)
        elif self.bar and (self.always or time.monotonic() - self.start > SLOW):
            full = WIDTH * part // parts
            print(f"\r\033[K[{'#' * full}{'.' * (WIDTH - full)}] {text}", end="", file=sys.stderr, flush=True)
            self.shown = True

    def __exit__(self, *_: object) -> None:
        """Remove the bar; with ``verbose=True``, write the answer."""
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        if self.always and self.answer:
            print(self.answer, file=sys.stderr, flush=True)
