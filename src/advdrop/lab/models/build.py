"""Networks by name, for configurations and the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from advdrop.lab.models.baselines import all_cnn, highway, network_in_network
from advdrop.lab.models.conv_large import conv_large
from advdrop.lab.models.mlp import mlp
from advdrop.lab.models.mnist_cnn import mnist_cnn
from advdrop.masks import AdversarialDropout

NETWORKS: dict[str, Callable[..., nn.Sequential]] = {
    "mnist-cnn": mnist_cnn,
    "conv-large": conv_large,
    "network-in-network": network_in_network,
    "all-cnn": all_cnn,
    "highway": highway,
    "mlp": mlp,
}


def default_network(shape: Sequence[int]) -> str:
    """The name of a network that suits examples of this shape.

    Images below 16 pixels are too small for the poolings of the convolutional networks.

    >>> default_network((3, 32, 32)), default_network((1, 28, 28)), default_network((1, 8, 8)), default_network((30,))
    ('conv-large', 'mnist-cnn', 'mlp', 'mlp')
    """
    if len(shape) != 3 or min(shape[1:]) < 16:
        return "mlp"
    return {3: "conv-large", 1: "mnist-cnn"}.get(shape[0], "mlp")


def build(
    name: str, layer: AdversarialDropout | None, shape: Sequence[int], classes: int, **options: Any
) -> nn.Sequential:
    """Build the network of this name in ``NETWORKS``; the options are its keyword arguments.

    >>> build("mlp", None, (30,), 2, hidden=(8,))[-1]
    Linear(in_features=8, out_features=2, bias=True)
    """
    return NETWORKS[name](layer, tuple(shape), classes, **options)
