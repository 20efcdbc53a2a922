"""A network by its name, for configurations and the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from typing import Any

from torch import nn

from advdrop.lab.models.all_cnn import all_cnn
from advdrop.lab.models.autoencoder import autoencoder
from advdrop.lab.models.conv_large import conv_large
from advdrop.lab.models.highway import highway
from advdrop.lab.models.mlp import mlp
from advdrop.lab.models.mnist_cnn import mnist_cnn
from advdrop.lab.models.network_in_network import network_in_network
from advdrop.masks import AdversarialDropout
from advdrop.suggest import did_you_mean

NETWORKS: dict[str, Callable[..., nn.Sequential]] = {
    "mnist-cnn": mnist_cnn,
    "conv-large": conv_large,
    "network-in-network": network_in_network,
    "all-cnn": all_cnn,
    "highway": highway,
    "mlp": mlp,
    "autoencoder": autoencoder,
}


def default_network(shape: Sequence[int]) -> str:
    """The name of a network that suits examples of this shape.

    The pools of the convolutional networks leave nothing of images below 16 pixels.

    >>> default_network((3, 32, 32)), default_network((1, 28, 28)), default_network((1, 8, 8)), default_network((30,))
    ('conv-large', 'mnist-cnn', 'mlp', 'mlp')
    """
    if len(shape) != 3 or min(shape[1:]) < 16:
        return "mlp"
    return {3: "conv-large", 1: "mnist-cnn"}.get(shape[0], "mlp")


def build(
    name: str, layer: AdversarialDropout | None, shape: Sequence[int], classes: int | None, **options: Any
) -> nn.Sequential:
    """The named network.

    Args:
        name: one of ``NETWORKS``.
        layer: the AdversarialDropout layer; the network's own default if None.
        shape: one example's shape.
        classes: C. The autoencoder has no classes and takes no notice; None is for it alone.
        options: the keyword-only arguments of the network.

    >>> build("mlp", None, (30,), 2, hidden=(8,))[-1]
    Linear(in_features=8, out_features=2, bias=True)
    >>> build("conv_large", None, (3, 32, 32), 10)
    Traceback (most recent call last):
    ValueError: there is no network 'conv_large' (did you mean conv-large?); there are mnist-cnn, conv-large,
    network-in-network, all-cnn, highway, mlp, autoencoder
    """
    if name not in NETWORKS:
        raise ValueError(f"there is no network {name!r}{did_you_mean(name, NETWORKS)}; there are {', '.join(NETWORKS)}")
    network = NETWORKS[name]
    parameters = signature(network).parameters
    known = [option for option, parameter in parameters.items() if parameter.kind is Parameter.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}{did_you_mean(option, known)}; it has {', '.join(known)}")
    if "classes" not in parameters:
        return network(layer, tuple(shape), **options)
    if classes is None:
        raise ValueError(f"{name} needs the number of classes, got classes=None")
    return network(layer, tuple(shape), classes, **options)
