"""The networks of the paper and its baselines: plain ``nn.Sequential`` models, and the ladder network."""

from advdrop.lab.models.baselines import all_cnn, highway, network_in_network
from advdrop.lab.models.ladder import ladder
from advdrop.lab.models.networks import autoencoder, conv_large, mlp, mnist_cnn
from advdrop.lab.models.resnet18 import resnet18

__all__ = [
    "all_cnn",
    "autoencoder",
    "conv_large",
    "highway",
    "ladder",
    "mlp",
    "mnist_cnn",
    "network_in_network",
    "resnet18",
]
