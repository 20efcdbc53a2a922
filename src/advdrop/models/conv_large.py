"""Conv-Large, the network of the paper's SVHN and CIFAR-10 experiments (Table B.2)."""

from __future__ import annotations

from torch import nn

from advdrop.masks import AdversarialDropout
from advdrop.models.layers import GaussianNoise, he_initialised
from advdrop.models.split import Split


def conv_large(
    layer: AdversarialDropout | None = None, momentum: float = 0.999, sigma: float = 0.15, classes: int = 10
) -> Split:
    """Nine convolutions with batch norm and leaky ReLU 0.1, a global average, adversarial dropout on 128 features.

    Args:
        layer: the AdversarialDropout layer; by default the paper's δ = 0.05 and p = 0 (its "p=1.0" keeps all).
        momentum: the share that running statistics KEEP at each update: 0.999 in the paper, 0.99 in the code. This is
            one minus what torch calls momentum.
        sigma: the standard deviation of the Gaussian noise on the input, in training only.
        classes: C.

    Shape: ``(B, 3, 32, 32) -> (B, C)``.

    Deviations: the table leaves out the dropout after the second pooling, which the network's origin (temporal
    ensembling) and the released code have.
    """
    model = Split(
        under=nn.Sequential(
            GaussianNoise(sigma),
            *_block(3, 128, momentum),
            *_block(128, 128, momentum),
            *_block(128, 128, momentum),
            nn.MaxPool2d(2),
            nn.Dropout(0.5),
            *_block(128, 256, momentum),
            *_block(256, 256, momentum),
            *_block(256, 256, momentum),
            nn.MaxPool2d(2),
            nn.Dropout(0.5),
            *_block(256, 512, momentum, padding=0),
            *_block(512, 256, momentum, kernel=1, padding=0),
            *_block(256, 128, momentum, kernel=1, padding=0),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ),
        upper=nn.Sequential(
            layer if layer is not None else AdversarialDropout(p=0.0, delta=0.05),
            nn.Linear(128, classes),
        ),
    )
    he_initialised(model, slope=0.1)
    return model


def _block(channels: int, filters: int, momentum: float, kernel: int = 3, padding: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, filters, kernel, padding=padding, bias=False),
        nn.BatchNorm2d(filters, momentum=1.0 - momentum),
        nn.LeakyReLU(0.1),
    ]
