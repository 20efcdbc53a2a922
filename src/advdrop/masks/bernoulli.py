"""Fast Bernoulli masks.

On a CPU, torch's ``bernoulli_`` draws one random number for each entry; a network with dropout on large maps spends a
fifth of its training time there. Here one draw of 64 bits gives 64 entries for p = ½, or two for any other p.
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
    """Sample independent entries that are ``value`` with probability ``keep``, else 0.

    On a CPU the probability is exact for 0, ½ and 1. Otherwise its error is at most 2⁻³², less than the 2⁻²⁵ of a
    comparison with uniform float32 numbers.

    Args:
        shape: of the result.
        keep: the probability of ``value``, in [0, 1].
        generator: the source of randomness; the device's global generator if not given.
        value: of the entries that are not 0; 1 / keep gives the scaled mask of ordinary dropout.
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
    """Sample a mask with the shape, type, device and memory layout of an activation.

    The same layout makes their product fast.
    """
    if channels_last(x):
        return bernoulli_like(x.permute(0, 2, 3, 1), keep, generator, value=value).permute(0, 3, 1, 2)
    return bernoulli(x.shape, keep, generator, value=value, dtype=x.dtype, device=x.device)


def channels_last(x: Tensor) -> bool:
    """Return True if a tensor ``(B, C, H, W)`` is stored in channels-last order and in no other."""
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def _words(entries: int, bits: int, generator: torch.Generator | None) -> Tensor:
    """Draw enough 64-bit words for this many entries of ``bits`` bits each."""
    words = torch.empty(-(-entries * bits // 64), dtype=torch.int64, device="cpu")
    return words.random_(-(2**63), None, generator=generator)
