"""The regressor."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_consistent_length
from torch import Tensor

from advdrop.divergences import mse
from advdrop.sklearn.base import AdversarialDropoutEstimator
from advdrop.sklearn.folds import FOLDS
from advdrop.sklearn.labels import Array, counted_rows, labeled_rows, read_targets

MANY = 100
"""The number of targets from which the gain by unlabeled rows is measured."""
LARGEST = 1e140
"""The sum of the squares of larger targets may be infinite, and so would be their scale and every prediction."""


class Spread(NamedTuple):
    """The total weight, the mean and the variance of some targets."""

    total: float
    mean: float
    variance: float

    @classmethod
    def of(cls, targets: Array, weights: Array | None = None) -> Spread:
        """Measure targets ``(L,)`` with weights ``(L,)``, or with weight 1 each.

        >>> Spread.of(np.array([1.0, 3.0, 99.0]), np.array([1.0, 1.0, 0.0]))
        Spread(total=2.0, mean=2.0, variance=1.0)
        """
        total = float(len(targets) if weights is None else weights.sum())
        if targets.min() == targets.max():  # without the rounding error of a mean
            return cls(total, float(targets[0]), 0.0)
        mean = np.average(targets, weights=weights)
        variance = np.average(np.square(targets - mean), weights=weights)
        return cls(total, float(mean), float(variance))

    def __add__(self, other: Spread) -> Spread:  # type: ignore[override]
        """Return the spread of both sets of targets together."""
        total, apart = self.total + other.total, other.mean - self.mean
        within = (self.total * self.variance + other.total * other.variance) / total
        between = self.total * other.total * (apart / total) ** 2
        return Spread(total, self.mean + apart * other.total / total, within + between)


class AdversarialDropoutRegressor(RegressorMixin, AdversarialDropoutEstimator):
    """An ensemble of multilayer perceptrons with adversarial dropout that predicts numbers.

    It also learns from rows without a target. A missing target is NaN, None or pd.NA. The targets are standardized
    inside.

    The parameters and attributes are those of :class:`AdversarialDropoutClassifier`, without the classes. The skill is
    R² on targets that were held out, and the gain is measured from 100 targets.

    >>> x = np.linspace(-1, 1, 60)[:, None]
    >>> y = np.where(np.arange(60) % 4 == 0, 3 * x[:, 0], np.nan)
    >>> AdversarialDropoutRegressor(updates=200, random_state=0).fit(x, y).score(x, 3 * x[:, 0]) > 0.8
    True
    """

    _divergences = (mse, mse)
    _score = "R²"

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from the rows of X; those whose y is NaN, None or pd.NA have no target.

        Args:
            X: features ``(N, D)``, dense or sparse.
            y: targets ``(N,)``.
            sample_weight: the weight of each row, ``(N,)``.
        """
        self._validate_params()
        x, targets, labeled = self._read(X, y, reset=True)
        labeled, weights = counted_rows(x, labeled, sample_weight)
        self._measure(Spread.of(targets[labeled], None if weights is None else weights[labeled]))
        return self._fit(x, targets, labeled, weights, 1)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Make one more pass over these rows.

        Args:
            X: features ``(N, D)``, dense or sparse.
            y: targets ``(N,)``; NaN for none. They are standardized by all targets seen so far.
            sample_weight: the weight of each row, ``(N,)``.
        """
        self._validate_params()
        first = not hasattr(self, "_semi")
        x, targets, labeled = self._read(X, y, reset=first)
        labeled, weights = counted_rows(x, labeled, sample_weight)
        seen = Spread.of(targets[labeled], None if weights is None else weights[labeled])
        if first:
            self._measure(seen)
        else:
            self._measure_more(seen)
        return self._partial_fit(x, targets, labeled, weights, 1)

    def predict(self, X: Any) -> Array:
        """Return the prediction for each row, ``(N,)``."""
        return self._unscaled(self._predicted(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R² of the rows that have a target; at least two must have one."""
        x, targets, weights = labeled_rows(X, *read_targets(y), sample_weight, least=2)
        return float(r2_score(targets, self.predict(x), sample_weight=weights))

    def _read(self, X: Any, y: Any, reset: bool) -> tuple[Array, Array, Array]:
        x = self._features(X, reset=reset)
        targets, labeled = read_targets(y)
        check_consistent_length(x, targets)
        if not labeled.any():
            raise ValueError("every target is missing; there is nothing to learn from")
        if (largest := float(np.abs(targets[labeled]).max())) > LARGEST:
            raise ValueError(f"y has {largest:.3g}, whose square is no number; divide all targets by a constant")
        return x, targets, labeled

    def _measure(self, seen: Spread) -> None:
        """Standardize by these targets; if all are equal, every prediction is that value."""
        rounding = float(np.spacing(abs(seen.mean)))
        self._spread, self._target_mean, self._target_scale = seen, seen.mean, seen.variance**0.5 or rounding

    def _measure_more(self, seen: Spread) -> None:
        """Add targets to the mean and the scale, and change the members so that they predict the same as before.

        If all targets before were equal, there was no scale, and the members stay as they are.
        """
        mean, scale, measured = self._target_mean, self._target_scale, self._spread.variance > 0
        self._measure(self._spread + seen)
        for training in (self._plain, self._semi):
            if training is not None and measured:
                training.rescale(scale / self._target_scale, (mean - self._target_mean) / self._target_scale)

    def _targets(self, y: Array) -> Tensor:
        return torch.as_tensor((y - self._target_mean) / self._target_scale, dtype=torch.float32)[:, None]

    def _unscaled(self, outputs: Array) -> Array:
        return np.asarray(outputs[:, 0] * self._target_scale + self._target_mean)

    def _folds(self, y: Array, rng: np.random.RandomState) -> Array:
        return rng.permutation(len(y)) % FOLDS if len(y) > 1 else np.array([-1])

    def _skill(self, y: Array, outputs: Array) -> float:
        if y.min() == y.max():  # a guess is right
            return 0.0
        return float(max(0.0, self._scores(y, outputs).mean()))

    def _skill_error(self) -> float:
        """Return the standard error of R² in large samples, 2·√R²·(1 − R²)/√n."""
        return float(2 * self.skill_**0.5 * (1 - self.skill_) / max(self._tested, 1) ** 0.5)

    def _scores(self, y: Array, outputs: Array) -> Array:
        """Return 1 − (y − f)² / var(y) of each prediction; the mean is R²."""
        spread = float(np.var(y)) or 1.0
        return np.asarray(1 - np.square(y - self._unscaled(outputs)) / spread)

    def _enough(self, y: Array) -> bool:
        return len(y) >= MANY

    def _mean(self, outputs: Array) -> Array:
        return np.asarray(outputs.mean(axis=0))

    def _collapse(self, outputs: Array, plain: Array) -> str:
        now, before = float(outputs.std()), float(plain.std())
        return "they are nearly the same for all rows" if now < before / 4 else ""
