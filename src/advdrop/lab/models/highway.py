"""The convolutional highway network of 19 layers, a baseline of the paper's Table D.1."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from advdrop import checks
from advdrop.lab.models import shapes
from advdrop.lab.models.layers import Dropout, he_initialized
from advdrop.masks import AdversarialDropout


class HighwayLayer(nn.Module):
    """T(x)·H(x) + (1 − T(x))·x with two 3×3 convolutions, H behind a ReLU and the gate T behind a sigmoid.

    Args:
        filters: the number of channels, which does not change.

    Shape: ``(B, filters, H, W)`` to the same.
    """

    rowwise = "container"  # see advdrop.step.together

    def __init__(self, filters: int) -> None:
        super().__init__()
        self.transform = nn.Conv2d(filters, filters, 3, padding=1)
        self.gate = nn.Conv2d(filters, filters, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """T·H + (1 − T)·x."""
        h, t = torch.relu(self.transform(x)), torch.sigmoid(self.gate(x))
        return t * h + (1.0 - t) * x


def highway(
    layer: AdversarialDropout | None = None,
    shape: tuple[int, ...] = (3, 32, 32),
    classes: int = 10,
    *,
    dropout: float = 0.2,
    gate_bias: float = -2.0,
) -> nn.Sequential:
    """Stages of 5, 6 and 6 layers with 32, 80 and 128 filters, a global average, adversarial dropout on 100 features.

    Each stage is a convolution that changes the number of filters, then highway layers, which cannot.

    Args:
        layer: the AdversarialDropout layer; by default δ = 0.05 and the p = 0.2 of the dropout that stood here.
        shape: one image's ``(C, H, W)``, at least 4 pixels a side.
        classes: C.
        dropout: the drop probability on the input and after both poolings.
        gate_bias: where the biases of the gates start; negative, so that a layer first carries its input.

    Shape: ``(B, 3, 32, 32) -> (B, C)``; the maps go from 32 to 16, 8 and 1.

    References: Srivastava, Greff and Schmidhuber (2015), Training Very Deep Networks; the layout is that of their
    released 19-layer network for CIFAR-10.

    Deviations: He initialization, the gates included, where the release has Xavier's; C outputs where the release has
    100 for the 10 classes.
    """
    channels, _, _ = shapes.image("highway", shape, least=4)
    checks.count("classes", classes)
    checks.fraction("dropout", dropout)
    model = nn.Sequential(
        Dropout(dropout),
        *_conv(channels, 32),
        *(HighwayLayer(32) for _ in range(4)),
        nn.MaxPool2d(2),
        Dropout(dropout),
        *_conv(32, 80),
        *(HighwayLayer(80) for _ in range(5)),
        nn.MaxPool2d(2),
        Dropout(dropout),
        *_conv(80, 128),
        *(HighwayLayer(128) for _ in range(5)),
        *_conv(128, 100, kernel=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        layer if layer is not None else AdversarialDropout(p=0.2, delta=0.05),
        nn.Linear(100, classes),
    )
    he_initialized(model)
    for module in model.modules():
        if isinstance(module, HighwayLayer) and module.gate.bias is not None:
            nn.init.constant_(module.gate.bias, gate_bias)
    return model


def _conv(channels: int, filters: int, kernel: int = 3) -> list[nn.Module]:
    return [nn.Conv2d(channels, filters, kernel, padding=kernel // 2), nn.ReLU()]
