"""What a network can take: the shape of one example, checked when the network is built."""

from __future__ import annotations

import math
from collections.abc import Sequence


def image(network: str, shape: Sequence[int], least: int = 1) -> tuple[int, int, int]:
    """C, H and W of one image, or an error that shows the shape and the way out.

    Args:
        network: the name for the message.
        shape: one example's shape, ``(C, H, W)``.
        least: the fewest pixels on a side that the poolings leave something of.

    >>> image("conv-large", (3, 8, 8), least=12)
    Traceback (most recent call last):
    ValueError: conv-large needs images (C, H, W) of at least 12 x 12 pixels, got shape (3, 8, 8); pad or enlarge them,
    or use mlp, which takes any shape
    """
    sizes = tuple(shape)
    if len(sizes) != 3 or not _counts(sizes) or min(sizes[1:]) < least:
        raise ValueError(
            f"{network} needs images (C, H, W) of at least {least} x {least} pixels, got shape {sizes}; "
            "pad or enlarge them, or use mlp, which takes any shape"
        )
    channels, height, width = sizes
    return channels, height, width


def features(network: str, shape: Sequence[int]) -> int:
    """The number of values in one example of any shape, or an error that shows the shape.

    >>> features("mlp", (1, 28, 28))
    784
    """
    sizes = tuple(shape)
    if not sizes or not _counts(sizes):
        raise ValueError(f"{network} needs the shape of one example, such as (30,) or (1, 28, 28), got shape {sizes}")
    return math.prod(sizes)


def _counts(sizes: tuple[int, ...]) -> bool:
    return all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes)
