"""Examples in memory, as they were stored: the result of every reader."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
UNLABELED = -1
"""The label of an example that has none."""


class DataError(ValueError):
    """An error in the data. The message names the file, what is wrong with it and what to do."""


@contextmanager
def reading(path: Path, kind: type[ValueError] = DataError, advice: str = "get the file again") -> Iterator[None]:
    """Turn any error while a file is read into one that names the file and says what to do."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # to open a pipe would wait forever
            raise kind(f"{path} is a pipe or a device, not a file; {advice}")
        yield
    except Exception as error:  # a damaged file can raise anything in the packages that read it
        if not isinstance(error, kind):
            reason = str(error).partition("\n")[0][:300] or "no reason given"
            raise kind(f"{path}: cannot be read ({type(error).__name__}: {reason}); {advice}") from error
        if str(path) in str(error):
            raise
        raise kind(f"{path}: {error}") from error


def check_memory(where: Path, size: int) -> None:
    """Refuse what needs more than half of the free memory when it is unpacked: examples are copied once."""
    free = psutil.virtual_memory().available
    if size > free // 2:
        needed, there = (f"{count / 2**30:,.1f} GiB" for count in (2 * size, free))
        raise DataError(f"{where}: needs {needed} of memory, {there} are free; use fewer or smaller examples")


@dataclass(frozen=True)
class Examples:
    """Images or rows of a table, and their labels.

    Args:
        x: images ``(N, C, H, W)`` of uint8, or features ``(N, ...)`` of float32.
        y: labels ``(N,)`` of int64; ``-1`` where there is none.
    """

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if self.x.dtype not in (torch.uint8, torch.float32) or self.x.dim() < 2:
            raise DataError(f"x must be (N, ...) of uint8 or float32, got {self.x.dtype} of {tuple(self.x.shape)}")
        if self.y.dtype != torch.int64 or self.y.shape != (len(self.x),):
            found = f"{self.y.dtype} of shape {tuple(self.y.shape)}"
            raise DataError(f"y must hold one int64 for each of the {len(self.x)} examples, got {found}")

    def __len__(self) -> int:
        return len(self.x)

    @classmethod
    def of(cls, x: Array, y: Array) -> Examples:
        """Return arrays as examples."""
        # Torch needs writable memory, and contiguous memory is faster later; other arrays are copied.
        return cls(torch.from_numpy(np.require(x, requirements=["C", "W"])), torch.from_numpy(y.astype(np.int64)))


def shortened(names: Sequence[str], most: int = 10) -> str:
    """Return names separated by commas; if there are more than ``most``, the first ones and how many are left out.

    >>> shortened(["cat", "dog", "fox"], most=2)
    'cat, dog, 1 more'
    """
    more = [f"{len(names) - most:,} more"] if len(names) > most else []
    return ", ".join([*names[:most], *more])


def every_fifth(labels: Array) -> NDArray[np.bool_]:
    """Return which examples are held out as test: in each class the fifth, the tenth, and so on, in their order.

    It needs no seed, so no seed and no version of a library can change which examples are test examples.

    >>> every_fifth(np.array([0, 0, 0, 1, 0, 0, 0])).astype(int)
    array([0, 0, 0, 0, 0, 1, 0])
    """
    held_out = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        held_out[np.flatnonzero(labels == label)[4::5]] = True
    return held_out


@dataclass(frozen=True)
class DataSet:
    """Training and test examples of one problem.

    Args:
        name: such as ``mnist``.
        train: the examples to learn from; some or all may be unlabeled.
        test: the examples that the error is measured on, all labeled.
        classes: the names of the classes; a label is a position in them.
        notes: what a user should know about how the data were read.
        pictures: whether they were read from picture files, which can be read in another size and color.
    """

    name: str
    train: Examples
    test: Examples
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    pictures: bool = False

    def __post_init__(self) -> None:
        if len(self.train) == 0 or len(self.test) == 0:
            raise DataError(f"{self.name} has {len(self.train)} training and {len(self.test)} test examples")
        if self.train.x.shape[1:] != self.test.x.shape[1:] or self.train.x.dtype != self.test.x.dtype:
            shown = [f"{part.x.dtype} of {tuple(part.x.shape[1:])}" for part in (self.train, self.test)]
            raise DataError(f"the training examples of {self.name} are {shown[0]}, its test examples {shown[1]}")
        for part, examples, least in (("training", self.train, UNLABELED), ("test", self.test, 0)):
            low, high = int(examples.y.min()), int(examples.y.max())
            if low < least or high >= len(self.classes):
                allowed, found = f"{least}..{len(self.classes) - 1}", f"values from {low} to {high}"
                raise DataError(f"the {part} labels of {self.name} must be in {allowed}, got {found}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example, such as ``(1, 28, 28)``."""
        return tuple(self.train.x.shape[1:])

    @property
    def classes_in_words(self) -> str:
        """The number of classes and the names of the first ones, in a line."""
        return f"{len(self.classes)} classes: {shortened(self.classes)}"

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of all examples, labels and class names."""
        digest = hashlib.sha256(repr((self.shape, self.train.x.dtype, len(self.train), self.classes)).encode())
        for tensor in (self.train.x, self.train.y, self.test.x, self.test.y):
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()
