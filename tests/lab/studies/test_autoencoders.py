"""The autoencoders: their losses against formulas written out, and their repetition."""

from dataclasses import replace

import pytest
import torch

from advdrop import AdversarialDropout, Step, flip_mask, sample_mask
from advdrop.lab.models import autoencoder
from advdrop.lab.report.charts import LEVELS, unpacked
from advdrop.lab.studies.autoencoders import (
    VARIANTS,
    Settings,
    by_activation,
    hidden_activations,
    objective_of,
    packed,
    reconstruction_error,
    trained,
    unit_range,
)

SMALL = {name: replace(settings, hidden=12, updates=5, batch=8) for name, settings in VARIANTS.items()}


@pytest.fixture
def images():
    return torch.randint(0, 256, (40, 1, 4, 4), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def test_the_variants_are_the_papers():
    assert VARIANTS["none"].p == 0.0
    assert VARIANTS["none"].target is None
    assert (VARIANTS["dropout"].p, VARIANTS["dropout"].target) == (0.5, None)
    for name, target in (("adversarial", "input"), ("virtual", "output")):
        assert VARIANTS[name] == Settings(p=0.5, target=target, delta=0.3, weight=0.2, hidden=256)


@pytest.mark.parametrize("target", ["input", "output"])
def test_the_loss_is_its_formula(target):
    """Written out with the masks that the objective draws."""
    torch.manual_seed(0)
    x = torch.rand(6, 9)
    model = autoencoder(AdversarialDropout(p=0.5, delta=0.3), (9,), hidden=10).double()
    x = x.double()
    objective = objective_of(Settings(target=target, hidden=10))
    loss = Step(model, objective)(unlabeled=x, generator=torch.Generator().manual_seed(3)).loss

    h, decoder = model[:3](x), model[4]
    sampled = sample_mask(h, 0.5, torch.Generator().manual_seed(3))
    clean = decoder(h * sampled * 2)
    g = x if target == "input" else clean
    ones = torch.ones_like(h, requires_grad=True)
    divergence = (g.detach() - decoder(h.detach() * ones)).square().mean(1)
    (jacobian,) = torch.autograd.grad(divergence.sum(), ones)
    adversarial = flip_mask(sampled, jacobian, 3)
    expected = (x - clean).square().mean() + 0.2 * (g - decoder(h * adversarial * 2)).square().mean()
    assert not torch.equal(adversarial, sampled)
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("name", VARIANTS)
def test_training_repeats_itself_and_learns(name, images):
    one, again = (trained(SMALL[name], images, seed=1) for _ in range(2))
    other = trained(SMALL[name], images, seed=2)
    for first, second in zip(one.parameters(), again.parameters(), strict=True):
        assert torch.equal(first, second)
    assert not torch.equal(next(one.parameters()), next(other.parameters()))
    longer = trained(replace(SMALL[name], updates=60), images, seed=1)
    assert reconstruction_error(longer, images) < reconstruction_error(one, images)
    assert not one.training


def test_variants_of_one_seed_start_alike(images):
    start = [trained(replace(SMALL[name], updates=1, rate=0.0), images, seed=4) for name in ("none", "virtual")]
    for first, second in zip(start[0].parameters(), start[1].parameters(), strict=True):
        assert torch.equal(first, second)


def test_progress_is_told(images):
    told = []
    trained(SMALL["none"], images, seed=0, progress=told.append)
    assert told == [1, 2, 3, 4, 5]


def test_the_reconstruction_error_is_the_mean_over_everything(images):
    model = trained(SMALL["dropout"], images, seed=0)
    with torch.no_grad():
        expected = (images.float().flatten(1) / 255 - model(images.float() / 255)).square().mean()
    assert reconstruction_error(model, images) == pytest.approx(float(expected), rel=1e-5)


def test_activations_are_those_of_the_hidden_layer(images):
    model = trained(SMALL["dropout"], images, seed=0)
    expected = torch.relu(images.float().flatten(1) / 255 @ model[1].weight.T + model[1].bias)
    torch.testing.assert_close(hidden_activations(model, images), expected.detach())


def test_bytes_become_numbers_from_0_to_1():
    assert unit_range(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [0.0, 1.0]
    assert unit_range(torch.tensor([0.25])).tolist() == [0.25]


def test_the_strongest_unit_comes_first_and_dead_ones_last():
    assert by_activation(torch.tensor([[0.0, 1.0, 3.0], [0.0, 2.0, 3.0]])).tolist() == [2, 1, 0]
    assert by_activation(torch.zeros(2, 3)).tolist() == [0, 1, 2]


def test_a_packed_picture_can_be_unpacked():
    weights = torch.randn(20, 9, generator=torch.Generator().manual_seed(0))
    text, scale = packed(weights)
    found = torch.tensor(unpacked(text, 1.0)).view(20, 9) * scale / LEVELS
    assert (found - weights).abs().max() < scale / LEVELS / 2 + 1e-6
    assert unpacked(text, 0.5).tolist() == [round(step / 2) for step in unpacked(text, 1.0)]


def test_one_huge_weight_does_not_set_the_scale():
    weights = torch.ones(100, 20)
    weights[0, 0] = 1000.0
    text, scale = packed(weights)
    assert scale == 1.0
    assert unpacked(text, 1.0)[:2].tolist() == [LEVELS, LEVELS]


def test_nothing_but_zeros_can_be_packed():
    text, scale = packed(torch.zeros(2, 2))
    assert (unpacked(text, 1.0).tolist(), scale) == ([0, 0, 0, 0], 1.0)
