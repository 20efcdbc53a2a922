"""The ladder network against Algorithm 1 in numpy."""

import numpy as np
import pytest
import torch
from torch import nn

from advdrop import AdversarialDropout, CrossEntropy, SAdD, Step, VAdD
from advdrop.lab.models import ladder, mlp
from advdrop.lab.models.generator import Generator
from advdrop.lab.models.ladder import DenoisingCost
from small import CLASSES, FEATURES, batch, run, values

SIZES = [FEATURES, 5, 4, CLASSES]


def make(noise=0.0):
    """All parameters random, so that each of them matters."""
    network = ladder(None, (FEATURES,), CLASSES, hidden=(5, 4), noise=noise).double()
    draw = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        nn.init.normal_(parameter, generator=draw)
    return network


def test_weights_start_with_the_variance_of_one_over_the_inputs():
    network = ladder(None, (400,), 100, hidden=(300, 200), noise=0.3)
    for dense in (*network.up, *network.down):
        assert dense.weight.std().item() == pytest.approx(dense.in_features**-0.5, rel=0.1)


def normalized(x):
    mean, std = x.mean(0), np.sqrt(x.var(0) + 1e-5)
    return (x - mean) / std, mean, std


def numbers(parameters):
    return [parameter.detach().numpy() for parameter in parameters]


def softmax(x):
    return np.exp(x) / np.exp(x).sum(1, keepdims=True)


def encoder(network, x, noises):
    up, beta, gamma = numbers(w.weight for w in network.up), numbers(network.beta), numbers([network.gamma])[0]
    h = x + noises[0]
    zs, statistics = [h], [(0.0, 1.0)]
    for number, w in enumerate(up, start=1):
        z, mean, std = normalized(h @ w.T)
        zs.append(z + noises[number])
        statistics.append((mean, std))
        h = zs[-1] + beta[number - 1]
        h = gamma * h if number == len(up) else np.maximum(h, 0)
    return zs, statistics, h


def costs(network, x, noises):
    """The denoising cost of each layer from the input on, and the noisy output."""
    noisy, _, logits = encoder(network, x, noises)
    clean, statistics, _ = encoder(network, x, [0.0] * len(SIZES))
    down, above, found = numbers(w.weight for w in network.down), softmax(logits), {}
    for number in reversed(range(len(SIZES))):
        u, a = normalized(above)[0], numbers([network.combinators[number].a])[0]
        mean = a[0] / (1 + np.exp(-a[1] * u - a[2])) + a[3] * u + a[4]
        share = a[5] / (1 + np.exp(-a[6] * u - a[7])) + a[8] * u + a[9]
        denoised = (noisy[number] - mean) * share + mean
        m, s = statistics[number]
        found[number] = ((clean[number] - (denoised - m) / s) ** 2).mean(1)
        if number:
            above = denoised @ down[number - 1].T
    return [found[number] for number in range(len(SIZES))], logits


@pytest.fixture
def rows():
    return batch(dtype=torch.float64)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_costs_are_those_of_algorithm_1(rows, noise):
    network, weights = make(noise), (3.0, 2.0, 0.5)
    torch.manual_seed(0)
    noises = [noise * torch.randn(16, units, dtype=torch.float64).numpy() for units in SIZES]
    expected, _ = costs(network, rows["unlabeled"].numpy(), noises if noise else [0.0] * len(SIZES))
    torch.manual_seed(0)
    found = values(network, DenoisingCost(weights), rows).detach()
    np.testing.assert_allclose(found, sum(w * c for w, c in zip((3.0, 2.0, 0.5, 0.5), expected, strict=True)))


def test_layers_without_weight_below_the_others_are_not_computed(rows, monkeypatch):
    network = make()
    expected, _ = costs(network, rows["unlabeled"].numpy(), [0.0] * len(SIZES))
    monkeypatch.setattr(network.down[0], "forward", None)
    monkeypatch.setattr(network.down[1], "forward", None)
    found = values(network, DenoisingCost((0.0, 0.0, 0.0, 2.0)), rows).detach()
    np.testing.assert_allclose(found, 2.0 * expected[3])


def test_the_output_is_noisy_in_training_and_clean_in_evaluation(rows):
    network, x = make(0.3), rows["x"]
    torch.manual_seed(0)
    noises = [0.3 * torch.randn(8, units, dtype=torch.float64).numpy() for units in SIZES]
    torch.manual_seed(0)
    np.testing.assert_allclose(network(x).detach(), encoder(network, x.numpy(), noises)[2])
    for norm, (mean, std) in zip(network.norms, encoder(network, x.numpy(), [0.0] * 4)[1][1:], strict=True):
        norm.running_mean, norm.running_var = torch.from_numpy(mean), torch.from_numpy(std**2 - 1e-5)
    np.testing.assert_allclose(network.eval()(x).detach(), encoder(network, x.numpy(), [0.0] * 4)[2])


def test_only_the_clean_pass_of_the_costs_updates_running_statistics(rows):
    network = make(0.3)
    Step(network, CrossEntropy() + DenoisingCost(), updating=())(**rows)
    assert [int(norm.num_batches_tracked) for norm in network.norms] == [1, 1, 1]
    mean = rows["unlabeled"].numpy() @ network.up[0].weight.detach().numpy().T
    np.testing.assert_allclose(network.norms[0].running_mean, 0.1 * mean.mean(0))


def test_the_clean_pass_has_no_dropout(rows):
    layer = AdversarialDropout(p=0.5, delta=0.5)
    network = ladder(layer, (FEATURES,), CLASSES, hidden=(5, 4), noise=0.0).double()
    for parameter in network.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    network.denoising_costs(rows["unlabeled"])
    _, statistics, _ = encoder(network, rows["unlabeled"].numpy(), [0.0] * len(SIZES))
    np.testing.assert_allclose(network.norms[-1].running_mean, 0.1 * statistics[-1][0])


def test_every_parameter_is_trained(rows):
    network = make(0.3)
    run(network, CrossEntropy() + DenoisingCost(), rows, updating=()).loss.backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("term", [VAdD(), SAdD()])
def test_adversarial_dropout_is_on_the_last_hidden_units(rows, term):
    network = make(0.3)
    network.layer.p, network.layer.delta = 0.5, 0.5
    assert run(network, CrossEntropy() + DenoisingCost() + term, rows).loss.isfinite()


def test_another_network_is_refused(rows):
    with pytest.raises(TypeError, match="need the network ladder, got Sequential"):
        run(mlp(None, (FEATURES,), CLASSES).double(), DenoisingCost(), rows)
    with pytest.raises(ValueError, match="at least one hidden layer"):
        ladder(None, (4,), 2, hidden=())


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 13, 9), (7,)])
def test_a_generator_has_the_shape_of_the_data(shape):
    made = Generator(shape, latent=6, filters=4, pixels=len(shape) == 3, to_input=lambda x: x / 255)
    z = torch.randn(5, 6)
    assert made(z).shape == (5, *shape)
    torch.testing.assert_close(made(z), made.stored(z) / 255)
    if len(shape) == 3:
        assert 0 < made(z).min() < made(z).max() < 1
