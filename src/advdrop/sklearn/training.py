"""Training of a multilayer perceptron on a table in which some rows have no label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, isfinite
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from advdrop.checks import value_checks
from advdrop.divergences import Divergence
from advdrop.masks import AdversarialDropout
from advdrop.objectives.adversarial_dropout import VAdD
from advdrop.objectives.base import Term
from advdrop.randomness import derived_generator
from advdrop.schedules import Ramp, ramp_down
from advdrop.step.batch import Rows
from advdrop.step.passes import Passes
from advdrop.step.step import Loss, Step

SMALL = 4_000_000
"""Up to this number of multiplications in the largest layer, a second thread makes an update slower."""
ANNEALED = 0.3
"""The last part of the training, in which the learning rate goes to zero."""


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


class Table(NamedTuple):
    """The rows to train on.

    Args:
        x: the features of all rows, ``(N, D)``.
        labeled: the positions of the rows that have a label, ``(L,)``.
        targets: their labels, ``(L,)`` integers for cross-entropy, ``(L, C)`` numbers for mse.
        weights: their weights, ``(L,)``, 1 on average; None if all are equal.
    """

    x: Tensor
    labeled: Tensor
    targets: Tensor
    weights: Tensor | None = None


@final
@dataclass(eq=False)
class WeightedLoss(Term):
    """The supervised loss w · D[y, f(x, εs)] of the labeled rows.

    The labels of a step must be integers, and targets may be other numbers. So a step gets the position of each row in
    the table's targets and weights in place of its label.

    Args:
        divergence: D.
    """

    divergence: Divergence
    rows: Rows = field(default="labeled", init=False, repr=False)
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
        """Return w · D[y, f(x, εs)], ``(B,)``."""
        assert self._targets is not None
        positions = passes.batch.labels()
        value = self.divergence(self._targets[positions], passes.clean(self.rows).logits)
        return value if self._weights is None else self._weights[positions] * value


class Training:
    """The training of a multilayer perceptron, epoch by epoch.

    The objective is the supervised loss plus λ times VAdD.

    Args:
        features: D, the number of features.
        outputs: C, the number of classes or of values to predict.
        hidden: the number of units of each hidden layer; the masks are on the last.
        p: drop probability of the sampled mask εs.
        delta: δ, the share of the last hidden units whose mask may be flipped.
        noise: standard deviation of the noise added to the features. The clean and the adversarial pass see different
            noise.
        supervised: D of the supervised loss.
        adversarial: D of VAdD.
        weight: λ after its ramp.
        ramp: the first part of the training, in which λ grows.
        batch_size: the number of labeled rows of an update, and of other rows, at most.
        learning_rate: of Adam, before it is annealed.
        seed: of the order of the rows, the noise and the masks. The initial weights come from torch's global generator.
        device: where to train.
    """

    def __init__(
        self,
        features: int,
        outputs: int,
        hidden: Sequence[int],
        *,
        p: float,
        delta: float,
        noise: float,
        supervised: Divergence,
        adversarial: Divergence,
        weight: float,
        ramp: float,
        batch_size: int,
        learning_rate: float,
        seed: int,
        device: torch.device,
    ) -> None:
        self.network = mlp([features, *hidden], outputs, AdversarialDropout(p, delta)).to(device)
        self.noise = noise
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.seed = seed
        self.losses: list[float] = []
        self.supervised = WeightedLoss(supervised)
        vadd = VAdD(divergence=adversarial, noise="independent" if noise else "shared")
        self.step = Step(self.network, self.supervised + Ramp(weight, over=ramp) * vadd)
        self._parameters: list[Tensor] = list(self.network.parameters())
        self._averages = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._squares = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._updates = [torch.zeros((), dtype=torch.float32, device=device) for _ in self._parameters]
        self._small = batch_size * max(weight.numel() for weight in self._parameters) <= SMALL

    def loss(
        self, x: Tensor, positions: Tensor, others: Tensor | None, progress: float, generator: torch.Generator
    ) -> Tensor:
        """Return the loss of one update, a scalar.

        Args:
            x: labeled rows, ``(B, D)``.
            positions: of their targets and weights, ``(B,)``.
            others: rows of which the labels are not used, ``(U, D)``; without them, VAdD runs on x.
            progress: the share of the training that is done.
            generator: the randomness of the noise and the masks.
        """
        second = None
        if self.noise:
            second = self._noisy(x if others is None else others, generator)
            x, others = self._noisy(x, generator), None if others is None else self._noisy(others, generator)
        result: Loss = self.step(
            x, positions, unlabeled=others, second_view=second, progress=progress, generator=generator
        )
        return result.loss

    def _noisy(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return x + self.noise * torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)

    def epoch(self, table: Table, begin: float, end: float) -> float:
        """Train on all rows once, and return the mean loss of the updates.

        Args:
            table: the rows.
            begin: the share of the training that is done before this epoch.
            end: the share that is done after it.
        """
        x, labeled, targets, weights = table
        number = len(self.losses)
        order = derived_generator(self.seed, "order", number)
        masks = derived_generator(self.seed, "masks", number, device=x.device)
        updates, size = ceil(len(x) / self.batch_size), min(self.batch_size, len(labeled))
        turns = ceil(updates * size / len(labeled))
        chosen = torch.cat([torch.randperm(len(labeled), generator=order) for _ in range(turns)])[: updates * size]
        chosen = chosen.to(x.device)
        others: Sequence[Tensor | None] = [None] * updates
        if len(labeled) < len(x):
            others = x[torch.randperm(len(x), generator=order).to(x.device)].split(self.batch_size)
        batches = zip(x[labeled[chosen]].split(size), chosen.split(size), others, strict=True)
        self.network.train()
        losses: list[Tensor] = []
        # Wrong values show in the first epoch.
        checked, used = value_checks("never" if self.losses else "auto"), self.supervised.using(targets, weights)
        with checked, used, threads(1 if self._small else None):
            for update, (rows, positions, unlabeled) in enumerate(batches):
                progress = begin + (end - begin) * update / updates
                loss = self.loss(rows, positions, unlabeled, progress, masks)
                self._update(loss, self.learning_rate * ramp_down(progress, ANNEALED))
                losses.append(loss.detach())
        mean = float(torch.stack(losses).mean())
        if not isfinite(mean):
            raise ValueError(
                f"the loss of epoch {number + 1} is {mean}; the features may be too large for float32 (standardize=True"
                f" brings them to one scale), or learning_rate={self.learning_rate} is too large"
            )
        self.losses.append(mean)
        return mean

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


def mlp(units: Sequence[int], outputs: int, layer: AdversarialDropout) -> nn.Sequential:
    """Return a multilayer perceptron with ReLU, and this layer on its last hidden units.

    Weights have He's initialization (fan-in), biases are zero.

    >>> mlp([4, 8], 2, AdversarialDropout(p=0.5))
    Sequential(
      (0): Linear(in_features=4, out_features=8, bias=True)
      (1): ReLU()
      (2): AdversarialDropout(p=0.5, delta=0.05, scale='inverted', granularity='unit')
      (3): Linear(in_features=8, out_features=2, bias=True)
    )
    """
    below = [module for sizes in pairwise(units) for module in (nn.Linear(*sizes), nn.ReLU())]
    network = nn.Sequential(*below, layer, nn.Linear(units[-1], outputs))
    for module in network:
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, a=0.0)
            nn.init.zeros_(module.bias)
    return network
