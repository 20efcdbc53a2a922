"""Steps to compare with: the three full passes of the public ports, and a hand-written loop of the same passes as ours.

The code is our own. ``naive_vadd_step`` works as the public ports do: torch's dropout, torch's order of pixels, Adam
with its defaults, three full passes, a backward pass for the search that computes everything, and a threshold at the
(k+1)-th largest gain. ``vadd_by_hand`` makes the passes that this library makes and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from advdrop.divergences import kl
from advdrop.masks import AdversarialDropout


def plain_torch(model: nn.Sequential) -> nn.Sequential:
    """The same network with torch's own nn.Dropout."""
    for index, module in enumerate(model):
        if isinstance(module, nn.Dropout):
            model[index] = nn.Dropout(module.p)
    return model


def naive_step(model: nn.Module, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One training step of cross-entropy with dropout."""
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def naive_vadd_step(model: nn.Sequential, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One training step of cross-entropy + VAdD(KL) on the same rows."""
    under, layer, upper = parts(model)
    keep = 1.0 - layer.p

    # 1: the clean pass.
    h = under(x)
    mask = torch.bernoulli(torch.full_like(h, keep))
    clean = upper(h * mask / keep)

    # 2: a whole pass for the Jacobian, and a backward pass through all of it.
    h = under(x)
    h.retain_grad()
    kl(clean.detach(), upper(h)).sum().backward()
    jacobian = h.detach() * h.grad
    optimizer.zero_grad()
    adversarial = naive_search(mask, jacobian, int(layer.delta * h.shape[1]))

    # 3: the adversarial pass.
    loss = F.cross_entropy(clean, y) + kl(clean, upper(under(x) * adversarial / keep)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def naive_search(mask: Tensor, jacobian: Tensor, budget: int) -> Tensor:
    """The flips whose gain is above the (k+1)-th largest."""
    gain = torch.where(mask == 0, jacobian, -jacobian)
    best = gain.topk(budget + 1, dim=1).values
    flips = (gain > best[:, -1:].clamp_min(0)) & (gain > 0)
    return torch.where(flips, 1 - mask, mask)


def vadd_by_hand(model: nn.Sequential, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """A training step of cross-entropy + VAdD(KL) with shared noise: one lower pass and three upper ones."""
    under, layer, upper = parts(model)
    keep, delta = 1.0 - layer.p, layer.delta

    def step() -> None:
        optimizer.zero_grad()
        h = under(x)
        mask = torch.bernoulli(torch.full_like(h, keep))
        clean = upper(h * (mask / keep))
        logs = clean.log_softmax(1)
        units = h.detach().requires_grad_()
        (slope,) = torch.autograd.grad(_kl(logs.detach(), upper(units)).sum(), units)
        adversarial = naive_search(mask, units.detach() * slope, int(delta * h.shape[1]))
        loss = F.cross_entropy(clean, y) + _kl(logs, upper(h * (adversarial / keep))).mean()
        loss.backward()
        optimizer.step()

    return step


def plain_by_hand(model: nn.Module, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """A training step of cross-entropy with dropout."""

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def parts(model: nn.Sequential) -> tuple[nn.Module, AdversarialDropout, nn.Module]:
    """What is below the layer, the layer, and what is above it."""
    for place, layer in enumerate(model):
        if isinstance(layer, AdversarialDropout):
            return model[:place], layer, model[place + 1 :]
    raise ValueError("the network has no AdversarialDropout layer among its children")


def _kl(target: Tensor, logits: Tensor) -> Tensor:
    return F.kl_div(logits.log_softmax(1), target, reduction="none", log_target=True).sum(1)
