"""VAdD as the public ports do it: three full passes, and a backward pass for the search that computes everything.

The reference that ours is measured against. It is our own code, of their kind: torch's dropout, torch's order of
pixels, Adam as it comes, a threshold at the (k+1)-th largest gain.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from advdrop.divergences import kl
from advdrop.models import Split, adversarial_layers


def plain_torch(model: Split) -> Split:
    """The same network with nn.Dropout as torch has it."""
    for index, module in enumerate(cast(nn.Sequential, model.under)):
        if isinstance(module, nn.Dropout):
            cast(nn.Sequential, model.under)[index] = nn.Dropout(module.p)
    return model


def naive_step(model: Split, x: Tensor, y: Tensor, optimiser: torch.optim.Optimizer) -> None:
    """One training step of cross-entropy with dropout."""
    loss = F.cross_entropy(model(x), y)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def naive_vadd_step(model: Split, x: Tensor, y: Tensor, optimiser: torch.optim.Optimizer) -> None:
    """One training step of cross-entropy + VAdD(KL) on the same rows."""
    upper, layer = cast(nn.Sequential, model.upper)[1:], adversarial_layers(model)[0]
    keep = 1.0 - layer.p

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
    adversarial = naive_search(mask, jacobian, int(layer.delta * h.shape[1]))

    # 3: the adversarial pass.
    loss = F.cross_entropy(clean, y) + kl(clean, upper(model.under(x) * adversarial / keep)).mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def naive_search(mask: Tensor, jacobian: Tensor, budget: int) -> Tensor:
    """The flips whose gain is above the (k+1)-th largest."""
    gain = torch.where(mask == 0, jacobian, -jacobian)
    best = gain.topk(budget + 1, dim=1).values
    flips = (gain > best[:, -1:].clamp_min(0)) & (gain > 0)
    return torch.where(flips, 1 - mask, mask)
