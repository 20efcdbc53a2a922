"""How many flips δ allows."""

from __future__ import annotations

from advdrop import checks


def flip_budget(delta: float, units: int) -> int:
    """At most int(δ·H) entries of the sampled mask may be flipped.

    The paper writes ``‖εs − ε‖₂ ≤ δH`` and glosses it as "10 changes" for δ = 0.005, H = 2048 and "6 units" for
    δ = 0.05, H = 128: a Hamming budget. The norm to the letter would allow (δH)² flips.

    >>> flip_budget(0.005, 2048), flip_budget(0.05, 128)
    (10, 6)
    """
    delta = checks.fraction("delta", delta)
    return int(delta * checks.count("units", units))
