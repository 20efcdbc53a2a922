"""The networks of an ensemble, compared with a loop over them."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from advdrop import AdversarialDropout
from advdrop.sklearn.members import MemberLinear, perceptrons


def filled(layer):
    """The layer with biases that are not zero."""
    nn.init.normal_(layer.bias)
    return layer.double()


def rows(count, features):
    return torch.randn(count, features, dtype=torch.float64)


@pytest.mark.parametrize("members", [1, 3])
def test_each_member_has_its_own_rows(members):
    layer, x = filled(MemberLinear(members, 5, 4)), rows(members * 6, 5)
    expected = [
        x[6 * member : 6 * member + 6].numpy() @ layer.weight[member].detach().numpy()
        + layer.bias[member].detach().numpy()
        for member in range(members)
    ]
    np.testing.assert_allclose(layer(x).detach(), np.concatenate(expected), atol=1e-12)


@pytest.mark.parametrize("members", [1, 3])
def test_all_members_share_the_rows(members):
    layer, x = filled(MemberLinear(members, 5, 4, shared=True)), rows(6, 5)
    expected = [
        x.numpy() @ weight.numpy() + bias.numpy()
        for weight, bias in zip(layer.weight.detach(), layer.bias.detach(), strict=True)
    ]
    assert layer(x).shape == (members * 6, 4)
    np.testing.assert_allclose(layer(x).detach(), np.concatenate(expected), atol=1e-12)


def test_initial_weights_have_the_spread_of_he():
    layer = MemberLinear(10, 50, 200)
    for weight in layer.weight:
        assert weight.mean().item() == pytest.approx(0.0, abs=0.01)
        assert weight.std().item() == pytest.approx(math.sqrt(2 / 50), rel=0.03)
    assert not torch.equal(layer.weight[0], layer.weight[1])
    assert not layer.bias.any()


def test_a_member_learns_from_its_own_rows_alone():
    layer = MemberLinear(3, 5, 4)
    layer(torch.randn(6, 5))[2:4].sum().backward()
    assert layer.weight.grad[1].abs().min() > 0
    assert layer.bias.grad[1].tolist() == [[2.0] * 4]
    assert not layer.weight.grad[[0, 2]].any()
    assert not layer.bias.grad[[0, 2]].any()


@pytest.mark.parametrize("hidden", [(7,), (7, 6)])
def test_perceptrons_are_as_many_networks(hidden):
    network = perceptrons(3, [5, *hidden], 2, AdversarialDropout(0.5)).double()
    for layer in network:
        if isinstance(layer, MemberLinear):
            filled(layer)
    layers, x = [layer for layer in network if isinstance(layer, MemberLinear)], rows(4, 5)
    expected = []
    for member in range(3):
        h = x
        for layer in layers[:-1]:
            h = torch.relu(h @ layer.weight[member] + layer.bias[member])
        expected.append(h @ layers[-1].weight[member] + layers[-1].bias[member])
    torch.testing.assert_close(network.eval()(x), torch.cat(expected))


def test_the_masks_are_on_the_last_hidden_units():
    given = AdversarialDropout(0.5)
    network = perceptrons(2, [5, 7, 6], 3, given)
    assert [type(part).__name__ for part in network] == [
        "MemberLinear", "ReLU", "MemberLinear", "ReLU", "AdversarialDropout", "MemberLinear",
    ]  # fmt: skip
    assert network[4] is given
    assert [tuple(part.weight.shape) for part in network if isinstance(part, MemberLinear)] == [
        (2, 5, 7), (2, 7, 6), (2, 6, 3),
    ]  # fmt: skip
