import pytest
import torch
from torch import nn

from advdrop.lab.data import Examples
from advdrop.lab.data.preprocess import Preprocess
from advdrop.lab.engine.evaluate import error_percent, outputs


def network():
    """Says the class that the scaled input is nearest to; dropout must not touch it."""
    linear = nn.Linear(2, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.eye(2))
        linear.bias.zero_()
    return nn.Sequential(nn.Dropout(0.9), linear)


def test_every_example_counts_once_whatever_the_batch():
    x = torch.eye(2).repeat(5, 1)[:9]
    y = torch.tensor([0, 1, 0, 1, 0, 1, 1, 1, 1])  # two of nine are wrong
    seen = []
    model = network()
    model.register_forward_hook(lambda _, args, out: seen.append(len(args[0])))
    found = outputs(model, x, Preprocess("none"), batch=4).argmax(1)
    assert found.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert seen == [4, 4, 1]
    assert error_percent(network(), Examples(x, y), Preprocess("none")) == 100 * 2 / 9


def test_the_network_keeps_its_mode_and_gets_no_gradient():
    model = network()
    x = torch.eye(2)
    for mode in (True, False):
        model.train(mode)
        outputs(model, x, Preprocess("none"))
        assert model.training is mode
    assert all(parameter.grad is None for parameter in model.parameters())


def test_every_module_keeps_its_own_mode():
    model = nn.Sequential(nn.BatchNorm1d(2).eval(), nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(2).eval()))
    model.append(nn.Linear(2, 2))
    before = [module.training for module in model.modules()]
    assert set(before) == {True, False}
    outputs(model, torch.eye(2), Preprocess("none"))
    assert [module.training for module in model.modules()] == before


def test_every_module_keeps_its_own_mode_after_an_error():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2).eval())
    with pytest.raises(RuntimeError, match="shapes"):
        outputs(model, torch.eye(2), Preprocess("none"))
    assert [module.training for module in model.modules()] == [True, True, False]


def test_the_preprocessing_is_applied():
    swap = Preprocess("none", center=torch.zeros(2), whitening=torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    assert outputs(network(), torch.eye(2), swap).argmax(1).tolist() == [1, 0]
