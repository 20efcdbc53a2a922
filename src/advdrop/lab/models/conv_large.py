"""Conv-Large, the network of the paper's SVHN and CIFAR-10 experiments (Table B.2)."""

from __future__ import annotations

from typing import get_args

from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from advdrop import checks
from advdrop.lab.choices import Norm
from advdrop.lab.models.layers import Dropout, GaussianNoise, MeanOnlyBatchNorm2d, he_initialized, image_shape
from advdrop.masks import AdversarialDropout


def conv_large(
    layer: AdversarialDropout | None = None,
    shape: tuple[int, ...] = (3, 32, 32),
    classes: int = 10,
    *,
    norm: Norm = "batch",
    momentum: float = 0.999,
    top_bn: bool = False,
    sigma: float = 0.15,
    width: float = 1.0,
    dropout: float = 0.5,
    second_dropout: bool = True,
) -> nn.Sequential:
    """Nine convolutions with a norm and leaky ReLU 0.1, a global average, adversarial dropout on 128 features.

    Args:
        layer: the AdversarialDropout layer; by default the paper's δ = 0.05 and p = 0 (its "p=1.0" keeps all).
        shape: one image's ``(C, H, W)``, at least 12 pixels a side.
        classes: C.
        norm: after each convolution: ``"batch"`` (the paper's for SVHN), ``"mean-only"`` (the released code's for
            CIFAR-10), ``"weight+mean-only"``, which also normalizes the weights (as in the works that the paper cites),
            or ``"none"``, which adds a bias instead.
        momentum: the share that running statistics KEEP at each update: 0.999 in the paper, 0.99 in the code. It is
            one minus torch's momentum.
        top_bn: batch norm on the logits, as in the released code for SVHN.
        sigma: the standard deviation of the Gaussian noise on the input, in training only.
        width: a factor on all numbers of filters; the layer then has round(128·width) units.
        dropout: the drop probability after the poolings.
        second_dropout: dropout after the second pooling too. The table omits it, probably by mistake: the network's
            origin (temporal ensembling) and the released code have it.

    Shape: ``(B, 3, 32, 32) -> (B, C)``; the maps go from 32 to 16, 8, 6 and 1.

    References: Park et al. (2018), Appendix B.2; Laine and Aila (2017); Salimans and Kingma (2016).

    Deviations: weight normalization starts from He's weights, not from the statistics of a first batch. Save such a
    network by its ``state_dict``: torch cannot pickle the whole module.
    """
    channels, _, _ = image_shape("conv-large", shape, least=12)
    checks.choice("norm", norm, get_args(Norm))
    checks.fraction("momentum", momentum)
    checks.positive("width", width)
    n128, n256, n512 = (max(1, round(filters * width)) for filters in (128, 256, 512))
    model = nn.Sequential(
        GaussianNoise(sigma),
        *_block(channels, n128, norm, momentum),
        *_block(n128, n128, norm, momentum),
        *_block(n128, n128, norm, momentum),
        nn.MaxPool2d(2),
        Dropout(dropout),
        *_block(n128, n256, norm, momentum),
        *_block(n256, n256, norm, momentum),
        *_block(n256, n256, norm, momentum),
        nn.MaxPool2d(2),
        Dropout(dropout if second_dropout else 0.0),
        *_block(n256, n512, norm, momentum, padding=0),
        *_block(n512, n256, norm, momentum, kernel=1, padding=0),
        *_block(n256, n128, norm, momentum, kernel=1, padding=0),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        layer or AdversarialDropout(p=0.0, delta=0.05),
        nn.Linear(n128, classes, bias=not top_bn),
        *([nn.BatchNorm1d(classes, momentum=1.0 - momentum)] if top_bn else []),
    )
    return he_initialized(model, slope=0.1)


def _block(
    channels: int, filters: int, norm: Norm, momentum: float, kernel: int = 3, padding: int = 1
) -> list[nn.Module]:
    convolution = nn.Conv2d(channels, filters, kernel, padding=padding, bias=norm == "none")
    activation = nn.LeakyReLU(0.1)
    if norm == "none":
        return [convolution, activation]
    if norm == "batch":
        return [convolution, nn.BatchNorm2d(filters, momentum=1.0 - momentum), activation]
    weights = weight_norm(convolution) if norm == "weight+mean-only" else convolution
    return [weights, MeanOnlyBatchNorm2d(filters, momentum=1.0 - momentum), activation]
