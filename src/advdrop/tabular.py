"""Training on a table of which some rows have a label: what the estimators do, in torch alone.

A step is VAdD, written out for a network whose masks are on its last hidden units: for so small a network the passes of
an objective cost more than its arithmetic. A test holds it to the objective.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil, isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from advdrop.checks import value_checks
from advdrop.divergences import Divergence
from advdrop.masks import AdversarialDropout, FirstOrder, MaskProblem, Masks, flip_budget, sample_mask, scale_mask
from advdrop.masks.budget import warn_if_none
from advdrop.models.mlp import mlp
from advdrop.randomness import derived_generator
from advdrop.schedules import Ramp, ramp_down

SMALL = 4_000_000
"""Multiplications of the largest layer in one pass up to which a second thread costs more than it brings."""
ANNEALED = 0.3
"""The share of the training, its last, over which the learning rate goes to zero."""


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Inside the block torch works with so many threads; None leaves them as they are."""
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


class Table(NamedTuple):
    """What a network is trained on.

    Args:
        x: all rows, ``(N, D)``.
        labelled: the numbers of those that have a label, ``(L,)``.
        targets: what they should become, ``(L, ...)``.
        weights: how much they count, ``(L,)``, 1 on average.
    """

    x: Tensor
    labelled: Tensor
    targets: Tensor
    weights: Tensor


class Training:
    """A multilayer perceptron in training, epoch by epoch.

    Args:
        features: of a row.
        outputs: classes, or values.
        hidden: the units of each hidden layer; the masks are on the last.
        p: the drop probability of εs.
        delta: δ.
        noise: the standard deviation of what is added to the features, drawn anew for each of the two passes.
        supervised: D of the labels.
        adversarial: D of the adversarial mask.
        weight: λ at most.
        ramp: the share of the training over which λ grows.
        batch_size: labelled rows of an update at most, and as many others.
        learning_rate: of Adam, until the annealing.
        seed: of the order of the rows and of the masks; the initialisation is torch's to draw.
        device: where it runs.
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
        self.layer = AdversarialDropout(p, delta)
        self.network = mlp(self.layer, (features,), outputs, hidden=hidden).to(device)
        self.noise = noise
        self.supervised = supervised
        self.adversarial = adversarial
        self.weight = Ramp(weight, over=ramp)
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.seed = seed
        self.losses: list[float] = []
        self._search = FirstOrder()
        self._budget = flip_budget(delta, hidden[-1])
        if weight:
            warn_if_none(self._budget, delta, hidden[-1], "the adversarial term")
        self._parameters = list(self.network.parameters())
        self._optimiser = torch.optim.Adam(self._parameters, lr=learning_rate, fused=True)
        self._small = batch_size * max(weight.numel() for weight in self._parameters) <= SMALL

    def loss(
        self, x: Tensor, y: Tensor, w: Tensor, others: Tensor | None, weight: float, masks: torch.Generator
    ) -> Tensor:
        """l(y, f(x, εs)) + λ D[f(u, εs), f(u', εadv)], a scalar.

        Args:
            x: labelled rows, ``(B, D)``.
            y: their targets.
            w: how much they count, ``(B,)``.
            others: u, rows that may have no label; those of x if there are none. u' has other noise.
            weight: λ.
            masks: the randomness of εs and of the noise.
        """
        p, (_, readout) = self.layer.p, self.network.upper.children()
        h = self.network.under(self._noisy(x if others is None else torch.cat([x, others]), masks))
        sampled = sample_mask(h, p, masks)
        clean = readout(h * scale_mask(sampled, p))
        loss = (w * self.supervised(y, clean[: len(x)])).mean()
        if weight == 0.0:
            return loss
        if others is not None:
            h, sampled, clean = h[len(x) :], sampled[len(x) :], clean[len(x) :]
        if self.noise:
            h = self.network.under(self._noisy(x if others is None else others, masks))
        fixed, target = h.detach(), clean.detach()

        def divergence(masks: Masks) -> Tensor:
            return self.adversarial(target, readout(fixed * masks[0]))

        problem = MaskProblem(divergence, (sampled,), (self._budget,))
        (adversarial,) = self._search(problem) if self._budget else (sampled,)
        moved = readout(h * scale_mask(adversarial, p))
        return loss + weight * self.adversarial(clean, moved).mean()

    def _noisy(self, x: Tensor, generator: torch.Generator) -> Tensor:
        if self.noise == 0.0:
            return x
        return x + self.noise * torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)

    def epoch(self, table: Table, begin: float, end: float) -> float:
        """A pass over all rows, labelled or not: the mean loss of its updates.

        Args:
            table: the rows.
            begin: the share of the training that is done before.
            end: the share that is done then.
        """
        x, labelled, targets, weights = table
        number = len(self.losses)
        order = derived_generator(self.seed, "order", number)
        masks = derived_generator(self.seed, "masks", number, device=x.device)
        updates, size = ceil(len(x) / self.batch_size), min(self.batch_size, len(labelled))
        turns = ceil(updates * size / len(labelled))
        chosen = torch.cat([torch.randperm(len(labelled), generator=order) for _ in range(turns)])[: updates * size]
        chosen = chosen.to(x.device)
        # All rows of the epoch in their order: an update takes a slice.
        ordered = [part[chosen].split(size) for part in (x[labelled], targets, weights)]
        others: list[Tensor | None] = [None] * updates
        if len(labelled) < len(x):
            others = list(x[torch.randperm(len(x), generator=order).to(x.device)].split(self.batch_size))
        self.network.train()
        total = torch.zeros((), device=x.device)
        # What is wrong shows in the first epoch.
        with value_checks("never" if self.losses else "auto"), threads(1 if self._small else None):
            for update, (rows, y, w, unlabelled) in enumerate(zip(*ordered, others, strict=True)):
                progress = begin + (end - begin) * update / updates
                loss = self.loss(rows, y, w, unlabelled, self.weight(progress), masks)
                self._optimiser.param_groups[0]["lr"] = self.learning_rate * ramp_down(progress, ANNEALED)
                for parameter in self._parameters:
                    parameter.grad = None
                loss.backward()
                self._optimiser.step()
                total += loss.detach()
        mean = float(total) / updates
        if not isfinite(mean):
            raise ValueError(
                f"the loss of epoch {number + 1} is {mean}; the features may be too large for float32 (standardise=True"
                f" brings them to one scale), or learning_rate={self.learning_rate} is too large"
            )
        self.losses.append(mean)
        return mean
