"""Measurements for the ledger: of a trained autoencoder, and of the theorem."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from advdrop.lab.data.sources import load
from advdrop.lab.engine.signals import StoppedError
from advdrop.lab.environment import commit, machine, versions
from advdrop.lab.records.measurement import Measurement
from advdrop.lab.studies.autoencoders import (
    Settings,
    by_activation,
    hidden_activations,
    packed,
    reconstruction_error,
    trained,
)
from advdrop.lab.studies.paths import measured
from advdrop.lab.studies.sparsity import edges, histogram, measures

IMAGES = 1000
"""The number of test images for measuring activations, as in the paper."""


@dataclass(frozen=True)
class AutoencoderTask:
    """An autoencoder to train and measure, as a task for a worker process. Seed 0 keeps its features."""

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
        """The length of the training."""
        return self.settings.updates

    def __call__(self, tell: Callable[[int], bool]) -> Measurement:
        """Train and measure it; it has no checkpoints, so it stops as soon as ``tell`` returns True."""

        def progress(update: int) -> None:
            if tell(update):
                raise StoppedError(f"{self.name} was stopped")

        data, began = load(self.dataset, self.data_dir, progress=False), time.monotonic()
        model = trained(self.settings, data.train.x, self.seed, progress=progress)
        activations = hidden_activations(model, data.test.x[:IMAGES])
        numbers = {"reconstruction_error": reconstruction_error(model, data.test.x), **measures(activations)}
        series = {"edges": edges(), "activations": histogram(activations), "means": histogram(activations.mean(0))}
        found: dict[str, Any] = {"numbers": numbers, "series": series, "shape": data.shape}
        if self.seed == 0:
            features = model[1].get_parameter("weight").detach()
            found["picture"], numbers["feature_scale"] = packed(features[by_activation(activations)])
        names = {"study": "autoencoder", "dataset": data.name, "row": self.row, "settings": asdict(self.settings)}
        return _measurement(began, seed=self.seed, dataset_checksum=data.checksum, **names, **found)


def theory_measurement(done: Callable[[str], None] = lambda _: None) -> Measurement:
    """Check the identities and fit the paths of scikit-learn's diabetes data."""
    from sklearn.datasets import load_diabetes

    began = time.monotonic()
    bunch = load_diabetes()
    numbers, series = measured(bunch.data, bunch.target, list(bunch.feature_names), done)
    digest = hashlib.sha256(bunch.data.tobytes() + bunch.target.tobytes()).hexdigest()
    names = {"study": "linear-regression", "dataset": "diabetes", "row": "paths"}
    return _measurement(began, seed=0, dataset_checksum=digest, **names, settings={}, numbers=numbers, series=series)


def _measurement(began: float, **values: Any) -> Measurement:
    return Measurement(
        **values,
        versions=versions(),
        commit=commit(),
        machine=machine(),
        seconds=round(time.monotonic() - began, 1),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
    ).sealed()
