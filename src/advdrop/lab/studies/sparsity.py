"""Figure 3: how sparse the activations of a layer are.

All functions take activations ``(N, H)`` that are not negative, one row for each example, such as those of a ReLU.

References: Park et al. (2018), "Effect on Features and Sparsity". Hoyer, "Non-negative matrix factorization with
sparseness constraints", JMLR 5 (2004). Treves and Rolls, "What determines the capacity of autoassociative memories in
the brain?", Network 2 (1991), scaled to [0, 1] as by Vinje and Gallant, Science 287 (2000).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from advdrop import checks

HIGH = 1.0
"""An activation above this is high: it is the largest value of an input. Chosen before any run."""
DECADES = (-4.0, 2.0)
"""The range of the histograms, in powers of ten; values beyond it count in the first and in the last bin."""
BINS = 60


def hoyer(activations: Tensor) -> Tensor:
    """(√H − ‖a‖₁/‖a‖₂) / (√H − 1) of each example, ``(N,)``: 1 if one unit is active, 0 if all are equally.

    The value is nan for an example without any activation.

    >>> hoyer(torch.tensor([[0.0, 3.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0]]))
    tensor([1., 0.])
    """
    root = math.sqrt(activations.shape[1])
    return (root - activations.sum(1) / activations.square().sum(1).sqrt()) / (root - 1)


def treves_rolls(activations: Tensor) -> Tensor:
    """(1 − (mean a)² / mean a²) / (1 − 1/H) of each example, ``(N,)``: 1 if one unit is active, 0 if all equally.

    >>> treves_rolls(torch.tensor([[0.0, 3.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0], [1.0, 1.0, 0.0, 0.0]]))
    tensor([1.0000, 0.0000, 0.6667])
    """
    units = activations.shape[1]
    return (1 - activations.mean(1).square() / activations.square().mean(1)) / (1 - 1 / units)


def measures(activations: Tensor) -> dict[str, float]:
    """The numbers of Figure 3.

    Returns:
        ``mean_activation``; ``high_percent``, the share of all activations above 1; ``active_percent``, the share above
        0; ``dead_units``, the number of units that are zero on every example; ``hoyer`` and ``treves_rolls``, means
        over the examples with any activation.
    """
    checks.finite("activations", activations)  # a training that diverged is no measurement
    a = activations.double()
    return {
        "mean_activation": float(a.mean()),
        "high_percent": 100 * float((a > HIGH).double().mean()),
        "active_percent": 100 * float((a > 0).double().mean()),
        "dead_units": int((a.amax(0) == 0).sum()),
        "hoyer": float(hoyer(a).nanmean()),
        "treves_rolls": float(treves_rolls(a).nanmean()),
    }


def histogram(values: Tensor) -> list[float]:
    """The share of all values in each of 60 bins of equal width in log10, from 10⁻⁴ to 10²; zeros are not counted.

    >>> shares = histogram(torch.tensor([0.0, 0.0, 1e-4, 50.0]))
    >>> shares[0], shares[56], sum(shares)
    (0.25, 0.25, 0.5)
    """
    low, high = DECADES
    positive = values[values > 0].double().log10().clamp(low, high - 1e-9)
    return (torch.histc(positive, BINS, low, high) / values.numel()).tolist()


def edges() -> list[float]:
    """The log10 of the edges of the bins, one more than there are bins."""
    low, high = DECADES
    return [low + (high - low) * place / BINS for place in range(BINS + 1)]
