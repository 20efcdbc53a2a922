import math

import pytest
import torch
from torch import nn

from advdrop.models.layers import GaussianNoise, he_initialised


@pytest.mark.parametrize("sigma", [0.15, 2])
def test_noise_is_added_in_training(sigma):
    x = torch.full((200, 100), 3.0)
    noise = GaussianNoise(sigma)(x) - x
    assert noise.mean().item() == pytest.approx(0.0, abs=5 * sigma / math.sqrt(x.numel()))
    assert noise.std().item() == pytest.approx(sigma, rel=0.03)
    fourth = noise.pow(4).mean().item() / sigma**4
    assert fourth == pytest.approx(3.0, rel=0.1)


def test_each_pass_draws_its_own_noise():
    layer, x = GaussianNoise(0.15), torch.zeros(2, 3)
    assert not torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtype_and_shape_follow(dtype):
    y = GaussianNoise(0.15)(torch.zeros(2, 3, 4, 4, dtype=dtype))
    assert (y.dtype, y.shape) == (dtype, (2, 3, 4, 4))


def test_nothing_happens_in_evaluation():
    x, before = torch.randn(2, 3), torch.get_rng_state()
    assert GaussianNoise(0.15).eval()(x) is x
    assert torch.equal(torch.get_rng_state(), before)


def test_noise_passes_the_gradient():
    x = torch.zeros(2, 3, requires_grad=True)
    GaussianNoise(0.15)(x).sum().backward()
    assert x.grad.tolist() == [[1.0] * 3] * 2


def test_noise_repr():
    assert repr(GaussianNoise(0.15)) == "GaussianNoise(sigma=0.15)"


@pytest.mark.parametrize(("sigma", "error"), [(-1.0, ValueError), (float("inf"), ValueError), ("a", TypeError)])
def test_noise_refuses_other_sigmas(sigma, error):
    with pytest.raises(error, match="sigma must be"):
        GaussianNoise(sigma)


@pytest.mark.parametrize("slope", [0.0, 0.1, 1.0])
@pytest.mark.parametrize(
    ("module", "fan_in"), [(nn.Linear(400, 300), 400), (nn.Conv2d(32, 64, 3), 32 * 9), (nn.Conv2d(64, 300, 1), 64)]
)
def test_he_initialisation(slope, module, fan_in):
    nn.init.ones_(module.bias)
    he_initialised(nn.Sequential(module), slope)
    weight = module.weight.detach()
    gain = math.sqrt(2 / (1 + slope**2))
    assert weight.std().item() == pytest.approx(gain / math.sqrt(fan_in), rel=0.03)
    assert weight.mean().abs().item() < 5 * gain / math.sqrt(fan_in * weight.numel())
    assert module.bias.abs().max() == 0


def test_he_initialisation_leaves_norms_alone_and_takes_layers_without_bias():
    model = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2))
    he_initialised(model)
    assert model[1].weight.tolist() == [1.0, 1.0]
