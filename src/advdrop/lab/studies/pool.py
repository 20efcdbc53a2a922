"""An autoencoder to train, as a task for a worker process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from advdrop.lab.data.sources import load
from advdrop.lab.engine.run import StoppedError
from advdrop.lab.records.measurement import Measurement
from advdrop.lab.studies.autoencoders import Settings
from advdrop.lab.studies.measure import autoencoder_measurement


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

    @property
    def name(self) -> str:
        """For example ``dropout seed 0``."""
        return f"{self.row} seed {self.seed}"

    @property
    def updates(self) -> int:
        """How many updates there are in all."""
        return self.settings.updates

    def __call__(self, tell: Callable[[int], bool]) -> Measurement:
        """Train and measure it; it has no checkpoints, so it stops as soon as ``tell`` returns True."""

        def progress(update: int) -> None:
            if tell(update):
                raise StoppedError(f"{self.name} was stopped")

        data, picture = load(self.dataset, self.data_dir, progress=False), self.seed == 0
        return autoencoder_measurement(self.row, self.settings, data, self.seed, picture=picture, progress=progress)
