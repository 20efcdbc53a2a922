"""The classifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_consistent_length
from torch import Tensor

from advdrop.divergences import cross_entropy, kl
from advdrop.sklearn.base import ENOUGH, AdversarialDropoutEstimator
from advdrop.sklearn.folds import FOLDS
from advdrop.sklearn.labels import UNLABELED, Array, Marker, classes_of, counted_rows, labeled_rows, read_labels
from advdrop.trust import collapse, skill_error, skill_of


class AdversarialDropoutClassifier(ClassifierMixin, AdversarialDropoutEstimator):
    """An ensemble of multilayer perceptrons with adversarial dropout. It also learns from rows without a label.

    The members are trained together. For an unlabeled row, the target of a member is the mean prediction of the others,
    weighted by its confidence; it is compared with the member's own prediction under adversarial dropout. Some more
    members learn from the labels alone, each without a fifth of them. They have two uses: the better they predict the
    labels that they did not see, the more the unlabeled rows count (``skill_``), and a part of the final prediction is
    theirs (``blend``). Without unlabeled rows, all members learn from the labels alone.

    Args:
        hidden_layer_sizes: the number of units of each hidden layer; the masks are on the last.
        unlabeled: the label of rows without one. NaN, None and pd.NA always mean that. With ``unlabeled=None``, only
            they do, and -1 is a class.
        members: the number of networks that learn from the unlabeled rows, too.
        blend: the share of the labels-only members in the prediction. There are members · blend / (1 − blend) of them.
        p: the probability with which a unit of the last hidden layer is dropped. With 0, the mask search has nothing to
            start from.
        delta: δ, the share of those units whose mask may be flipped.
        weight: λ, the weight of the adversarial term after its ramp. It is multiplied by the square of the skill
            minus one standard error. With 0, all members learn from the labels alone.
        ramp: the first part of the training, in which λ grows.
        class_weight: the weight of the labels of each class, such as ``{"rare": 5.0}`` (1 for classes that are not
            named), or ``"balanced"``: N / (C · N_c).
        label_smoothing: s, the share of a label that is spread over all classes: (1 − s)·y + s/C.
        standardize: whether to bring all features to mean 0 and standard deviation 1 first.
        batch_size: the number of labeled rows of an update, at most.
        unlabeled_batch_size: the number of unlabeled rows of an update, at most.
        learning_rate: of Adam; it goes to zero over the last 30 % of the training.
        updates: the number of updates. ``"auto"``: 40 passes over the labeled rows, at least 250 and at most 4000
            updates.
        measure_gain: whether to measure ``unlabeled_gain_`` where there are enough labels. This doubles the time.
        random_state: the seed of the initial weights, the order of the rows and the masks.
        verbose: whether to write the progress to the standard error. ``"auto"``: in a terminal, if a fit takes longer
            than two seconds.
        device: a device of torch, such as ``"cuda"``.

    Attributes:
        classes_: the labels, in order.
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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = AdversarialDropoutEstimator._parameter_constraints | {
        "unlabeled": [None, str, Real],
        "class_weight": [None, StrOptions({"balanced"}), dict],
        "label_smoothing": [Interval(Real, 0, 1, closed="left")],
    }
    _divergences = (partial(cross_entropy, given="probabilities"), kl)  # smoothed labels are probabilities
    _score = "accuracy"

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (128,),
        *,
        unlabeled: Marker = UNLABELED,
        members: int = 20,
        blend: float = 1 / 3,
        p: float = 0.2,
        delta: float = 0.05,
        weight: float = 2.0,
        ramp: float = 0.3,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        label_smoothing: float = 0.0,
        standardize: bool = True,
        batch_size: int = 200,
        unlabeled_batch_size: int = 200,
        learning_rate: float = 0.003,
        updates: int | Literal["auto"] = "auto",
        measure_gain: bool = True,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool | int | Literal["auto"] = "auto",
        device: str = "cpu",
    ) -> None:
        super().__init__(
            hidden_layer_sizes,
            members=members,
            blend=blend,
            p=p,
            delta=delta,
            weight=weight,
            ramp=ramp,
            standardize=standardize,
            batch_size=batch_size,
            unlabeled_batch_size=unlabeled_batch_size,
            learning_rate=learning_rate,
            updates=updates,
            measure_gain=measure_gain,
            random_state=random_state,
            verbose=verbose,
            device=device,
        )
        self.unlabeled = unlabeled
        self.class_weight = class_weight
        self.label_smoothing = label_smoothing

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from the rows of X, also from those without a label.

        Args:
            X: features ``(N, D)``, dense or sparse.
            y: labels ``(N,)``, all text or all numbers. A missing label is NaN, None, pd.NA or the marker
                ``unlabeled``.
            sample_weight: the weight of each row, ``(N,)``.
        """
        self._validate_params()
        x, labels, labeled = self._read(X, y, reset=True)
        classes = classes_of(labels[labeled], self.unlabeled, not labeled.all())
        labeled, weights = counted_rows(x, labeled, self._weights(x, labels, labeled, classes, sample_weight))
        self.classes_ = classes
        return self._fit(x, labels, labeled, weights, len(classes))

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Make one more pass over these rows.

        Args:
            X: features ``(N, D)``, dense or sparse.
            y: labels ``(N,)``, as for :meth:`fit`.
            classes: all labels of later calls; needed in the first call if y does not have all of them.
            sample_weight: the weight of each row, ``(N,)``.
        """
        self._validate_params()
        if self.class_weight == "balanced":
            raise ValueError("class_weight='balanced' needs all labels at once; partial_fit takes a dict of weights")
        first = not hasattr(self, "_semi")
        x, labels, labeled = self._read(X, y, reset=first)
        if first:
            given, known = (labels, labeled) if classes is None else read_labels(classes, self.unlabeled)
            all_classes = classes_of(given[known], self.unlabeled, not (labeled.all() and known.all()))
        else:
            all_classes = self.classes_
        unknown = sorted(set(labels[labeled].tolist()) - set(all_classes.tolist()), key=str)
        if unknown:
            raise ValueError(f"y has the label {unknown[0]!r}, which is not among the classes {all_classes.tolist()}")
        labeled, weights = counted_rows(x, labeled, self._weights(x, labels, labeled, all_classes, sample_weight))
        self.classes_ = all_classes
        return self._partial_fit(x, labels, labeled, weights, len(all_classes))

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row, ``(N,)``."""
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, ``(N, C)``, in the order of ``classes_``."""
        return self._predicted(X)

    def disagreement(self, X: Any) -> Array:
        """Return how far the members are apart in each row, ``(N,)``: 0 if all agree, toward 1 if none do.

        It is the mean over the members of the total variation ``½ Σ_c |p_c − p̄_c|`` between a member and the mean of
        all.
        """
        each = self._each_member(X)
        return np.asarray(0.5 * np.abs(each - each.mean(axis=0)).sum(axis=2).mean(axis=0))

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithm of the probabilities, ``(N, C)``."""
        return np.log(self.predict_proba(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy for the rows that have a label; at least one must have one."""
        x, labels, weights = labeled_rows(X, *read_labels(y, self.unlabeled), sample_weight)
        return float(accuracy_score(labels, self.predict(x), sample_weight=weights))

    def _read(self, X: Any, y: Any, reset: bool) -> tuple[Array, Array, Array]:
        x = self._features(X, reset=reset)
        labels, labeled = read_labels(y, self.unlabeled)
        check_consistent_length(x, labels)
        if not labeled.any():
            marker = "missing" if self.unlabeled is None else f"{self.unlabeled!r} or missing"
            raise ValueError(f"every label is {marker}, which means no label; label some rows of each class")
        check_classification_targets(labels)
        return x, labels, labeled

    def _weights(self, x: Any, y: Array, labeled: Array, classes: Array, sample_weight: Any) -> Any:
        """Return the weight of each row times that of its class, ``(N,)``; None if all are equal."""
        if self.class_weight is None:
            return sample_weight
        weights = _check_sample_weight(sample_weight, x)
        counted = labeled & (weights > 0)
        if isinstance(self.class_weight, str):
            seen = np.unique(y[counted])
            balanced = compute_class_weight("balanced", classes=seen, y=y[counted], sample_weight=weights[counted])
            of_class = dict(zip(seen.tolist(), balanced.tolist(), strict=True))
        else:
            of_class = dict(self.class_weight)
        if unknown := [label for label in of_class if label not in classes.tolist()]:
            raise ValueError(f"class_weight has {unknown[0]!r}, which is not among the classes {classes.tolist()}")
        if wrong := [weight for weight in of_class.values() if not 0 <= weight < float("inf")]:
            raise ValueError(f"class_weight must have numbers from 0 on, got {wrong[0]!r}")
        factors = np.array([of_class.get(label, 1.0) for label in classes.tolist()])
        return weights * np.where(labeled, factors[np.searchsorted(classes, y)], 1.0)

    def _targets(self, y: Array) -> Tensor:
        places = torch.as_tensor(np.searchsorted(self.classes_, y))
        if not self.label_smoothing:
            return places
        hot = torch.nn.functional.one_hot(places, len(self.classes_)).float()
        return (1 - self.label_smoothing) * hot + self.label_smoothing / len(self.classes_)

    def _folds(self, y: Array, rng: np.random.RandomState) -> Array:
        fold, start = np.full(len(y), -1), 0
        for label in self.classes_:
            rows = rng.permutation(np.flatnonzero(y == label))
            if len(rows) > 1:  # a class with one label would be unknown without it
                fold[rows] = (np.arange(len(rows)) + start) % FOLDS
                start += len(rows)
        return fold

    def _skill(self, y: Array, outputs: Array) -> float:
        shares = torch.from_numpy(np.unique(y, return_counts=True)[1] / len(y))
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
        return collapse(torch.from_numpy(outputs), torch.from_numpy(plain))
