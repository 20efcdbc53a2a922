"""A second network that learns from the labels alone, so that unlabeled images cannot do much harm.

This companion learns without a fifth of the labels. Its skill is how well it predicts those. The terms for unlabeled
images are multiplied by the square of what is left of the skill after one standard error. The prediction is a mean of
both networks. If the predictions for unlabeled images collapse, those images are not used anymore.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from advdrop.lab.config.config import RunConfig
from advdrop.lab.config.methods import network_of
from advdrop.lab.data.batches import LabelSplit
from advdrop.lab.data.examples import Examples
from advdrop.lab.data.preprocess import Preprocess
from advdrop.lab.engine.evaluate import outputs
from advdrop.randomness import derived_generator
from advdrop.trust import collapse, skill_error, skill_of, trust_in

FOLDS = 5
"""One in this number of labels of each class is held out."""
WATCHED = 1000
"""The number of unlabeled images that are watched for a collapse, at most."""


class Blend(nn.Module):
    """The mean prediction of the main network and its companion, as logarithms of probabilities ``(B, C)``."""

    def __init__(self, main: nn.Module, companion: nn.Module, share: float) -> None:
        super().__init__()
        self.main, self.companion, self.share = main, companion, share

    def forward(self, x: Tensor) -> Tensor:
        """Return log((1 − share)·p + share·q)."""
        p, q = self.main(x).softmax(1), self.companion(x).softmax(1)
        return torch.lerp(p, q, self.share).clamp_min(torch.finfo(p.dtype).tiny).log()


def blended(config: RunConfig, shape: Sequence[int], classes: int) -> nn.Module:
    """Return the configured network, blended with a companion if the configuration asks for one."""
    main = network_of(config, shape, classes)
    share = config.objective.blend
    return Blend(main, network_of(config, shape, classes), share) if share else main


def main_network(network: nn.Module) -> nn.Module:
    """Return the network that learned from all images: the main part of a blend, or the network itself."""
    return network.main if isinstance(network, Blend) else network


class Companion:
    """The training of the companion: a part of the labels, chosen by ``seed``, is held out to measure its skill."""

    def __init__(
        self, network: Blend, examples: Examples, split: LabelSplit, preprocess: Preprocess, seed: int
    ) -> None:
        self.network, self._main, self._preprocess = network.companion, network.main, preprocess
        self.collapsed = False
        rows = held_out(examples.y, split.labeled, seed)
        self._held = torch.zeros(len(examples), dtype=torch.bool)
        self._held[rows] = True
        self._tested = Examples(examples.x[rows], examples.y[rows])
        self._watched = examples.x[watched(split.unlabeled, seed)]

    def loss(self, x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        """Return the mean cross-entropy of the labels that are not held out; ``rows`` are their positions."""
        kept = (~self._held[rows.cpu()]).to(x.device)
        value = nn.functional.cross_entropy(self.network(x), y, reduction="none")
        return (value * kept).sum() / kept.sum().clamp_min(1)

    def trust(self, skill: float) -> float:
        """Return the factor of the terms for unlabeled images, see :func:`advdrop.trust.trust_in`."""
        error = skill_error(skill, len(self._tested), len(self._tested.y.unique()))
        return 0.0 if self.collapsed else trust_in(skill, error)

    def watch(self) -> None:
        """Use the labels alone from now on if the predictions of the main network collapse, and say so."""
        if self.collapsed or not len(self._watched):
            return
        both = [outputs(each, self._watched, self._preprocess).softmax(1) for each in (self._main, self.network)]
        if reason := collapse(*both):
            self.collapsed = True
            warnings.warn(
                f"the predictions for unlabeled examples collapse: {reason}. The rest of the training uses the labels "
                "alone. A smaller weight of the method may help, or unlabeled examples do not help on these data",
                stacklevel=2,
            )

    def skill(self) -> float:
        """Return the share of a guess's errors that the companion avoids on the held-out labels, from 0 to 1."""
        if not len(self._tested):
            return 0.0
        found = outputs(self.network, self._tested.x, self._preprocess).argmax(1)
        right = float((found == self._tested.y).float().mean())
        return skill_of(right, torch.bincount(self._tested.y) / len(self._tested))


def watched(unlabeled: Tensor, seed: int) -> Tensor:
    """Return the rows that are watched for a collapse: all of them, or as many as are watched at most, drawn at random.

    The first rows of a file are often all of one class, and evenly spaced ones may be, too.

    >>> len(watched(torch.arange(5000), seed=0)), watched(torch.arange(3), seed=0)
    (1000, tensor([0, 1, 2]))
    """
    if len(unlabeled) <= WATCHED:
        return unlabeled
    return unlabeled[torch.randperm(len(unlabeled), generator=derived_generator(seed, "watched"))[:WATCHED]]


def held_out(y: Tensor, labeled: Tensor, seed: int) -> Tensor:
    """Return the labeled rows that the companion does not learn from: a fifth of each class, none of a class with one.

    >>> y = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2])
    >>> sorted(y[held_out(y, torch.arange(8), seed=0)].tolist())
    [0, 1]
    """
    chosen = []
    for label in y[labeled].unique():
        rows = labeled[y[labeled] == label]
        order = torch.randperm(len(rows), generator=derived_generator(seed, "companion", int(label)))
        chosen.append(rows[order[: -(-len(rows) // FOLDS) if len(rows) > 1 else 0]])
    return torch.cat(chosen)
