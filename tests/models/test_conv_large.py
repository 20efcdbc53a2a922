import pytest
import torch
from torch import nn

from advdrop.masks import AdversarialDropout, flip_budget
from advdrop.models import adversarial_layers, conv_large
from advdrop.models.layers import GaussianNoise


@pytest.fixture(scope="module")
def model():
    return conv_large()


def of_type(model, kind):
    return [m for m in model.modules() if isinstance(m, kind)]


def test_parameters_by_hand(model):
    three_by_three = [(3, 128), (128, 128), (128, 128), (128, 256), (256, 256), (256, 256), (256, 512)]
    one_by_one = [(512, 256), (256, 128)]
    weights = sum(9 * a * b for a, b in three_by_three) + sum(a * b for a, b in one_by_one)
    norms = sum(2 * b for _, b in three_by_three + one_by_one)
    top = 128 * 10 + 10
    assert sum(p.numel() for p in model.parameters()) == weights + norms + top


def test_shapes(model):
    x = torch.randn(2, 3, 32, 32)
    assert model.under(x).shape == (2, 128)
    assert model(x).shape == (2, 10)
    assert conv_large(classes=7).upper[1].out_features == 7


def test_the_map_goes_from_32_to_16_to_8_to_6_to_1(model):
    sizes, x = [], torch.randn(1, 3, 32, 32)
    for module in model.eval().under:
        x = module(x)
        if x.dim() == 4 and (not sizes or sizes[-1] != x.shape[2]):
            sizes.append(x.shape[2])
    assert sizes == [32, 16, 8, 6, 1]


def test_each_convolution_is_followed_by_norm_and_leaky_relu(model):
    modules = list(model.under)
    convolutions = [i for i, m in enumerate(modules) if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 9
    for i in convolutions:
        assert modules[i].bias is None
        assert isinstance(modules[i + 1], nn.BatchNorm2d)
        assert isinstance(modules[i + 2], nn.LeakyReLU)
        assert modules[i + 2].negative_slope == 0.1


def test_noise_first_and_dropout_after_both_poolings(model):
    modules = list(model.under)
    assert isinstance(modules[0], GaussianNoise)
    assert modules[0].sigma == 0.15
    after_pooling = [modules[i + 1] for i, m in enumerate(modules) if isinstance(m, nn.MaxPool2d)]
    assert [type(m) for m in after_pooling] == [nn.Dropout, nn.Dropout]
    assert [m.p for m in after_pooling] == [0.5, 0.5]


@pytest.mark.parametrize("momentum", [0.999, 0.99])
def test_momentum_is_the_share_that_is_kept(momentum):
    norms = of_type(conv_large(momentum=momentum), nn.BatchNorm2d)
    assert len(norms) == 9
    assert [n.momentum for n in norms] == pytest.approx([1 - momentum] * 9)
    before = norms[0].running_mean.clone()
    x = torch.randn(4, 128, 3, 3) + 2
    norms[0](x)
    expected = momentum * before + (1 - momentum) * x.mean((0, 2, 3))
    torch.testing.assert_close(norms[0].running_mean, expected, rtol=1e-4, atol=1e-7)


def test_the_default_layer_is_the_papers(model):
    (layer,) = adversarial_layers(model)
    assert (layer.p, layer.delta) == (0.0, 0.05)
    assert flip_budget(layer.delta, 128) == 6
    own = AdversarialDropout(0.5)
    assert adversarial_layers(conv_large(own)) == (own,)


def test_the_noise_of_the_input_can_be_turned_off():
    """SVHN in the released code has none."""
    model = conv_large(sigma=0.0)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(model.under[0](x), x)
