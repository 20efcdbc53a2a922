"""Two-stream batches. The batch of an update is a pure function of (seed, update), so there is no state to save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from advdrop import checks
from advdrop.lab.data.augment import Augment, augmented
from advdrop.lab.data.examples import Examples
from advdrop.lab.data.preprocess import Preprocess
from advdrop.lab.data.splits import LabelSplit
from advdrop.randomness import derived_generator
from advdrop.step.batch import Batch


@dataclass
class Stream:
    """Rows in an endless random order: one permutation after another, each with its own seed.

    Args:
        rows: the rows, ``(N,)``.
        size: the number of rows in an update.
        seed: of the order.
        name: distinguishes streams of the same seed.

    >>> stream = Stream(torch.arange(4), size=2, seed=0, name="labeled")
    >>> sorted(torch.cat([stream.at(0), stream.at(1)]).tolist())
    [0, 1, 2, 3]
    """

    rows: Tensor
    size: int
    seed: int
    name: str
    _permutations: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        checks.count("size", self.size)
        if len(self.rows) == 0:
            raise ValueError(f"the {self.name} stream has no rows")

    def at(self, update: int) -> Tensor:
        """The rows of this update, ``(size,)``."""
        start, end, length = update * self.size, (update + 1) * self.size, len(self.rows)
        first = start // length
        order = torch.cat([self._permutation(turn) for turn in range(first, (end - 1) // length + 1)])
        return self.rows[order[start - first * length : end - first * length]]

    def _permutation(self, turn: int) -> Tensor:
        if turn not in self._permutations:
            self._permutations = {t: p for t, p in self._permutations.items() if t == turn - 1}
            generator = derived_generator(self.seed, self.name, turn)
            self._permutations[turn] = torch.randperm(len(self.rows), generator=generator)
        return self._permutations[turn]


@dataclass
class Batches:
    """The batches of a run.

    Args:
        examples: the training set.
        split: which rows are labeled and which are not.
        labeled: labeled rows of an update, over all devices.
        unlabeled: unlabeled rows of an update, over all devices; 0 for no second stream.
        preprocess: applied to each batch.
        augments: applied to each view.
        seed: of the order of the rows and the augmentation.
        device: of the examples and the batches.
    """

    examples: Examples
    split: LabelSplit
    labeled: int
    unlabeled: int
    preprocess: Preprocess = field(default_factory=Preprocess)
    augments: Sequence[Augment] = ()
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        # The names of the streams are part of their seeds, so they keep their spelling.
        self._labeled = Stream(self.split.labeled, self.labeled, self.seed, "labelled")
        two_streams = self.unlabeled > 0 and len(self.split.unlabeled) > 0
        self._unlabeled = Stream(self.split.unlabeled, self.unlabeled, self.seed, "unlabelled") if two_streams else None
        self._x, self._y = self.examples.x.to(self.device), self.examples.y.to(self.device)
        self.preprocess = self.preprocess.to(self.device)

    def at(self, update: int, part: int = 0, parts: int = 1) -> Batch:
        """The batch of an update, or its part for one of several devices or accumulated steps."""
        generator = derived_generator(self.seed, "augment", update, part, device=self.device)
        rows = self.labeled_rows(update, part, parts).to(self.device)
        if self._unlabeled is None:
            x, v = self._views(rows, generator)
            return Batch(x, self._y[rows], second_view=v, index=rows)
        others = self._unlabeled.at(update)[part::parts].to(self.device)
        x = augmented(self.preprocess(self._x[rows]), self.augments, generator)
        u, v = self._views(others, generator)
        return Batch(x, self._y[rows], u, v, index=others)

    def labeled_rows(self, update: int, part: int = 0, parts: int = 1) -> Tensor:
        """The positions in the training set of the labeled images of an update."""
        return self._labeled.at(update)[part::parts]

    def _views(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        """Two independent views, or one without augmentation."""
        x = self.preprocess(self._x[rows])
        if not self.augments:
            return x, None
        return augmented(x, self.augments, generator), augmented(x, self.augments, generator)
