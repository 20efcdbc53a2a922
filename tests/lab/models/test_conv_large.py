import pytest
import torch
from torch import nn

from advdrop.insertion import adversarial_layers
from advdrop.lab.models import conv_large
from advdrop.lab.models.layers import Dropout, GaussianNoise, MeanOnlyBatchNorm2d
from advdrop.masks import AdversarialDropout, flip_budget
from halves import above, below


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
    assert below(model)(x).shape == (2, 128)
    assert model(x).shape == (2, 10)
    assert above(conv_large(classes=7))[1].out_features == 7


def test_the_map_goes_from_32_to_16_to_8_to_6_to_1(model):
    sizes, x = [], torch.randn(1, 3, 32, 32)
    for module in below(model.eval()):
        x = module(x)
        if x.dim() == 4 and (not sizes or sizes[-1] != x.shape[2]):
            sizes.append(x.shape[2])
    assert sizes == [32, 16, 8, 6, 1]


def test_each_convolution_is_followed_by_norm_and_leaky_relu(model):
    modules = list(below(model))
    convolutions = [i for i, m in enumerate(modules) if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 9
    for i in convolutions:
        assert modules[i].bias is None
        assert isinstance(modules[i + 1], nn.BatchNorm2d)
        assert isinstance(modules[i + 2], nn.LeakyReLU)
        assert modules[i + 2].negative_slope == 0.1


def test_noise_first_and_dropout_after_both_poolings(model):
    modules = list(below(model))
    assert isinstance(modules[0], GaussianNoise)
    assert modules[0].sigma == 0.15
    after_pooling = [modules[i + 1] for i, m in enumerate(modules) if isinstance(m, nn.MaxPool2d)]
    assert [type(m) for m in after_pooling] == [Dropout, Dropout]
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
    assert adversarial_layers(conv_large(own)) == [own]


@pytest.mark.parametrize("top_bn", [False, True])
def test_a_narrow_network_can_keep_the_papers_units(top_bn):
    """A quarter of the filters would leave 32 units, of which δ = 0.05 flips one."""
    model = conv_large(width=0.25, units=128, top_bn=top_bn)
    assert [c.out_channels for c in of_type(model, nn.Conv2d)] == [32, 32, 32, 64, 64, 64, 128, 64, 128]
    (dense,) = of_type(model, nn.Linear)
    assert dense.in_features == 128
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    with pytest.raises(ValueError, match=r"units must be .*, got -1"):
        conv_large(units=-1)


def test_the_noise_of_the_input_can_be_turned_off():
    """SVHN in the released code has none."""
    model = conv_large(sigma=0.0)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(model[0](x), x)


CONVOLUTIONS = [
    (3, 128, 3), (128, 128, 3), (128, 128, 3),
    (128, 256, 3), (256, 256, 3), (256, 256, 3),
    (256, 512, 3), (512, 256, 1), (256, 128, 1),
]  # fmt: skip
# Each filter has: a scale and a bias of its batch norm; a bias; g of its weight and a bias; a bias of its own.
EXTRA = {"batch": 2, "mean-only": 1, "weight+mean-only": 2, "none": 1}


@pytest.mark.parametrize("norm", EXTRA)
@pytest.mark.parametrize("top_bn", [False, True])
def test_parameters_by_hand_for_each_norm(norm, top_bn):
    weights = sum(a * b * k * k for a, b, k in CONVOLUTIONS)
    filters = sum(b for _, b, _ in CONVOLUTIONS)
    top = 128 * 10 + (2 * 10 if top_bn else 10)
    model = conv_large(norm=norm, top_bn=top_bn)
    assert filters == 2048
    assert sum(p.numel() for p in model.parameters()) == weights + EXTRA[norm] * filters + top


@pytest.mark.parametrize(
    ("norm", "kinds"),
    [
        ("batch", [nn.BatchNorm2d, nn.LeakyReLU]),
        ("mean-only", [MeanOnlyBatchNorm2d, nn.LeakyReLU]),
        ("weight+mean-only", [MeanOnlyBatchNorm2d, nn.LeakyReLU]),
        ("none", [nn.LeakyReLU]),
    ],
)
def test_what_follows_each_convolution(norm, kinds):
    modules = list(below(conv_large(norm=norm, momentum=0.75, width=0.05)))
    convolutions = [i for i, m in enumerate(modules) if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 9
    for i in convolutions:
        assert [type(m) for m in modules[i + 1 : i + 1 + len(kinds)]] == kinds
        assert (modules[i].bias is None) == (norm != "none")
        assert hasattr(modules[i], "parametrizations") == (norm == "weight+mean-only")
        if norm != "none":
            assert modules[i + 1].momentum == 0.25


def test_the_norm_of_each_normalized_filter_is_g():
    model = conv_large(norm="weight+mean-only", width=0.1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    start = [m.parametrizations.weight.original0.detach().clone() for m in of_type(model, nn.Conv2d)]
    (model(torch.randn(4, 3, 32, 32)) * torch.randn(10)).sum().backward()
    optimizer.step()
    for conv, before in zip(of_type(model, nn.Conv2d), start, strict=True):
        g = conv.parametrizations.weight.original0
        assert not torch.equal(g, before)
        torch.testing.assert_close(conv.weight.flatten(1).norm(dim=1), g.flatten().abs())


def test_normalized_weights_start_as_the_plain_ones():
    torch.manual_seed(3)
    plain = conv_large(norm="mean-only", width=0.1)
    torch.manual_seed(3)
    normed = conv_large(norm="weight+mean-only", width=0.1)
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(normed.eval()(x), plain.eval()(x))


def test_batch_norm_on_the_logits():
    model = conv_large(top_bn=True, classes=7, momentum=0.75, width=0.05)
    _, dense, norm = above(model)
    assert dense.bias is None
    assert (norm.num_features, norm.momentum) == (7, 0.25)
    logits = model(torch.randn(8, 3, 32, 32))
    torch.testing.assert_close(logits.mean(0), torch.zeros(7), atol=1e-5, rtol=0)
    assert len(above(conv_large(width=0.05))) == 2


@pytest.mark.parametrize(("width", "filters"), [(0.5, 64), (0.3, 38), (1.5, 192), (0.001, 1)])
def test_width_scales_every_filter_count(width, filters):
    model = conv_large(width=width)
    expected = [max(1, round(b * width)) for _, b, _ in CONVOLUTIONS]
    assert [m.out_channels for m in of_type(model, nn.Conv2d)] == expected
    assert [m.in_channels for m in of_type(model, nn.Conv2d)] == [3, *expected[:-1]]
    assert above(model)[1].in_features == filters


def test_the_other_options():
    assert [m.p for m in of_type(conv_large(dropout=0.25, width=0.05), nn.Dropout)] == [0.25, 0.25]
    assert conv_large(None, (1, 28, 28), 3, width=0.05)(torch.randn(2, 1, 28, 28)).shape == (2, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "layer"}, "norm must be one of 'batch', 'mean-only', 'weight.mean-only', 'none', got 'layer'"),
        ({"sigma": -1.0}, "sigma must be zero or more and finite, got -1.0"),
    ],
)
def test_what_is_impossible_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        conv_large(**options)


def test_the_second_dropout_can_be_left_out_as_in_the_table():
    probabilities = [
        [m.p for m in conv_large(width=0.1, second_dropout=second).modules() if isinstance(m, nn.Dropout)]
        for second in (True, False)
    ]
    assert probabilities == [[0.5, 0.5], [0.5, 0.0]]
