"""Two-stream batches. The batch of an update is a pure function of (seed, update), so there is no state to save."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from advdrop import checks
from advdrop.lab.choices import Padding
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
        checks.count(f"the number of {self.name} rows", len(self.rows))

    def at(self, update: int) -> Tensor:
        """Return the rows of this update, ``(size,)``."""
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


@dataclass(frozen=True)
class Augment:
    """Random changes of a batch, in this order. Two calls give two independent views.

    Args:
        pad_crop: shift each image by up to this many pixels in each direction: pad it and crop it at a random place.
        padding: pad with the ``"reflect"``-ed image or with ``"zeros"``.
        flip: mirror each image, left to right, with probability 1/2.
        noise: the standard deviation σ of Gaussian noise, x + γ with γ ~ N(0, σ²).
    """

    pad_crop: int = 0
    padding: Padding = "reflect"
    flip: bool = False
    noise: float = 0.0

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """``(B, C, H, W)`` to the same shape; noise takes any shape."""
        if (self.pad_crop or self.flip) and x.dim() != 4:
            raise ValueError(f"{self} is for images (B, C, H, W), got a batch of {tuple(x.shape)}")
        if self.pad_crop:
            x = self._shift(x, generator)
        if self.flip:
            heads = torch.rand(len(x), 1, 1, 1, generator=generator, device=x.device) < 0.5
            x = torch.where(heads, x.flip(-1), x)
        if self.noise:
            x = x + self.noise * torch.empty_like(x).normal_(generator=generator)
        return x

    def __bool__(self) -> bool:
        return bool(self.pad_crop or self.flip or self.noise)

    def _shift(self, x: Tensor, generator: torch.Generator) -> Tensor:
        height, width = x.shape[2:]
        if self.padding == "reflect" and self.pad_crop >= min(height, width):
            raise ValueError(f"{self} cannot reflect images of {height}×{width}; use fewer pixels or zeros")
        padded = F.pad(x, (self.pad_crop,) * 4, mode="constant" if self.padding == "zeros" else "reflect")
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: (B, C, 2p + 1, 2p + 1, H, W)
        down, right = torch.randint(2 * self.pad_crop + 1, (2, len(x)), generator=generator, device=x.device)
        return windows[torch.arange(len(x), device=x.device), :, down, right]


@dataclass
class Batches:
    """The batches of a run.

    Args:
        examples: the training set.
        split: which rows are labeled and which are not.
        labeled: labeled rows of an update, over all devices.
        unlabeled: unlabeled rows of an update, over all devices; 0 for no second stream.
        preprocess: applied to each batch.
        augment: applied to each view; without it there is one view.
        seed: of the order of the rows and the augmentation.
        device: of the examples and the batches.
    """

    examples: Examples
    split: LabelSplit
    labeled: int
    unlabeled: int
    preprocess: Preprocess = field(default_factory=Preprocess)
    augment: Augment = Augment()
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
        """Return the batch of an update, or its part for one of several devices or accumulated steps."""
        generator = derived_generator(self.seed, "augment", update, part, device=self.device)
        rows = self.labeled_rows(update, part, parts).to(self.device)
        stored, y = self.preprocess(self._x[rows]), self._y[rows]
        x = self.augment(stored, generator)
        if self._unlabeled is None:
            return Batch(x, y, second_view=self._second_view(stored, generator), index=rows)
        others = self._unlabeled.at(update)[part::parts].to(self.device)
        stored = self.preprocess(self._x[others])
        return Batch(x, y, self.augment(stored, generator), self._second_view(stored, generator), index=others)

    def labeled_rows(self, update: int, part: int = 0, parts: int = 1) -> Tensor:
        """Return the positions in the training set of the labeled images of an update."""
        return self._labeled.at(update)[part::parts]

    def _second_view(self, x: Tensor, generator: torch.Generator) -> Tensor | None:
        return self.augment(x, generator) if self.augment else None
