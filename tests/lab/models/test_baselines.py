"""The networks of Table D.1 against their tables."""

import pytest
import torch
from torch import nn

from advdrop.insertion import adversarial_layers
from advdrop.lab.models import all_cnn, highway, network_in_network
from advdrop.lab.models.baselines import HighwayLayer
from advdrop.lab.models.layers import Dropout
from advdrop.masks import flip_budget
from halves import above, below


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def conv(channels, filters, kernel):
    return (channels * kernel * kernel + 1) * filters


def maps(model, size=32):
    """The (channels, side) that the map has after each change of either."""
    seen, x = [], torch.randn(1, 3, size, size)
    with torch.no_grad():
        for module in below(model.eval()):
            x = module(x)
            if x.dim() == 4 and (not seen or seen[-1] != tuple(x.shape[1:3])):
                seen.append(tuple(x.shape[1:3]))
    return seen


def kinds(model, *wanted):
    return [m for m in model.modules() if isinstance(m, wanted)]


def test_network_in_network_by_hand():
    first = conv(3, 192, 5) + conv(192, 160, 1) + conv(160, 96, 1)
    second = conv(96, 192, 5) + conv(192, 192, 1) + conv(192, 192, 1)
    third = conv(192, 192, 3) + conv(192, 192, 1) + conv(192, 10, 1)
    assert parameters(network_in_network()) == first + second + third == 966_986


def test_network_in_network_maps():
    model = network_in_network()
    assert maps(model) == [(192, 32), (160, 32), (96, 32), (96, 16), (192, 16), (192, 8), (192, 1)]
    order = [type(m) for m in kinds(model, nn.MaxPool2d, nn.AvgPool2d, nn.Dropout)]
    assert order == [nn.MaxPool2d, Dropout, nn.AvgPool2d, Dropout]
    assert [(m.kernel_size, m.stride) for m in kinds(model, nn.MaxPool2d, nn.AvgPool2d)] == [(3, 2), (3, 2)]
    assert [m.p for m in kinds(model, nn.Dropout)] == [0.5, 0.5]


def test_all_cnn_by_hand():
    first = conv(3, 96, 3) + 2 * conv(96, 96, 3)
    second = conv(96, 192, 3) + 2 * conv(192, 192, 3)
    third = conv(192, 192, 3) + conv(192, 192, 1) + conv(192, 10, 1)
    assert parameters(all_cnn()) == first + second + third == 1_369_738


def test_all_cnn_maps():
    model = all_cnn()
    assert maps(model) == [(3, 32), (96, 32), (96, 16), (192, 16), (192, 8), (192, 6), (192, 1)]
    assert [m.stride[0] for m in kinds(model, nn.Conv2d)] == [1, 1, 2, 1, 1, 2, 1, 1]
    assert not kinds(model, nn.MaxPool2d, nn.AvgPool2d)
    modules = list(below(model))
    assert [modules.index(m) for m in kinds(model, nn.Dropout)] == [0, 7, 14]
    assert [m.p for m in kinds(model, nn.Dropout)] == [0.2, 0.5, 0.5]
    assert [m.p for m in kinds(all_cnn(input_dropout=0.1, dropout=0.3), nn.Dropout)] == [0.1, 0.3, 0.3]


def test_highway_by_hand():
    def stage(channels, filters, layers):
        return conv(channels, filters, 3) + layers * 2 * conv(filters, filters, 3)

    top = conv(128, 100, 1) + (100 + 1) * 10
    assert parameters(highway()) == stage(3, 32, 4) + stage(32, 80, 5) + stage(80, 128, 5) + top == 2_256_838


def test_highway_maps():
    model = highway()
    assert maps(model) == [(3, 32), (32, 32), (32, 16), (80, 16), (80, 8), (128, 8), (100, 8), (100, 1)]
    layers = len(kinds(model, HighwayLayer))
    plain = len(kinds(model, nn.Conv2d, nn.Linear)) - 2 * layers
    assert (layers, layers + plain) == (14, 19)
    assert [m.p for m in kinds(model, nn.Dropout)] == [0.2, 0.2, 0.2]


@pytest.mark.parametrize(("network", "convolutions"), [(network_in_network, 8), (all_cnn, 8), (highway, 4)])
def test_each_plain_convolution_is_followed_by_a_relu(network, convolutions):
    modules = list(below(network()))
    after = [type(modules[i + 1]) for i, m in enumerate(modules) if isinstance(m, nn.Conv2d)]
    assert after == [nn.ReLU] * convolutions


@pytest.mark.parametrize(
    ("network", "p", "units", "flips"),
    [(network_in_network, 0.0, 192, 9), (all_cnn, 0.0, 192, 9), (highway, 0.2, 100, 5)],
)
def test_the_default_layers(network, p, units, flips):
    (layer,) = adversarial_layers(network())
    assert (layer.p, layer.delta) == (p, 0.05)
    assert above(network())[1].in_features == units
    assert flip_budget(layer.delta, units) == flips


@pytest.mark.parametrize("network", [network_in_network, all_cnn])
def test_the_average_and_the_last_convolution_commute(network):
    """The deviation of both files: without its ReLU, the original's end is a dense layer on the averages."""
    model = network().double().eval()
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    top = above(model)[1]
    last = nn.Conv2d(192, 10, 1).double()
    last.load_state_dict({"weight": top.weight.detach()[:, :, None, None], "bias": top.bias.detach()})
    torch.testing.assert_close(model(x), last(below(model)[:-2](x)).mean((2, 3)))


def test_a_highway_layer_is_a_gated_mixture():
    layer, x = HighwayLayer(3), torch.randn(2, 3, 5, 5)
    h = torch.clamp(layer.transform(x), min=0)
    t = 1 / (1 + torch.exp(-layer.gate(x)))
    torch.testing.assert_close(layer(x), t * h + (1 - t) * x)
    nn.init.constant_(layer.gate.bias, -50.0)
    torch.testing.assert_close(layer(x), x)
    nn.init.constant_(layer.gate.bias, 50.0)
    torch.testing.assert_close(layer(x), layer.transform(x).relu())


@pytest.mark.parametrize("bias", [-2.0, -1.0])
def test_the_gates_start_closed(bias):
    model = highway() if bias == -2.0 else highway(gate_bias=bias)
    for layer in kinds(model, HighwayLayer):
        assert (layer.gate.bias == bias).all()
        assert (layer.transform.bias == 0).all()
