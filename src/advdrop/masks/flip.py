"""Algorithm 1: the flips that increase the linearized divergence most."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from advdrop import checks
from advdrop.choices import Order, Ties
from advdrop.masks.bernoulli import channels_last

Budget = int | Sequence[int] | Tensor

GROUPED = 8
"""The number of units in a group, when the largest scores of a wide layer are searched by groups."""
WIDE = 16_384
"""The number of units from which grouping is faster (``benchmarks/search.py`` measures it)."""


def flip_mask(
    mask: Tensor, jacobian: Tensor, budget: Budget, *, order: Order = "largest", ties: Ties = "exact"
) -> Tensor:
    """Return the adversarial mask εadv: at most ``budget`` flips of εs, chosen by J.

    Around ε0 the divergence is D(ε) ≈ D(ε0) + (ε − ε0)ᵀJ (Eq. 9), so flipping unit i gains Jᵢ if it was dropped
    and −Jᵢ if it was kept. Only positive gains are taken. With ``order="largest"`` the result maximizes the
    linearized divergence within the budget, exactly.

    Args:
        mask: the sampled mask εs, ``(B, *H)`` of 0 and 1.
        jacobian: J, of the same shape.
        budget: the number of flips allowed, one int or one per example ``(B,)``.
        order: ``"largest"`` takes the largest gains first. ``"smallest"`` takes the smallest positive gains first, as
            Algorithm 1 is printed. That is evidently a mistake in the paper; it is here for comparison.
        ties: ``"exact"`` takes the ``budget`` best gains and chooses among equal gains the same way every time.
            ``"dropped"`` is the rule of the released code: a gain that equals the (budget + 1)-th gain is not taken.

    Returns:
        εadv, of the same shape, without a gradient.

    Deviations: the loop of Algorithm 1 runs while the distance is *at most* δH, so it makes one flip too many. Here the
    budget is never exceeded.

    >>> mask = torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    >>> jacobian = torch.tensor([[-3.0, 5.0, 1.0, 2.0]])  # gains: 3, -5, 1, 2
    >>> flip_mask(mask, jacobian, budget=2)
    tensor([[0., 1., 0., 1.]])
    """
    checks.choice("order", order, ("largest", "smallest"))
    checks.choice("ties", ties, ("exact", "dropped"))
    checks.same_shape("mask", checks.floating("mask", mask), "jacobian", checks.floating("jacobian", jacobian))
    if mask.dim() < 2 or mask.numel() == 0:
        raise ValueError(f"mask must be (B, *H), two dimensions and one unit at least, got shape {tuple(mask.shape)}")
    checks.binary("mask", mask)
    return flip_sampled(mask, jacobian, budget, order=order, ties=ties)


@torch.no_grad()
def flip_sampled(
    mask: Tensor, jacobian: Tensor, budget: Budget, *, order: Order = "largest", ties: Ties = "exact"
) -> Tensor:
    """Do the same as :func:`flip_mask` for a mask that is known to be valid, such as one that was sampled here."""
    if channels_last(mask):  # memory order is faster; only equal gains may be chosen differently
        pixels, slopes = (tensor.permute(0, 2, 3, 1) for tensor in (mask, jacobian))
        return flip_sampled(pixels, slopes, budget, order=order, ties=ties).permute(0, 3, 1, 2)
    checks.finite("jacobian", jacobian)
    kept = mask.flatten(1)
    most, limits = _limits(budget, kept)
    if most == 0:
        return mask.clone()

    slope = jacobian.flatten(1)
    score = torch.addcmul(slope, slope, kept.to(slope.dtype), value=-2.0)  # the gain: J if dropped, -J if kept
    floor = 0.0
    if order == "smallest":
        score, floor = torch.where(score > 0, -score, -torch.inf), -torch.inf
    # ties="dropped" needs the (k+1)-th gain as well, if the layer has more than k units.
    beyond = int(ties == "dropped" and most < kept.shape[1])
    best, units = _best(score, most + beyond)
    if limits is not None or ties == "dropped":
        best, ranks = best.sort(dim=1, descending=True)
        units = units.gather(1, ranks)
    flips = best > floor
    if limits is not None:
        flips &= torch.arange(best.shape[1], device=mask.device) < limits[:, None]
    if ties == "dropped":
        flips &= best > _runner_up(best, most if limits is None else limits, floor)
    flipped = (kept.gather(1, units) - flips.to(mask.dtype)).abs_()
    return kept.scatter(1, units, flipped).view_as(mask)


def _best(score: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest scores of each example and their units, both ``(B, k)``, unsorted.

    In a wide layer, only the k groups with the largest maxima can contain one of the k largest scores, and maxima are
    cheap to compute. In a narrow layer all scores are compared.
    """
    groups = score.shape[1] // GROUPED
    if score.shape[1] < WIDE or score.shape[1] % GROUPED or k > groups // 8:
        return score.topk(k, dim=1, sorted=False)
    # Group g holds the units g, g + groups, g + 2·groups, ..., so that the maximum is taken over whole rows of memory.
    chosen = score.unflatten(1, (GROUPED, groups)).amax(1).topk(k, dim=1, sorted=False).indices
    offsets = torch.arange(0, score.shape[1], groups, device=score.device)
    candidates = (chosen[:, None] + offsets[:, None]).flatten(1)
    best, where = score.gather(1, candidates).topk(k, dim=1, sorted=False)
    return best, candidates.gather(1, where)


def _limits(budget: Budget, kept: Tensor) -> tuple[int, Tensor | None]:
    """Return the largest budget of the batch, and the budget of each example if one was given for each."""
    examples, units = kept.shape
    if isinstance(budget, bool) or not isinstance(budget, int | Sequence | Tensor):
        raise TypeError(f"budget must be an int or one int per example, got {budget!r} ({type(budget).__name__})")
    if isinstance(budget, int):
        if not 0 <= budget <= units:
            raise ValueError(f"budget must be in 0..{units}, the number of units of the layer, got {budget}")
        return budget, None
    limits = torch.as_tensor(budget)
    if limits.is_floating_point() or limits.is_complex() or limits.dtype == torch.bool:
        raise TypeError(f"budget must hold integers, got {limits.dtype}")
    if limits.shape != (examples,):
        raise ValueError(f"budget must be an int or of shape ({examples},), got shape {tuple(limits.shape)}")
    limits = limits.long()  # uint16 has no minimum
    if checks.due("budget", limits):
        least, most = (int(v) for v in torch.aminmax(limits))
        if least < 0 or most > units:
            raise ValueError(f"budget must be in 0..{units}, got values from {least} to {most}")
    # Reading the largest budget of a device tensor would wait for the device.
    most = int(limits.max()) if limits.device.type == "cpu" else units
    return most, limits.to(kept.device)


def _runner_up(best: Tensor, limit: int | Tensor, floor: float) -> Tensor:
    """Return the (k+1)-th score of each example, ``(B, 1)``; ``floor`` if the layer has only k units."""
    padded = torch.nn.functional.pad(best, (0, 1), value=floor)
    if isinstance(limit, int):
        return padded[:, limit, None]
    return padded.gather(1, limit[:, None])
