"""From the training set to batches: which images keep their labels, and the batch of each update.

The split is a function of the labels and the seed. The batch of an update is a function of the seed and the update. So
there is no state to save.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from advdrop.lab.choices import Labels, Padding
from advdrop.lab.data.examples import DataError, Examples, check_memory
from advdrop.lab.data.preprocess import Preprocess
from advdrop.lab.files import written
from advdrop.randomness import derived_generator
from advdrop.step.batch import Batch

ROWS = ("labeled", "unlabeled", "validation")


@dataclass(frozen=True)
class LabelSplit:
    """Positions in the training set, ascending."""

    labeled: Tensor  # the rows whose labels are used
    unlabeled: Tensor  # the rows of the other stream; none in supervised learning
    validation: Tensor  # rows that no training step uses
    dataset: str = ""  # the checksum of the data set that the rows belong to

    def save(self, path: Path) -> None:
        """Write an ``.npz`` file, whole or not at all."""
        with written(path) as part:
            rows = {name: getattr(self, name).numpy().astype(np.int32) for name in ROWS}
            np.savez_compressed(part, dataset=np.array(self.dataset), **rows)

    @classmethod
    def load(cls, path: Path) -> LabelSplit:
        """Read what ``save`` wrote."""
        # Opened here, because numpy does not close a file that it cannot read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            check_memory(path, sum(member.file_size for member in arrays.zip.infolist()))  # never more is unpacked
            labeled, unlabeled, validation = (_positions(name, arrays[name]) for name in ROWS)
            if not len(labeled):
                raise ValueError("it has no labeled row")
            return cls(labeled, unlabeled, validation, str(arrays["dataset"]))

    def refuse_others(self, y: Tensor) -> None:
        """Raise an error if the rows are not those of a training set with these labels, ``(N,)``."""
        last = max(int(rows.max()) for name in ROWS if len(rows := getattr(self, name)))
        if last >= len(y):
            raise ValueError(f"it has row {last}, and there are {len(y):,} training examples")
        if int(y[self.labeled].min()) < 0:
            raise ValueError("one of its labeled rows has no label")


def _positions(name: str, rows: NDArray[Any]) -> Tensor:
    """Return what a file has as rows, or raise an error if these cannot be positions in ascending order."""
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise ValueError(f"{name} must hold whole numbers (N,), got {rows.dtype} of shape {rows.shape}")
    found = torch.from_numpy(rows.astype(np.int64))
    if len(found) and (int(found[0]) < 0 or bool((found.diff() <= 0).any())):
        raise ValueError(f"{name} must hold positions in ascending order, each once")
    return found


def split_labels(
    y: Tensor,
    labels: Labels,
    seed: int,
    validation: int = 0,
    overlap: bool = True,
    classes: int | None = None,
    names: Sequence[str] = (),
) -> LabelSplit:
    """Draw the labeled rows, the same number of each class.

    Fewer labels of a seed are a subset of more labels of that seed. The validation rows depend on the seed and their
    number alone. If the number of classes does not divide the number of labels, some classes get one row more.

    Args:
        y: the labels of the training set, ``(N,)``; -1 where there is none.
        labels: the number of labels to keep, or ``"all"``.
        seed: of the draw.
        validation: the number of labeled rows to hold out, the same number of each class.
        overlap: whether the unlabeled stream contains the labeled images too, as in the authors' code; in the paper it
            does not. If all labels are kept, there is an unlabeled stream only if some images have no label.
        classes: C; by default the largest label plus one.
        names: those of the classes, for errors; by default their numbers.

    >>> split = split_labels(torch.tensor([0, 1] * 10), labels=4, seed=0, validation=2)
    >>> len(split.labeled), len(split.unlabeled), len(split.validation)
    (4, 18, 2)
    """
    classes = int(y.max()) + 1 if classes is None else classes
    if classes < 1:
        raise DataError("no training example has a label")
    generator = derived_generator(seed, "split")
    order = torch.randperm(classes, generator=generator).tolist()
    rows = [
        (found := (y == c).nonzero().flatten())[torch.randperm(len(found), generator=generator)] for c in range(classes)
    ]

    held = _shares("validation", validation, order)
    kept = [len(r) - held[c] for c, r in enumerate(rows)] if labels == "all" else _shares("labels", labels, order)
    for c, r in enumerate(rows):
        if kept[c] + held[c] > len(r) or kept[c] < 1:
            wanted = f"labels={labels}" + (f" and validation={validation}" if validation else "")
            count, name = max(kept[c], 1) + held[c], names[c] if names else c
            raise DataError(
                f"{wanted} would take {count} labeled examples of class {name}, which has {len(r)}; "
                + ("ask for fewer" if labels != "all" or validation else "give each class an example with a label")
            )
    labeled = torch.cat([r[: kept[c]] for c, r in enumerate(rows)])
    out = torch.cat([r[len(r) - held[c] :] for c, r in enumerate(rows)])

    others = torch.ones(len(y), dtype=torch.bool)
    others[out] = False
    if not overlap:
        others[labeled] = False
    semi_supervised = labels != "all" or bool((y < 0).any())
    unlabeled = others.nonzero().flatten() if semi_supervised else torch.empty(0, dtype=torch.int64)
    return LabelSplit(labeled.sort().values, unlabeled, out.sort().values)


def _shares(name: str, total: int, order: list[int]) -> list[int]:
    """Divide ``total`` among the classes; the first ones in ``order`` get the remainder."""
    classes = len(order)
    if total < 0 or 0 < total < classes or (name == "labels" and total == 0):
        raise DataError(f"{name}={total} cannot be shared by {classes} classes: each needs one at least")
    share, rest = divmod(total, classes)
    return [share + (order.index(c) < rest) for c in range(classes)]


@dataclass
class Stream:
    """Rows in an endless random order: one permutation after another, each with its own seed.

    >>> stream = Stream(torch.arange(4), size=2, seed=0, name="labeled")
    >>> sorted(torch.cat([stream.at(0), stream.at(1)]).tolist())
    [0, 1, 2, 3]
    """

    rows: Tensor  # (N,)
    size: int  # the number of rows in an update
    seed: int
    name: str  # distinguishes streams of the same seed

    def at(self, update: int) -> Tensor:
        """Return the rows of this update, ``(size,)``."""
        start, end, length = update * self.size, (update + 1) * self.size, len(self.rows)
        first = start // length
        turns = range(first, (end - 1) // length + 1)
        order = torch.cat([_permutation(length, self.seed, self.name, turn) for turn in turns])
        return self.rows[order[start - first * length : end - first * length]]


@lru_cache(maxsize=4)
def _permutation(length: int, seed: int, name: str, turn: int) -> Tensor:
    return torch.randperm(length, generator=derived_generator(seed, name, turn))


@dataclass(frozen=True)
class Augment:
    """Random changes of a batch, in this order. Two calls give two independent views."""

    pad_crop: int = 0  # shift each image by up to this many pixels: pad it and crop it at a random place
    padding: Padding = "reflect"  # pad with the reflected image or with zeros
    flip: bool = False  # mirror each image, left to right, with probability 1/2
    noise: float = 0.0  # add Gaussian noise of this standard deviation

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
        if self.pad_crop > min(height, width):
            raise ValueError(f"{self} would shift images of {height}×{width} out of sight; use fewer pixels")
        padded = F.pad(x, (self.pad_crop,) * 4, mode="constant" if self.padding == "zeros" else "reflect")
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: (B, C, 2p + 1, 2p + 1, H, W)
        down, right = torch.randint(2 * self.pad_crop + 1, (2, len(x)), generator=generator, device=x.device)
        return windows[torch.arange(len(x), device=x.device), :, down, right]


PART = 1024
"""The number of images that are whitened at once."""
MOST_WHITENED = 2 * 2**30
"""The most bytes that whitened images may take. More are whitened in each batch, which costs D² products an image."""


@dataclass
class Batches:
    """The batches of a run."""

    examples: Examples  # the training set
    split: LabelSplit  # which rows are labeled and which are not
    labeled: int  # labeled rows of an update, over all devices
    unlabeled: int  # unlabeled rows of an update, over all devices; 0 for no second stream
    preprocess: Preprocess = field(default_factory=Preprocess)
    augment: Augment = Augment()  # applied to each view; without it there is one view
    seed: int = 0  # of the order of the rows and the augmentation
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    views: int = 2  # independently augmented views of the rows without labels
    updates: int = 0  # of the training: one that draws each image several times whitens it only once, before the first

    def __post_init__(self) -> None:
        # The names of the streams are part of their seeds, so they keep their spelling.
        self._labeled = Stream(self.split.labeled, self.labeled, self.seed, "labelled")
        two_streams = self.unlabeled > 0 and len(self.split.unlabeled) > 0
        self._unlabeled = Stream(self.split.unlabeled, self.unlabeled, self.seed, "unlabelled") if two_streams else None
        self._x, self._y = self.examples.x.to(self.device), self.examples.y.to(self.device)
        self.preprocess = self.preprocess.to(self.device)
        self._whitened = self.preprocess.whitening is not None and self._drawn_again() and self._fits()
        if self._whitened:
            self._x = self._whiten()

    def at(self, update: int, part: int = 0, parts: int = 1) -> Batch:
        """Return the batch of an update, or its part for one of several devices or accumulated steps."""
        generator = derived_generator(self.seed, "augment", update, part, device=self.device)
        rows = self.labeled_rows(update, part, parts).to(self.device)
        stored, y = self._inputs(rows), self._y[rows]
        x = self.augment(stored, generator)
        if self._unlabeled is None:
            return Batch(x, y, None, *self._views(stored, generator, rows))
        others = self._unlabeled.at(update)[part::parts].to(self.device)
        stored = self._inputs(others)
        return Batch(x, y, self.augment(stored, generator), *self._views(stored, generator, others))

    def labeled_rows(self, update: int, part: int = 0, parts: int = 1) -> Tensor:
        """Return the positions in the training set of the labeled images of an update."""
        return self._labeled.at(update)[part::parts]

    def _inputs(self, rows: Tensor) -> Tensor:
        """Return the preprocessed images of these rows."""
        return self._x[rows] if self._whitened else self.preprocess(self._x[rows])

    def _drawn_again(self) -> bool:
        """Return True if a training of ``updates`` draws more images than there are."""
        return self.updates * (self.labeled + self.unlabeled) > len(self._used())

    def _fits(self) -> bool:
        return self._x.numel() * torch.float32.itemsize <= MOST_WHITENED

    def _used(self) -> Tensor:
        """Return the rows that batches can have."""
        return self.split.labeled if self._unlabeled is None else torch.cat([self.split.labeled, self.split.unlabeled])

    def _whiten(self) -> Tensor:
        """Return the preprocessed images. Rows that no batch can have stay empty."""
        x = torch.empty(self._x.shape, device=self.device)
        for rows in self._used().unique().to(self.device).split(PART):
            x[rows] = self.preprocess(self._x[rows])
        return x

    def _views(
        self, x: Tensor, generator: torch.Generator, rows: Tensor
    ) -> tuple[Tensor | None, Tensor, tuple[Tensor, ...]]:
        """Return the second view, the positions of the rows, and the views after the second."""
        if not self.augment:
            return None, rows, ()
        second, *more = (self.augment(x, generator) for _ in range(self.views - 1))
        return second, rows, tuple(more)
