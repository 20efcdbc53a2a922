"""Deeply-supervised nets: hidden layers should predict the classes, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from advdrop import checks
from advdrop.divergences import Given, full_precision
from advdrop.eval_mode import eval_mode
from advdrop.hidden import Place, watched
from advdrop.objectives.base import Term

if TYPE_CHECKING:
    from advdrop.step.batch import Rows
    from advdrop.step.passes import Passes

SIDE = 4
"""Feature maps are averaged down to at most this many pixels a side before a head sees them."""


@final
@dataclass(eq=False)
class DeepSupervision(Term):
    """Companion losses of deeply-supervised nets, Σ_m Σ_k max(0, 1 − s_k f_k^m)² with s_k = 1 for the label, else −1.

    f^m is a linear head on the m-th hidden layer, trained with the network and not part of it: the trained network has
    the same weights and the same output as without the term.

    Args:
        places: the hidden layers, by the names of their modules or by a class, such as all ``nn.MaxPool2d``.
        heads: a linear map to C for each of them, in the order of the network; :meth:`of` makes them.

    References: Lee et al., "Deeply-Supervised Nets", AISTATS 2015, formula 3.

    Deviations: the output of the network has the cross-entropy and not the squared hinge loss. The threshold γ, below
    which a companion loss counts as 0, and the norm of the heads' weights are left out. Feature maps are averaged down
    to 4×4 pixels before the head.
    """

    places: tuple[Place, ...]
    heads: nn.ModuleList
    rows: Rows = "labeled"

    @classmethod
    def of(cls, model: nn.Module, x: Tensor, classes: int, places: tuple[Place, ...]) -> DeepSupervision:
        """Make the heads for a network; x is a batch, of which only the shape matters."""
        with watched(model, places) as hidden, eval_mode(model), torch.no_grad():
            model(x)
        heads = (nn.Linear(features(h).shape[1], classes, device=x.device) for h in hidden.values())
        return cls(places, nn.ModuleList(heads))

    def __post_init__(self) -> None:
        if not self.places or not len(self.heads):
            raise ValueError(f"deep supervision needs at least one hidden layer, got places={self.places!r}")

    @property
    def hidden(self) -> tuple[Place, ...]:
        """The hidden layers."""
        return self.places

    @property
    def trained(self) -> nn.Module:
        """The heads."""
        return self.heads

    def per_example(self, passes: Passes) -> Tensor:
        """Return the sum of the companion losses of each row, ``(B,)``."""
        hidden = passes.hidden(self.rows, self.places)
        if len(hidden) != len(self.heads):
            raise ValueError(f"there are {len(self.heads)} heads for {len(hidden)} hidden layers: {', '.join(hidden)}")
        y, values = passes.labels(), []
        for head, (name, h) in zip(self.heads, hidden.items(), strict=True):
            if not isinstance(head, nn.Linear):
                raise TypeError(f"the heads of deep supervision must be nn.Linear, got {type(head).__name__}")
            units = features(h).to(head.weight.dtype)
            if units.shape[1] != head.in_features:
                raise ValueError(
                    f"the head of {name!r} takes {head.in_features} units, and {name!r} returns {units.shape[1]} for "
                    "these inputs; inputs of all shapes must give as many, so pad them, or name a module that has them"
                )
            outputs = head(units)
            values.append(passes.compare(_hinge, y, outputs, self.rows, labeled=True))
        return torch.stack(values).sum(0)


def features(h: Tensor) -> Tensor:
    """Return hidden units as rows: ``(B, C, H, W)`` is averaged down to 4×4 pixels, all else is flattened.

    >>> features(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 48])
    """
    if h.dim() == 4:
        h = F.adaptive_avg_pool2d(h, (min(SIDE, h.shape[2]), min(SIDE, h.shape[3])))
    return h.flatten(1)


def _hinge(target: Tensor, logits: Tensor, *, given: Given = "logits") -> Tensor:
    del given
    return squared_hinge(logits, target)


def squared_hinge(outputs: Tensor, y: Tensor) -> Tensor:
    """Return Σ_k max(0, 1 − s_k f_k)², ``(B, C) -> (B,)``: one class against the rest.

    >>> squared_hinge(torch.tensor([[1.0, -1.0], [0.0, 0.0]]), torch.tensor([0, 1]))
    tensor([0., 2.])
    """
    checks.labels(y, outputs.shape[1])
    outputs = full_precision(outputs)
    is_label = torch.arange(outputs.shape[1], device=y.device) == y[:, None]
    return (1.0 - torch.where(is_label, outputs, -outputs)).clamp_min(0.0).square().sum(1)
