"""The Jacobian J of the divergence with respect to the mask, in both of the paper's forms.

Neither changes ``.grad``: ``torch.autograd.grad`` differentiates with respect to the masks or the units alone, so
gradients that are being accumulated stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

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
        # A layer whose output is not used has a Jacobian of zero.
        return torch.autograd.grad(divergence(points).sum(), points, allow_unused=True, materialize_grads=True)


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
        (slope,) = torch.autograd.grad(divergence(point).sum(), point)
    return h.detach() * slope


def _differentiable() -> torch.enable_grad:
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "the mask search needs gradients, and torch.inference_mode() forbids them; use torch.no_grad() instead "
            "(with Lightning: Trainer(inference_mode=False))"
        )
    return torch.enable_grad()
