"""The choice of the training images that keep their labels: class-balanced, and a function of labels and seed alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from advdrop.lab.choices import Labels
from advdrop.lab.data.examples import DataError
from advdrop.lab.files import written
from advdrop.randomness import derived_generator

ROWS = ("labeled", "unlabeled", "validation")


@dataclass(frozen=True)
class LabelSplit:
    """Positions in the training set, ascending.

    Args:
        labeled: the rows whose labels are used.
        unlabeled: the rows of the other stream; none in supervised learning.
        validation: rows that no training step uses.
        dataset: the checksum of the data set that the rows belong to.
    """

    labeled: Tensor
    unlabeled: Tensor
    validation: Tensor
    dataset: str = ""

    def save(self, path: Path) -> None:
        """Write an ``.npz`` file, whole or not at all."""
        with written(path) as part:
            rows = {name: getattr(self, name).numpy().astype(np.int32) for name in ROWS}
            np.savez_compressed(part, dataset=np.array(self.dataset), **rows)

    @classmethod
    def load(cls, path: Path) -> LabelSplit:
        """Read what ``save`` wrote."""
        with np.load(path, allow_pickle=False) as arrays:
            labeled, unlabeled, validation = (torch.from_numpy(arrays[name].astype(np.int64)) for name in ROWS)
            return cls(labeled, unlabeled, validation, str(arrays["dataset"]))


def split_labels(
    y: Tensor, labels: Labels, seed: int, validation: int = 0, overlap: bool = True, classes: int | None = None
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

    >>> split = split_labels(torch.tensor([0, 1] * 10), labels=4, seed=0, validation=2)
    >>> len(split.labeled), len(split.unlabeled), len(split.validation)
    (4, 18, 2)
    """
    classes = int(y.max()) + 1 if classes is None else classes
    if classes < 1:
        raise DataError("no training image has a label")
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
            raise DataError(
                f"{wanted} would take {max(kept[c], 1) + held[c]} labeled images of class {c}, which has {len(r)}; "
                + ("ask for fewer" if labels != "all" or validation else "give each class an image with a label")
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
