import numpy as np
import pytest
import torch
from torch import nn

from advdrop import AdversarialDropout, Gamma, Step, insert
from advdrop.objectives.gamma import Combinator
from small import CLASSES, FEATURES, batch, passes_of, run, values


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normalized(x):
    mean, std = x.mean(0), np.sqrt(x.var(0) + 1e-5)
    return (x - mean) / std, mean, std


def combined(a, z, u):
    mean = a[0] * sigmoid(a[1] * u + a[2]) + a[3] * u + a[4]
    share = a[5] * sigmoid(a[6] * u + a[7]) + a[8] * u + a[9]
    return (z - mean) * share + mean


@pytest.fixture
def rows():
    return batch(dtype=torch.float64)


def test_the_combinator_is_formula_2(generator):
    g = Combinator(4).double()
    nn.init.normal_(g.a, generator=generator)
    z, u = torch.randn(2, 5, 4, generator=generator, dtype=torch.float64)
    np.testing.assert_allclose(g(z, u).detach(), combined(g.a.detach().numpy(), z.numpy(), u.numpy()))


def test_the_combinator_starts_as_the_noisy_units():
    z, u = torch.randn(2, 5, 4)
    assert torch.equal(Combinator(4)(z, u), z)


def test_the_cost_is_that_of_the_top_layer(rows, generator):
    model, term = nn.Linear(FEATURES, CLASSES).double(), Gamma(CLASSES, noise=0.0)
    term.combinator.double()
    nn.init.normal_(term.combinator.a, generator=generator)
    logits = model(rows["unlabeled"]).detach().numpy()
    z, mean, std = normalized(logits)
    soft = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    denoised = combined(term.combinator.a.detach().numpy(), z, normalized(soft)[0])
    expected = ((z - (denoised - mean) / std) ** 2).mean(1)
    np.testing.assert_allclose(values(model, term, rows).detach(), expected)


def test_the_noise_is_added_to_the_normalized_output(rows):
    model = nn.Linear(FEATURES, CLASSES).double()
    z, _, std = normalized(model(rows["unlabeled"]).detach().numpy())
    noise = torch.empty(16, CLASSES, dtype=torch.float64).normal_(generator=torch.Generator().manual_seed(0)).numpy()
    plain, noisy = (values(model, Gamma(CLASSES, noise=sigma), rows).detach().numpy() for sigma in (0.0, 0.3))
    gap = z - (z - normalized(model(rows["unlabeled"]).detach().numpy())[1]) / std
    np.testing.assert_allclose(plain, (gap**2).mean(1))
    np.testing.assert_allclose(noisy, ((gap - 0.3 * noise / std) ** 2).mean(1))


def test_the_target_has_no_noise_and_the_statistics_of_the_batch():
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, CLASSES))
    before = model[1].running_mean.clone()
    first, second = (passes_of(model, Gamma(CLASSES)).without_noise("unlabeled") for _ in range(2))
    norm = nn.BatchNorm1d(8)
    expected = model[3](norm(model[0](batch()["unlabeled"])))
    torch.testing.assert_close(first, expected)
    assert torch.equal(first, second)
    assert torch.equal(model[1].running_mean, before)
    assert model[2].training
    assert torch.autograd.grad(first.sum(), model[0].weight)[0].abs().max() > 0


def test_a_step_trains_the_combinator_and_saves_it():
    step = Step(nn.Sequential(AdversarialDropout(0.5), nn.Linear(FEATURES, CLASSES)), Gamma(CLASSES))
    assert {"trained.gamma.a", "model.1.weight"} <= {name for name, _ in step.named_parameters()}
    assert step.state_dict()["trained.gamma.a"].shape == (10, CLASSES)
    step(**batch()).loss.backward()
    assert step.trained["gamma"].a.grad.abs().max() > 0


@pytest.mark.parametrize(("options", "message"), [({"classes": 0}, "classes"), ({"classes": 3, "noise": -1}, "noise")])
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        Gamma(**options)


def test_gradients_flow_through_both_passes(monkeypatch):
    model = nn.Linear(FEATURES, CLASSES)
    full = torch.autograd.grad(run(model, Gamma(CLASSES)).loss, model.weight)[0]
    monkeypatch.setattr("advdrop.step.passes.Passes.without_noise", lambda p, r: model(p.inputs(r)).detach())
    half = torch.autograd.grad(run(model, Gamma(CLASSES)).loss, model.weight)[0]
    assert not torch.allclose(full, half)


@pytest.mark.parametrize("after", ["1", "2"])
def test_the_pass_without_noise_has_none_of_an_inserted_layer(after):
    """A norm is in training mode in this pass, and an inserted layer takes the mode of its module."""
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES))
    expected = passes_of(model, Gamma(CLASSES)).without_noise("unlabeled")
    passes = passes_of(insert(model, after=after, p=0.5), Gamma(CLASSES))
    clean = passes.clean("unlabeled")
    assert torch.equal(passes.without_noise("unlabeled"), expected)
    assert torch.equal(clean.scale(clean.masks)[0], 2.0 * clean.masks[0])  # as before
