"""The layer: ordinary dropout, unless a training step supplies the mask."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from advdrop import checks
from advdrop.choices import Granularity, Scale
from advdrop.masks.sample import GRANULARITIES, SCALES, mask_shape

MaskSource = Callable[["AdversarialDropout", Tensor], Tensor]
"""A function that supplies masks: it takes the layer and its input h ``(B, *H)``, and returns the scaled mask that h is
multiplied with."""

# The mask in use is kept here and not on the layer, so that a model can be copied and pickled at any time.
_source: ContextVar[MaskSource | None] = ContextVar("advdrop_mask_source", default=None)


class use_masks:  # noqa: N801 - used like a function
    """Make every AdversarialDropout layer take its mask from ``source``, in training and in evaluation.

    >>> import torch
    >>> layer = AdversarialDropout(p=0.5).eval()
    >>> with use_masks(lambda layer, h: torch.tensor([[1.0, 0.0]])):
    ...     layer(torch.tensor([[3.0, 4.0]]))
    tensor([[3., 0.]])
    """

    def __init__(self, source: MaskSource) -> None:
        self._source = source

    def __enter__(self) -> None:
        self._token = _source.set(self._source)

    def __exit__(self, *_: object) -> None:
        _source.reset(self._token)


def supplied() -> bool:
    """Return True inside a :func:`use_masks` block."""
    return _source.get() is not None


class AdversarialDropout(nn.Module):
    """Dropout whose mask a training step can replace with the adversarial one (Algorithm 1).

    Use it in place of ``nn.Dropout``. Outside of a :class:`advdrop.Step` it gives the same results as ``nn.Dropout(p)``
    and draws the same random numbers. In evaluation mode it returns its input.

    Args:
        p: DROP probability of the sampled mask εs. The paper uses 0.5 on MNIST; its "p=1.0" for Conv-Large is a KEEP
            probability, so 0.0 here.
        delta: δ, the share of the H mask entries that may be flipped: at most int(δ·H).
        scale: how a supplied mask is scaled, see :func:`advdrop.masks.scale_mask`.
        granularity: one mask entry per ``"unit"``, per ``"channel"`` of ``(B, C, ...)``, or per ``"feature"`` of
            ``(B, T, F)``, shared over time as in Park et al. (2019).

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
        self._used_by_step = False

    def forward(self, h: Tensor) -> Tensor:
        """Return h ⊙ ε."""
        if not h.is_floating_point():
            raise TypeError(f"the input of AdversarialDropout must be floating point, got {h.dtype}; convert it first")
        source = _source.get()
        if source is None:
            if self._used_by_step and torch._C._current_graph_task_id() != -1:
                raise RuntimeError(
                    "AdversarialDropout was run again by a backward pass: activation checkpointing cannot repeat the "
                    "mask that the training step supplied; leave the layer out of the checkpointed part"
                )
            return self._dropout(h)
        if not self._used_by_step:  # setting an attribute of a module is slow
            self._used_by_step = True
        mask = source(self, h)
        expected = h.shape if self.granularity == "unit" and h.dim() > 1 else mask_shape(h.shape, self.granularity)
        if mask.shape != expected:
            raise ValueError(
                f"AdversarialDropout got a mask of shape {tuple(mask.shape)} for an input of shape {tuple(h.shape)} "
                f"with granularity {self.granularity!r}; expected {tuple(expected)}"
            )
        return h * mask.to(h.dtype)

    def _dropout(self, h: Tensor) -> Tensor:
        """Apply ordinary dropout; in evaluation mode, leave nothing of it in an exported graph."""
        if not self.training:
            return h
        if self.granularity == "feature" and h.dim() > 2:
            return h * F.dropout(h.new_ones(mask_shape(h.shape, "feature")), self.p, self.training)
        drop = torch.feature_dropout if self.granularity == "channel" and h.dim() > 2 else F.dropout
        return drop(h, self.p, self.training)

    def extra_repr(self) -> str:
        """Return the options as they would be typed."""
        return f"p={self.p}, delta={self.delta}, scale={self.scale!r}, granularity={self.granularity!r}"
