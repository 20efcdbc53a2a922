"""What the classifier and the regressor have in common."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import ceil
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from advdrop.divergences import Divergence, mse
from advdrop.objectives import OtherMembers, Term, VAdD
from advdrop.objectives.targets import clean_output
from advdrop.randomness import borrowed_noise, derived_seed, seed_noise
from advdrop.sklearn.folds import FOLDS, parts_of_members, without_folds
from advdrop.sklearn.gain import Gain
from advdrop.sklearn.labels import Array
from advdrop.sklearn.progress import Progress
from advdrop.sklearn.rows import Rows, is_sparse, measure_scale, sample, scaled_rows
from advdrop.sklearn.training import ANNEALED, Table, Training, plain_modes
from advdrop.trust import trust_in

PARTS = 20
"""How many times in a training the predictions are checked for a collapse and the loss is recorded."""
EARLY = 50
"""After fewer updates, predictions may look like a collapse by chance, so they are not checked."""
WATCHED = 1000
"""The number of unlabeled rows that are watched, at most."""
ENOUGH = 20
"""The number of labels of each class from which the gain by unlabeled rows is measured."""
FEWEST_UPDATES, MOST_UPDATES, EPOCHS = 250, 4000, 40
"""The automatic length of a training: its limits in updates, and the passes over the labeled rows."""
ARMS = {"plain": "labels only", "semi": "with unlabeled rows", "semi held out": "measuring the gain"}
"""What the progress calls each training."""


class AdversarialDropoutEstimator(BaseEstimator, ABC):
    """The parameters, the fit and the outputs of both estimators.

    :class:`advdrop.sklearn.AdversarialDropoutClassifier` describes the parameters.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
        "members": [Interval(Integral, 1, None, closed="left")],
        "blend": [Interval(Real, 0, 1, closed="left")],
        "p": [Interval(Real, 0, 1, closed="left")],
        "delta": [Interval(Real, 0, 1, closed="both")],
        "weight": [Interval(Real, 0, None, closed="left")],
        "ramp": [Interval(Real, 0, 1, closed="both")],
        "standardize": ["boolean"],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "unlabeled_batch_size": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "updates": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "measure_gain": ["boolean"],
        "random_state": ["random_state"],
        "verbose": [StrOptions({"auto"}), "verbose"],
        "device": [str],
    }
    _divergences: ClassVar[tuple[Divergence, Divergence]]
    """D of the supervised loss and D of the adversarial term."""
    _score: ClassVar[str]
    """The name of the score."""
    _semi: Training
    _plain: Training | None
    skill_: float
    collapsed_: bool
    unlabeled_gain_: Gain | None
    unlabeled_answer_: str

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (128,),
        *,
        members: int = 20,
        blend: float = 1 / 3,
        p: float = 0.2,
        delta: float = 0.05,
        weight: float = 2.0,
        ramp: float = 0.3,
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
        self.hidden_layer_sizes = hidden_layer_sizes
        self.members = members
        self.blend = blend
        self.p = p
        self.delta = delta
        self.weight = weight
        self.ramp = ramp
        self.standardize = standardize
        self.batch_size = batch_size
        self.unlabeled_batch_size = unlabeled_batch_size
        self.learning_rate = learning_rate
        self.updates = updates
        self.measure_gain = measure_gain
        self.random_state = random_state
        self.verbose = verbose
        self.device = device

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn should know: sparse tables are accepted."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        """Return True if there are members that can predict."""
        return hasattr(self, "_semi")

    @abstractmethod
    def _targets(self, y: Array) -> Tensor:
        """Return labels in the form that the supervised loss takes."""

    @abstractmethod
    def _folds(self, y: Array, rng: np.random.RandomState) -> Array:
        """Divide labels into ``FOLDS`` parts. Return the part of each label, or -1 if it is never left out."""

    @abstractmethod
    def _skill(self, y: Array, outputs: Array) -> float:
        """Return how good predictions are: 0 is no better than a guess, 1 is perfect."""

    @abstractmethod
    def _skill_error(self) -> float:
        """Return the standard error of ``skill_``, which was measured on ``_tested`` labels."""

    @abstractmethod
    def _scores(self, y: Array, outputs: Array) -> Array:
        """Return a score of each prediction, ``(N,)``; their mean is the score of the estimator."""

    @abstractmethod
    def _enough(self, y: Array) -> bool:
        """Return True if there are enough labels to measure the gain by unlabeled rows."""

    @abstractmethod
    def _mean(self, outputs: Array) -> Array:
        """Return the mean prediction of some members from their outputs ``(K, N, C)``, ``(N, C)``."""

    @abstractmethod
    def _collapse(self, outputs: Array, plain: Array) -> str:
        """Return what is wrong with predictions, compared with those of labels-only members, or an empty text."""

    def _fit(self, x: Array, y: Array, labeled: Array, weights: Array | None, outputs: int) -> Self:
        """Train new members.

        Args:
            x: the features of all rows.
            y: their labels; those of unlabeled rows are ignored.
            labeled: whether each row has a label that counts.
            weights: the weight of each row, or None.
            outputs: the number of outputs of a network.
        """
        self.__dict__.pop("_semi", None)  # a fit that is interrupted leaves nothing that could predict
        self._start(x)
        rows, table = self._table(x, y, labeled, weights)
        self.skill_, self.collapsed_, self.unlabeled_gain_, self._plain = 1.0, False, None, None
        self._tested = 0
        course: list[Array] = []
        fold = self._folds(y[rows], np.random.RandomState(derived_seed(self._seed, "folds") % 2**32))
        companions = self._companions()
        measured = bool(self.measure_gain and self.weight and len(table.unlabeled) and self._enough(y[rows]))
        with Progress(self.verbose) as progress:
            if companions:
                companions = max(companions, 4 * FOLDS) if measured else companions
                left = without_folds(table, fold, companions)
                self._plain = self._trained("plain", left, outputs, companions, course=course, progress=progress)
                self.skill_, self._tested = self._held_out_skill(x[rows], y[rows], fold)
            unlabeled = len(table.unlabeled)
            trust = self._trust() if self.weight and unlabeled else 0.0  # on labeled rows, the term did harm
            if not trust:  # no trust is the same as weight=0, to the last bit
                table = table._replace(unlabeled=table.unlabeled[:0])
            members = int(self.members)
            self._semi = self._trained("semi", table, outputs, members, trust=trust, course=course, progress=progress)
            if measured and companions and trust:
                self._measure_gain(x[rows], y[rows], fold, table, outputs, progress)
            self.unlabeled_answer_ = self._answer(unlabeled, trust)
            progress.answer = self.unlabeled_answer_
        return self

    def _answer(self, unlabeled: int, trust: float) -> str:
        """Return in one sentence whether the unlabeled rows helped."""
        if not unlabeled or not self.weight:
            return "There are no unlabeled rows." if self.weight else "Unlabeled rows are not used with weight=0."
        if not trust or self.collapsed_:
            reason = "predictions collapsed" if self.collapsed_ else "labels alone predict no better than a guess"
            return f"Unlabeled rows were left out: {reason}."
        if not self.measure_gain or self._plain is None:
            return "Whether the unlabeled rows helped was not measured."
        if self.unlabeled_gain_ is None:
            return "Too few labels to tell whether the unlabeled rows helped."
        return self.unlabeled_gain_.answer(self._score)

    def _trust(self) -> float:
        """Return the factor of λ, see :func:`advdrop.trust.trust_in`; 1 where no skill is measured."""
        if self.collapsed_:
            return 0.0
        return trust_in(self.skill_, self._skill_error()) if self._plain is not None else 1.0

    def _companions(self) -> int:
        """Return the number of labels-only members that the blend needs."""
        return ceil(self.members * self.blend / (1 - self.blend)) if self.blend else 0

    def _partial_fit(self, x: Array, y: Array, labeled: Array, weights: Array | None, outputs: int) -> Self:
        """Make one pass over these rows, with the full λ and the full learning rate.

        The skill is measured on labels before the members learn from them.
        """
        first = not hasattr(self, "_semi")
        if first:
            self._start(x)
            companions = self._companions()
            self.loss_curve_, self.collapsed_, self.unlabeled_gain_ = [], False, None
            self.unlabeled_answer_ = "partial_fit does not measure whether unlabeled rows help."
            self.skill_ = 0.0 if companions else 1.0
            self._plain = self._training("plain", outputs, companions) if companions else None
            self._semi = self._training("semi", outputs, int(self.members))
            self._tested = 0
        else:
            measure_scale(self._scaler, x)
        rows, table = self._table(x, y, labeled, weights)
        if not first and self._plain is not None:
            seen = self._skill(y[rows], self._mean(self._outputs(self._plain, x[rows])))
            share = len(rows) / (self._tested + len(rows))
            self.skill_ = (1 - share) * self.skill_ + share * seen
            self._tested += len(rows)
        passes = [ceil(len(table.labeled) / self.batch_size), ceil(len(table.unlabeled) / self.unlabeled_batch_size)]
        for training in (self._plain, self._semi):
            if training is not None:
                training.trust.value = self._trust() if len(table.unlabeled) else 0.0
                loss = training.train(table, max(passes), 1 - ANNEALED, 1 - ANNEALED)
        self.loss_curve_.append(loss)
        return self

    def _start(self, x: Array) -> None:
        """Choose the seed, and measure the scale of the features."""
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._scaler = StandardScaler(with_mean=self.standardize, with_std=self.standardize)
        measure_scale(self._scaler, x)

    def _consistency(self, members: int, groups: int) -> Term:
        """Return the term for unlabeled rows: VAdD with the detached mean of the other members as its target.

        Args:
            members: K.
            groups: the number of groups that the members form; they learn from each other only within their group.
        """
        numbers = self._divergences[1] is mse
        together = members > groups
        return VAdD(
            target=OtherMembers(members, values=numbers, groups=groups) if together else clean_output,
            given="probabilities" if together else "logits",
            divergence=self._divergences[1],
            noise="shared",
            detach=True,
            confidence=0.0 if numbers else 1.0,
        )

    @plain_modes()
    def _training(self, arm: str, outputs: int, members: int, groups: int = 1) -> Training:
        """Return new members and their optimizer."""
        device, seed = torch.device(self.device), derived_seed(self._seed, arm)
        with borrowed_noise(device):
            seed_noise(device, derived_seed(seed, "initialization"))
            return Training(
                self.n_features_in_,
                outputs,
                _hidden(self.hidden_layer_sizes),
                members=members,
                p=float(self.p),
                delta=float(self.delta),
                supervised=self._divergences[0],
                consistency=None if arm == "plain" else self._consistency(members, groups),
                weight=float(self.weight),
                ramp=float(self.ramp),
                batch_size=int(self.batch_size),
                unlabeled_batch_size=int(self.unlabeled_batch_size),
                learning_rate=float(self.learning_rate),
                seed=seed,
                device=device,
            )

    def _trained(
        self,
        arm: str,
        table: Table,
        outputs: int,
        members: int,
        *,
        progress: Progress,
        trust: float = 1.0,
        groups: int = 1,
        course: list[Array] | None = None,
    ) -> Training:
        """Train new members from beginning to end.

        Args:
            arm: which members: "plain", "semi" or "semi held out".
            table: the rows.
            outputs: the number of outputs of a network.
            members: how many.
            progress: called after each part.
            trust: the factor of λ.
            groups: see :meth:`_consistency`.
            course: the predictions for watched rows after each part of the labels-only training, which adds them; the
                semi-supervised training is compared with them.
        """
        training = self._training(arm, outputs, members, groups)
        training.trust.value = trust
        # A table may be sorted, so the first rows need not be like the others. All trainings are watched on the same.
        watched = sample(table.unlabeled, WATCHED, seed=derived_seed(self._seed, "watched") % 2**32)
        if arm == "plain":
            table = table._replace(unlabeled=table.unlabeled[:0])
        updates = _auto_updates(len(table.labeled), self.batch_size) if self.updates == "auto" else int(self.updates)
        parts = min(PARTS, updates)
        losses = []
        for part in range(parts):
            begin, end = part / parts, (part + 1) / parts
            losses.append(training.train(table, round(end * updates) - round(begin * updates), begin, end))
            progress.training(ARMS[arm], part + 1, parts, losses[-1])
            if course is not None and arm == "plain" and len(watched):
                course.append(self._mean(training.outputs(watched)))
            watch = arm == "semi" and training.updates >= EARLY and part + 1 < parts
            if course and watch and self.weight and training.trust.value:
                self._watch(training, watched, course[part])
        if groups == 1:
            self.loss_curve_ = losses
        return training

    def _watch(self, training: Training, rows: Rows, plain: Array) -> None:
        """Leave VAdD out from now on if the predictions collapse, and say so.

        They are compared with those of the labels-only members after the same part of their training: early in the
        training, predictions are not certain anyway.
        """
        if reason := self._collapse(self._mean(training.outputs(rows)), plain):
            training.trust.value, self.collapsed_ = 0.0, True
            warnings.warn(
                f"the predictions for unlabeled rows collapse: {reason}. The rest of the training uses the labels "
                "alone. A smaller weight may help, or unlabeled rows do not help on these data",
                stacklevel=5,
            )

    def _held_out(self, training: Training, x: Array, fold: Array) -> Array:
        """Return the mean prediction for each labeled row of the members that learned without it, ``(L, C)``."""
        outputs = self._outputs(training, x)
        parts, found = parts_of_members(training.members), np.empty(outputs.shape[1:])
        for part in np.unique(fold):
            found[fold == part] = self._mean(outputs[parts == part][:, fold == part])
        return found

    def _held_out_skill(self, x: Array, y: Array, fold: Array) -> tuple[float, int]:
        """Return the skill of the labels-only members on labels that they did not see, and how many labels."""
        assert self._plain is not None
        tested = (fold >= 0) & np.isin(fold, parts_of_members(self._plain.members))
        if not tested.any():
            return 0.0, 0
        skill = self._skill(y[tested], self._held_out(self._plain, x[tested], fold[tested]))
        return skill, int(tested.sum())

    def _measure_gain(self, x: Array, y: Array, fold: Array, table: Table, outputs: int, progress: Progress) -> None:
        """Train once more with each part of the labels left out, and compare with the labels-only members."""
        assert self._plain is not None
        members = 4 * FOLDS
        left = without_folds(table, fold, members)
        semi = self._trained(
            "semi held out", left, outputs, members, trust=self._trust(), groups=FOLDS, progress=progress
        )
        tested = fold >= 0
        with_rows, without = (
            self._scores(y[tested], self._held_out(training, x[tested], fold[tested]))
            for training in (semi, self._plain)
        )
        self.unlabeled_gain_ = Gain.of(with_rows - without)

    @plain_modes()
    def _table(self, x: Array, y: Array, labeled: Array, weights: Array | None) -> tuple[Array, Table]:
        """Return the positions of the labeled rows, and the rows to train on."""
        rows = np.flatnonzero(labeled)
        own = None if weights is None else torch.as_tensor(weights[rows] / weights[rows].mean()).float()[None]
        table = Table(
            self._scaled(x[rows], torch.float32),
            self._targets(y[rows]).to(self.device),
            None if own is None else own.to(self.device),
            self._scaled(x[np.flatnonzero(~labeled)], torch.float32),
        )
        return rows, table

    def _outputs(self, training: Training, x: Array) -> Array:
        """Return the outputs of each member without dropout, ``(K, N, C)``.

        They are computed in float64, so that no row depends on the size of its batch.
        """
        return training.outputs(self._scaled(x, torch.float64))

    def _scaled(self, x: Any, dtype: torch.dtype) -> Rows:
        """Return standardized rows."""
        return scaled_rows(self._scaler, x, dtype, torch.device(self.device))

    def _features(self, X: Any, reset: bool = False) -> Any:
        """Check the features and return them as an array or, if they are sparse, in the CSR format."""
        x = validate_data(self, X, reset=reset, dtype=np.float64, accept_sparse="csr")
        if is_sparse(x) and not x.has_canonical_format:  # a scaler takes entries of one place for those of several
            x = x.copy()
            x.sum_duplicates()
        return x

    def _predicted(self, X: Any) -> Array:
        """Check the features and return the mean prediction of all members, ``(N, C)``."""
        check_is_fitted(self)
        x = self._features(X)
        semi = self._mean(self._outputs(self._semi, x))
        if self._plain is None:
            return semi
        return np.asarray((1 - self.blend) * semi + self.blend * self._mean(self._outputs(self._plain, x)))

    def _each_member(self, X: Any) -> Array:
        """Check the features and return the prediction of each member, ``(K, N, C)``."""
        check_is_fitted(self)
        x = self._features(X)
        arms = [arm for arm in (self._semi, self._plain) if arm is not None]
        return np.concatenate([np.stack([self._mean(one[None]) for one in self._outputs(arm, x)]) for arm in arms])


def _hidden(sizes: int | Sequence[int]) -> list[int]:
    """Return the number of units of each hidden layer."""
    units: list[Any] = [sizes] if isinstance(sizes, Integral) else list(sizes)  # type: ignore[arg-type]
    if not units or not all(isinstance(size, Integral) and int(size) >= 1 for size in units):
        raise ValueError(f"hidden_layer_sizes must be whole numbers from 1 on, such as (128,), got {sizes!r}")
    return [int(size) for size in units]


def _auto_updates(labels: int, batch_size: int) -> int:
    """Return the length of a training for this many labeled rows."""
    return min(max(FEWEST_UPDATES, EPOCHS * ceil(labels / batch_size)), MOST_UPDATES)
