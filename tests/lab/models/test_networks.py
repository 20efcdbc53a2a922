"""What every network promises; one line in ``TABLE`` for each."""

import copy

import pytest
import torch
from torch import nn

from advdrop import AdversarialDropout, CrossEntropy, Step, VAdD
from advdrop.insertion import adversarial_layers
from advdrop.lab.models import (
    all_cnn,
    autoencoder,
    conv_large,
    highway,
    mlp,
    mnist_cnn,
    network_in_network,
)
from halves import above, below


def small(norm, **options):
    return lambda layer=None: conv_large(layer, (3, 12, 12), 4, norm=norm, width=0.25, **options)


# The builder, the shape of one example, the units of the layer, the outputs.
TABLE = {
    "mnist-cnn": (lambda layer=None: mnist_cnn(layer, (1, 12, 12), 4), (1, 12, 12), 512, 4),
    "conv-large batch": (small("batch"), (3, 12, 12), 32, 4),
    "conv-large mean-only": (small("mean-only"), (3, 12, 12), 32, 4),
    "conv-large weight+mean-only": (small("weight+mean-only"), (3, 12, 12), 32, 4),
    "conv-large none": (small("none"), (3, 12, 12), 32, 4),
    "conv-large top_bn": (small("batch", top_bn=True), (3, 12, 12), 32, 4),
    "network-in-network": (lambda layer=None: network_in_network(layer, (3, 8, 8), 4), (3, 8, 8), 192, 4),
    "all-cnn": (lambda layer=None: all_cnn(layer, (3, 9, 9), 4), (3, 9, 9), 192, 4),
    "highway": (lambda layer=None: highway(layer, (3, 8, 8), 4), (3, 8, 8), 100, 4),
    "mlp": (lambda layer=None: mlp(layer, (5,), 4, dropout=0.3), (5,), 128, 4),
    "autoencoder": (lambda layer=None: autoencoder(layer, (1, 4, 4)), (1, 4, 4), 256, 16),
}
table = pytest.mark.parametrize(("build", "shape", "units", "outputs"), TABLE.values(), ids=TABLE)


def images(shape, examples=4, seed=0):
    return torch.randn(examples, *shape, generator=torch.Generator().manual_seed(seed))


def mean_squares(target, output, *, given="logits"):
    """The divergence of reconstructions: no softmax."""
    return (target - output).square().mean(1)


@table
def test_shapes_of_the_hidden_units_and_the_output(build, shape, units, outputs):
    model, x = build(), images(shape)
    h = below(model)(x)
    assert h.shape == (4, units)
    assert above(model)(h).shape == (4, outputs)


@table
def test_the_layer_is_directly_before_the_classifier(build, shape, units, outputs):
    layer = AdversarialDropout(0.25, 0.125)
    model = build(layer)
    assert type(model) is nn.Sequential  # as such a step runs its halves by themselves
    assert adversarial_layers(model) == [layer] == [above(model)[0]]
    assert isinstance(above(model)[1], nn.Linear)
    assert above(model)[1].in_features == units


@table
def test_every_parameter_gets_a_finite_gradient(build, shape, units, outputs):
    model = build()
    # With the same weight on every output, a batch norm on the logits would pass no gradient down.
    weights = torch.arange(1.0, outputs + 1) * images((outputs,))
    (model(images(shape)) * weights).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@table
def test_virtual_adversarial_dropout_flips_units(build, shape, units, outputs):
    model = build(AdversarialDropout(0.5, delta=0.1))
    divergence = mean_squares if outputs == 16 else None
    term = VAdD(noise="independent", **({"divergence": divergence} if divergence else {}))
    labeled = (None, None) if divergence else (images(shape), torch.tensor([0, 1, 2, 3]))
    step = Step(model, term if divergence else CrossEntropy() + term)
    loss = step(*labeled, unlabeled=images(shape, 6, seed=1), measure=True)
    assert 0 < loss.measures[f"{term.name}/flips"] <= int(0.1 * units)
    loss.loss.backward()
    assert loss.loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@table
def test_evaluation_is_deterministic_and_training_is_not(build, shape, units, outputs):
    model, x = build(AdversarialDropout(0.5)), images(shape)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))
    # Each example is seen by itself.
    torch.testing.assert_close(model(x)[:1], model(x[:1]))


@table
def test_a_deep_copy_is_equal_and_apart(build, shape, units, outputs):
    model, x = build().eval(), images(shape)
    twin = copy.deepcopy(model)
    before = model(x)
    assert torch.equal(twin(x), before)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    assert torch.equal(model(x), before)
    assert not torch.equal(twin(x), before)


@table
def test_the_state_goes_round(build, shape, units, outputs):
    model, x = build(), images(shape)
    model(x)
    other = build()
    assert not torch.equal(other.eval()(x), model.eval()(x))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), model(x))


@table
def test_double_precision(build, shape, units, outputs):
    single = build()
    double, x = copy.deepcopy(single).double(), images(shape)
    assert double(x.double()).dtype == torch.float64
    double = copy.deepcopy(single).eval().double()
    torch.testing.assert_close(double(x.double()).float(), single.eval()(x), rtol=1e-3, atol=1e-4)


@table
def test_bfloat16_autocast(build, shape, units, outputs):
    model, x = build(), images(shape)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x)
    assert y.isfinite().all()
    y.float().square().sum().backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())


@table
def test_initialization(build, shape, units, outputs, request):
    """Every weight of variance 2/((1 + slope²)·fan in), every bias zero, but for the gates of the highway.

    The autoencoder has Glorot's, 2/(fan in + fan out).
    """
    slope = 0.1 if "conv-large" in request.node.name else 0.0
    glorot = "autoencoder" in request.node.name
    model = build()
    spreads = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            weight = module.weight.detach()
            fans = sum(weight.shape) if glorot else (1 + slope**2) * weight[0].numel()
            expected = (2 / fans) ** 0.5
            spreads.append(weight.std().item() / expected)
            assert spreads[-1] == pytest.approx(1, abs=5 / weight.numel() ** 0.5), name
            assert module.bias is None or name.endswith("gate") or module.bias.abs().max() == 0, name
    assert spreads


IMAGES = [mnist_cnn, conv_large, network_in_network, all_cnn, highway]
LEAST = {mnist_cnn: 1, conv_large: 12, network_in_network: 4, all_cnn: 9, highway: 4}


@pytest.mark.parametrize("network", IMAGES)
def test_the_smallest_image_passes_and_a_smaller_one_is_refused(network):
    least = LEAST[network]
    assert network(None, (2, least, least + 1)).eval()(images((2, least, least + 1))).shape == (4, 10)
    name = network.__name__.replace("_", "-")
    message = rf"{name} needs images \(C, H, W\) of at least {least} x {least} pixels, got shape .*use mlp"
    refused = [(3, least - 1, 32), (3, 32, least - 1), (32, 32), (1, 3, 32, 32), (0, 32, 32)]
    for shape in refused:
        with pytest.raises(ValueError, match=message):
            network(None, shape)


@pytest.mark.parametrize("network", [conv_large, network_in_network, all_cnn, highway, mlp])
def test_an_impossible_dropout_is_refused(network):
    with pytest.raises(ValueError, match=r"dropout probability has to be between 0 and 1, but got 1\.5"):
        network(dropout=1.5)


def test_the_autoencoder_can_start_as_the_others():
    torch.manual_seed(0)
    weight = autoencoder(initialization="he")[1].weight.detach()
    assert weight.std().item() == pytest.approx((2 / 784) ** 0.5, rel=0.01)
    with pytest.raises(ValueError, match="initialization must be"):
        autoencoder(initialization="hee")
