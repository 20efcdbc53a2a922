"""What ``compare`` and ``reproduce`` share: many runs on one machine."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch

from advdrop.lab.config.config import Engine, RunConfig
from advdrop.lab.data.examples import DataSet
from advdrop.lab.engine.devices import resolve_auto, resumed_config
from advdrop.lab.engine.estimate import estimate
from advdrop.lab.engine.rundir import RunDirectory, RunError

Kind = TypeVar("Kind", bound=Hashable)


def engine_of(config: RunConfig, there: Sequence[Path]) -> Engine:
    """The machine, the same for all runs: what is left to it is as in a run that is there, else as is best now."""
    if there:
        return resumed_config(config, RunDirectory.open(there[0]).config).engine
    return resolve_auto(config).engine


def refuse_others(path: Path, config: RunConfig) -> None:
    """An error if there is a run of another configuration."""
    if path.exists() and (different := RunDirectory.open(path).config.differences(config)):
        raise RunError(
            f"{path} is a run with another {', '.join(different)}; replace it (--force) or choose another --out"
        )


def guessed(configs: Mapping[Kind, RunConfig], data: Mapping[str, DataSet], threads: int) -> dict[Kind, float]:
    """Seconds that a run of each kind takes.

    Args:
        configs: a run of each kind.
        data: the data sets by their names.
        threads: of a run.
    """
    with threads_of(threads):
        return {kind: estimate(config, data[config.dataset]).seconds for kind, config in configs.items()}


@contextmanager
def threads_of(number: int) -> Iterator[None]:
    """Compute with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
