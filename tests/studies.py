"""Measurements made by hand, for the tests of studies and of the page."""

from __future__ import annotations

from typing import Any

from advdrop.lab.records.measurement import Measurement


def autoencoder_of(row: str = "dropout", seed: int = 0, **changes: Any) -> Measurement:
    """An autoencoder of three units and 2 x 2 pixels; keywords replace numbers, or fields of the measurement."""
    numbers = {
        "reconstruction_error": 0.02,
        "dead_units": 1.0,
        "mean_activation": 0.5,
        "high_percent": 10.0,
        "active_percent": 75.0,
        "hoyer": 0.6,
        "treves_rolls": 0.7,
        "feature_scale": 2.0,
    }
    fields = {key: value for key, value in changes.items() if key in Measurement.model_fields}
    numbers |= {key: value for key, value in changes.items() if key not in fields}
    values: dict[str, Any] = {
        "study": "autoencoder",
        "dataset": "mnist5k",
        "row": row,
        "seed": seed,
        "settings": {"hidden": 3, "updates": 1000, "batch": 128},
        "numbers": numbers,
        "series": {"edges": [-1.0, 0.0, 1.0], "activations": [0.5, 0.25], "means": [0.25, 0.25]},
        "shape": (1, 2, 2),
        "dataset_checksum": "0",
        "versions": {},
        "commit": None,
        "machine": {},
        "seconds": 1.0,
        "finished": "2026-01-01",
    }
    return Measurement(**(values | fields)).sealed()


def theory_of(**changes: Any) -> Measurement:
    """Two features, four points of each path."""
    points = [1.0, 0.5, 0.25, 0.0]
    series: dict[str, list[float]] = {}
    for method, parameters in {
        "lasso": [0.01, 0.1, 1.0, 10.0],
        "ridge": [0.01, 0.1, 1.0, 10.0],
        "training": [0.0, 0.1, 0.2, 0.3],
        "dropout": [0.0, 1.0, 2.0, 3.0],
    }.items():
        series |= {f"{method}/parameter": parameters, f"{method}/age": points, f"{method}/bmi": [-p for p in points]}
    series |= {"linearized/k": [1.0, 2.0], "linearized/missed_percent": [5.0, 12.0]}
    series |= {"linearized/reached_percent": [99.0, 95.0]}
    numbers = {"training_identity": 1e-15, "dropout_identity": 2e-15, "largest_gap": 1e-10, "not_converged": 0.0}
    numbers |= {"fits": 8.0, "examples": 50.0, "features": 2.0}
    own = {"study": "linear-regression", "dataset": "diabetes", "settings": {}, "shape": ()}
    return autoencoder_of("paths", 0, **(own | {"numbers": numbers | changes, "series": series}))
