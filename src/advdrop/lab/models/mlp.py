"""A multilayer perceptron, for tables and other data that are not images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from advdrop import checks
from advdrop.lab.models.layers import Dropout, he_initialized
from advdrop.masks import AdversarialDropout


def mlp(
    layer: AdversarialDropout | None = None,
    shape: tuple[int, ...] = (30,),
    classes: int = 2,
    *,
    hidden: Sequence[int] = (256, 128),
    dropout: float = 0.0,
) -> nn.Sequential:
    """Dense layers with ReLU, adversarial dropout on the last hidden units, a dense classifier.

    Args:
        layer: the AdversarialDropout layer; by default p = 0.5, δ = 0.05.
        shape: one example's shape, of any rank; it is flattened.
        classes: C.
        hidden: the units of each hidden layer, at least one.
        dropout: the drop probability after each hidden layer except the last.

    Shape: ``(B, *shape) -> (B, C)``.

    References: none; it is not in the paper.
    """
    units = [math.prod(shape), *(checks.count("hidden", width) for width in hidden)]
    if len(units) == 1:
        raise ValueError(f"hidden must name at least one hidden layer, such as (128,), got {hidden!r}")
    *below, last = pairwise(units)
    model = nn.Sequential(
        nn.Flatten(),
        *(part for a, b in below for part in (nn.Linear(a, b), nn.ReLU(), Dropout(dropout))),
        nn.Linear(*last),
        nn.ReLU(),
        layer or AdversarialDropout(p=0.5, delta=0.05),
        nn.Linear(units[-1], classes),
    )
    return he_initialized(model)
