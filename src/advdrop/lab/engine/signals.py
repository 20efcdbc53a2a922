"""Signals that ask a training to save and to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from advdrop.lab.engine.progress import Progress

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
"""Ctrl-C, kill, a terminal that closes, and what SLURM can send before the end of a job."""


@contextmanager
def stop_signals(progress: Progress) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after the first signal. A second signal is obeyed at once.

    Signals within a second count as one: torchrun, and a terminal that closes, send theirs twice. Signals that were
    ignored, such as SIGHUP under ``nohup``, stay ignored. Only the main thread can catch signals.
    """
    received: list[float] = []
    known = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in known}
    if threading.current_thread() is not threading.main_thread():
        before = {}

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        received.append(time.monotonic())
        if len(received) == 1:
            with suppress(RuntimeError):  # the signal came while something else was being written
                progress.say("finishing this update, then saving; once more stops at once")
        elif received[-1] - received[0] > 1:
            progress.__exit__()
            signal.signal(number, before[number])
            signal.raise_signal(number)

    caught = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    for number in caught:
        signal.signal(number, handle)
    try:
        yield lambda: bool(received)
    finally:
        for number in caught:
            signal.signal(number, before[number])
