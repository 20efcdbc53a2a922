"""ResNet-18, the network for images of more than 40 pixels a side."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor, nn

from advdrop import checks
from advdrop.lab.choices import BlockNorm
from advdrop.lab.models.layers import he_initialized, image_shape
from advdrop.masks import AdversarialDropout

GROUPS = 8
"""The groups of a group norm, all with the same number of filters."""
SMALL, MEDIUM = 40, 64
"""The most pixels a side for which the first convolution keeps the size of the image, or halves it."""


def resnet18(
    layer: AdversarialDropout | None = None,
    shape: tuple[int, ...] = (3, 64, 64),
    classes: int = 10,
    *,
    norm: BlockNorm = "batch",
    width: float = 1.0,
) -> nn.Sequential:
    """One convolution, eight residual blocks of two, a global average, adversarial dropout on 512 features.

    Args:
        layer: the AdversarialDropout layer; by default p = 0 because the original has no dropout, and δ = 0.05.
        shape: one image's ``(C, H, W)``, at least 8 pixels a side.
        classes: C.
        norm: after each convolution: ``"batch"`` as in the original, or ``"group"`` of 8 groups, with which an image
            does not depend on the others of its batch, and several passes can run as one.
        width: a factor on the numbers of filters, which are rounded to a multiple of 8; the layer has 512·width units.

    Shape: ``(B, 3, 64, 64) -> (B, C)``; the maps go from 64 to 32, 16, 8, 4 and 1. Images of up to 40 pixels keep their
    size in the first convolution. Those of more than 64 begin as in the original: 224 goes to 112, 56, 28, 14, 7 and 1.

    References: He, Zhang, Ren and Sun (2016), Deep Residual Learning for Image Recognition, Table 1; Wu and He (2018),
    Group Normalization; Goyal et al. (2017), section 5.1.

    Deviations: images of up to 64 pixels begin with a 3×3 convolution and no pooling, as He et al. do for CIFAR-10; its
    stride is 2 above 40 pixels, which costs a quarter. The last norm of each block starts at zero, so that each block
    starts as its shortcut (Goyal et al.).
    """
    channels, height, across = image_shape("resnet18", shape, least=8)
    checks.choice("norm", norm, get_args(BlockNorm))
    sizes = [GROUPS * max(1, round(filters * width / GROUPS)) for filters in (64, 128, 256, 512)]
    first, side = sizes[0], max(height, across)
    kernel, stride = (3, 1) if side <= SMALL else (3, 2) if side <= MEDIUM else (7, 2)
    stem = [
        nn.Conv2d(channels, first, kernel, stride=stride, padding=kernel // 2, bias=False),
        _norm(norm, first),
        nn.ReLU(),
        *([nn.MaxPool2d(3, stride=2, padding=1)] if side > MEDIUM else []),
    ]
    blocks: list[nn.Module] = []
    for before, filters, stride in zip([first, *sizes], sizes, (1, 2, 2, 2), strict=False):
        blocks += [ResidualBlock(before, filters, norm, stride), ResidualBlock(filters, filters, norm)]
    top = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), layer or AdversarialDropout(p=0.0, delta=0.05))
    model = he_initialized(nn.Sequential(*stem, *blocks, *top, nn.Linear(sizes[-1], classes)))
    for block in model:
        if isinstance(block, ResidualBlock):
            nn.init.zeros_(block.norm2.weight)
    return model


class ResidualBlock(nn.Module):
    """ReLU(x + F(x)), F being two 3×3 convolutions with norms and a ReLU between them.

    If the block changes the size or the number of filters, a 1×1 convolution with a norm does the same to the x that is
    added.

    Shape: ``(B, channels, H, W) -> (B, filters, H / stride, W / stride)``.
    """

    rowwise = "container"  # see advdrop.step.together

    def __init__(self, channels: int, filters: int, norm: BlockNorm, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, stride=stride, padding=1, bias=False)
        self.norm1 = _norm(norm, filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.norm2 = _norm(norm, filters)
        self.shortcut = nn.Sequential()
        if stride > 1 or channels != filters:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, filters, 1, stride, bias=False), _norm(norm, filters))

    def forward(self, x: Tensor) -> Tensor:
        """ReLU(x + F(x))."""
        h = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.shortcut(x) + self.norm2(self.conv2(h)))


def _norm(norm: BlockNorm, filters: int) -> nn.GroupNorm | nn.BatchNorm2d:
    return nn.GroupNorm(GROUPS, filters) if norm == "group" else nn.BatchNorm2d(filters)
