"""VAdD as the public ports do it: three full passes, and a backward pass for the search that computes everything.

The reference that ours is measured against. It is our own code, of their kind.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from advdrop.divergences import kl
from advdrop.models import Split, adversarial_layers


def naive_vadd_step(model: Split, x: Tensor, y: Tensor, optimiser: torch.optim.Optimizer, delta: float) -> None:
    """One training step of cross-entropy + VAdD(KL) on the same rows."""
    upper = cast(nn.Sequential, model.upper)[1:]
    keep = 1.0 - adversarial_layers(model)[0].p

    # 1: the clean pass.
    h = model.under(x)
    mask = torch.bernoulli(torch.full_like(h, keep))
    clean = upper(h * mask / keep)

    # 2: a whole pass for the Jacobian, and a backward pass through all of it.
    h = model.under(x)
    h.retain_grad()
    kl(clean.detach(), upper(h)).sum().backward()
    jacobian = h.detach() * h.grad
    optimiser.zero_grad()
    gain = torch.where(mask == 0, jacobian, -jacobian)
    best = gain.topk(int(delta * gain.shape[1]) + 1, dim=1).values
    flips = (gain > best[:, -1:].clamp_min(0)) & (gain > 0)
    adversarial = torch.where(flips, 1 - mask, mask)

    # 3: the adversarial pass.
    loss = F.cross_entropy(clean, y) + kl(clean, upper(model.under(x) * adversarial / keep)).mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
