"""Measurements for the ledger: of a trained autoencoder, and of the theorem."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from advdrop.lab.data.examples import DataSet
from advdrop.lab.environment import commit, machine, versions
from advdrop.lab.records.measurement import Measurement
from advdrop.lab.studies.autoencoders import Settings, features, hidden_activations, reconstruction_error, trained
from advdrop.lab.studies.features import order, packed
from advdrop.lab.studies.paths import measured
from advdrop.lab.studies.sparsity import edges, histogram, measures

IMAGES = 1000
"""The number of test images for measuring activations, as in the paper."""


def autoencoder_measurement(
    row: str,
    settings: Settings,
    data: DataSet,
    seed: int,
    *,
    picture: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Measurement:
    """Train an autoencoder and measure it.

    Args:
        row: its name in tables.
        settings: of the training.
        data: images.
        seed: of everything random.
        picture: whether to keep the features too, which are large.
        progress: called with the number of updates done.
    """
    began = time.monotonic()
    model = trained(settings, data.train.x, seed, progress=progress)
    activations = hidden_activations(model, data.test.x[:IMAGES])
    numbers = {"reconstruction_error": reconstruction_error(model, data.test.x), **measures(activations)}
    series = {"edges": edges(), "activations": histogram(activations), "means": histogram(activations.mean(0))}
    found: dict[str, Any] = {"settings": asdict(settings), "numbers": numbers, "series": series, "shape": data.shape}
    if picture:
        found["picture"], numbers["feature_scale"] = packed(features(model)[order(activations)])
    names = {"study": "autoencoder", "dataset": data.name, "row": row}
    return _measurement(began, seed=seed, dataset_checksum=data.checksum, **names, **found)


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
