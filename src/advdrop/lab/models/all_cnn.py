"""All-CNN-C for CIFAR-10, a baseline of the paper's Table D.1."""

from __future__ import annotations

from torch import nn

from advdrop import checks
from advdrop.lab.models import shapes
from advdrop.lab.models.layers import Dropout, he_initialized
from advdrop.masks import AdversarialDropout


def all_cnn(
    layer: AdversarialDropout | None = None,
    shape: tuple[int, ...] = (3, 32, 32),
    classes: int = 10,
    *,
    input_dropout: float = 0.2,
    dropout: float = 0.5,
) -> nn.Sequential:
    """Convolutions that stride instead of pooling, a global average, adversarial dropout on 192 features.

    Args:
        layer: the AdversarialDropout layer; by default δ = 0.05 and p = 0, as in Conv-Large: there was no dropout here.
        shape: one image's ``(C, H, W)``, at least 9 pixels a side.
        classes: C.
        input_dropout: the drop probability on the input.
        dropout: the drop probability after both strided convolutions.

    Shape: ``(B, 3, 32, 32) -> (B, C)``; the maps go from 32 to 16, 8, 6 and 1.

    References: Springenberg et al. (2015), Striving for Simplicity, Tables 1 and 2. "Global averaging over 6 × 6" says
    that the seventh convolution has no padding.

    Deviations: the original ends in a 1×1 convolution to C maps, a ReLU and the global average. Here the average comes
    first and a dense layer follows: the two linear maps commute, so the parameters are the same, and a mask on 192
    averages has one unit for each feature instead of one for each pixel. The ReLU on the class maps, which does not
    commute, is left out. He initialization.
    """
    channels, _, _ = shapes.image("all-cnn", shape, least=9)
    checks.count("classes", classes)
    checks.fraction("input_dropout", input_dropout)
    checks.fraction("dropout", dropout)
    model = nn.Sequential(
        Dropout(input_dropout),
        *_conv(channels, 96),
        *_conv(96, 96),
        *_conv(96, 96, stride=2),
        Dropout(dropout),
        *_conv(96, 192),
        *_conv(192, 192),
        *_conv(192, 192, stride=2),
        Dropout(dropout),
        *_conv(192, 192, padding=0),
        *_conv(192, 192, kernel=1, padding=0),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        layer if layer is not None else AdversarialDropout(p=0.0, delta=0.05),
        nn.Linear(192, classes),
    )
    he_initialized(model)
    return model


def _conv(channels: int, filters: int, kernel: int = 3, stride: int = 1, padding: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(channels, filters, kernel, stride=stride, padding=padding), nn.ReLU()]
