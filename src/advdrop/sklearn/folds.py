"""Labels that are held out: each member learns without one part of them, by which it is tested."""

from __future__ import annotations

import numpy as np
import torch

from advdrop.sklearn.labels import Array
from advdrop.sklearn.training import Table

FOLDS = 5
"""The number of parts of the labels; each labels-only member learns without one of them."""


def parts_of_members(members: int) -> Array:
    """Return the part of the labels that each member learns without, ``(K,)``: in order, so that parts are groups."""
    return np.arange(members) * FOLDS // members


def without_folds(table: Table, fold: Array, members: int) -> Table:
    """Give each member the weight 0 for the labels of its part."""
    kept = torch.from_numpy(fold[None] != parts_of_members(members)[:, None]).float().to(table.labeled.device)
    weights = kept if table.weights is None else kept * table.weights
    return table._replace(weights=weights / weights.mean(1, keepdim=True))
