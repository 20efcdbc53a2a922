"""The sampled mask εs of ordinary dropout, and its scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import torch
from torch import Tensor

from advdrop import checks
from advdrop.choices import Granularity, Scale
from advdrop.masks.bernoulli import bernoulli, bernoulli_like

GRANULARITIES: tuple[Granularity, ...] = get_args(Granularity)
SCALES: tuple[Scale, ...] = get_args(Scale)


def mask_shape(shape: Sequence[int], granularity: Granularity = "unit") -> tuple[int, ...]:
    """Return the shape of the mask of an activation.

    For ``"unit"`` it is the shape of the activation, ``(B, *H)``. For ``"channel"`` it is ``(B, C, 1, ..., 1)``: one
    entry for each index of dimension 1. For ``"feature"`` it is ``(B, 1, ..., 1, F)``: one entry for each index of the
    last dimension, the same at every position of a sequence.

    >>> mask_shape((8, 16, 4, 4), "channel"), mask_shape((8, 20, 64), "feature")
    ((8, 16, 1, 1), (8, 1, 64))
    """
    checks.choice("granularity", granularity, GRANULARITIES)
    if len(shape) < 2:
        raise ValueError(f"a mask is (B, *H) with at least two dimensions, got shape {tuple(shape)}")
    if granularity == "unit":
        return tuple(shape)
    ones = (1,) * (len(shape) - 2)
    return (shape[0], shape[1], *ones) if granularity == "channel" else (shape[0], *ones, shape[-1])


def sample_mask(
    like: Tensor | Sequence[int],
    p: float,
    generator: torch.Generator | None = None,
    granularity: Granularity = "unit",
) -> Tensor:
    """Sample a dropout mask εs: each entry is 0 with probability p, else 1.

    Args:
        like: an activation ``(B, *H)``, or just its shape. The mask gets the dtype and the device of the activation.
        p: the DROP probability, as in ``torch.nn.Dropout``.
        generator: the source of randomness; the global generator if not given.
        granularity: one entry per ``"unit"``, per ``"channel"`` (dimension 1) or per ``"feature"`` (the last
            dimension), broadcast over the rest.

    Returns:
        The mask, of :func:`mask_shape`.

    >>> sample_mask((2, 3), p=0.0)
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
    """
    keep = 1.0 - checks.fraction("p", p)
    if isinstance(like, Tensor):
        checks.floating("like", like, empty=True)
        if like.is_nested or like.layout is not torch.strided:
            raise TypeError(
                f"a mask needs a dense activation, got a {'nested' if like.is_nested else 'sparse'} tensor; put the "
                "AdversarialDropout layer where the units are a dense tensor (B, *H), such as after padding or pooling"
            )
        shape = mask_shape(like.shape, granularity)
        if granularity == "unit":
            return bernoulli_like(like, keep, generator)
        return bernoulli(shape, keep, generator, dtype=like.dtype, device=like.device)
    device = generator.device if generator is not None else None
    return bernoulli(mask_shape(like, granularity), keep, generator, device=device)


def scale_mask(mask: Tensor, p: float, scale: Scale = "inverted") -> Tensor:
    """Scale a mask, so that the next layer gets inputs of the usual magnitude.

    The paper does not mention a scale. ``"inverted"`` divides by 1 − p, as ordinary dropout does, however many
    entries were flipped. ``"renormalized"`` is the released code's ``ε / Σε · H`` for each example (if an
    example has no unit left, it stays zero). ``"none"`` is the paper's formula taken literally.

    Args:
        mask: ``(B, *H)`` of 0 and 1.
        p: the drop probability the mask was sampled with.
        scale: ``"inverted"``, ``"renormalized"`` or ``"none"``.

    >>> scale_mask(torch.tensor([[1.0, 0.0, 1.0, 0.0]]), p=0.2, scale="renormalized")
    tensor([[2., 0., 2., 0.]])
    """
    checks.choice("scale", scale, SCALES)
    p = checks.fraction("p", p)
    if scale == "renormalized":
        units = mask.shape[1:].numel()
        # Summed in float32 at least: bfloat16 cannot count beyond 256.
        kept = mask.flatten(1).sum(1, dtype=torch.promote_types(mask.dtype, torch.float32)).clamp_min(1.0)
        return mask * (units / kept).to(mask.dtype).view(-1, *[1] * (mask.dim() - 1))
    if scale == "none" or p == 0.0 or p == 1.0:
        return mask
    return mask / (1.0 - p)
