"""Adversarial dropout for people with a scikit-learn habit: a table, some labels, ``fit``.

Rows without a label count too: their label is -1 for the classifier, as in ``sklearn.semi_supervised``, and nan for the
regressor.
"""

from __future__ import annotations

import copy
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import ceil
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from advdrop.divergences import Divergence, cross_entropy, kl, mse
from advdrop.randomness import borrowed_noise, derived_seed, seed_noise
from advdrop.tabular import ANNEALED, Table, Training

Array = npt.NDArray[Any]

UNLABELLED = -1
"""The label of a row without one."""


class _AdversarialDropoutNetwork(BaseEstimator, ABC):
    """What the classifier and the regressor have in common."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
        "p": [Interval(Real, 0, 1, closed="left")],
        "delta": [Interval(Real, 0, 1, closed="both")],
        "noise": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left")],
        "weight": [Interval(Real, 0, None, closed="left")],
        "ramp": [Interval(Real, 0, 1, closed="both")],
        "standardise": ["boolean"],
        "batch_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
        "device": [str],
    }
    _losses: ClassVar[tuple[Divergence, Divergence]]
    """D of the labels, and D of the adversarial mask."""
    _most_noise: ClassVar[float]
    """The automatic noise if next to no row has a label."""
    best_validation_score_: float

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (128,),
        *,
        p: float = 0.2,
        delta: float = 0.05,
        noise: float | Literal["auto"] = "auto",
        weight: float = 1.0,
        ramp: float = 0.3,
        standardise: bool = True,
        batch_size: int | Literal["auto"] = "auto",
        learning_rate: float = 0.003,
        max_iter: int = 200,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 20,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool | int = False,
        device: str = "cpu",
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.p = p
        self.delta = delta
        self.noise = noise
        self.weight = weight
        self.ramp = ramp
        self.standardise = standardise
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.random_state = random_state
        self.verbose = verbose
        self.device = device

    @property
    def loss_curve_(self) -> list[float]:
        """The mean loss of each epoch."""
        return self._training.losses

    @property
    def n_iter_(self) -> int:
        """The epochs that were trained."""
        return len(self._training.losses)

    @abstractmethod
    def _targets(self, y: Array) -> Tensor:
        """Labels as the loss takes them."""

    @abstractmethod
    def _validation_score(self, y: Array, outputs: Array) -> float:
        """What early stopping looks at: higher is better."""

    def _fit(self, x: Array, y: Array, labelled: Array, sample_weight: Any, outputs: int) -> Self:
        """Train a new network from the beginning to the end.

        Args:
            x: all rows.
            y: their labels; what stands there for rows without one is not looked at.
            labelled: which rows have one.
            sample_weight: how much each row counts, or None.
            outputs: of the network.
        """
        self._start(x, labelled, outputs)
        kept, held = np.arange(len(x)), np.empty(0, dtype=np.intp)
        if self.early_stopping:
            held = self._held_back(y, np.flatnonzero(labelled))
            kept = np.setdiff1d(kept, held)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, x)[kept]
        table = self._table(x[kept], y[kept], labelled[kept], weights)
        best, since = self.network_.state_dict(), 0
        for epoch in range(self.max_iter):
            loss = self._training.epoch(table, epoch / self.max_iter, (epoch + 1) / self.max_iter)
            if len(held):
                score = self._validation_score(y[held], self._outputs(x[held]))
                since = 0 if score > self.best_validation_score_ else since + 1
                if since == 0:
                    best, self.best_validation_score_ = copy.deepcopy(self.network_.state_dict()), score
            self._tell(epoch + 1, loss)
            if len(held) and since >= self.n_iter_no_change:
                break
        if len(held):
            self.network_.load_state_dict(best)
        return self

    def _partial_fit(self, x: Array, y: Array, labelled: Array, sample_weight: Any, outputs: int) -> Self:
        """One epoch more, with the whole λ and the whole learning rate."""
        if not hasattr(self, "network_"):
            self._start(x, labelled, outputs)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, x)
        loss = self._training.epoch(self._table(x, y, labelled, weights), 1 - ANNEALED, 1 - ANNEALED)
        self._tell(self.n_iter_, loss)
        return self

    def _start(self, x: Array, labelled: Array, outputs: int) -> None:
        """A new network, its optimiser, and the scale of the features."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        sizes = [int(size) for size in np.atleast_1d(self.hidden_layer_sizes)]
        self._mean, self._scale = np.zeros(x.shape[1]), np.ones(x.shape[1])
        if self.standardise:
            self._mean, spread = x.mean(axis=0), x.std(axis=0)
            constant = spread <= 1e-12 * np.abs(self._mean)
            self._scale = np.where(constant, 1.0, spread)
        device = torch.device(self.device)
        with borrowed_noise(device):
            seed_noise(device, derived_seed(seed, "initialisation"))
            self._training = Training(
                x.shape[1],
                outputs,
                sizes,
                p=float(self.p),
                delta=float(self.delta),
                noise=self._most_noise * (1 - labelled.mean()) if self.noise == "auto" else float(self.noise),
                supervised=self._losses[0],
                adversarial=self._losses[1],
                weight=float(self.weight),
                ramp=float(self.ramp),
                batch_size=_batch_size(len(x)) if self.batch_size == "auto" else int(self.batch_size),
                learning_rate=float(self.learning_rate),
                seed=seed,
                device=device,
            )
        self.network_ = self._training.network
        self.best_validation_score_ = -np.inf

    def _held_back(self, y: Array, rows: Array) -> Array:
        """The rows that early stopping looks at; as many of each class as there are, where there are enough."""
        count = ceil(self.validation_fraction * len(rows))
        if not 0 < count < len(rows):
            raise ValueError(
                f"early_stopping would hold back {count} of {len(rows)} labelled rows; label more, or leave it out"
            )
        strata = self._strata(y[rows], count)
        chosen: Array = train_test_split(rows, test_size=count, random_state=self._training.seed, stratify=strata)[1]
        return chosen

    def _strata(self, y: Array, count: int) -> Array | None:
        """What to hold back equally of, if anything."""
        del y, count
        return None

    def _table(self, x: Array, y: Array, labelled: Array, weights: Array | None) -> Table:
        if weights is not None:
            labelled = labelled & (weights != 0)  # a row that does not count teaches as one without a label
        rows = np.flatnonzero(labelled)
        if len(rows) == 0:
            raise ValueError("no row has a label and a weight; there is nothing to learn from")
        own = np.ones(len(rows)) if weights is None else weights[rows] / weights[rows].mean()
        tensors = self._scaled(x), torch.as_tensor(rows), self._targets(y[rows]), torch.as_tensor(own).float()
        return Table(*(tensor.to(self.device) for tensor in tensors))

    def _scaled(self, x: Array) -> Tensor:
        return torch.as_tensor((x - self._mean) / self._scale, dtype=torch.float32)

    @torch.no_grad()
    def _outputs(self, x: Array) -> Array:
        """The network's outputs without dropout, in float64, so that no row depends on those beside it."""
        exact = copy.deepcopy(self.network_).double().eval()
        rows = torch.as_tensor((x - self._mean) / self._scale, dtype=torch.float64).to(self.device)
        return np.asarray(exact(rows).cpu())

    def _tell(self, epoch: int, loss: float) -> None:
        """The progress: one line that is written over in a terminal, ten lines elsewhere."""
        if not self.verbose:
            return
        score = "" if self.best_validation_score_ == -np.inf else f", best score {self.best_validation_score_:.4f}"
        text = f"epoch {epoch} of {self.max_iter}, loss {loss:.4f}{score}"
        if sys.stdout.isatty():
            print(f"\r{text}", end="\n" if epoch == self.max_iter else "", flush=True)
        elif epoch % ceil(self.max_iter / 10) == 0 or epoch == self.max_iter:
            print(text)


class AdversarialDropoutClassifier(ClassifierMixin, _AdversarialDropoutNetwork):
    """A multilayer perceptron with adversarial dropout, for tables of which some rows may have no label.

    Args:
        hidden_layer_sizes: the units of each hidden layer; the masks are on the last.
        p: the probability with which a unit of the last hidden layer is dropped. With 0 the mask search has nothing to
            start from.
        delta: δ, the share of those units whose mask the adversary may flip.
        noise: the standard deviation of the normal noise that is added to the standardised features in training, drawn
            anew for the clean and for the adversarial pass. ``"auto"``: 0.6 times the share of rows without a label,
            so that it helps where labels are few and is out of the way where they are not. Without ``standardise`` it
            is in the units of the features: bring them to one scale, or set it.
        weight: λ, how much the adversarial term counts at most. 0 is ordinary dropout.
        ramp: the share of the training, its first, over which λ grows.
        standardise: whether to bring all features to mean 0 and standard deviation 1 first.
        batch_size: labelled rows of an update at most, and as many others. ``"auto"``: a quarter of the rows, 200 at
            most, so that a small table has updates enough.
        learning_rate: of Adam; it goes to zero over the last 30 % of the training.
        max_iter: epochs. An epoch is a pass over all rows, labelled or not.
        early_stopping: whether to hold back some labelled rows, and to keep the network that does best on them.
        validation_fraction: how many of them.
        n_iter_no_change: epochs without a better score after which early stopping stops.
        random_state: of the initialisation, the order, the masks and what is held back.
        verbose: whether to show epochs, losses and scores.
        device: of torch, such as ``"cuda"``.

    Attributes:
        classes_: the labels, without -1.
        network_: the trained network.
        loss_curve_: the mean loss of each epoch.
        n_iter_: the epochs that were trained.
        best_validation_score_: the accuracy on what early stopping held back.
        n_features_in_: the number of features.
        feature_names_in_: their names, if X had names.

    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True)
    >>> few = y.copy()
    >>> few[np.arange(len(y)) % 10 != 0] = -1  # 15 of the 150 labels are left
    >>> AdversarialDropoutClassifier(max_iter=30, random_state=0).fit(x, few).score(x, y) > 0.8
    True
    """

    _losses = (cross_entropy, kl)
    _most_noise = 0.6

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from the rows of X; those whose y is -1 have no label.

        Args:
            X: features ``(N, D)``; dense.
            y: labels ``(N,)`` of any kind. Unlabelled rows among labels that are text: an array of objects, with -1.
            sample_weight: how much each row counts, ``(N,)``.
        """
        self._validate_params()
        x, labels, labelled = self._read(X, y, reset=True)
        self.classes_ = self._found(labels[labelled])
        return self._fit(x, labels, labelled, sample_weight, len(self.classes_))

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """One epoch more on these rows.

        Args:
            X: features.
            y: labels; -1 for none.
            classes: all labels there will be; needed the first time if y does not have all of them.
            sample_weight: how much each row counts.
        """
        self._validate_params()
        first = not hasattr(self, "network_")
        x, labels, labelled = self._read(X, y, reset=first)
        if first:
            self.classes_ = self._found(labels[labelled] if classes is None else np.asarray(classes))
        unknown = sorted(set(labels[labelled].tolist()) - set(self.classes_.tolist()), key=str)
        if unknown:
            raise ValueError(f"y has the label {unknown[0]!r}, which is not among the classes {self.classes_.tolist()}")
        return self._partial_fit(x, labels, labelled, sample_weight, len(self.classes_))

    def predict(self, X: Any) -> Array:
        """The most probable class of each row."""
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, ``(N, C)``, in the order of ``classes_``."""
        check_is_fitted(self)
        x = validate_data(self, X, reset=False, dtype=np.float64)
        outputs = self._outputs(x)
        shares = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def predict_log_proba(self, X: Any) -> Array:
        """The logarithm of the probabilities."""
        return np.log(self.predict_proba(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy; every row must have a label."""
        if not _has_label(np.asarray(y)).all():
            raise ValueError("a score needs the label of every row, and y has -1 among them; leave those rows out")
        return float(accuracy_score(y, self.predict(X), sample_weight=sample_weight))

    def _read(self, X: Any, y: Any, reset: bool) -> tuple[Array, Array, Array]:
        x, labels = validate_data(self, X, y, reset=reset, dtype=np.float64, ensure_min_samples=1)
        labels = column_or_1d(labels, warn=True)
        labelled = _has_label(labels)
        if not labelled.any():
            raise ValueError(
                f"every label is {UNLABELLED}, which is for rows without one; label some rows of each class"
            )
        check_classification_targets(labels[labelled])
        return x, labels, labelled

    def _found(self, labels: Array) -> Array:
        classes = np.unique(labels)
        classes = classes[_has_label(classes)]
        if len(classes) < 2:
            raise ValueError(
                f"a classifier needs two classes at least, and the labels are of one class: {classes.tolist()}"
            )
        return classes

    def _targets(self, y: Array) -> Tensor:
        return torch.as_tensor(np.searchsorted(self.classes_, y))

    def _strata(self, y: Array, count: int) -> Array | None:
        classes, counts = np.unique(y, return_counts=True)
        enough = counts.min() >= 2 and min(count, len(y) - count) >= len(classes)
        return y if enough else None

    def _validation_score(self, y: Array, outputs: Array) -> float:
        return float(accuracy_score(y, self.classes_[outputs.argmax(axis=1)]))


class AdversarialDropoutRegressor(RegressorMixin, _AdversarialDropoutNetwork):
    """The same for numbers: y is nan in rows without one. The target is standardised inside.

    Takes the parameters and has the attributes of :class:`AdversarialDropoutClassifier`, but for the classes; the
    validation score is R², and automatic noise is none: what moves a row seldom moves its class, but does its target.

    >>> x = np.linspace(-1, 1, 60)[:, None]
    >>> y = np.where(np.arange(60) % 4 == 0, 3 * x[:, 0], np.nan)
    >>> AdversarialDropoutRegressor(max_iter=100, random_state=0).fit(x, y).score(x, 3 * x[:, 0]) > 0.8
    True
    """

    _losses = (mse, mse)
    _most_noise = 0.0

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from the rows of X; those whose y is nan have no target.

        Args:
            X: features ``(N, D)``; dense.
            y: targets ``(N,)``.
            sample_weight: how much each row counts, ``(N,)``.
        """
        self._validate_params()
        x, targets, labelled = self._read(X, y, reset=True)
        self._measure(targets[labelled])
        return self._fit(x, targets, labelled, sample_weight, 1)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """One epoch more on these rows."""
        self._validate_params()
        first = not hasattr(self, "network_")
        x, targets, labelled = self._read(X, y, reset=first)
        if first:
            self._measure(targets[labelled])
        return self._partial_fit(x, targets, labelled, sample_weight, 1)

    def predict(self, X: Any) -> Array:
        """The prediction for each row, ``(N,)``."""
        check_is_fitted(self)
        return self._unscaled(self._outputs(validate_data(self, X, reset=False, dtype=np.float64)))

    def _read(self, X: Any, y: Any, reset: bool) -> tuple[Array, Array, Array]:
        x = validate_data(self, X, reset=reset, dtype=np.float64)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        targets = column_or_1d(y, dtype=np.float64, warn=True)
        if len(targets) != len(x):
            raise ValueError(f"X has {len(x)} rows and y has {len(targets)} targets")
        if np.isinf(targets).any():
            raise ValueError("y contains infinity; a row without a target has nan")
        labelled = ~np.isnan(targets)
        if not labelled.any():
            raise ValueError("every target is nan, which is for rows without one; there is nothing to learn from")
        return x, targets, labelled

    def _measure(self, targets: Array) -> None:
        self._target_mean, self._target_scale = float(targets.mean()), float(targets.std()) or 1.0

    def _targets(self, y: Array) -> Tensor:
        return torch.as_tensor((y - self._target_mean) / self._target_scale, dtype=torch.float32)[:, None]

    def _unscaled(self, outputs: Array) -> Array:
        return np.asarray(outputs[:, 0] * self._target_scale + self._target_mean)

    def _validation_score(self, y: Array, outputs: Array) -> float:
        return float(r2_score(y, self._unscaled(outputs)))


def _batch_size(rows: int) -> int:
    """Four updates an epoch, or more."""
    return min(200, ceil(rows / 4))


def _has_label(y: Array) -> Array:
    """Which labels are not -1; text never is."""
    if y.dtype.kind in "OUS":
        return np.array([not (isinstance(label, int | np.integer) and label == UNLABELLED) for label in y], dtype=bool)
    return np.asarray(y != UNLABELLED)
