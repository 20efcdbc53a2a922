"""What all readers share."""

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
"""What a missing, truncated or corrupt file raises; gzip's own error is an OSError."""


def unreadable(path: Path, error: Exception) -> DataError:
    """A file that cannot be read, and what was said of it."""
    first = str(error).partition("\n")[0] or "nothing is said of why"
    return DataError(f"{path}: cannot be read ({type(error).__name__}: {first}); get it again")


def label_range(path: Path, labels: Array, least: int, most: int) -> Array:
    """The labels, if they are in ``least..most``."""
    if len(labels) and not (least <= labels.min() and labels.max() <= most):
        raise DataError(
            f"{path}: labels must be in {least}..{most}, got values from {labels.min()} to {labels.max()}; get it again"
        )
    return labels


def examples(x: Array, y: Array) -> Examples:
    """Arrays as examples."""
    # Torch wants memory that may be written to and, to be fast later, in order; only what is neither is copied.
    return Examples(torch.from_numpy(np.require(x, requirements=["C", "W"])), torch.from_numpy(y.astype(np.int64)))


def joined(parts: Sequence[Examples]) -> Examples:
    """Several sets of examples as one."""
    if len(parts) == 1:
        return parts[0]
    return Examples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
