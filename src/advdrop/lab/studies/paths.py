"""The theorem on data: its identities, and how coefficients shrink with δ and with k, compared with lasso and ridge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from advdrop.lab.studies.linear_regression import (
    Array,
    Fit,
    adversarial_dropout,
    adversarial_training,
    fit,
    linearized_mask,
    sign_perturbation,
    squared_error,
    worst_mask,
)

PROBLEMS = 1000
DELTAS = tuple(float(delta) for delta in np.round(np.concatenate([[0.0], np.geomspace(0.005, 0.7, 20)]), 4))
PENALTIES = tuple(float(penalty) for penalty in np.geomspace(1e-3, 1e3, 25))


def standardized(x: Any, y: Any) -> tuple[Array, Array]:
    """Features and target with mean 0 and standard deviation 1."""
    return (x - x.mean(axis=0)) / x.std(axis=0), (y - y.mean()) / y.std()


def identities(problems: int = PROBLEMS) -> dict[str, float]:
    """The largest relative difference between the two sides of the theorem, over random problems in float64."""
    rng = np.random.default_rng(0)
    worst = {"training_identity": 0.0, "dropout_identity": 0.0}
    for _ in range(problems):
        rows, features = int(rng.integers(1, 40)), int(rng.integers(1, 20))
        x, y, w = rng.normal(size=(rows, features)), rng.normal(size=rows), rng.normal(size=features)
        delta, k = float(rng.uniform(0, 2)), int(rng.integers(0, features + 1))
        mask = linearized_mask(x, y, w, k)
        pairs = {
            "training_identity": (
                squared_error(x + sign_perturbation(x, y, w, delta), y, w),
                adversarial_training(x, y, w, delta),
            ),
            "dropout_identity": (squared_error(mask * x, y, w), adversarial_dropout(x, y, w, mask)),
        }
        for name, (one, other) in pairs.items():
            worst[name] = max(worst[name], abs(one - other) / max(abs(one), 1e-300))
    return worst


def linearization(x: Array, y: Array) -> dict[str, list[float]]:
    """How often Algorithm 1 misses the worst mask, at the least-squares solution.

    Returns:
        for k from 1 to D, the percentage of the rows whose worst mask is worse, and the loss under the linearized masks
        as a percentage of the loss under the worst ones.
    """
    w = np.asarray(np.linalg.lstsq(x, y, rcond=None)[0], dtype=np.float64)
    found: dict[str, list[float]] = {"k": [], "missed_percent": [], "reached_percent": []}
    for k in range(1, x.shape[1] + 1):
        losses = [np.square(y - (mask(x, y, w, k) * x) @ w) for mask in (linearized_mask, worst_mask)]
        found["k"].append(float(k))
        found["missed_percent"].append(100 * float((losses[0] < losses[1] * (1 - 1e-9)).mean()))
        found["reached_percent"].append(100 * float(losses[0].sum() / losses[1].sum()))
    return found


def paths(x: Array, y: Array, done: Callable[[str], None]) -> Iterator[tuple[str, float, Array, Fit | None]]:
    """Method, parameter, coefficients, and the fit if it is one of ours; x and y are standardized."""
    from sklearn.linear_model import lasso_path

    count = len(x)
    alphas, lasso, _ = lasso_path(x, y, alphas=np.asarray(PENALTIES) / 300)
    for alpha, w in zip(alphas, lasso.T, strict=True):
        yield "lasso", float(alpha), w, None
    for alpha in PENALTIES:
        w = np.linalg.solve(x.T @ x + alpha * count * np.eye(x.shape[1]), x.T @ y)
        yield "ridge", alpha, np.asarray(w, dtype=np.float64), None
    done("lasso and ridge")
    for delta in DELTAS:
        found = fit(x, y, delta=delta)
        done(f"adversarial training, δ = {delta:g}")
        yield "training", delta, found.coefficients, found
    for k in range(x.shape[1] + 1):
        found = fit(x, y, k=k)
        done(f"adversarial dropout, k = {k}")
        yield "dropout", float(k), found.coefficients, found


def measured(
    x: Any, y: Any, names: list[str], done: Callable[[str], None] = lambda _: None
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """The numbers and the series of the record.

    Args:
        x: features ``(N, D)``, not standardized.
        y: target ``(N,)``.
        names: of the features.
        done: called with the name of each part that is finished.
    """
    x, y = standardized(x, y)
    numbers, series = identities(), {f"linearized/{key}": values for key, values in linearization(x, y).items()}
    done("identities")
    fits: list[Fit] = []
    for method, parameter, w, found in paths(x, y, done):
        series.setdefault(f"{method}/parameter", []).append(parameter)
        for name, coefficient in zip(names, w, strict=True):
            series.setdefault(f"{method}/{name}", []).append(float(f"{coefficient:.6g}"))
        fits += [found] if found else []
    numbers["largest_gap"] = max(found.gap for found in fits)
    numbers["not_converged"] = float(sum(not found.converged for found in fits))
    return numbers | {"fits": float(len(fits)), "examples": float(len(x)), "features": float(x.shape[1])}, series
