"""Signals that ask a training to save and to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from advdrop.lab.choices import STOP_SIGNALS

AT_ONCE = 1.0
"""Seconds within which signals count as one: torchrun, ``timeout``, and a terminal that closes, send theirs twice."""


class StoppedError(RuntimeError):
    """The run was asked to stop and can be resumed."""

    exit_code = 130


@contextmanager
def stop_signals(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after the first signal. A second signal raises a StoppedError.

    Signals that were ignored, such as SIGHUP under ``nohup``, stay ignored. Only the main thread can catch signals.
    """
    received: list[float] = []

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        received.append(time.monotonic())
        if len(received) == 1:
            with suppress(Exception):  # the signal came while something else was being written or imported
                say("finishing this update, then saving; a second signal stops at once")
        elif received[-1] - received[0] > AT_ONCE:
            raise StoppedError("stopped at once; resume from the last checkpoint")

    main = threading.current_thread() is threading.main_thread()
    caught = [number for number in STOP_SIGNALS if main and signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, handle) for number in caught}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
