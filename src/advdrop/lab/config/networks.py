"""The options of each network."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from advdrop.choices import Granularity, Scale
from advdrop.lab.choices import BlockNorm, Norm
from advdrop.lab.config.section import Count, NotNegative, Number, Positive, Section, Share, Whole


class Network(Section):
    """The options that all networks share."""

    p: Share = Field(0.5, description="DROP probability of the adversarial dropout layer")
    delta: Share = Field(0.05, description="δ, the share of its units that may be flipped")
    scale: Scale = Field("inverted", description="scale of a flipped mask")
    granularity: Granularity = Field("unit", description="masks of single units or of whole channels")


class MnistCnn(Network):
    """The network of Table B.1, for MNIST."""

    name: Literal["mnist-cnn"] = "mnist-cnn"
    kernel: Count = Field(3, description="size of the kernels; the paper prints 1")
    dropout: Share = Field(0.5, description="DROP probability after the first two poolings")
    batch_norm: bool = Field(False, description="batch norm after each convolution; the paper has none")
    earlier: int = Field(0, ge=0, le=2, description="how many poolings earlier than in the paper the layer stands")


class ConvLarge(Network):
    """The network of Table B.2, for SVHN and CIFAR-10."""

    name: Literal["conv-large"] = "conv-large"
    norm: Norm = Field("batch", description="after each convolution")
    momentum: Share = Field(0.999, description="share that running statistics KEEP at each update")
    top_bn: bool = Field(False, description="batch norm on the logits")
    sigma: NotNegative = Field(0.15, description="Gaussian noise on the input, in training")
    width: Positive = Field(1.0, description="factor on all numbers of filters")
    units: Whole = Field(0, description="units of the adversarial dropout layer; 0 for 128·width")
    dropout: Share = Field(0.5, description="DROP probability after the poolings")
    second_dropout: bool = Field(True, description="dropout after the second pooling too, which Table B.2 leaves out")


class ResNet18(Network):
    """ResNet-18 (He et al., 2016), for larger images."""

    name: Literal["resnet18"] = "resnet18"
    norm: BlockNorm = Field("batch", description="after each convolution")
    width: Positive = Field(1.0, description="factor on all numbers of filters")


class NetworkInNetwork(Network):
    """Network in Network (Lin et al., 2013)."""

    name: Literal["network-in-network"] = "network-in-network"
    dropout: Share = Field(0.5, description="DROP probability after the poolings")


class AllCnn(Network):
    """All-CNN (Springenberg et al., 2014)."""

    name: Literal["all-cnn"] = "all-cnn"
    input_dropout: Share = Field(0.2, description="DROP probability of the input")
    dropout: Share = Field(0.5, description="DROP probability after the strided convolutions")


class Highway(Network):
    """Highway network (Srivastava et al., 2015)."""

    name: Literal["highway"] = "highway"
    dropout: Share = Field(0.2, description="DROP probability of the input and after the poolings")
    gate_bias: Number = Field(-2.0, description="where the biases of the gates start")


class Mlp(Network):
    """Dense layers, for tables."""

    name: Literal["mlp"] = "mlp"
    hidden: tuple[Count, ...] = Field((256, 128), description="units of each hidden layer")
    dropout: Share = Field(0.0, description="DROP probability between hidden layers")


class Ladder(Network):
    """The fully connected ladder network (Rasmus et al., 2015)."""

    name: Literal["ladder"] = "ladder"
    p: Share = Field(0.0, description="DROP probability of the adversarial dropout layer")
    hidden: tuple[Count, ...] = Field((1000, 500, 250, 250, 250), description="units of each hidden layer")
    noise: NotNegative = Field(0.3, description="Gaussian noise on every layer, in training")


AnyNetwork = Annotated[
    MnistCnn | ConvLarge | ResNet18 | NetworkInNetwork | AllCnn | Highway | Mlp | Ladder, Field(discriminator="name")
]
NETWORKS = {kind.model_fields["name"].default: kind for kind in get_args(get_args(AnyNetwork)[0])}
