"""Functions that several readers share."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from advdrop.lab.data.examples import DataError, Examples

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
Pair = tuple[Examples, Examples]
"""Training and test examples."""

CHUNK = 1 << 20
UNREADABLE = (OSError, EOFError, zlib.error)
"""The errors of a missing, truncated or corrupt file; gzip's own error is an OSError."""


def unreadable(path: Path, error: Exception) -> DataError:
    """The error for a file that cannot be read."""
    first = str(error).partition("\n")[0] or "no reason given"
    return DataError(f"{path}: cannot be read ({type(error).__name__}: {first}); download it again")


def label_range(path: Path, labels: Array, least: int, most: int) -> Array:
    """The labels, if they are in ``least..most``."""
    if len(labels) and not (least <= labels.min() and labels.max() <= most):
        found = f"values from {labels.min()} to {labels.max()}"
        raise DataError(f"{path}: labels must be in {least}..{most}, got {found}; download it again")
    return labels


def examples(x: Array, y: Array) -> Examples:
    """Arrays as examples."""
    # Torch needs writable memory, and contiguous memory is faster later; other arrays are copied.
    return Examples(torch.from_numpy(np.require(x, requirements=["C", "W"])), torch.from_numpy(y.astype(np.int64)))


def joined(parts: Sequence[Examples]) -> Examples:
    """Several sets of examples as one."""
    if len(parts) == 1:
        return parts[0]
    return Examples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


def every_fifth(labels: Array) -> NDArray[np.bool_]:
    """Which examples are held out as test: in each class the fifth, the tenth, and so on, in their order.

    It needs no seed, so no seed and no version of a library can change which examples are test examples.

    >>> every_fifth(np.array([0, 0, 0, 1, 0, 0, 0])).astype(int)
    array([0, 0, 0, 0, 0, 1, 0])
    """
    held_out = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        held_out[np.flatnonzero(labels == label)[4::5]] = True
    return held_out
