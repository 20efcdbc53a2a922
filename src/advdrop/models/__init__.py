"""Networks, and the cut that lets a step reuse their lower pass."""

from advdrop.models.conv_large import conv_large
from advdrop.models.mnist_cnn import mnist_cnn
from advdrop.models.split import Split, adversarial_layers, cut

__all__ = ["Split", "adversarial_layers", "conv_large", "cut", "mnist_cnn"]
