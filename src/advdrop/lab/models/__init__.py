"""Networks of the paper and its baselines: plain ``nn.Sequential`` models."""

from advdrop.lab.models.all_cnn import all_cnn
from advdrop.lab.models.autoencoder import autoencoder
from advdrop.lab.models.build import NETWORKS, build, default_network
from advdrop.lab.models.conv_large import conv_large
from advdrop.lab.models.highway import highway
from advdrop.lab.models.mlp import mlp
from advdrop.lab.models.mnist_cnn import mnist_cnn
from advdrop.lab.models.network_in_network import network_in_network

__all__ = [
    "NETWORKS",
    "all_cnn",
    "autoencoder",
    "build",
    "conv_large",
    "default_network",
    "highway",
    "mlp",
    "mnist_cnn",
    "network_in_network",
]
