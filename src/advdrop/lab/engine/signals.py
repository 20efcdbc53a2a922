"""Signals that ask a training to save and to stop."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any

from advdrop.lab.engine.progress import Progress

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
"""Ctrl-C, kill, a terminal that closes, and the usual warning of SLURM before the end of a job."""


class StopSignals:
    """Inside the ``with`` block, the first signal is noted in ``received``, and a second one is obeyed at once.

    Signals within a second count as one: torchrun, and a terminal that closes, send theirs twice. Signals that were
    ignored, such as SIGHUP under ``nohup``, stay ignored.
    """

    def __init__(self, progress: Progress) -> None:
        self.received, self.progress = False, progress
        self._first = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        """Catch the signals, which only the main thread can do."""
        if threading.current_thread() is threading.main_thread():
            before = {number: signal.getsignal(number) for name in NAMES if (number := getattr(signal, name, None))}
            self._before = {n: handler for n, handler in before.items() if handler not in (signal.SIG_IGN, None)}
            for number in self._before:
                signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        """Handle signals as before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if not self.received:
            self.received, self._first = True, time.monotonic()
            with suppress(RuntimeError):  # the signal came while something else was being written
                self.progress.say("finishing this update, then saving; once more stops at once")
        elif time.monotonic() - self._first > 1:
            self.progress.__exit__()
            self.__exit__()
            signal.raise_signal(number)
