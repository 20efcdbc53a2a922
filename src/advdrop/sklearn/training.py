"""Training of an ensemble of multilayer perceptrons on a table in which some rows have no label."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import isfinite
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor
from torch.optim.adam import adam

from advdrop.checks import value_checks
from advdrop.divergences import Divergence
from advdrop.masks import AdversarialDropout
from advdrop.objectives import Objective, Term
from advdrop.randomness import derived_generator
from advdrop.schedules import Factor, Ramp, ramp_down
from advdrop.sklearn.labels import Array
from advdrop.sklearn.members import perceptrons
from advdrop.sklearn.rows import Rows
from advdrop.step import batch
from advdrop.step.passes import Passes
from advdrop.step.step import Loss, Step

SMALL = 4_000_000
"""Up to this number of multiplications in the largest layer, a second thread makes an update slower."""
ANNEALED = 0.3
"""The last part of the training, in which the learning rate goes to zero."""
CHECKED = 10
"""The number of first updates in which values are checked."""


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Set the number of threads of torch inside the block; None leaves it as it is."""
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def plain_modes() -> Iterator[None]:
    """Leave the modes of the caller, which an estimator does not depend on.

    They are: no gradients, inference, autocast, another default type than float32, and another default device.
    """
    before = torch.get_default_dtype()
    with ExitStack() as stack:
        if before != torch.float32:
            stack.callback(torch.set_default_dtype, before)
            torch.set_default_dtype(torch.float32)
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


class Table(NamedTuple):
    """The rows to train on.

    Args:
        labeled: the features of the rows with a label, ``(L, D)``.
        targets: their labels, ``(L,)`` integers for cross-entropy, ``(L, C)`` numbers for mse.
        weights: their weights for each member, ``(K, L)``, or for all, ``(1, L)``, 1 on average; None if all are equal.
        unlabeled: the features of the rows without a label, ``(U, D)``.
    """

    labeled: Rows
    targets: Tensor
    weights: Tensor | None
    unlabeled: Rows


@final
@dataclass(eq=False)
class WeightedLoss(Term):
    """The supervised loss w · D[y, f(x, εs)] of the labeled rows, for each member.

    The labels of a step must be integers, and targets may be other numbers. So a step gets the position of each row in
    the table's targets and weights in place of its label.

    Args:
        divergence: D.
        members: K.
    """

    divergence: Divergence
    members: int
    rows: batch.Rows = field(default="labeled", init=False, repr=False)
    _targets: Tensor | None = field(default=None, init=False, repr=False)
    _weights: Tensor | None = field(default=None, init=False, repr=False)

    @contextmanager
    def using(self, targets: Tensor, weights: Tensor | None = None) -> Iterator[None]:
        """Use these targets and weights inside the block, and keep no reference to them afterwards."""
        self._targets, self._weights = targets, weights
        try:
            yield
        finally:
            self._targets = self._weights = None

    def per_example(self, passes: Passes) -> Tensor:
        """Return w · D[y, f(x, εs)], ``(K·B,)``."""
        assert self._targets is not None
        positions = passes.batch.labels()
        repeated = self._targets[positions.repeat(self.members)]
        value = self.divergence(repeated, passes.clean(self.rows).logits)
        if self._weights is None:
            return value
        return self._weights[:, positions].expand(self.members, -1).flatten() * value


class Training:
    """The training of an ensemble of multilayer perceptrons.

    The objective is the supervised loss plus λ times a term for the unlabeled rows.

    Args:
        features: D, the number of features.
        outputs: C, the number of classes or of values to predict.
        hidden: the number of units of each hidden layer; the masks are on the last.
        members: K, the number of networks.
        p: drop probability of the sampled mask εs.
        delta: δ, the share of the last hidden units whose mask may be flipped.
        supervised: D of the supervised loss.
        consistency: the term for the unlabeled rows; for the labeled ones if there are no others. None: labels only.
        weight: λ after its ramp.
        ramp: the first part of the training, in which λ grows.
        batch_size: the number of labeled rows of an update, at most.
        unlabeled_batch_size: the number of unlabeled rows of an update, at most.
        learning_rate: of Adam, before it is annealed.
        seed: of the order of the rows and the masks. The initial weights come from torch's global generator.
        device: where to train.

    Attributes:
        trust: a factor of λ, 1 at first; 0 leaves the term out.
    """

    def __init__(
        self,
        features: int,
        outputs: int,
        hidden: Sequence[int],
        *,
        members: int,
        p: float,
        delta: float,
        supervised: Divergence,
        consistency: Term | None,
        weight: float,
        ramp: float,
        batch_size: int,
        unlabeled_batch_size: int,
        learning_rate: float,
        seed: int,
        device: torch.device,
    ) -> None:
        self.members = members
        layer = AdversarialDropout(p, delta)
        self.network = perceptrons(members, [features, *hidden], outputs, layer).to(device)
        self.batch_size, self.unlabeled_batch_size = batch_size, unlabeled_batch_size
        self.learning_rate = learning_rate
        self.seed = seed
        self.updates = 0
        self.supervised = WeightedLoss(supervised, members)
        self.trust = Factor(1.0)
        objective: Objective = self.supervised
        if consistency is not None:
            objective = self.supervised + self.trust * (Ramp(weight, over=ramp) * consistency)
        self.step = Step(self.network, objective)
        self._parameters: list[Tensor] = list(self.network.parameters())
        self._averages = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._squares = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._updates = [torch.zeros((), dtype=torch.float32, device=device) for _ in self._parameters]
        self._small = batch_size * max(weight.numel() for weight in self._parameters) <= SMALL

    @plain_modes()
    def train(self, table: Table, updates: int, begin: float, end: float) -> float:
        """Make some updates and return the mean loss.

        Args:
            table: the rows.
            updates: how many.
            begin: the share of the training that is done before.
            end: the share that is done after.
        """
        order = derived_generator(self.seed, "order", self.updates)
        masks = derived_generator(self.seed, "masks", self.updates, device=table.labeled.device)
        labeled = _batches(len(table.labeled), self.batch_size, order)
        unlabeled = _batches(len(table.unlabeled), self.unlabeled_batch_size, order) if len(table.unlabeled) else None
        losses: list[Tensor] = []
        self.network.train()
        with self.supervised.using(table.targets, table.weights), threads(1 if self._small else None):
            for update in range(updates):
                progress = begin + (end - begin) * update / updates
                positions = next(labeled).to(table.labeled.device)
                others = None if unlabeled is None else table.unlabeled[next(unlabeled).to(table.unlabeled.device)]
                with value_checks("auto" if self.updates < CHECKED else "never"):
                    loss: Loss = self.step(
                        table.labeled[positions], positions, unlabeled=others, progress=progress, generator=masks
                    )
                self._update(loss.loss, self.learning_rate * ramp_down(progress, ANNEALED))
                losses.append(loss.loss.detach())
                self.updates += 1
        mean = float(torch.stack(losses).mean())
        if not isfinite(mean):
            raise ValueError(
                f"the loss of update {self.updates} is {mean}; the features may be too large for float32 "
                f"(standardize=True brings them to one scale), or learning_rate={self.learning_rate} is too large"
            )
        return mean

    @plain_modes()
    @torch.no_grad()
    def outputs(self, rows: Rows) -> Array:
        """Return the outputs of each member without dropout for scaled rows, ``(K, N, C)``, in their precision."""
        exact = copy.deepcopy(self.network).to(rows.dtype).eval()
        parts = [exact(part).unflatten(0, (self.members, -1)) for part in rows.split(4096)]
        return np.asarray(torch.cat(parts, 1).cpu())

    @torch.no_grad()
    def rescale(self, factor: float, shift: float) -> None:
        """Make the outputs ``factor`` times as large, plus ``shift``, for targets that were changed in this way.

        A squared loss is factor² times as large then. So are the gradients of the parameters below the last layer, and
        those of the last layer are ``factor`` times as large. Adam's averages follow: otherwise its steps would be too
        small or too large for a thousand updates.
        """
        weight, bias = self._parameters[-2:]  # of the last layer
        for parameter, average, square in zip(self._parameters, self._averages, self._squares, strict=True):
            above = parameter is weight or parameter is bias
            parameter.mul_(factor if above else 1.0)
            average.mul_(factor if above else factor**2)
            square.mul_(factor**2 if above else factor**4)
        bias.add_(shift)

    def _update(self, loss: Tensor, learning_rate: float) -> None:
        """Change the parameters by one update of Adam; for a small network, torch.optim.Adam is noticeably slower."""
        gradients = list(torch.autograd.grad(loss, self._parameters))
        with torch.no_grad():
            adam(
                self._parameters,
                gradients,
                self._averages,
                self._squares,
                [],
                self._updates,
                fused=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=learning_rate,
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )


def _batches(rows: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the positions of the rows of one batch after the other; every pass over the rows has a new order."""
    size = min(size, rows)
    while True:
        order = torch.randperm(rows, generator=generator)
        yield from order[: rows // size * size].split(size)
