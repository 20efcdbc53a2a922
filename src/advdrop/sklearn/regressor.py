"""The regressor."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import column_or_1d, validate_data
from torch import Tensor

from advdrop.divergences import mse
from advdrop.sklearn.base import AdversarialDropoutEstimator, Array


class AdversarialDropoutRegressor(RegressorMixin, AdversarialDropoutEstimator):
    """A multilayer perceptron with adversarial dropout for numbers. It also learns from rows without a target.

    A missing target is nan. The targets are standardized inside.

    The parameters and attributes are those of :class:`AdversarialDropoutClassifier`, without the classes. The
    validation score is R². ``noise="auto"`` is no noise: a small move of a row seldom changes its class, but it does
    change its target.

    >>> x = np.linspace(-1, 1, 60)[:, None]
    >>> y = np.where(np.arange(60) % 4 == 0, 3 * x[:, 0], np.nan)
    >>> AdversarialDropoutRegressor(max_iter=100, random_state=0).fit(x, y).score(x, 3 * x[:, 0]) > 0.8
    True
    """

    _divergences = (mse, mse)
    _most_noise = 0.0

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from the rows of X; those whose y is nan have no target.

        Args:
            X: features ``(N, D)``, dense.
            y: targets ``(N,)``.
            sample_weight: the weight of each row, ``(N,)``.
        """
        self._validate_params()
        x, targets, labeled = self._read(X, y, reset=True)
        self._measure(targets[labeled])
        return self._fit(x, targets, labeled, sample_weight, 1)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train one more epoch on these rows.

        Args:
            X: features ``(N, D)``, dense.
            y: targets ``(N,)``; nan for none. The first call decides how targets are standardized.
            sample_weight: the weight of each row, ``(N,)``.
        """
        self._validate_params()
        first = not hasattr(self, "network_")
        x, targets, labeled = self._read(X, y, reset=first)
        if first:
            self._measure(targets[labeled])
        return self._partial_fit(x, targets, labeled, sample_weight, 1)

    def predict(self, X: Any) -> Array:
        """Return the prediction for each row, ``(N,)``."""
        return self._unscaled(self._predicted(X))

    def _read(self, X: Any, y: Any, reset: bool) -> tuple[Array, Array, Array]:
        x = validate_data(self, X, reset=reset, dtype=np.float64)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        targets = column_or_1d(y, dtype=np.float64, warn=True)
        if len(targets) != len(x):
            raise ValueError(f"X has {len(x)} rows and y has {len(targets)} targets")
        if np.isinf(targets).any():
            raise ValueError("y contains infinity; a row without a target has nan")
        labeled = ~np.isnan(targets)
        if not labeled.any():
            raise ValueError("every target is nan, which means no target; there is nothing to learn from")
        return x, targets, labeled

    def _measure(self, targets: Array) -> None:
        self._target_mean, self._target_scale = float(targets.mean()), float(targets.std()) or 1.0

    def _targets(self, y: Array) -> Tensor:
        return torch.as_tensor((y - self._target_mean) / self._target_scale, dtype=torch.float32)[:, None]

    def _unscaled(self, outputs: Array) -> Array:
        return np.asarray(outputs[:, 0] * self._target_scale + self._target_mean)

    def _validation_score(self, y: Array, outputs: Array) -> float:
        return float(r2_score(y, self._unscaled(outputs)))
