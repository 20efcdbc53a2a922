"""The number of flips that δ allows."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from decimal import ROUND_UP, Context, Decimal

from advdrop import checks


def flip_budget(delta: float, units: int) -> int:
    """Return int(δ·H), the number of entries of the sampled mask that may be flipped.

    The paper writes ``‖εs − ε‖₂ ≤ δH`` and explains it as "10 changes" for δ = 0.005, H = 2048 and "6 units" for
    δ = 0.05, H = 128: a bound on the Hamming distance. Taken literally, the norm would allow (δH)² flips.

    >>> flip_budget(0.005, 2048), flip_budget(0.05, 128)
    (10, 6)
    """
    return shared_budget([checks.fraction("delta", delta)], [checks.count("units", units)])


def shared_budget(deltas: Iterable[float], units: Iterable[int]) -> int:
    """Return int(Σ δ·H) of several layers. δ counts as it is written: 0.29 of 100 units are 29, not 28.99....

    The product is rounded to nine digits after the point, because the last digits of a float may be an error of
    rounding: 1 - 0.9 is 0.09999999999999998, and 12 times 1/12 is 1.

    >>> shared_budget([0.05, 0.29], [10, 100]), shared_budget([1 / 12], [12])
    (29, 1)
    """
    allowed = sum((Decimal(repr(float(delta))) * h for delta, h in zip(deltas, units, strict=True)), Decimal(0))
    return int(round(allowed, 9))


def warn_no_flip(delta: float, units: int, who: str) -> bool:
    """Warn that δ is too small for a flip, and return True; return False without a warning if δ is 0."""
    if delta == 0.0:
        return False
    smallest = Context(prec=4, rounding=ROUND_UP).divide(1, units)
    warnings.warn(
        f"delta={delta} of {units} units allows no flip, so {who} does nothing; the smallest delta that allows "
        f"one is {smallest}",
        stacklevel=3,
    )
    return True
