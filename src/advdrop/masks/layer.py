"""The layer: an ordinary dropout until an objective hands it a mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from advdrop import checks
from advdrop.masks.sample import GRANULARITIES, SCALES, mask_shape
from advdrop.vocabulary import Granularity, Scale

Hand = Callable[["AdversarialDropout", Tensor], Tensor]
"""What multiplies the layer's input h: ``(layer, h) -> (B, *H)``, already scaled."""

# The live mask is kept here and not on the layer, so that a model can be copied and pickled at any moment.
_hand: ContextVar[Hand | None] = ContextVar("advdrop_hand", default=None)


@contextmanager
def handing(hand: Hand) -> Iterator[None]:
    """Inside the block every AdversarialDropout layer asks ``hand`` for its mask, in training and evaluation.

    >>> import torch
    >>> layer = AdversarialDropout(p=0.5).eval()
    >>> with handing(lambda layer, h: torch.tensor([[1.0, 0.0]])):
    ...     layer(torch.tensor([[3.0, 4.0]]))
    tensor([[3., 0.]])
    """
    token = _hand.set(hand)
    try:
        yield
    finally:
        _hand.reset(token)


class AdversarialDropout(nn.Module):
    """Dropout whose mask an objective may replace by the adversarial one (Algorithm 1).

    Put it where ``nn.Dropout`` stood. By itself it does what ``nn.Dropout(p)`` does, draw for draw, and nothing in
    evaluation.

    Args:
        p: the DROP probability of the sampled mask εs. The paper: 0.5 on MNIST; its "p=1.0" for Conv-Large is a
            KEEP probability, so 0.0 here.
        delta: δ, the share of the units that may be flipped, int(δ·H) of them.
        scale: how a handed mask is scaled, see :func:`advdrop.masks.scale_mask`.
        granularity: masks of single ``"unit"``s, of each ``"channel"`` of ``(B, C, ...)``, or of each ``"feature"`` of
            ``(B, T, F)``, shared over time, as Park et al. (2019) do in recurrent networks.

    Shape: any ``(B, *H)`` to the same.

    >>> nn.Sequential(nn.Linear(4, 8), nn.ReLU(), AdversarialDropout(p=0.5, delta=0.05), nn.Linear(8, 2))[2]
    AdversarialDropout(p=0.5, delta=0.05, scale='inverted', granularity='unit')
    """

    def __init__(
        self,
        p: float = 0.5,
        delta: float = 0.05,
        scale: Scale = "inverted",
        granularity: Granularity = "unit",
    ) -> None:
        super().__init__()
        self.p = checks.fraction("p", p)
        self.delta = checks.fraction("delta", delta)
        checks.choice("scale", scale, SCALES)
        checks.choice("granularity", granularity, GRANULARITIES)
        self.scale = scale
        self.granularity = granularity
        self._handed = False

    def forward(self, h: Tensor) -> Tensor:
        """H ⊙ ε."""
        if not h.is_floating_point():
            raise TypeError(f"the input of AdversarialDropout must be floating point, got {h.dtype}; convert it first")
        hand = _hand.get()
        if hand is None:
            if self._handed and torch._C._current_graph_task_id() != -1:
                raise RuntimeError(
                    "AdversarialDropout was run again by a backward pass: activation checkpointing cannot give back "
                    "the mask that an objective handed it; leave the layer out of the checkpointed part"
                )
            return self._ordinary(h)
        if not self._handed:  # a module's attributes are slow to set
            self._handed = True
        mask = hand(self, h)
        expected = mask_shape(h.shape, self.granularity)
        if tuple(mask.shape) != expected:
            raise ValueError(
                f"AdversarialDropout got a mask of shape {tuple(mask.shape)} for an input of shape "
                f"{tuple(h.shape)} with granularity {self.granularity!r}: expected {expected}. A layer that runs more "
                "than once in a pass has one mask: use one layer for each place"
            )
        return h * mask.to(h.dtype)

    def _ordinary(self, h: Tensor) -> Tensor:
        """Dropout as it ever was."""
        if self.granularity == "feature" and h.dim() > 2:
            return h * F.dropout(h.new_ones(mask_shape(h.shape, "feature")), self.p, self.training)
        drop = torch.feature_dropout if self.granularity == "channel" and h.dim() > 2 else F.dropout
        return drop(h, self.p, self.training)

    def extra_repr(self) -> str:
        """The options, as they would be typed."""
        return f"p={self.p}, delta={self.delta}, scale={self.scale!r}, granularity={self.granularity!r}"
