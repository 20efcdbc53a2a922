"""Augmentation of whole batches: a function of images and a generator. Two calls give two independent views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from advdrop.lab.choices import Padding

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""``(B, C, H, W)`` and a generator to draw from, to the same shape."""


@final
@dataclass(frozen=True)
class PadCrop:
    """Shift each image by up to ``pixels`` in each direction: pad it and crop it at a random place.

    Args:
        pixels: the padding.
        mode: pad with the ``"reflect"``-ed image or with ``"zeros"``.
    """

    pixels: int = 2
    mode: Padding = "reflect"

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """``(B, C, H, W)`` to the same shape."""
        _check_images(self, x)
        height, width = x.shape[2:]
        if self.mode == "reflect" and self.pixels >= min(height, width):
            raise ValueError(f"{self} cannot reflect images of {height}×{width}; use fewer pixels or zeros")
        padded = F.pad(x, (self.pixels,) * 4, mode="constant" if self.mode == "zeros" else "reflect")
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: (B, C, 2p + 1, 2p + 1, H, W)
        down, right = torch.randint(2 * self.pixels + 1, (2, len(x)), generator=generator, device=x.device)
        return windows[torch.arange(len(x), device=x.device), :, down, right]


@final
@dataclass(frozen=True)
class Flip:
    """Mirror each image, left to right, with probability 1/2."""

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """``(B, C, H, W)`` to the same shape."""
        _check_images(self, x)
        heads = torch.rand(len(x), 1, 1, 1, generator=generator, device=x.device) < 0.5
        return torch.where(heads, x.flip(-1), x)


@final
@dataclass(frozen=True)
class Noise:
    """x + γ, γ ~ N(0, σ²)."""

    sigma: float

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Any shape to the same."""
        return x + self.sigma * torch.empty_like(x).normal_(generator=generator)


@final
@dataclass(frozen=True)
class Yours:
    """Any ``Tensor -> Tensor``, such as a transform of torchvision; it draws from the global generator."""

    transform: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The result of the transform, which must have the shape of ``x``."""
        del generator
        made = self.transform(x)
        if not isinstance(made, Tensor) or made.shape != x.shape:
            shown = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
            raise ValueError(f"the augmentation changed a batch of {tuple(x.shape)} to {shown}; it must keep the shape")
        return made


def _check_images(augment: Augment, x: Tensor) -> None:
    if x.dim() != 4:
        raise ValueError(f"{augment} is for images (B, C, H, W), got a batch of {tuple(x.shape)}")


def augmented(x: Tensor, augments: Sequence[Augment], generator: torch.Generator) -> Tensor:
    """One view: apply the augmentations in order."""
    for augment in augments:
        x = augment(x, generator)
    return x
