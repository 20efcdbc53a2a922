import pytest
import torch
from torch import nn

from advdrop.insertion import adversarial_layers
from advdrop.lab.models import mlp
from advdrop.lab.models.layers import Dropout
from advdrop.masks import flip_budget
from halves import above, below


def test_parameters_by_hand():
    assert sum(p.numel() for p in mlp().parameters()) == 31 * 256 + 257 * 128 + 129 * 2 == 41_090
    three = mlp(None, (2, 3), 5, hidden=(7, 8, 9))
    assert sum(p.numel() for p in three.parameters()) == 7 * 7 + 8 * 8 + 9 * 9 + 10 * 5


def test_the_order_of_its_parts():
    kinds = [type(m) for m in below(mlp(hidden=(9, 8, 7), dropout=0.3))]
    block = [nn.Linear, nn.ReLU, Dropout]
    assert kinds == [nn.Flatten, *block, *block, nn.Linear, nn.ReLU]
    assert [m.p for m in below(mlp(hidden=(9, 8, 7), dropout=0.3)) if isinstance(m, nn.Dropout)] == [0.3, 0.3]
    assert [m.p for m in below(mlp()) if isinstance(m, nn.Dropout)] == [0.0]


def test_the_default_layer():
    (layer,) = adversarial_layers(mlp())
    assert (layer.p, layer.delta) == (0.5, 0.05)
    assert flip_budget(layer.delta, 128) == 6


def test_any_shape_is_flattened():
    model = mlp(None, (2, 3), 4, hidden=(8,)).eval()
    x = torch.randn(5, 2, 3)
    first, last = model[1], above(model)[1]
    h = (x.flatten(1) @ first.weight.T + first.bias).relu()
    torch.testing.assert_close(model(x), h @ last.weight.T + last.bias)


def test_a_network_without_a_hidden_layer_is_refused():
    with pytest.raises(ValueError, match=r"hidden must name at least one hidden layer, such as \(128,\), got \(\)"):
        mlp(hidden=())
