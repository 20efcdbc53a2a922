"""The Jacobian J of the divergence with respect to the mask, in both of the paper's forms.

Neither changes ``.grad``: ``torch.autograd.grad`` differentiates with respect to the masks or the units alone, so
gradients that are being accumulated stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from advdrop import checks

Masks = tuple[Tensor, ...]
"""One mask ``(B, *H)`` per AdversarialDropout layer, in the order in which the layers run."""

MaskDivergence = Callable[[Masks], Tensor]
"""ε -> D[g, f(x, ε)] of each example, ``(B,)``; ε is what h is multiplied with."""


def mask_jacobian(divergence: MaskDivergence, masks: Masks) -> Masks:
    """Return J = ∂D/∂ε at ``masks`` (Eq. 9). The paper's expansion point ε0 is a mask of ones.

    Args:
        divergence: D as a function of the masks, ``(B,)``.
        masks: where to differentiate, each ``(B, *H)``.

    >>> weights = torch.tensor([[1.0, -2.0]])
    >>> mask_jacobian(lambda masks: (masks[0] * weights).sum(1), (torch.ones(1, 2),))
    (tensor([[ 1., -2.]]),)
    """
    with _differentiable():
        points = tuple(mask.detach().requires_grad_() for mask in masks)
        total = divergence(points).sum()
        if not total.requires_grad:
            raise RuntimeError(f"the mask search needs a divergence with a gradient, and this one has none: {_CAUSE}")
        return gradient(total, points, unused_is_zero=True)  # a layer may have no effect


_CAUSE = (
    "the layer runs under torch.no_grad(), a part of the network above it detaches its input, or the divergence is not "
    "differentiable. Put the layer above that part, or use search=RandomFlips()"
)


def gradient(
    total: Tensor, points: tuple[Tensor, ...], *, retain_graph: bool = False, unused_is_zero: bool = False
) -> tuple[Tensor, ...]:
    """Return ∂total/∂point for each point, as ``torch.autograd.grad`` does.

    If the network computes in float16, the gradient is float32, and computed times a power of 2. Below 2⁻¹⁴ float16
    loses digits and below 2⁻²⁵ it is 0, and most gradients of a mask are that small. The power is found by trial, so
    this waits for the device, as torch's gradient scaler does.
    """
    exponent, found = 0, None
    if any(point.dtype == torch.float16 for point in points) or _autocast_to_float16(total.device):
        exponent = 12
    while True:
        slopes = torch.autograd.grad(
            total,
            points,
            torch.full_like(total, 2.0**exponent),
            retain_graph=retain_graph or exponent > 0,
            allow_unused=unused_is_zero,
        )
        if all(slope is None for slope in slopes):
            checks.warn_once(f"the mask search finds no flip, because no gradient reaches a mask: {_CAUSE}")
        slopes = tuple(torch.zeros_like(p) if slope is None else slope for p, slope in zip(points, slopes, strict=True))
        if exponent == 0:
            return slopes
        peak = max((float(slope.abs().amax()) for slope in slopes if slope.numel()), default=0.0)
        if math.isfinite(peak):
            found = tuple(slope.to(torch.promote_types(slope.dtype, torch.float32)) / 2.0**exponent for slope in slopes)
        if found is not None and (not peak < 1.0 or exponent > 36):
            return found
        exponent += 12 if found is not None else -6


def _autocast_to_float16(device: torch.device) -> bool:
    kind = "cpu" if device.type == "meta" else device.type
    return torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16


def unit_jacobian(divergence: Callable[[Tensor], Tensor], h: Tensor) -> Tensor:
    """Return J ≈ h ⊙ ∂D/∂h at the units h of the network without dropout (Eq. 11).

    With f(x, ε) = upper(h ⊙ ε) this equals ∂D/∂ε at ε0 = 1 by the chain rule: the paper's ≈ is an =.

    Args:
        divergence: D as a function of h, ``(B, *H) -> (B,)``.
        h: the units, ``(B, *H)``.

    >>> unit_jacobian(lambda h: (h**2).sum(1), torch.tensor([[3.0, 1.0]]))
    tensor([[18.,  2.]])
    """
    with _differentiable():
        point = h.detach().requires_grad_()
        (slope,) = gradient(divergence(point).sum(), (point,))
    return h.detach() * slope


def _differentiable() -> torch.enable_grad:
    checks.differentiable("the mask search")
    return torch.enable_grad()
