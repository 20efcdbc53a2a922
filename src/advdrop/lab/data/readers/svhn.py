"""SVHN, the cropped digits in Matlab files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from advdrop.lab.data.examples import DataError, Examples
from advdrop.lab.data.readers.common import examples, label_range, unreadable


def read_svhn(path: Path) -> Examples:
    """Images ``(N, 3, 32, 32)`` from an SVHN ``.mat`` file with ``X`` ``(32, 32, 3, N)`` and ``y`` ``(N, 1)``.

    The label of the digit zero is 10 in the file and 0 here.
    """
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=["X", "y"])
        x, y = content["X"], content["y"]
    except Exception as error:  # a broken file may raise anything in scipy
        raise unreadable(path, error) from error
    if x.dtype != np.uint8 or x.shape[:3] != (32, 32, 3) or x.ndim != 4 or y.shape != (x.shape[3], 1):
        raise DataError(
            f"{path}: needs X (32, 32, 3, N) of uint8 and y (N, 1), got {x.dtype} of {x.shape} and {y.shape}"
        )
    return examples(x.transpose(3, 2, 0, 1), label_range(path, y[:, 0], 1, 10) % 10)
