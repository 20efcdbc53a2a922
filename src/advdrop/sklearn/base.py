"""What the classifier and the regressor have in common."""

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
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from advdrop.divergences import Divergence
from advdrop.randomness import borrowed_noise, derived_seed, seed_noise
from advdrop.sklearn.training import ANNEALED, Table, Training

Array = npt.NDArray[Any]


class AdversarialDropoutEstimator(BaseEstimator, ABC):
    """The parameters, the fit and the outputs of both estimators.

    :class:`advdrop.sklearn.AdversarialDropoutClassifier` describes the parameters.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
        "p": [Interval(Real, 0, 1, closed="left")],
        "delta": [Interval(Real, 0, 1, closed="both")],
        "noise": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left")],
        "weight": [Interval(Real, 0, None, closed="left")],
        "ramp": [Interval(Real, 0, 1, closed="both")],
        "standardize": ["boolean"],
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
    _divergences: ClassVar[tuple[Divergence, Divergence]]
    """D of the supervised loss and D of the adversarial term."""
    _most_noise: ClassVar[float]
    """The automatic noise in the limit of no labels."""
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
        standardize: bool = True,
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
        self.standardize = standardize
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
        """The number of epochs that were trained."""
        return len(self._training.losses)

    @abstractmethod
    def _targets(self, y: Array) -> Tensor:
        """Return labels in the form that the supervised loss takes."""

    @abstractmethod
    def _validation_score(self, y: Array, outputs: Array) -> float:
        """Return the score for early stopping; higher is better."""

    def _fit(self, x: Array, y: Array, labeled: Array, sample_weight: Any, outputs: int) -> Self:
        """Train a new network.

        Args:
            x: the features of all rows.
            y: their labels; those of unlabeled rows are ignored.
            labeled: whether each row has a label.
            sample_weight: the weight of each row, or None.
            outputs: the number of outputs of the network.
        """
        self._start(x, labeled, outputs)
        kept, held = np.arange(len(x)), np.empty(0, dtype=np.intp)
        if self.early_stopping:
            held = self._held_back(y, np.flatnonzero(labeled))
            kept = np.setdiff1d(kept, held)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, x)[kept]
        table = self._table(x[kept], y[kept], labeled[kept], weights)
        best, since = self.network_.state_dict(), 0
        for epoch in range(self.max_iter):
            loss = self._training.epoch(table, epoch / self.max_iter, (epoch + 1) / self.max_iter)
            if len(held):
                score = self._validation_score(y[held], self._outputs(x[held]))
                since = 0 if score > self.best_validation_score_ else since + 1
                if since == 0:
                    best, self.best_validation_score_ = copy.deepcopy(self.network_.state_dict()), score
            self._print_progress(epoch + 1, loss)
            if len(held) and since >= self.n_iter_no_change:
                break
        if len(held):
            self.network_.load_state_dict(best)
        return self

    def _partial_fit(self, x: Array, y: Array, labeled: Array, sample_weight: Any, outputs: int) -> Self:
        """Train one more epoch, with the full λ and the full learning rate."""
        if not hasattr(self, "network_"):
            self._start(x, labeled, outputs)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, x)
        loss = self._training.epoch(self._table(x, y, labeled, weights), 1 - ANNEALED, 1 - ANNEALED)
        self._print_progress(self.n_iter_, loss)
        return self

    def _start(self, x: Array, labeled: Array, outputs: int) -> None:
        """Make a new network and its optimizer, and measure the scale of the features."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        sizes = [int(size) for size in np.atleast_1d(self.hidden_layer_sizes)]
        self._mean, self._scale = np.zeros(x.shape[1]), np.ones(x.shape[1])
        if self.standardize:
            self._mean, spread = x.mean(axis=0), x.std(axis=0)
            constant = spread <= 1e-12 * np.abs(self._mean)
            self._scale = np.where(constant, 1.0, spread)
        device = torch.device(self.device)
        with borrowed_noise(device):
            seed_noise(device, derived_seed(seed, "initialisation"))  # this spelling gives the weights of version 0.1
            self._training = Training(
                x.shape[1],
                outputs,
                sizes,
                p=float(self.p),
                delta=float(self.delta),
                noise=self._most_noise * (1 - labeled.mean()) if self.noise == "auto" else float(self.noise),
                supervised=self._divergences[0],
                adversarial=self._divergences[1],
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
        """Choose the rows for early stopping, with the same share of each class where there are enough rows."""
        count = ceil(self.validation_fraction * len(rows))
        if not 0 < count < len(rows):
            raise ValueError(
                f"early_stopping would hold back {count} of {len(rows)} labeled rows; label more, or leave it out"
            )
        strata = self._strata(y[rows], count)
        chosen: Array = train_test_split(rows, test_size=count, random_state=self._training.seed, stratify=strata)[1]
        return chosen

    def _strata(self, y: Array, count: int) -> Array | None:
        """Return the group of each row if the same share of each group is to be held back."""
        del y, count
        return None

    def _table(self, x: Array, y: Array, labeled: Array, weights: Array | None) -> Table:
        if weights is not None:
            labeled = labeled & (weights != 0)  # a row of weight 0 is used as one without a label
        rows = np.flatnonzero(labeled)
        if len(rows) == 0:
            raise ValueError("no row has a label and a weight above 0, so there is nothing to learn from")
        own = None if weights is None else torch.as_tensor(weights[rows] / weights[rows].mean()).float()
        return Table(
            self._scaled(x).to(self.device),
            torch.as_tensor(rows).to(self.device),
            self._targets(y[rows]).to(self.device),
            None if own is None else own.to(self.device),
        )

    def _scaled(self, x: Array) -> Tensor:
        return torch.as_tensor((x - self._mean) / self._scale, dtype=torch.float32)

    def _predicted(self, X: Any) -> Array:
        """Check the features and return the outputs of the network."""
        check_is_fitted(self)
        return self._outputs(validate_data(self, X, reset=False, dtype=np.float64))

    @torch.no_grad()
    def _outputs(self, x: Array) -> Array:
        """Return the outputs without dropout, in float64, so that no row depends on the size of its batch."""
        exact = copy.deepcopy(self.network_).double().eval()
        rows = torch.as_tensor((x - self._mean) / self._scale, dtype=torch.float64).to(self.device)
        return np.asarray(exact(rows).cpu())

    def _print_progress(self, epoch: int, loss: float) -> None:
        """Print the epoch and the loss: in a terminal on one line, elsewhere on ten lines for the whole fit."""
        if not self.verbose:
            return
        score = "" if self.best_validation_score_ == -np.inf else f", best score {self.best_validation_score_:.4f}"
        text = f"epoch {epoch} of {self.max_iter}, loss {loss:.4f}{score}"
        if sys.stdout.isatty():
            print(f"\r{text}", end="\n" if epoch == self.max_iter else "", flush=True)
        elif epoch % ceil(self.max_iter / 10) == 0 or epoch == self.max_iter:
            print(text)


def _batch_size(rows: int) -> int:
    """Return a quarter of the rows, at most 200."""
    return min(200, ceil(rows / 4))
