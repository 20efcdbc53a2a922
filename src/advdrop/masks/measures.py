"""Measurements of a mask search, such as the number of flips."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from advdrop.masks.jacobian import Masks


@torch.no_grad()
def search_measures(
    sampled: Masks, adversarial: Masks, budget: int | tuple[int, ...], jacobians: Sequence[Masks] = ()
) -> dict[str, Tensor]:
    """Measure a mask search: means over the examples, as scalars on the device.

    Args:
        sampled: εs, one ``(B, *H)`` per layer. If the layers have different numbers of rows, such as those of tokens
            and those of sentences, the rows of an example are neighbors.
        adversarial: εadv, of the same shapes.
        budget: the flips that were allowed in each row.
        jacobians: the Jacobians that the search computed.

    Returns:
        ``drops`` (flips from kept to dropped), ``revivals`` (flips from dropped to kept), ``flips`` (both),
        ``budget_share`` (flips divided by the budget; 0 without a budget) and, if there was a Jacobian,
        ``jacobian_norm`` (‖J‖₂ of the first one over all layers).

    >>> εs, εadv = torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([[0.0, 1.0, 1.0]])
    >>> {name: value.item() for name, value in search_measures((εs,), (εadv,), budget=4).items()}
    {'flips': 2.0, 'budget_share': 0.5, 'drops': 1.0, 'revivals': 1.0}
    """
    lengths = [len(mask) for mask in sampled]
    examples = math.gcd(*lengths) or 1
    drops = _sum(sampled, adversarial) / examples
    revivals = _sum(adversarial, sampled) / examples
    flips = drops + revivals
    allowed = sum(map(operator.mul, budget, lengths)) / examples if isinstance(budget, tuple) else budget
    measures = {"flips": flips, "budget_share": flips / max(allowed, 1), "drops": drops, "revivals": revivals}
    if jacobians:
        squares = [j.detach().flatten(1).float().square().sum(1) for j in jacobians[0]]
        squares = [each.view(examples, -1).sum(1) for each in squares]
        measures["jacobian_norm"] = torch.stack(squares).sum(0).sqrt().mean()
    return measures


def _sum(kept: Masks, dropped: Masks) -> Tensor:
    """Return the number of units that the first masks keep and the second drop."""
    counts = [(one * (1 - other)).sum(dtype=torch.float32) for one, other in zip(kept, dropped, strict=True)]
    return torch.stack(counts).sum()
