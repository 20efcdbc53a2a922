"""Many autoencoders at a time, in processes of one thread each, so that no number depends on how many there are."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from advdrop.lab.data.sources import load
from advdrop.lab.records.measurement import Measurement
from advdrop.lab.studies.autoencoders import Settings
from advdrop.lab.studies.measure import autoencoder_measurement

SECONDS = 1.0
"""Between two looks at how far they are."""


@dataclass(frozen=True)
class Task:
    """An autoencoder to train.

    Args:
        row: what to call it.
        settings: how.
        dataset: on what.
        data_dir: where that is.
        seed: of everything random; seed 0 keeps its features.
    """

    row: str
    settings: Settings
    dataset: str
    data_dir: Path | None
    seed: int

    def __str__(self) -> str:
        """For example ``dropout seed 0``."""
        return f"{self.row} seed {self.seed}"


def run(
    tasks: Sequence[Task], jobs: int, watch: Callable[[Sequence[int]], None] = lambda _: None
) -> Iterator[tuple[Task, Measurement]]:
    """Train them, and give each as it is done.

    Args:
        tasks: what to train.
        jobs: how many at a time.
        watch: is told, every second, how many updates of each task are done.
    """
    context = multiprocessing.get_context("spawn")
    updates = context.Array("l", len(tasks), lock=False)
    with ProcessPoolExecutor(jobs, context, _begin, (updates,)) as executor:
        waiting = {executor.submit(_train, number, task): task for number, task in enumerate(tasks)}
        try:
            while waiting:
                over, _ = wait(waiting, timeout=SECONDS, return_when=FIRST_COMPLETED)
                watch(list(updates))
                for future in over:
                    yield waiting.pop(future), future.result()
        except BaseException:
            for process in list((executor._processes or {}).values()):  # leaving would wait for those that run
                process.terminate()
            executor.shutdown(wait=False, cancel_futures=True)
            raise


_UPDATES: list[Any] = []


def _begin(updates: Any) -> None:
    torch.set_num_threads(1)
    _UPDATES[:] = [updates]


def _train(number: int, task: Task) -> Measurement:
    def progress(update: int) -> None:
        _UPDATES[0][number] = update

    data = load(task.dataset, task.data_dir, progress=False)
    return autoencoder_measurement(task.row, task.settings, data, task.seed, picture=task.seed == 0, progress=progress)
