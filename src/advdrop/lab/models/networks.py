"""The networks of the paper: for MNIST, for SVHN and CIFAR-10, for autoencoders; and one for data without images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, get_args

from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from advdrop import checks
from advdrop.lab.choices import Norm
from advdrop.lab.models.baselines import all_cnn, highway, network_in_network
from advdrop.lab.models.ladder import ladder
from advdrop.lab.models.layers import Dropout, GaussianNoise, MeanOnlyBatchNorm2d, he_initialized, image_shape
from advdrop.lab.models.resnet18 import resnet18
from advdrop.masks import AdversarialDropout

Initialization = Literal["glorot", "he"]
LARGE = 40
"""Images with more pixels a side get a network of their own."""


def mnist_cnn(
    layer: AdversarialDropout | None = None,
    shape: tuple[int, ...] = (1, 28, 28),
    classes: int = 10,
    *,
    kernel: int = 3,
    dropout: float = 0.5,
    batch_norm: bool = False,
    earlier: int = 0,
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
        earlier: how many poolings earlier than in the paper the layer stands. It changes places with the dropout there,
            which then drops the features with the layer's p.

    Shape: ``(B, 1, 28, 28) -> (B, C)``; "same" pooling takes 28 to 14, 7 and 4, hence 128·4·4 = 2048.

    References: Park et al. (2018), Appendix B.1.

    Deviations: each ReLU comes after its pooling, which is cheaper. The two commute.
    """
    channels, height, width = image_shape("mnist-cnn", shape)
    if kernel % 2 == 0:
        raise ValueError(f"kernel must be odd, got {kernel}")
    if earlier not in range(3):
        raise ValueError(f"earlier must be 0, 1 or 2, because the network has three poolings, got {earlier!r}")
    layer = layer or AdversarialDropout(p=0.5, delta=0.005)
    noise: list[nn.Module] = [Dropout(dropout), Dropout(dropout), Dropout(layer.p)]
    noise[2 - earlier] = layer
    units = 128 * math.ceil(height / 8) * math.ceil(width / 8)
    model = nn.Sequential(
        *_mnist_block(channels, 32, kernel, batch_norm),
        noise[0],
        *_mnist_block(32, 64, kernel, batch_norm),
        noise[1],
        *_mnist_block(64, 128, kernel, batch_norm),
        nn.Flatten(),
        noise[2],
        nn.Linear(units, 625),
        nn.ReLU(),
        nn.Linear(625, classes),
    )
    return he_initialized(model)


def _mnist_block(channels: int, filters: int, kernel: int, batch_norm: bool) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, filters, kernel, padding=kernel // 2),
        *([nn.BatchNorm2d(filters)] if batch_norm else []),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.ReLU(),
    ]


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
    units: int = 0,
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
        width: a factor on all numbers of filters.
        units: H, the filters of the last convolution; 0 for round(128·width).
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
    n128, n256, n512 = (max(1, round(filters * width)) for filters in (128, 256, 512))
    units = checks.count("units", units, least=0) or n128
    model = nn.Sequential(
        GaussianNoise(sigma),
        *_conv_large_block(channels, n128, norm, momentum),
        *_conv_large_block(n128, n128, norm, momentum),
        *_conv_large_block(n128, n128, norm, momentum),
        nn.MaxPool2d(2),
        Dropout(dropout),
        *_conv_large_block(n128, n256, norm, momentum),
        *_conv_large_block(n256, n256, norm, momentum),
        *_conv_large_block(n256, n256, norm, momentum),
        nn.MaxPool2d(2),
        Dropout(dropout if second_dropout else 0.0),
        *_conv_large_block(n256, n512, norm, momentum, padding=0),
        *_conv_large_block(n512, n256, norm, momentum, kernel=1, padding=0),
        *_conv_large_block(n256, units, norm, momentum, kernel=1, padding=0),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        layer or AdversarialDropout(p=0.0, delta=0.05),
        nn.Linear(units, classes, bias=not top_bn),
        *([nn.BatchNorm1d(classes, momentum=1.0 - momentum)] if top_bn else []),
    )
    return he_initialized(model, slope=0.1)


def _conv_large_block(
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


def mlp(
    layer: AdversarialDropout | None = None,
    shape: tuple[int, ...] = (30,),
    classes: int = 2,
    *,
    hidden: Sequence[int] = (256, 128),
    dropout: float = 0.0,
) -> nn.Sequential:
    """Dense layers with ReLU, adversarial dropout on the last hidden units, a dense classifier.

    Args:
        layer: the AdversarialDropout layer; by default p = 0.5, δ = 0.05.
        shape: one example's shape, of any rank; it is flattened.
        classes: C.
        hidden: the units of each hidden layer, at least one.
        dropout: the drop probability after each hidden layer except the last.

    Shape: ``(B, *shape) -> (B, C)``.

    References: none; it is not in the paper.
    """
    units = [math.prod(shape), *hidden]
    if len(units) == 1:
        raise ValueError(f"hidden must name at least one hidden layer, such as (128,), got {hidden!r}")
    *below, last = pairwise(units)
    model = nn.Sequential(
        nn.Flatten(),
        *(part for a, b in below for part in (nn.Linear(a, b), nn.ReLU(), Dropout(dropout))),
        nn.Linear(*last),
        nn.ReLU(),
        layer or AdversarialDropout(p=0.5, delta=0.05),
        nn.Linear(units[-1], classes),
    )
    return he_initialized(model)


def autoencoder(
    layer: AdversarialDropout | None = None,
    shape: tuple[int, ...] = (1, 28, 28),
    *,
    hidden: int = 256,
    initialization: Initialization = "glorot",
) -> nn.Sequential:
    """One hidden layer of 256 ReLU units, adversarial dropout on them, a linear decoder.

    The output is the reconstruction of the flattened example. It has no logits: its divergence is the quadratic error,
    the mean of (x − x̂)². The other divergences of ``advdrop`` apply a softmax to the pixels.

    Args:
        layer: the AdversarialDropout layer; by default the paper's p = 0.5, δ = 0.3.
        shape: one example's shape; it is flattened.
        hidden: the number of hidden units.
        initialization: Glorot's, or He's, with which more than half of the units die in the first updates on MNIST,
            with or without dropout.

    Shape: ``(B, *shape) -> (B, D)``, D being the number of values in one example.

    References: Park et al. (2018), section "Experiments", the visualization of autoencoders.

    Deviations: none known. The paper gives no activation of the output and no initialization. The weights are not tied.
    """
    values = math.prod(shape)
    checks.choice("initialization", initialization, get_args(Initialization))
    encoder, decoder = nn.Linear(values, hidden), nn.Linear(hidden, values)
    model = nn.Sequential(nn.Flatten(), encoder, nn.ReLU(), layer or AdversarialDropout(p=0.5, delta=0.3), decoder)
    if initialization == "he":
        return he_initialized(model)
    for dense in (encoder, decoder):
        nn.init.xavier_uniform_(dense.weight)
        nn.init.zeros_(dense.bias)
    return model


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "mnist-cnn": mnist_cnn,
    "conv-large": conv_large,
    "resnet18": resnet18,
    "network-in-network": network_in_network,
    "all-cnn": all_cnn,
    "highway": highway,
    "mlp": mlp,
    "ladder": ladder,
}
"""The networks by name: each takes the layer, the shape of an example, the number of classes and its own options."""


def default_network(shape: Sequence[int]) -> str:
    """Return the name of a network that suits examples of this shape.

    Images below 16 pixels are too small for the poolings of the convolutional networks. Those of more than 40 pixels
    get a residual network: those of the paper, made for 28 and 32 pixels, would take many times as long.

    >>> default_network((3, 32, 32)), default_network((1, 28, 28)), default_network((3, 64, 64)), default_network((30,))
    ('conv-large', 'mnist-cnn', 'resnet18', 'mlp')
    """
    if len(shape) != 3 or min(shape[1:]) < 16 or shape[0] not in (1, 3):
        return "mlp"
    if max(shape[1:]) > LARGE:
        return "resnet18"
    return "conv-large" if shape[0] == 3 else "mnist-cnn"
