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
from advdrop.sklearn.base import ENOUGH, FOLDS, AdversarialDropoutEstimator, Array
from advdrop.trust import collapse, skill_error, skill_of

UNLABELED = -1
"""The label of a row without one, as in ``sklearn.semi_supervised``."""


class AdversarialDropoutClassifier(ClassifierMixin, AdversarialDropoutEstimator):
    """An ensemble of multilayer perceptrons with adversarial dropout. It also learns from rows without a label.

    The members are trained together. For an unlabeled row, the target of a member is the mean prediction of the others,
    weighted by its confidence; it is compared with the member's own prediction under adversarial dropout. Some more
    members learn from the labels alone, each without a fifth of them. They have two uses: the better they predict the
    labels that they did not see, the more the unlabeled rows count (``skill_``), and a part of the final prediction is
    theirs (``blend``).

    Args:
        hidden_layer_sizes: the number of units of each hidden layer; the masks are on the last.
        members: the number of networks that learn from the unlabeled rows, too.
        blend: the share of the labels-only members in the prediction. There are members · blend / (1 − blend) of them.
        p: the probability with which a unit of the last hidden layer is dropped. With 0, the mask search has nothing to
            start from.
        delta: δ, the share of those units whose mask may be flipped.
        weight: λ, the weight of the adversarial term after its ramp. It is multiplied by the square of the skill
            minus one standard error. With 0, all members learn from the labels alone.
        ramp: the first part of the training, in which λ grows.
        standardize: whether to bring all features to mean 0 and standard deviation 1 first.
        batch_size: the number of labeled rows of an update, at most.
        unlabeled_batch_size: the number of unlabeled rows of an update, at most.
        learning_rate: of Adam; it goes to zero over the last 30 % of the training.
        updates: the number of updates. ``"auto"``: 40 passes over the labeled rows, at least 250 and at most 4000
            updates.
        measure_gain: whether to measure ``unlabeled_gain_`` where there are enough labels. This doubles the time.
        random_state: the seed of the initial weights, the order of the rows and the masks.
        verbose: whether to print the progress.
        device: a device of torch, such as ``"cuda"``.

    Attributes:
        classes_: the labels, without -1.
        skill_: how well the labels-only members predict labels that they did not see: 0 is a guess, 1 is perfect.
        unlabeled_gain_: the mean and the standard error of what the unlabeled rows add to the accuracy on labels that
            were held out. None if there are fewer than 20 labels of a class: too few to tell.
        unlabeled_answer_: whether the unlabeled rows helped, in one sentence.
        collapsed_: whether the predictions collapsed in training, so that the adversarial term was left out from there.
        loss_curve_: the mean loss of each twentieth of the training.
        n_features_in_: the number of features.
        feature_names_in_: their names, if X had names.

    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True)
    >>> few = y.copy()
    >>> few[np.arange(len(y)) % 10 != 0] = -1  # 15 of the 150 labels are left
    >>> AdversarialDropoutClassifier(updates=100, random_state=0).fit(x, few).score(x, y) > 0.8
    True
    """

    _divergences = (cross_entropy, kl)
    _score = "accuracy"

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
        """Make one more pass over these rows.

        Args:
            X: features ``(N, D)``, dense.
            y: labels ``(N,)``; -1 for none.
            classes: all labels of later calls; needed in the first call if y does not have all of them.
            sample_weight: the weight of each row, ``(N,)``.
        """
        self._validate_params()
        first = not hasattr(self, "_semi")
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
        return self._predicted(X)

    def disagreement(self, X: Any) -> Array:
        """Return how far the members are apart in each row, ``(N,)``: 0 if all agree, towards 1 if none do.

        It is the mean over the members of the total variation ``½ Σ_c |p_c − p̄_c|`` between a member and the mean of
        all.
        """
        each = self._each_member(X)
        return np.asarray(0.5 * np.abs(each - each.mean(axis=0)).sum(axis=2).mean(axis=0))

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

    def _folds(self, y: Array, rng: np.random.RandomState) -> Array:
        fold, start = np.full(len(y), -1), 0
        for label in self.classes_:
            rows = rng.permutation(np.flatnonzero(y == label))
            if len(rows) > 1:  # a class with one label would be unknown without it
                fold[rows] = (np.arange(len(rows)) + start) % FOLDS
                start += len(rows)
        return fold

    def _skill(self, y: Array, outputs: Array) -> float:
        shares = torch.as_tensor(np.unique(y, return_counts=True)[1] / len(y))
        return skill_of(float(self._scores(y, outputs).mean()), shares)

    def _skill_error(self) -> float:
        return skill_error(self.skill_, self._tested, len(self.classes_))

    def _scores(self, y: Array, outputs: Array) -> Array:
        return np.asarray(self.classes_[outputs.argmax(axis=1)] == y, dtype=float)

    def _enough(self, y: Array) -> bool:
        return bool(np.unique(y, return_counts=True)[1].min() >= ENOUGH)

    def _mean(self, outputs: Array) -> Array:
        shares = np.exp(outputs - outputs.max(axis=2, keepdims=True))
        return np.asarray((shares / shares.sum(axis=2, keepdims=True)).mean(axis=0))

    def _collapse(self, outputs: Array, plain: Array) -> str:
        return collapse(torch.as_tensor(outputs), torch.as_tensor(plain))


def _has_label(y: Array) -> Array:
    """Return which labels are not -1; a text "-1" is a label."""
    if y.dtype.kind in "OUS":
        return np.array([not (isinstance(label, int | np.integer) and label == UNLABELED) for label in y], dtype=bool)
    return np.asarray(y != UNLABELED)
