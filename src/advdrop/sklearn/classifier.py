"""The classifier."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data
from torch import Tensor

from advdrop.divergences import cross_entropy, kl
from advdrop.sklearn.base import AdversarialDropoutEstimator, Array

UNLABELED = -1
"""The label of a row without one, as in ``sklearn.semi_supervised``."""


class AdversarialDropoutClassifier(ClassifierMixin, AdversarialDropoutEstimator):
    """A multilayer perceptron with adversarial dropout. It also learns from rows without a label.

    Args:
        hidden_layer_sizes: the number of units of each hidden layer; the masks are on the last.
        p: the probability with which a unit of the last hidden layer is dropped. With 0, and without noise, the mask
            search has nothing to start from.
        delta: δ, the share of those units whose mask may be flipped.
        noise: the standard deviation of normal noise that is added to the standardized features in training. The clean
            and the adversarial pass see different noise. ``"auto"``: 0.6 times the share of rows without a label, so
            none if all rows have labels. Without ``standardize`` the noise is in the units of the features.
        weight: λ, the weight of the adversarial term after its ramp. 0 is ordinary dropout.
        ramp: the first part of the training, in which λ grows.
        standardize: whether to bring all features to mean 0 and standard deviation 1 first.
        batch_size: the number of labeled rows of an update, and of other rows, at most. ``"auto"``: a quarter of the
            rows, at most 200.
        learning_rate: of Adam; it goes to zero over the last 30 % of the training.
        max_iter: the number of epochs. An epoch uses every row once, labeled or not.
        early_stopping: whether to hold back some labeled rows and keep the network with the best score on them.
        validation_fraction: the share of the labeled rows to hold back.
        n_iter_no_change: the number of epochs without a better score after which early stopping stops.
        random_state: the seed of the initial weights, the order of the rows, the noise, the masks and the rows to hold
            back.
        verbose: whether to print epochs, losses and scores.
        device: a device of torch, such as ``"cuda"``.

    Attributes:
        classes_: the labels, without -1.
        network_: the trained network.
        loss_curve_: the mean loss of each epoch.
        n_iter_: the number of epochs that were trained.
        best_validation_score_: the best accuracy on the rows that early stopping held back.
        n_features_in_: the number of features.
        feature_names_in_: their names, if X had names.

    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True)
    >>> few = y.copy()
    >>> few[np.arange(len(y)) % 10 != 0] = -1  # 15 of the 150 labels are left
    >>> AdversarialDropoutClassifier(max_iter=30, random_state=0).fit(x, few).score(x, y) > 0.8
    True
    """

    _divergences = (cross_entropy, kl)
    _most_noise = 0.6

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from the rows of X; those whose y is -1 have no label.

        Args:
            X: features ``(N, D)``, dense.
            y: labels ``(N,)`` of any type. If labels are text and some are missing: an array of objects, with -1.
            sample_weight: the weight of each row, ``(N,)``.
        """
        self._validate_params()
        x, labels, labeled = self._read(X, y, reset=True)
        self.classes_ = self._found(labels[labeled])
        return self._fit(x, labels, labeled, sample_weight, len(self.classes_))

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train one more epoch on these rows.

        Args:
            X: features ``(N, D)``, dense.
            y: labels ``(N,)``; -1 for none.
            classes: all labels of later calls; needed in the first call if y does not have all of them.
            sample_weight: the weight of each row, ``(N,)``.
        """
        self._validate_params()
        first = not hasattr(self, "network_")
        x, labels, labeled = self._read(X, y, reset=first)
        if first:
            self.classes_ = self._found(labels[labeled] if classes is None else np.asarray(classes))
        unknown = sorted(set(labels[labeled].tolist()) - set(self.classes_.tolist()), key=str)
        if unknown:
            raise ValueError(f"y has the label {unknown[0]!r}, which is not among the classes {self.classes_.tolist()}")
        return self._partial_fit(x, labels, labeled, sample_weight, len(self.classes_))

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row, ``(N,)``."""
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, ``(N, C)``, in the order of ``classes_``."""
        outputs = self._predicted(X)
        shares = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithm of the probabilities, ``(N, C)``."""
        return np.log(self.predict_proba(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy; every row must have a label."""
        if not _has_label(np.asarray(y)).all():
            raise ValueError("a score needs the label of every row, and y has -1 among them; leave those rows out")
        return float(accuracy_score(y, self.predict(X), sample_weight=sample_weight))

    def _read(self, X: Any, y: Any, reset: bool) -> tuple[Array, Array, Array]:
        x, labels = validate_data(self, X, y, reset=reset, dtype=np.float64, ensure_min_samples=1)
        labels = column_or_1d(labels, warn=True)
        labeled = _has_label(labels)
        if not labeled.any():
            raise ValueError(f"every label is {UNLABELED}, which means no label; label some rows of each class")
        check_classification_targets(labels[labeled])
        return x, labels, labeled

    def _found(self, labels: Array) -> Array:
        classes = np.unique(labels)
        classes = classes[_has_label(classes)]
        if len(classes) < 2:
            raise ValueError(f"a classifier needs labels of at least two classes, got one class: {classes.tolist()}")
        return classes

    def _targets(self, y: Array) -> Tensor:
        return torch.as_tensor(np.searchsorted(self.classes_, y))

    def _strata(self, y: Array, count: int) -> Array | None:
        classes, counts = np.unique(y, return_counts=True)
        enough = counts.min() >= 2 and min(count, len(y) - count) >= len(classes)
        return y if enough else None

    def _validation_score(self, y: Array, outputs: Array) -> float:
        return float(accuracy_score(y, self.classes_[outputs.argmax(axis=1)]))


def _has_label(y: Array) -> Array:
    """Return which labels are not -1; a text "-1" is a label."""
    if y.dtype.kind in "OUS":
        return np.array([not (isinstance(label, int | np.integer) and label == UNLABELED) for label in y], dtype=bool)
    return np.asarray(y != UNLABELED)
