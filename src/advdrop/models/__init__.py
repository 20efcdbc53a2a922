"""Networks, and the cut that lets a step reuse their lower pass."""

from advdrop.models.all_cnn import all_cnn
from advdrop.models.autoencoder import autoencoder
from advdrop.models.build import NETWORKS, build, default_network
from advdrop.models.conv_large import conv_large
from advdrop.models.highway import highway
from advdrop.models.mlp import mlp
from advdrop.models.mnist_cnn import mnist_cnn
from advdrop.models.network_in_network import network_in_network
from advdrop.models.split import Split, adversarial_layers, cut

__all__ = [
    "NETWORKS",
    "Split",
    "adversarial_layers",
    "all_cnn",
    "autoencoder",
    "build",
    "conv_large",
    "cut",
    "default_network",
    "highway",
    "mlp",
    "mnist_cnn",
    "network_in_network",
]
