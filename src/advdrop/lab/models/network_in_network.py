"""Network in Network for CIFAR-10, a baseline of the paper's Table D.1."""

from __future__ import annotations

from torch import nn

from advdrop import checks
from advdrop.lab.models import shapes
from advdrop.lab.models.layers import Dropout, he_initialized
from advdrop.masks import AdversarialDropout


def network_in_network(
    layer: AdversarialDropout | None = None,
    shape: tuple[int, ...] = (3, 32, 32),
    classes: int = 10,
    *,
    dropout: float = 0.5,
) -> nn.Sequential:
    """Three blocks of one convolution and 1×1 ones on top, a global average, adversarial dropout on 192 features.

    Args:
        layer: the AdversarialDropout layer; by default δ = 0.05 and p = 0, as in Conv-Large: there was no dropout here.
        shape: one image's ``(C, H, W)``, at least 4 pixels a side.
        classes: C.
        dropout: the drop probability after both poolings.

    Shape: ``(B, 3, 32, 32) -> (B, C)``; the maps go from 32 to 16, 8 and 1.

    References: Lin, Chen and Yan (2013), Network In Network; the layout is that of their released CIFAR-10 network.

    Deviations: the original ends in a 1×1 convolution to C maps, a ReLU and the global average. Here the average comes
    first and a dense layer follows: the two linear maps commute, so the parameters are the same, and a mask on 192
    averages has one unit for each feature instead of one for each pixel. The ReLU on the class maps, which does not
    commute, is left out. He initialization.
    """
    channels, _, _ = shapes.image("network-in-network", shape, least=4)
    checks.count("classes", classes)
    checks.fraction("dropout", dropout)
    model = nn.Sequential(
        *_conv(channels, 192, kernel=5),
        *_conv(192, 160, kernel=1),
        *_conv(160, 96, kernel=1),
        nn.MaxPool2d(3, stride=2, ceil_mode=True),
        Dropout(dropout),
        *_conv(96, 192, kernel=5),
        *_conv(192, 192, kernel=1),
        *_conv(192, 192, kernel=1),
        nn.AvgPool2d(3, stride=2, ceil_mode=True),
        Dropout(dropout),
        *_conv(192, 192, kernel=3),
        *_conv(192, 192, kernel=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        layer if layer is not None else AdversarialDropout(p=0.0, delta=0.05),
        nn.Linear(192, classes),
    )
    he_initialized(model)
    return model


def _conv(channels: int, filters: int, kernel: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, filters, kernel, padding=kernel // 2), nn.ReLU()]
