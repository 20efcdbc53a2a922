import inspect

import pytest
import torch

from advdrop.insertion import adversarial_layers
from advdrop.lab import models
from advdrop.lab.models.networks import NETWORKS, default_network
from advdrop.masks import AdversarialDropout
from halves import above


def test_the_names():
    names = ["mnist-cnn", "conv-large", "resnet18", "network-in-network", "all-cnn", "highway", "mlp", "ladder"]
    assert list(NETWORKS) == names
    for name, network in NETWORKS.items():
        assert network.__name__ == name.replace("-", "_")
        assert getattr(models, network.__name__) is network


@pytest.mark.parametrize("name", NETWORKS)
def test_one_signature_for_all(name):
    parameters = inspect.signature(NETWORKS[name]).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == ["layer", "shape", "classes"]
    assert all(p.default is not p.empty for p in parameters)
    assert all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters)


@pytest.mark.parametrize("name", NETWORKS)
def test_each_takes_the_layer_the_shape_and_the_classes(name):
    layer, shape = AdversarialDropout(0.3), (2, 13, 12)
    model = NETWORKS[name](layer, shape, 3)
    assert adversarial_layers(model) == [layer]
    assert model.eval()(torch.randn(2, *shape)).shape == (2, 3)


def test_options_arrive():
    assert NETWORKS["mnist-cnn"](None, (1, 28, 28), 10, kernel=1)[0].kernel_size == (1, 1)
    model = NETWORKS["conv-large"](None, (3, 32, 32), 10, norm="none", width=0.1, sigma=0.0)
    assert (model[0].sigma, model[1].out_channels) == (0.0, 13)
    assert above(NETWORKS["mlp"](None, (4,), 2, hidden=[3]))[1].in_features == 3


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((3, 32, 32), "conv-large"),
        ((3, 16, 16), "conv-large"),
        ((3, 15, 16), "mlp"),
        ((3, 16, 15), "mlp"),
        ((4, 32, 32), "mlp"),
        ((2, 32, 32), "mlp"),
        ((1, 28, 28), "mnist-cnn"),
        ((1, 8, 8), "mlp"),
        ((1, 40, 40), "mnist-cnn"),
        ((1, 64, 64), "resnet18"),
        ((3, 41, 30), "resnet18"),
        ((3, 80, 15), "mlp"),
        ((4, 64, 64), "mlp"),
        ((30,), "mlp"),
        ((1,), "mlp"),
        ((3, 32), "mlp"),
        ((1, 8, 8, 8), "mlp"),
    ],
)
def test_the_default_suits_the_shape(shape, name):
    assert default_network(shape) == name
    assert NETWORKS[name](None, shape, 2).eval()(torch.randn(1, *shape)).shape == (1, 2)
