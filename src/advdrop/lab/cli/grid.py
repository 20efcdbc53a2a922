"""Many runs on one machine: what ``compare`` and ``reproduce`` share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch

from advdrop.lab.config.config import RunConfig
from advdrop.lab.data.examples import DataSet
from advdrop.lab.engine.jobs import Cell, Jobs
from advdrop.lab.engine.progress import duration, makespan
from advdrop.lab.engine.run import estimate
from advdrop.lab.engine.rundir import RunDirectory, RunError
from advdrop.lab.report.text_table import table


def parse_jobs(text: str) -> int | Literal["auto"]:
    """Return the number of jobs that was typed."""
    if text == "auto":
        return "auto"
    if not (text.isdecimal() and 0 < int(text) <= 1000):
        raise ValueError(f"--jobs takes a number of processes from 1 to 1000, or 'auto', got {text!r}")
    return int(text)


def refuse_others(path: Path, config: RunConfig) -> None:
    """Raise an error if there is a run of another configuration."""
    if path.exists() and (different := RunDirectory.open(path).config.differences(config)):
        raise RunError(
            f"{path} is a run with another {', '.join(different)}; replace it (--force) or choose another --out"
        )


def plan(
    head: Sequence[str], cells: Mapping[tuple[str, ...], Cell], jobs: Jobs, data: Mapping[str, DataSet]
) -> tuple[str, str]:
    """Return a table of the runs, and the time that they take.

    Args:
        head: the columns of the keys.
        cells: the runs. The last part of a key is the seed, which makes no difference to the time.
        jobs: how many run at a time.
        data: the data sets by name.
    """
    left = {key: cell for key, cell in cells.items() if not cell.finished}
    kinds = {key[:-1]: cell.config for key, cell in left.items()}
    with threads_of(jobs.threads):
        seconds = {kind: estimate(config, data[config.dataset]).seconds for kind, config in kinds.items()}
    rows = []
    for key, cell in cells.items():
        about = duration(seconds[key[:-1]]) if key in left else "done"
        rows.append([*key, f"{cell.config.training.updates:,}", about, str(cell.path)])
    total = duration(makespan([seconds[key[:-1]] for key in left], jobs.count))
    return table([*head, "updates", "about", "run"], rows), f"{jobs}: about {total} in all"


@contextmanager
def threads_of(number: int) -> Iterator[None]:
    """Compute with this number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
