"""Training on a table of which some rows have a label: what the estimators do, in torch alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, isfinite
from typing import NamedTuple, final

import torch
from torch import Tensor

from advdrop.batch import Batch, Rows
from advdrop.checks import value_checks
from advdrop.divergences import Divergence
from advdrop.models.split import Split
from advdrop.objectives import VAdD
from advdrop.objectives.base import Term
from advdrop.objectives.passes import Passes
from advdrop.randomness import derived_generator
from advdrop.schedules import Ramp, ramp_down

ANNEALED = 0.3
"""The share of the training, its last, over which the learning rate goes to zero."""


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


@final
@dataclass(kw_only=True)
class LabelledLoss(Term):
    """w_i D[y_i, f(x_i, εs)], the supervised loss, for targets of any kind and rows that count more or less.

    Args:
        divergence: D.
        targets: y of the rows of this step, ``(B, ...)``.
        weights: w, ``(B,)``.
    """

    divergence: Divergence
    targets: Tensor = field(default_factory=lambda: torch.empty(0))
    weights: Tensor = field(default_factory=lambda: torch.empty(0))
    rows: Rows = "labelled"

    def per_example(self, passes: Passes) -> Tensor:
        """``(B,)``."""
        return self.weights * self.divergence(self.targets, passes.clean(self.rows).logits)


class Training:
    """A network in training, epoch by epoch.

    Args:
        network: it is changed.
        supervised: D of the labels.
        adversarial: D of the adversarial mask.
        weight: λ at most.
        ramp: the share of the training over which λ grows.
        batch_size: labelled rows of an update at most, and as many others.
        learning_rate: of Adam, until the annealing.
        seed: of the order of the rows and of the masks.
    """

    def __init__(
        self,
        network: Split,
        supervised: Divergence,
        adversarial: Divergence,
        *,
        weight: float,
        ramp: float,
        batch_size: int,
        learning_rate: float,
        seed: int,
    ) -> None:
        self.network = network
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.seed = seed
        self.losses: list[float] = []
        self._supervised = LabelledLoss(divergence=supervised)
        self._objective = self._supervised + Ramp(weight, over=ramp) * VAdD(divergence=adversarial, noise="shared")
        self._optimiser = torch.optim.Adam(network.parameters(), lr=learning_rate, fused=True)

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
        nobody = torch.zeros(size, dtype=torch.long, device=x.device)  # the labels are in the term
        self.network.train()
        total = torch.zeros((), device=x.device)
        with value_checks("never" if self.losses else "auto"):  # what is wrong shows in the first epoch
            for update, (rows, y, w, unlabelled) in enumerate(zip(*ordered, others, strict=True)):
                progress = begin + (end - begin) * update / updates
                self._supervised.targets, self._supervised.weights = y, w
                batch = Batch(rows, nobody, unlabelled)
                loss = self._objective(self.network, batch, progress=progress, generator=masks).total
                self._optimiser.param_groups[0]["lr"] = self.learning_rate * ramp_down(progress, ANNEALED)
                self._optimiser.zero_grad()
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
