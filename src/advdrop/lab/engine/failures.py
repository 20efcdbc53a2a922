"""What stops a training, as errors that say what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from advdrop.lab.config.values import ConfigError
from advdrop.lab.engine.loop import DivergedError
from advdrop.lab.engine.rundir import RunDirectory
from advdrop.lab.engine.signals import StoppedError


@contextmanager
def resumable(run: RunDirectory, processes: int) -> Iterator[None]:
    """Turn what stops a training before its end into an error that says how to resume it."""
    try:
        yield
    except KeyboardInterrupt:
        raise StoppedError(f"stopped; resume with: {run.how_to_resume}") from None
    except OSError as error:  # a full disk or a lost folder is not a wrong argument
        raise RuntimeError(f"{error}; solve this, then resume with: {run.how_to_resume}") from error
    except RuntimeError as error:
        if missing := memory_in(error):
            raise RuntimeError(f"{missing}; make room, then resume with: {run.how_to_resume}") from error
        if processes == 1 or isinstance(error, DivergedError | StoppedError):
            raise
        raise RuntimeError(f"{of_another_process(error)}; resume with: {run.how_to_resume}") from None


@contextmanager
def enough_memory() -> Iterator[None]:
    """Turn torch's error about memory, which names no setting, into one that says what to do."""
    try:
        yield
    except RuntimeError as error:
        if missing := memory_in(error):
            advice = "--set network..., --set training.unlabeled=... or the options of the method"
            raise ConfigError(f"{missing}; make the network, the batches or the method smaller ({advice})") from None
        raise


def memory_in(error: RuntimeError) -> str:
    """Return in words how much memory torch could not get; empty if the error is about something else.

    >>> memory_in(RuntimeError("can't allocate memory: you tried to allocate 3200000000000 bytes. Error code 12"))
    'not enough memory: 3200.0 GB were needed at once'
    """
    found = re.search(r"tried to allocate ([\d.]+) ?(bytes|[KMGT]iB)", str(error), flags=re.IGNORECASE)
    if found is None:
        return ""
    units = {"bytes": 1e-9, "kib": 2**10 / 1e9, "mib": 2**20 / 1e9, "gib": 2**30 / 1e9, "tib": 2**40 / 1e9}
    return f"not enough memory: {float(found[1]) * units[found[2].lower()]:.1f} GB were needed at once"


def of_another_process(error: RuntimeError) -> str:
    """Return what stopped one of several processes; gloo says in a long text that the connection to another is lost."""
    reason = str(error).split("\n")[0]
    if lost := re.match(r"\[.*gloo.*?\] (?:.*?: )?(.+?)(?:\. |$)", reason):
        return f"another process of this run has died or does not answer ({lost[1]}); what it printed says why"
    return f"a process stopped ({reason})"
