"""Augmentation of whole batches: a function of images and a generator. Two calls give two independent views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from advdrop import checks
from advdrop.lab.choices import Padding

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""``(B, C, H, W)`` and the randomness to use, to the same shape."""


@final
@dataclass(frozen=True)
class PadCrop:
    """Pads each image and cuts it out again at a random place: a shift of up to ``pixels`` in each direction.

    Args:
        pixels: the padding.
        mode: what is padded with: the ``"reflect"``-ed image or ``"zeros"``.
    """

    pixels: int = 2
    mode: Padding = "reflect"

    def __post_init__(self) -> None:
        checks.count("pixels", self.pixels)
        checks.choice("mode", self.mode, ("reflect", "zeros"))

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """``(B, C, H, W)`` to the same shape."""
        height, width = _size(self, x)
        if self.mode == "reflect" and self.pixels >= min(height, width):
            raise ValueError(f"{self} has nothing to reflect in images of {height}×{width}; take fewer pixels or zeros")
        padded = F.pad(x, (self.pixels,) * 4, mode="constant" if self.mode == "zeros" else "reflect")
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: (B, C, 2p + 1, 2p + 1, H, W)
        down, right = torch.randint(2 * self.pixels + 1, (2, len(x)), generator=generator, device=x.device)
        return windows[torch.arange(len(x), device=x.device), :, down, right]


@final
@dataclass(frozen=True)
class Flip:
    """Mirrors each image, left to right, with probability 1/2."""

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """``(B, C, H, W)`` to the same shape."""
        _size(self, x)
        heads = torch.rand(len(x), 1, 1, 1, generator=generator, device=x.device) < 0.5
        return torch.where(heads, x.flip(-1), x)


@final
@dataclass(frozen=True)
class Noise:
    """x + γ, γ ~ N(0, σ²)."""

    sigma: float

    def __post_init__(self) -> None:
        checks.positive("sigma", self.sigma)

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Any shape to the same."""
        return x + self.sigma * torch.empty_like(x).normal_(generator=generator)


@final
@dataclass(frozen=True)
class Yours:
    """Any ``Tensor -> Tensor``, such as a transform of torchvision; it draws from the global generator."""

    transform: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Whatever it makes of ``x``, which must stay a batch of one shape."""
        del generator
        made = self.transform(x)
        if not isinstance(made, Tensor) or made.shape != x.shape:
            shown = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
            raise ValueError(
                f"the augmentation turned a batch of {tuple(x.shape)} into {shown}; it must keep the shape"
            )
        return made


def _size(augment: Augment, x: Tensor) -> tuple[int, int]:
    """Height and width, or an error if these are no images."""
    if x.dim() != 4:
        raise ValueError(f"{augment} is for images (B, C, H, W), got a batch of {tuple(x.shape)}")
    return x.shape[2], x.shape[3]


def augmented(x: Tensor, augments: Sequence[Augment], generator: torch.Generator) -> Tensor:
    """One view: the augmentations in their order."""
    for augment in augments:
        x = augment(x, generator)
    return x
