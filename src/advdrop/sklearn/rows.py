"""The features of rows, standardized: a tensor, or a sparse table that becomes dense one batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor


class SparseRows:
    """The rows of a sparse table. A batch of them becomes dense and standardized when it is used.

    It has the few methods of a tensor ``(N, D)`` that a training needs.

    Args:
        x: a table in the CSR format, ``(N, D)``.
        scaler: standardizes the features.
        dtype: of the dense rows.
        device: of the dense rows.
    """

    def __init__(self, x: Any, scaler: StandardScaler, dtype: torch.dtype, device: torch.device) -> None:
        self.x, self.scaler, self.dtype, self.device = x, scaler, dtype, device

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def __getitem__(self, chosen: slice | Tensor) -> Any:
        """Return the rows at some positions, ``(B, D)``, or a part of the table, which is still sparse."""
        if isinstance(chosen, slice):
            return SparseRows(self.x[chosen], self.scaler, self.dtype, self.device)
        return self._dense(self.x[chosen.cpu().numpy()])

    def split(self, size: int) -> Iterator[Tensor]:
        """Yield all rows as dense tensors of at most ``size`` rows."""
        for start in range(0, len(self), size):
            yield self._dense(self.x[start : start + size])

    def _dense(self, x: Any) -> Tensor:
        return torch.tensor(standardized(self.scaler, x.toarray()), dtype=self.dtype, device=self.device)


Rows = Tensor | SparseRows


def sample(rows: Rows, most: int, seed: int) -> Rows:
    """Return at most ``most`` of the rows, chosen at random; a sparse table stays sparse.

    >>> len(sample(torch.zeros(30, 2), 20, seed=0)), len(sample(torch.zeros(10, 2), 20, seed=0))
    (20, 10)
    """
    if len(rows) <= most:
        return rows
    chosen = np.random.RandomState(seed).permutation(len(rows))[:most]
    if isinstance(rows, SparseRows):
        return SparseRows(rows.x[chosen], rows.scaler, rows.dtype, rows.device)
    return rows[torch.as_tensor(chosen, device=rows.device)]


def is_sparse(x: Any) -> bool:
    """Return True for a sparse table of scipy."""
    return hasattr(x, "tocsr")


def measure_scale(scaler: StandardScaler, x: Any) -> None:
    """Add rows to the mean and the standard deviation of a scaler.

    A scaler refuses to center a sparse table, because it would become dense. It still measures the mean, and batches
    are centered when they are dense. The mean of a feature that is the same in all rows is that value: a mean with a
    rounding error would turn a large value, such as a time in nanoseconds, into another large value. Its scale is
    infinite, so that another value later is 0, too: the weights of such a feature have learned nothing.
    """
    center, measured = scaler.with_mean, getattr(scaler, "mean_", None) is not None
    # The values of the features that are the same in all rows so far. Another feature may have its mean in a new row.
    known = np.where(np.isinf(scaler.scale_), scaler.mean_, np.nan) if measured else None
    try:
        scaler.with_mean = center and not is_sparse(x)
        scaler.partial_fit(x)
    finally:
        scaler.with_mean = center
    if scaler.mean_ is not None:
        low, high = (np.ravel(bound.toarray() if is_sparse(x) else bound) for bound in (x.min(axis=0), x.max(axis=0)))
        same = (low == high) & (True if known is None else known == low)
        scaler.mean_[same] = low[same]
        scaler.scale_[same] = np.inf


def standardized(scaler: StandardScaler, x: Any) -> Any:
    """Return a dense table with the mean and the scale of a scaler taken out."""
    x = x - scaler.mean_ if scaler.with_mean else x
    return x / scaler.scale_ if scaler.with_std else x


def scaled_rows(scaler: StandardScaler, x: Any, dtype: torch.dtype, device: torch.device) -> Rows:
    """Return standardized rows."""
    if is_sparse(x):
        return SparseRows(x, scaler, dtype, device)
    return torch.tensor(standardized(scaler, x), dtype=dtype, device=device)
