import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from advdrop.lab.models import layers
from advdrop.lab.models.layers import Dropout, GaussianNoise, MeanOnlyBatchNorm2d, he_initialized
from advdrop.masks.bernoulli import bernoulli_like
from advdrop.step.batch_norm import frozen_statistics

# torch's own compiler looks at .grad of a non-leaf on its way.
compiler_noise = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.mark.parametrize("p", [0.5, 0.2, 0.9])
@pytest.mark.parametrize("shape", [(300, 401), (30, 8, 24, 24)])
def test_dropout_keeps_the_mean_and_drops_a_share_of_p(p, shape):
    x = torch.full(shape, 3.0, dtype=torch.float64)
    y = Dropout(p)(x)
    share = 5 * math.sqrt(p * (1 - p) / x.numel())
    assert (y == 0).double().mean().item() == pytest.approx(p, abs=share)
    assert y.mean().item() == pytest.approx(3.0, abs=3.0 * share / (1 - p))


@pytest.mark.parametrize("p", [0.5, 0.2, 0.0, 1.0])
def test_dropout_has_the_law_of_torchs(p):
    # The numbers of entries that are left in each row, and in each column, as a distribution.
    x = torch.rand(4000, 12) + 1.0
    ours, theirs = ((layer(x) != 0).sum(1) for layer in (Dropout(p), nn.Dropout(p)))
    one, other = (torch.bincount(left, minlength=13).double() for left in (ours, theirs))
    assert ((one - other).square() / (one + other).clamp_min(1.0)).sum() < 13 + 5 * math.sqrt(26)
    kept = [layer(x) for layer in (Dropout(p), nn.Dropout(p))]
    if 0.0 < p < 1.0:
        both = (kept[0] != 0) & (kept[1] != 0)
        assert both.any()
        torch.testing.assert_close(kept[0][both], kept[1][both])
    else:
        assert torch.equal(*kept)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("p", [0.5, 0.2])
def test_entries_are_dropped_or_divided_by_keep(dtype, p):
    x = torch.randn(60, 70).to(dtype)
    y = Dropout(p)(x)
    assert (y.dtype, y.shape) == (dtype, x.shape)
    left = y != 0
    assert 0 < left.double().mean() < 1
    torch.testing.assert_close(y[left], (x / (1 - p))[left])
    assert (x[~left] != 0).any()


@pytest.mark.parametrize("p", [0.5, 0.2])
def test_the_gradient_of_dropout_is_its_mask(p):
    x = torch.rand(40, 50, dtype=torch.float64).add_(1.0).requires_grad_()
    y = Dropout(p)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, (y / x).detach())
    assert set(x.grad.unique().tolist()) == {0.0, 1 / (1 - p)}


def test_dropout_leaves_its_input_alone_and_draws_anew():
    layer, x = Dropout(0.5), torch.ones(20, 30)
    first, second = layer(x), layer(x)
    assert (x == 1).all()
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    first = layer(x)
    torch.manual_seed(3)
    assert torch.equal(layer(x), first)


@pytest.mark.parametrize("layer", [Dropout(0.5).eval(), Dropout(0.0), Dropout(1.0).eval()], ids=repr)
def test_dropout_that_does_nothing_returns_its_input_and_draws_nothing(layer):
    x, before = torch.randn(2, 3), torch.get_rng_state()
    assert layer(x) is x
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_of_everything_leaves_nothing():
    x = torch.randn(2, 3, requires_grad=True)
    y = Dropout(1.0)(x)
    assert y.tolist() == [[0.0] * 3] * 2
    y.sum().backward()
    assert x.grad.tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("shape", [(), (7,), (0, 4), (2, 3, 4, 5, 6)])
def test_dropout_takes_any_shape(shape):
    assert Dropout(0.5)(torch.ones(shape)).shape == shape
    assert Dropout(0.2)(torch.ones(shape)).shape == shape


@pytest.mark.parametrize("p", [0.5, 0.2])
@pytest.mark.parametrize("shape", [(40, 6, 10, 12), (40, 1, 10, 12), (40, 6, 1, 1)])
def test_dropout_keeps_the_order_of_pixels(p, shape):
    x = (torch.rand(shape) + 1.0).to(memory_format=torch.channels_last)
    y = Dropout(p)(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    left = y != 0
    torch.testing.assert_close(y[left], (x / (1 - p))[left])
    assert left.double().mean().item() == pytest.approx(1 - p, abs=5 * math.sqrt(p * (1 - p) / x.numel()))
    assert Dropout(p)(x.contiguous()).is_contiguous()


@pytest.mark.parametrize("channels_last", [False, True])
def test_dropout_multiplies_with_a_mask_that_lies_in_memory_as_its_input(channels_last, monkeypatch):
    laid = {"memory_format": torch.channels_last} if channels_last else {}
    x, seen = torch.ones(2, 3, 4, 5).to(**laid), []

    def watched(*args, **options):
        seen.append(bernoulli_like(*args, **options))
        return seen[-1]

    monkeypatch.setattr(layers, "bernoulli_like", watched)
    y = Dropout(0.5)(x)
    (mask,) = seen
    assert mask.stride() == x.stride() == y.stride()
    assert torch.equal(y, mask)


def test_channels_are_dropped_pixel_by_pixel_in_either_order():
    x = torch.ones(200, 4, 6, 6).to(memory_format=torch.channels_last)
    dropped = (Dropout(0.5)(x) == 0).double() - 0.5
    for dimension, offset in ((0, 1), (1, 1), (2, 1), (3, 1)):
        size = dropped.shape[dimension] - offset
        pairs = dropped.narrow(dimension, 0, size) * dropped.narrow(dimension, offset, size)
        assert abs(pairs.mean().item()) < 5 * 0.25 / math.sqrt(pairs.numel())


def test_dropout_in_a_network_under_autocast():
    model = nn.Sequential(nn.Linear(6, 50), Dropout(0.5), nn.Linear(50, 3))
    with torch.autocast("cpu", torch.bfloat16):
        y = model(torch.randn(4, 6))
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_dropout_is_torchs_to_whoever_asks():
    assert isinstance(Dropout(0.3), nn.Dropout)
    assert repr(Dropout(0.3)) == "Dropout(p=0.3, inplace=False)"
    with pytest.raises(ValueError, match="dropout probability"):
        Dropout(1.5)


@compiler_noise
@pytest.mark.parametrize("p", [0.5, 0.2])
def test_compiled_as_a_whole_it_is_torch_s_own(p):
    torch._dynamo.reset()
    ours, x, results = nn.Sequential(nn.Linear(6, 50), Dropout(p)), torch.randn(4, 6), []
    for network in (torch.compile(ours, backend="eager", fullgraph=True), nn.Sequential(ours[0], nn.Dropout(p))):
        torch.manual_seed(2)
        y = network(x)
        results.append([y, *torch.autograd.grad(y.sum(), list(ours.parameters()))])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


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


@pytest.mark.parametrize(("sigma", "error"), [(-1.0, ValueError), (float("inf"), ValueError), ("a", TypeError)])
def test_noise_refuses_other_sigmas(sigma, error):
    with pytest.raises(error, match="sigma must be"):
        GaussianNoise(sigma)


@pytest.mark.parametrize("slope", [0.0, 0.1, 1.0])
@pytest.mark.parametrize(
    ("module", "fan_in"), [(nn.Linear(400, 300), 400), (nn.Conv2d(32, 64, 3), 32 * 9), (nn.Conv2d(64, 300, 1), 64)]
)
def test_he_initialization(slope, module, fan_in):
    nn.init.ones_(module.bias)
    model = nn.Sequential(module)
    assert he_initialized(model, slope) is model
    weight = module.weight.detach()
    gain = math.sqrt(2 / (1 + slope**2))
    assert weight.std().item() == pytest.approx(gain / math.sqrt(fan_in), rel=0.03)
    assert weight.mean().abs().item() < 5 * gain / math.sqrt(fan_in * weight.numel())
    assert module.bias.abs().max() == 0


def test_he_initialization_leaves_norms_alone_and_takes_layers_without_bias():
    model = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2))
    he_initialized(model)
    assert model[1].weight.tolist() == [1.0, 1.0]


def test_he_initialization_reaches_normalized_weights():
    plain, normed = nn.Conv2d(32, 64, 3), weight_norm(nn.Conv2d(32, 64, 3))
    torch.manual_seed(1)
    he_initialized(nn.Sequential(plain), slope=0.1)
    torch.manual_seed(1)
    he_initialized(nn.Sequential(normed), slope=0.1)
    torch.testing.assert_close(normed.weight, plain.weight)
    g = normed.parametrizations.weight.original0
    torch.testing.assert_close(g.flatten(), plain.weight.flatten(1).norm(dim=1))
    assert g.requires_grad
    assert normed.parametrizations.weight.original1.requires_grad
    assert normed.bias.abs().max() == 0


def centered(x, bias, mean):
    return x - mean[None, :, None, None] + bias[None, :, None, None]


def mean_only(features=3, **options):
    norm = MeanOnlyBatchNorm2d(features, **options)
    nn.init.normal_(norm.bias)
    return norm


def test_mean_only_norm_subtracts_the_mean_of_the_batch():
    norm, x = mean_only().double(), 3 * torch.randn(4, 3, 5, 6, dtype=torch.float64) + 7
    values, bias = x.numpy(), norm.bias.detach().numpy()
    expected = centered(values, bias, values.mean((0, 2, 3)))
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(expected.mean((0, 2, 3)), bias, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.1, 0.001, 0.0, 1.0])
def test_the_running_mean_follows_and_is_used_in_evaluation(momentum):
    norm, running = mean_only(momentum=momentum).double(), np.zeros(3)
    for step in range(4):
        x = torch.randn(4, 3, 5, 5, dtype=torch.float64) + step
        norm(x)
        running = (1 - momentum) * running + momentum * x.numpy().mean((0, 2, 3))
        np.testing.assert_allclose(norm.running_mean.numpy(), running, atol=1e-12)
    norm.eval()
    expected = centered(x.numpy(), norm.bias.detach().numpy(), running)
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(norm.running_mean.numpy(), running, atol=1e-12)


def test_the_running_mean_is_that_of_torchs_batch_norm():
    ours, theirs, x = MeanOnlyBatchNorm2d(3, momentum=0.3), nn.BatchNorm2d(3, momentum=0.3), torch.randn(4, 3, 5, 5) + 2
    ours(x)
    theirs(x)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)


def test_the_state_of_a_mean_only_norm():
    assert list(mean_only().state_dict()) == ["bias", "running_mean"]


def test_the_gradient_flows_through_the_mean():
    norm, x = mean_only(), torch.randn(4, 3, 2, 2, requires_grad=True)
    weight = torch.randn(4, 3, 2, 2)
    (norm(x) * weight).sum().backward()
    torch.testing.assert_close(x.grad, weight - weight.mean((0, 2, 3), keepdim=True))
    torch.testing.assert_close(norm.bias.grad, weight.sum((0, 2, 3)))
    double = mean_only().double()
    assert torch.autograd.gradcheck(double, torch.randn(2, 3, 2, 2, dtype=torch.float64, requires_grad=True))


def test_frozen_statistics_cover_the_mean_only_norm():
    model, x = nn.Sequential(mean_only(momentum=0.5)), torch.randn(4, 3, 5, 5) + 2
    model(x)
    twin, before = copy.deepcopy(model), model[0].running_mean.clone()
    with frozen_statistics(model):
        frozen = model(2 * x)
    assert torch.equal(model[0].running_mean, before)
    assert torch.equal(frozen, twin(2 * x))
    assert not torch.equal(twin[0].running_mean, before)
    model(2 * x)
    assert torch.equal(model[0].running_mean, twin[0].running_mean)
    model.eval()
    with frozen_statistics(model):
        inside = model(x)
    assert torch.equal(inside, model(x))


def test_the_mean_of_half_precision_is_taken_in_full():
    norm = mean_only(momentum=1.0)
    x = (torch.rand(64, 3, 8, 8) + 100).bfloat16()
    y = norm(x)
    assert y.dtype == torch.bfloat16
    assert norm.running_mean.dtype == torch.float32
    torch.testing.assert_close(norm.running_mean, x.float().mean((0, 2, 3)))
