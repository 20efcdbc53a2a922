"""Zeros and ones by the coin toss, from whole random words.

On a CPU torch's own ``bernoulli_`` draws one number after the other, one for each entry, and a network with dropout on
large maps spends a fifth of its training there. One draw of 64 bits is 64 fair coins, or two of any other kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

# Row b holds the eight bits of the byte b.
_BITS = torch.arange(256, device="cpu")[:, None] >> torch.arange(8, device="cpu") & 1


def bernoulli(
    shape: Sequence[int],
    keep: float,
    generator: torch.Generator | None = None,
    *,
    value: float = 1.0,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """Independent entries that are ``value`` with probability ``keep``, else 0.

    The probability is exact for 0, ½ and 1 and true to 2⁻³² otherwise; a uniform float32 is true to 2⁻²⁵.

    Args:
        shape: of the result.
        keep: the probability of ``value``, in [0, 1].
        generator: where the randomness comes from; the device's global generator if not given.
        value: what is not zero; 1 / keep makes the scaled mask of ordinary dropout.
        dtype: of the result, a floating-point type; torch's default if not given.
        device: of the result; torch's default if not given.

    >>> bernoulli((2, 3), 1.0, value=2.0)
    tensor([[2., 2., 2.],
            [2., 2., 2.]])
    """
    dtype = dtype or torch.get_default_dtype()
    device = device or torch.get_default_device()
    if keep in (0.0, 1.0):
        return torch.full(tuple(shape), keep * value, dtype=dtype, device=device)
    if device.type != "cpu":
        mask = torch.empty(tuple(shape), dtype=dtype, device=device).bernoulli_(keep, generator=generator)
        return mask if value == 1.0 else mask.mul_(value)
    entries = math.prod(shape)
    if keep == 0.5:
        table = _BITS.to(dtype).mul_(value)
        mask = F.embedding(_words(entries, 1, generator).view(torch.uint8).int(), table)
    else:
        # A word of 32 bits is one of -2³¹ .. 2³¹ - 1: round(keep·2³²) of them are below the threshold.
        threshold = min(round(keep * 2**32) - 2**31, 2**31 - 1)
        mask = (_words(entries, 32, generator).view(torch.int32) < threshold).to(dtype)
        if value != 1.0:
            mask.mul_(value)
    return mask.flatten()[:entries].view(tuple(shape))


def bernoulli_like(x: Tensor, keep: float, generator: torch.Generator | None = None, *, value: float = 1.0) -> Tensor:
    """The same for an activation, of its shape and type, on its device, and in memory as it lies there.

    Otherwise their product would walk through one of the two in leaps.
    """
    if channels_last(x):
        return bernoulli_like(x.permute(0, 2, 3, 1), keep, generator, value=value).permute(0, 3, 1, 2)
    return bernoulli(x.shape, keep, generator, value=value, dtype=x.dtype, device=x.device)


def channels_last(x: Tensor) -> bool:
    """Whether the channels of each pixel lie side by side, and the pixels of a channel do not."""
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def _words(entries: int, bits: int, generator: torch.Generator | None) -> Tensor:
    """Enough words of 64 random bits for this many entries of some bits each."""
    words = torch.empty(-(-entries * bits // 64), dtype=torch.int64, device="cpu")
    return words.random_(-(2**63), None, generator=generator)
