"""From a trained autoencoder, or a set of fits, to the measurement that goes into the ledger."""

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
from advdrop.lab.studies.autoencoders import Settings, hidden_activations, reconstruction_error, trained
from advdrop.lab.studies.features import features, order, packed
from advdrop.lab.studies.paths import measured
from advdrop.lab.studies.sparsity import edges, histogram, measures

IMAGES = 1000
"""Test images that activations are measured on, as in the paper."""


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
        row: what to call it.
        settings: how it is trained.
        data: images.
        seed: of everything random.
        picture: whether the features are kept as well; they are large.
        progress: is told how many updates are done.
    """
    began = time.monotonic()
    model = trained(settings, data.train.x, seed, progress=progress)
    activations = hidden_activations(model, data.test.x[:IMAGES])
    numbers = {"reconstruction_error": reconstruction_error(model, data.test.x), **measures(activations)}
    drawn = None
    if picture:
        drawn, numbers["feature_scale"] = packed(features(model)[order(activations)])
    series = {"edges": list(edges()), "activations": histogram(activations), "means": histogram(activations.mean(0))}
    return _measurement(
        began,
        study="autoencoder",
        dataset=data.name,
        row=row,
        seed=seed,
        settings=asdict(settings),
        numbers=numbers,
        series=series,
        picture=drawn,
        shape=data.shape,
        dataset_checksum=data.checksum,
    )


def theory_measurement(done: Callable[[str], None] = lambda _: None) -> Measurement:
    """Check the identities and fit the paths of scikit-learn's diabetes data."""
    from sklearn.datasets import load_diabetes

    began = time.monotonic()
    bunch = load_diabetes()
    numbers, series = measured(bunch.data, bunch.target, list(bunch.feature_names), done)
    digest = hashlib.sha256(bunch.data.tobytes() + bunch.target.tobytes()).hexdigest()
    return _measurement(
        began,
        study="linear-regression",
        dataset="diabetes",
        row="paths",
        seed=0,
        settings={},
        numbers=numbers,
        series=series,
        dataset_checksum=digest,
    )


def _measurement(began: float, **values: Any) -> Measurement:
    return Measurement(
        **values,
        versions=versions(),
        commit=commit(),
        machine=machine(),
        seconds=round(time.monotonic() - began, 1),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
    ).sealed()
