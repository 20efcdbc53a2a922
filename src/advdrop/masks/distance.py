"""Distances between two dropout masks (the paper's Appendix A), per example.

All are computed from the number of units on which the masks differ, so a bound on one is a bound on the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from advdrop import checks


def hamming(first: Tensor, second: Tensor) -> Tensor:
    """Return the number of differing units: Σᵢ |ε¹ᵢ − ε²ᵢ| = ‖ε¹ − ε²‖₂², the squared Euclidean distance.

    Args:
        first: a mask ``(B, *H)`` of 0 and 1.
        second: another one.

    Returns:
        ``(B,)``

    >>> hamming(torch.tensor([[1.0, 0.0, 1.0]]), torch.tensor([[1.0, 1.0, 0.0]]))
    tensor([2.])
    """
    _check(first, second)
    # Counted in float32 at least: bfloat16 cannot count beyond 256.
    return (first != second).flatten(1).sum(1).to(torch.promote_types(first.dtype, torch.float32))


def euclidean(first: Tensor, second: Tensor) -> Tensor:
    """Return the Euclidean distance ‖ε¹ − ε²‖₂ = √hamming, ``(B,)``."""
    return hamming(first, second).sqrt()


def graph_edit(first: Tensor, second: Tensor, lower_units: int, upper_units: int) -> Tensor:
    """Return the graph edit distance (A.1), ``(B,)``: a unit that differs costs its N_l + N_u edges.

    Deviation: Proposition 1 prints ``(N_l + N_u)‖ε¹ − ε²‖₂``. The number of differing units is the SQUARED norm
    of binary vectors, which is what is used here.

    Args:
        first: a mask ``(B, *H)`` of 0 and 1.
        second: another one.
        lower_units: N_l, the units of the layer below.
        upper_units: N_u, the units of the layer above.
    """
    edges = checks.count("lower_units", lower_units, 0) + checks.count("upper_units", upper_units, 0)
    return edges * hamming(first, second)


def jaccard(first: Tensor, second: Tensor) -> Tensor:
    """Return the Jaccard distance (A.2) of the two sets of kept units, (|∪| − |∩|) / |∪|, ``(B,)``; 0 for empty sets.

    Deviation: Proposition 2 prints ``‖ε¹ − ε²‖₂ / ‖ε¹ + ε² − ε¹ ⊙ ε²‖₂``. That equals the set definition only
    with both norms SQUARED: as printed it is the square root of it.

    Args:
        first: a mask ``(B, *H)`` of 0 and 1.
        second: another one.
    """
    _check(first, second)
    union = ((first != 0) | (second != 0)).flatten(1).sum(1)
    return hamming(first, second) / union.clamp_min(1)


def _check(first: Tensor, second: Tensor) -> None:
    checks.same_shape("first", checks.floating("first", first), "second", checks.floating("second", second))
    checks.binary("first", first)
    checks.binary("second", second)
