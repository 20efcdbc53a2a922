"""The baselines against references written out in numpy, in the order of their files."""

import numpy as np
import pytest
import torch
from torch import nn

from advdrop import (
    AT,
    VAT,
    AdversarialDropout,
    Batch,
    CrossEntropy,
    EntropyMinimisation,
    MutualExclusivity,
    PiModel,
    TemporalEnsembling,
    TransformationStability,
    kl,
    qe,
)
from advdrop.objectives import Passes
from advdrop.objectives.adversarial_training import unit
from advdrop.objectives.sajjadi import mutual_exclusivity
from small import CLASSES, FEATURES, batch, gradients, noisy, quiet, seeded


@pytest.fixture
def model():
    return nn.Sequential(AdversarialDropout(0.0), nn.Linear(FEATURES, CLASSES)).double()


@pytest.fixture
def rows():
    return batch(dtype=torch.float64)


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def output(model, x):
    return softmax(model[1](x).detach().numpy())


def values(term, model, rows, generator=None):
    return term.per_example(Passes(model, rows, generator, input_gradient=term.input_gradient)).detach().numpy()


def test_cross_entropy(model, rows):
    expected = -np.log(output(model, rows.x)[np.arange(len(rows.y)), rows.y.numpy()])
    np.testing.assert_allclose(values(CrossEntropy(), model, rows), expected)


def test_entropy_minimisation(model, rows):
    f = output(model, rows.u)
    np.testing.assert_allclose(values(EntropyMinimisation(), model, rows), -(f * np.log(f)).sum(1))


def test_pi_model(model, rows):
    expected = ((output(model, rows.u) - output(model, rows.v)) ** 2).mean(1)
    np.testing.assert_allclose(values(PiModel(), model, rows), expected)


def test_pi_model_takes_the_gradient_of_both_passes(model, rows):
    ours = gradients(model, PiModel()(model, rows).total)
    for mine, both in zip(ours, gradients(model, qe(model[1](rows.u), model[1](rows.v)).mean()), strict=True):
        torch.testing.assert_close(mine, both)
    half = gradients(model, qe(model[1](rows.u).detach(), model[1](rows.v)).mean())
    assert not torch.allclose(ours[0], half[0])


def test_pi_model_draws_another_mask_each_pass():
    model = nn.Sequential(AdversarialDropout(0.5), nn.Linear(FEATURES, CLASSES))
    assert PiModel()(model, Batch(u=batch().u)).total > 1e-4


def test_temporal_ensembling_is_the_corrected_average_of_the_past(model, rows):
    term, past = TemporalEnsembling(examples=20, classes=CLASSES, momentum=0.6), []
    for step in range(4):
        u = rows.u + 0.1 * step
        ours = values(term, model, Batch(u=u, index=torch.arange(16)))
        weights = np.array([0.4 * 0.6 ** (step - 1 - i) for i in range(step)])
        f = output(model, u)
        expected = np.zeros(16)
        if past:
            target = np.tensordot(weights, np.array(past), 1) / (1 - 0.6**step)
            assert weights.sum() == pytest.approx(1 - 0.6**step)
            expected = ((target - f) ** 2).mean(1)
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-12)
        past.append(f)
    assert term.seen.tolist() == [4.0] * 16 + [0.0] * 4


def test_temporal_ensembling_counts_rows_and_not_epochs(model, rows):
    term = TemporalEnsembling(examples=16, classes=CLASSES)
    values(term, model, Batch(u=rows.u[:8], index=torch.arange(8)))
    second = values(term, model, rows)
    np.testing.assert_allclose(second[:8], 0.0, atol=1e-12)
    assert (second[8:] == 0.0).all()
    values(term, model, Batch(u=rows.u[:8] + 1.0, index=torch.arange(8, 16)))
    assert term.seen.tolist() == [2.0] * 16


def test_temporal_ensembling_takes_no_gradient_from_its_target(model, rows):
    term = TemporalEnsembling(examples=16, classes=CLASSES)
    values(term, model, rows)
    target = output(model, rows.u)
    ours = gradients(model, term(model, Batch(u=rows.v, index=rows.index)).total)
    expected = gradients(model, qe(torch.tensor(target), model[1](rows.v), given="probabilities").mean())
    for mine, reference in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": None}, "give the Batch an index"),
        ({"index": torch.arange(16) + 1}, r"0\.\.15, got values from 1 to 16"),
    ],
)
def test_temporal_ensembling_needs_to_know_its_rows(model, rows, change, message):
    with pytest.raises(ValueError, match=message):
        TemporalEnsembling(16, CLASSES)(model, Batch(u=rows.u, **change))


def test_temporal_ensembling_needs_as_many_classes_as_the_network(model, rows):
    with pytest.raises(ValueError, match="classes=5, but the network has 3"):
        TemporalEnsembling(16, 5)(model, rows)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_adversarial_training(model, rows, norm):
    w = model[1].weight.detach().numpy()
    slope = (output(model, rows.x) - np.eye(CLASSES)[rows.y]) @ w
    step = np.sign(slope) if norm == "linf" else slope / np.linalg.norm(slope, axis=1, keepdims=True)
    f = output(model, rows.x + 0.1 * torch.tensor(step))
    expected = -np.log(f[np.arange(len(rows.y)), rows.y.numpy()])
    np.testing.assert_allclose(values(AT(epsilon=0.1, norm=norm), model, rows), expected)
    assert (expected > values(CrossEntropy(), model, rows)).all()


def test_adversarial_training_takes_no_gradient_through_the_perturbation(rows):
    model = quiet().double()
    x = rows.x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(nn.functional.cross_entropy(model.eval()(x), rows.y), x)
    fixed = nn.functional.cross_entropy(model(rows.x + 0.1 * slope.sign()), rows.y)
    ours = AT(epsilon=0.1)(model.train(), rows).total
    for mine, reference in zip(gradients(model, ours), gradients(model, fixed), strict=True):
        torch.testing.assert_close(mine, reference)


def test_vat_finds_the_direction_of_the_highest_curvature(model, rows):
    """Linear logits: the Hessian of KL at r = 0 is Wᵀ(diag f − ffᵀ)W, whose leading eigenvector is the answer."""
    w = model[1].weight.detach().numpy()
    term = VAT(epsilon=0.5, iterations=30, xi=1e-3)
    ours = values(term, model, rows, seeded())
    clean = output(model, rows.u)
    for row in range(len(clean)):
        f = clean[row]
        curvature = w.T @ (np.diag(f) - np.outer(f, f)) @ w
        direction = np.linalg.eigh(curvature)[1][:, -1]
        either = [
            (f * np.log(f / output(model, rows.u[row : row + 1] + sign * 0.5 * torch.tensor(direction))[0])).sum()
            for sign in (1, -1)
        ]
        assert min(abs(ours[row] - value) for value in either) < 2e-3 * max(either)


def test_vat_in_float32_is_not_lost_to_rounding():
    """On standardised images, as many as CIFAR-10 has pixels: the direction agrees with the one found in float64."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3072, 64), nn.Tanh(), nn.Linear(64, 10)).double()
    u = torch.randn(8, 3072).double()
    start = torch.randn(8, 3072).double()

    def direction(network, x, first, xi):
        step = (xi * unit(first)).requires_grad_()
        (slope,) = torch.autograd.grad(kl(network(x).detach(), network(x + step)).sum(), step)
        return unit(slope).double()

    exact = direction(model, u, start, 1e-4)
    single = model.float()
    cosine = {xi: (exact * direction(single, u.float(), start.float(), xi)).sum(1) for xi in (VAT().xi, 1e-6)}
    assert cosine[VAT().xi].min() > 0.99
    assert cosine[1e-6].min() < 0.9


def test_vat_takes_no_gradient_from_its_target(model, rows):
    term = VAT(epsilon=0.5)
    ours = gradients(model, term(model, rows, generator=seeded()).total)
    start = torch.empty_like(rows.u).normal_(generator=seeded())
    step = (term.xi * unit(start)).requires_grad_()
    target = model[1](rows.u).detach()
    (slope,) = torch.autograd.grad(kl(target, model[1](rows.u + step)).sum(), step)
    expected = gradients(model, kl(target, model[1](rows.u + 0.5 * unit(slope))).mean())
    for mine, reference in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, reference)


def test_vat_leaves_the_global_noise_as_one_pass_would():
    states = []
    for iterations in (1, 4):
        torch.manual_seed(0)
        VAT(iterations=iterations)(noisy(), batch(), generator=seeded())
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_vat_with_shared_noise_vanishes_with_the_radius():
    model, rows = noisy(norm=False), batch()
    assert VAT(epsilon=1e-4, noise="shared")(model, rows).total < 1e-6
    assert VAT(epsilon=1e-4)(model, rows).total > 1e-3


def test_unit_keeps_tiny_gradients():
    tiny = torch.tensor([[3e-30, 4e-30], [0.0, 0.0]])
    torch.testing.assert_close(unit(tiny), torch.tensor([[0.6, 0.8], [0.0, 0.0]]))


def test_transformation_stability(model, rows):
    first, other = output(model, rows.u), output(model, rows.v)
    ours = values(TransformationStability(passes=3), model, rows)
    np.testing.assert_allclose(ours, 2 * ((first - other) ** 2).sum(1))


def test_mutual_exclusivity(model, rows):
    f = output(model, rows.u)
    expected = -sum(f[:, k] * np.prod(np.delete(1 - f, k, axis=1), axis=1) for k in range(CLASSES))
    np.testing.assert_allclose(values(MutualExclusivity(), model, rows), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_mutual_exclusivity_of_a_certain_output_is_minus_one_with_a_finite_gradient(dtype):
    logits = torch.tensor([[200.0, 0.0, -200.0]], dtype=dtype, requires_grad=True)
    value = mutual_exclusivity(logits)
    value.sum().backward()
    assert value.item() == pytest.approx(-1.0, abs=1e-5)
    assert logits.grad.isfinite().all()


def test_temporal_ensembling_learns_nothing_from_a_validation_loss(model, rows):
    term = TemporalEnsembling(examples=16, classes=CLASSES)
    with torch.no_grad():
        term(model, rows)
    assert (term.seen == 0).all()


def test_adversarial_training_needs_gradients(model, rows):
    with torch.no_grad(), pytest.raises(RuntimeError, match="no_grad"):
        AT()(model, rows)
