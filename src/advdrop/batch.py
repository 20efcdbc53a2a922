"""What a training step is given: labelled rows, unlabelled rows, or both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from advdrop import checks

Rows = Literal["labelled", "unlabelled"]
"""Which rows a term runs on. Without unlabelled images, ``"unlabelled"`` terms run on the labelled ones."""


@dataclass(frozen=True)
class Batch:
    """One batch of two streams.

    Args:
        x: labelled images, or whatever the network takes: floats, or integer tokens, ``(B, ...)``.
        y: their labels, ``(B,)`` of integers.
        u: unlabelled images, ``(U, ...)``; without them the unsupervised terms run on ``x``.
        v: a second view of the same rows as ``u`` (or as ``x`` without ``u``), augmented independently.
        index: the positions of those rows in the data set, ``(U,)``; temporal ensembling needs them.

    >>> Batch(torch.zeros(2, 3), torch.tensor([0, 1]), u=torch.zeros(5, 3)).u.shape
    torch.Size([5, 3])
    """

    x: Tensor | None = None
    y: Tensor | None = None
    u: Tensor | None = None
    v: Tensor | None = None
    index: Tensor | None = None

    def __post_init__(self) -> None:
        if self.x is None and self.u is None:
            raise ValueError("a Batch needs labelled images x, unlabelled images u, or both")
        for name in ("x", "u", "v"):
            if (images := getattr(self, name)) is not None:
                checks.examples(name, images)
        if (self.x is None) != (self.y is None):
            raise ValueError("a Batch needs labelled images x and their labels y together")
        if self.x is not None and self.y is not None and len(self.x) != len(checks.label_vector(self.y)):
            raise ValueError(f"got {len(self.x)} labelled images x and {len(self.y)} labels y")
        if self.v is not None:
            checks.same_shape("u" if self.u is not None else "x", self.images("unlabelled"), "v", self.v)
        if self.index is not None:
            rows = len(self.images("unlabelled"))
            whole = not (self.index.is_floating_point() or self.index.dtype == torch.bool)
            if not whole or self.index.shape != (rows,):
                raise ValueError(
                    f"index must hold one integer for each of the {rows} unlabelled rows, "
                    f"got {self.index.dtype} of shape {tuple(self.index.shape)}"
                )

    def images(self, rows: Rows) -> Tensor:
        """``x``, or ``u`` where it is given and asked for."""
        images = self.x if rows == "labelled" or self.u is None else self.u
        if images is None:
            raise ValueError("this objective needs labelled images: give the Batch x and y")
        return images

    def labels(self) -> Tensor:
        """``y``, or an error if there are none."""
        if self.y is None:
            raise ValueError("this objective needs labels: give the Batch x and y")
        return self.y
