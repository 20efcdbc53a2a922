"""The convolutional network of the paper's MNIST experiments (Table B.1)."""

from __future__ import annotations

import math

from torch import nn

from advdrop.lab.models.layers import Dropout, he_initialized, image_shape
from advdrop.masks import AdversarialDropout


def mnist_cnn(
    layer: AdversarialDropout | None = None,
    shape: tuple[int, ...] = (1, 28, 28),
    classes: int = 10,
    *,
    kernel: int = 3,
    dropout: float = 0.5,
    batch_norm: bool = False,
) -> nn.Sequential:
    """Three convolutions of 32, 64 and 128 filters, adversarial dropout on the 2048 features, two dense layers.

    Args:
        layer: the AdversarialDropout layer; by default the paper's p = 0.5, δ = 0.005.
        shape: one image's ``(C, H, W)``.
        classes: C.
        kernel: the size of the kernels. The table prints 1, but 3 must be meant: it gives the table's own error.
        dropout: the drop probability after the first two poolings.
        batch_norm: batch norm after each convolution. The table has none. With it, and with less dropout, the network
            learns in a third of the updates.

    Shape: ``(B, 1, 28, 28) -> (B, C)``; "same" pooling takes 28 to 14, 7 and 4, hence 128·4·4 = 2048.

    References: Park et al. (2018), Appendix B.1.

    Deviations: each ReLU comes after its pooling, which is cheaper. The two commute.
    """
    channels, height, width = image_shape("mnist-cnn", shape)
    if kernel % 2 == 0:
        raise ValueError(f"kernel must be odd, got {kernel}")
    units = 128 * math.ceil(height / 8) * math.ceil(width / 8)
    model = nn.Sequential(
        *_block(channels, 32, kernel, batch_norm),
        Dropout(dropout),
        *_block(32, 64, kernel, batch_norm),
        Dropout(dropout),
        *_block(64, 128, kernel, batch_norm),
        nn.Flatten(),
        layer or AdversarialDropout(p=0.5, delta=0.005),
        nn.Linear(units, 625),
        nn.ReLU(),
        nn.Linear(625, classes),
    )
    return he_initialized(model)


def _block(channels: int, filters: int, kernel: int, batch_norm: bool) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, filters, kernel, padding=kernel // 2),
        *([nn.BatchNorm2d(filters)] if batch_norm else []),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.ReLU(),
    ]
