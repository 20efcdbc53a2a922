"""The baselines of the paper's Table D.1 for CIFAR-10: Network in Network, All-CNN-C and a highway network.

All take the AdversarialDropout layer, the shape ``(C, H, W)`` of one image and the number of classes, and map
``(B, 3, 32, 32)`` to ``(B, classes)``. The layer stands on the global averages of the last maps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from advdrop.lab.models.layers import Dropout, he_initialized, image_shape
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
        layer: by default δ = 0.05, and p = 0 because the original has no dropout here.
        shape: at least 4 pixels a side.
        classes: C.
        dropout: the drop probability after both poolings.

    References: Lin, Chen and Yan (2013), Network In Network; the layout is that of their released CIFAR-10 network.

    Deviations: the original ends in a 1×1 convolution to C maps, a ReLU and the global average. Here the average comes
    first and a dense layer follows. The two linear maps commute, so the parameters are the same, and a mask on 192
    averages has one unit for each feature instead of one for each pixel. The ReLU on the class maps does not commute
    and is left out. He initialization.
    """
    channels, _, _ = image_shape("network-in-network", shape, least=4)
    return _averaged(
        *_convolution(channels, 192, kernel=5),
        *_convolution(192, 160, kernel=1),
        *_convolution(160, 96, kernel=1),
        nn.MaxPool2d(3, stride=2, ceil_mode=True),
        Dropout(dropout),
        *_convolution(96, 192, kernel=5),
        *_convolution(192, 192, kernel=1),
        *_convolution(192, 192, kernel=1),
        nn.AvgPool2d(3, stride=2, ceil_mode=True),
        Dropout(dropout),
        *_convolution(192, 192),
        *_convolution(192, 192, kernel=1),
        layer=layer or AdversarialDropout(p=0.0, delta=0.05),
        classifier=(192, classes),
    )


def all_cnn(
    layer: AdversarialDropout | None = None,
    shape: tuple[int, ...] = (3, 32, 32),
    classes: int = 10,
    *,
    input_dropout: float = 0.2,
    dropout: float = 0.5,
) -> nn.Sequential:
    """Convolutions with strides instead of poolings, a global average, adversarial dropout on 192 features.

    Args:
        layer: by default δ = 0.05, and p = 0 because the original has no dropout here.
        shape: at least 9 pixels a side.
        classes: C.
        input_dropout: the drop probability on the input.
        dropout: the drop probability after both strided convolutions.

    References: Springenberg et al. (2015), Striving for Simplicity, Tables 1 and 2. "Global averaging over 6 × 6"
    implies that the seventh convolution has no padding.

    Deviations: the end of the network, as in :func:`network_in_network`. He initialization.
    """
    channels, _, _ = image_shape("all-cnn", shape, least=9)
    return _averaged(
        Dropout(input_dropout),
        *_convolution(channels, 96),
        *_convolution(96, 96),
        *_convolution(96, 96, stride=2),
        Dropout(dropout),
        *_convolution(96, 192),
        *_convolution(192, 192),
        *_convolution(192, 192, stride=2),
        Dropout(dropout),
        *_convolution(192, 192, pad=False),
        *_convolution(192, 192, kernel=1),
        layer=layer or AdversarialDropout(p=0.0, delta=0.05),
        classifier=(192, classes),
    )


def highway(
    layer: AdversarialDropout | None = None,
    shape: tuple[int, ...] = (3, 32, 32),
    classes: int = 10,
    *,
    dropout: float = 0.2,
    gate_bias: float = -2.0,
) -> nn.Sequential:
    """Stages of 5, 6 and 6 layers with 32, 80 and 128 filters, a global average, adversarial dropout on 100 features.

    Each stage is a convolution that changes the number of filters, then highway layers, which keep it.

    Args:
        layer: by default δ = 0.05 and p = 0.2, the original's dropout at this place.
        shape: at least 4 pixels a side.
        classes: C.
        dropout: the drop probability on the input and after both poolings.
        gate_bias: the initial biases of the gates; if negative, a layer at first passes on its input.

    References: Srivastava, Greff and Schmidhuber (2015), Training Very Deep Networks; the layout is that of their
    released 19-layer network for CIFAR-10.

    Deviations: He initialization, gates included, where the release has Xavier's. C outputs, where the release has 100
    for the 10 classes.
    """
    channels, _, _ = image_shape("highway", shape, least=4)
    model = _averaged(
        Dropout(dropout),
        *_convolution(channels, 32),
        *(HighwayLayer(32) for _ in range(4)),
        nn.MaxPool2d(2),
        Dropout(dropout),
        *_convolution(32, 80),
        *(HighwayLayer(80) for _ in range(5)),
        nn.MaxPool2d(2),
        Dropout(dropout),
        *_convolution(80, 128),
        *(HighwayLayer(128) for _ in range(5)),
        *_convolution(128, 100, kernel=1),
        layer=layer or AdversarialDropout(p=0.2, delta=0.05),
        classifier=(100, classes),
    )
    for module in model:
        if isinstance(module, HighwayLayer) and module.gate.bias is not None:
            nn.init.constant_(module.gate.bias, gate_bias)
    return model


class HighwayLayer(nn.Module):
    """T(x)·H(x) + (1 − T(x))·x with two 3×3 convolutions, H with a ReLU and the gate T with a sigmoid.

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


def _convolution(
    channels: int, filters: int, kernel: int = 3, *, stride: int = 1, pad: bool = True
) -> tuple[nn.Module, nn.Module]:
    """A convolution and its ReLU; padding keeps the size of the map."""
    return nn.Conv2d(channels, filters, kernel, stride=stride, padding=kernel // 2 if pad else 0), nn.ReLU()


def _averaged(*below: nn.Module, layer: AdversarialDropout, classifier: tuple[int, int]) -> nn.Sequential:
    """A network that ends in the global average, the layer and a dense layer of this size."""
    top = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), layer, nn.Linear(*classifier))
    return he_initialized(nn.Sequential(*below, *top))
