"""L_AdD against its formula, written out by hand."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from advdrop import (
    AdD,
    AdversarialDropout,
    Batch,
    CrossEntropy,
    Exhaustive,
    FirstOrder,
    Iterated,
    Probe,
    RandomFlips,
    SAdD,
    Split,
    VAdD,
    cross_entropy,
    kl,
    qe,
    reverse_kl,
    sample_mask,
)
from advdrop.masks import MaskProblem, Search, hamming
from advdrop.objectives import Passes
from small import CLASSES, FEATURES, HIDDEN, batch, gradients, noisy, quiet, seeded


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def linear(p=0.5, delta=0.4, scale="inverted"):
    """f(x, ε) = W(x ⊙ ε)/(1 − p) + b: every derivative can be written down."""
    return nn.Sequential(AdversarialDropout(p, delta, scale=scale), nn.Linear(FEATURES, CLASSES)).double()


def by_hand(model, x, mask, target, slope, divergence, keep, budget):
    """The paper's steps in numpy: J at ε0 = 1, the largest gains, the divergence there."""
    w, b = (parameter.detach().numpy() for parameter in model[1].parameters())
    jacobian = x * (slope(target, softmax(x @ w.T + b)) @ w)
    gain = np.where(mask == 1, -jacobian, jacobian)
    flipped = mask.copy()
    for row in range(len(x)):
        for unit in np.argsort(-gain[row])[:budget]:
            if gain[row, unit] > 0:
                flipped[row, unit] = 1 - flipped[row, unit]
    return divergence(target, softmax((x * flipped / keep) @ w.T + b)), flipped


def test_vadd_against_numpy():
    model, u = linear(), batch(dtype=torch.float64).u
    mask = sample_mask(u, 0.5, seeded()).numpy()
    w, b = (parameter.detach().numpy() for parameter in model[1].parameters())
    target = softmax((u.numpy() * mask / 0.5) @ w.T + b)
    references = {
        kl: (lambda t, o: o - t, lambda t, o: (t * np.log(t / o)).sum(1)),
        cross_entropy: (lambda t, o: o - t, lambda t, o: -(t * np.log(o)).sum(1)),
        qe: (
            lambda t, o: 2 / CLASSES * o * ((o - t) - ((o - t) * o).sum(1, keepdims=True)),
            lambda t, o: ((t - o) ** 2).mean(1),
        ),
    }
    for divergence, (slope, value) in references.items():
        expected, flipped = by_hand(model, u.numpy(), mask, target, slope, value, 0.5, budget=2)
        ours = VAdD(divergence=divergence, noise="shared").per_example(Passes(model, Batch(u=u), seeded()))
        np.testing.assert_allclose(ours.detach().numpy(), expected, rtol=1e-10)
        assert (flipped != mask).any(1).all()


def test_sadd_against_numpy():
    model, rows = linear(), batch(dtype=torch.float64)
    mask = sample_mask(rows.x, 0.5, seeded()).numpy()
    onehot = np.eye(CLASSES)[rows.y]
    expected, _ = by_hand(
        model, rows.x.numpy(), mask, onehot, lambda t, o: o - t, lambda t, o: -(t * np.log(o)).sum(1), 0.5, budget=2
    )
    ours = SAdD().per_example(Passes(model, Batch(rows.x, rows.y), seeded()))
    np.testing.assert_allclose(ours.detach().numpy(), expected, rtol=1e-10)


def test_gradient_flows_through_both_branches_and_not_through_the_mask():
    model, u = quiet(p=0.5).double(), batch(dtype=torch.float64).u
    found = []

    class Spy(Search):
        def __call__(self, problem: MaskProblem):
            found.append(FirstOrder()(problem))
            return found[0]

    loss = VAdD(noise="shared", search=Spy()).per_example(Passes(model, Batch(u=u), seeded())).mean()
    h = model.under(u)
    rest = model.upper[1:]
    clean = rest(h * sample_mask(h, 0.5, seeded()) / 0.5)
    adversarial = rest(h * found[0][0] / 0.5)
    for ours, expected in zip(gradients(model, loss), gradients(model, kl(clean, adversarial).mean()), strict=True):
        torch.testing.assert_close(ours, expected)


def test_sadd_never_falls_below_the_plain_loss_where_the_divergence_is_convex_in_the_mask():
    model, rows = linear(p=0.0), batch(dtype=torch.float64)
    passes = Passes(model, rows)
    assert (SAdD().per_example(passes) >= CrossEntropy().per_example(passes)).all()
    assert (SAdD().per_example(passes) > CrossEntropy().per_example(passes)).any()


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_sadd_with_the_exact_search_never_falls_below_the_plain_loss(p):
    passes = Passes(quiet(p), batch(), seeded())
    assert (SAdD(search=Exhaustive()).per_example(passes) >= CrossEntropy().per_example(passes)).all()


@pytest.mark.parametrize("search", [FirstOrder(), Iterated(), Probe(), RandomFlips(), Exhaustive()])
def test_vadd_is_never_negative_and_the_exact_search_is_the_highest(search):
    def value(how):
        passes = Passes(quiet(0.5), batch(dtype=torch.float64), seeded())
        return VAdD(search=how, noise="shared").per_example(passes)

    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(3)
        found = value(search)
        torch.manual_seed(3)
        assert (found >= 0).all()
        assert (found <= value(Exhaustive()) + 1e-12).all()
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("noise", ["shared", "independent"])
def test_delta_zero_is_the_unperturbed_loss(noise):
    model, rows = quiet(0.5), batch()
    passes = Passes(model, Batch(rows.x, rows.y, rows.u), seeded())
    torch.testing.assert_close(SAdD(delta=0.0, noise=noise).per_example(passes), CrossEntropy().per_example(passes))
    still = VAdD(delta=0.0, noise=noise).per_example(passes)
    torch.testing.assert_close(still, torch.zeros_like(still), atol=1e-7, rtol=0)


def masks_of(objective, model, rows):
    """The masks that a term hands to the layers in its adversarial pass."""
    found = []
    search = objective.search

    class Spy(Search):
        def __call__(self, problem):
            found.append((problem, search(problem)))
            return found[-1][1]

    objective = copy.copy(objective)
    objective.search = Spy()
    objective.per_example(Passes(model, rows, seeded()))
    return found[0]


def stacked(p=0.5):
    return nn.Sequential(
        nn.Linear(FEATURES, 8),
        AdversarialDropout(p, delta=0.25),
        nn.Linear(8, HIDDEN),
        nn.Tanh(),
        AdversarialDropout(p, delta=0.5),
        nn.Linear(HIDDEN, CLASSES),
    )


def test_budget_per_layer_and_shared():
    model, rows = stacked(), batch()
    problem, masks = masks_of(VAdD(), model, rows)
    assert problem.budget == (2, 5)
    flips = [hamming(before, after) for before, after in zip(problem.sampled, masks, strict=True)]
    assert all((used <= limit).all() for used, limit in zip(flips, problem.budget, strict=True))
    problem, masks = masks_of(VAdD(budget="shared"), model, rows)
    assert problem.budget == 7
    flips = torch.stack([hamming(before, after) for before, after in zip(problem.sampled, masks, strict=True)])
    assert (flips.sum(0) <= 7).all()
    assert (flips[0] > 2).any() or (flips[1] > 5).any()
    problem, _ = masks_of(VAdD(delta=0.5), model, rows)
    assert problem.budget == (4, 5)


def test_channels_are_flipped_whole():
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), AdversarialDropout(0.5, 0.25, granularity="channel"), nn.Flatten(), nn.Linear(8 * 9, 3)
    )
    problem, (mask,) = masks_of(VAdD(), model, Batch(u=torch.randn(4, 1, 5, 5)))
    assert mask.shape == (4, 8, 1, 1)
    assert problem.budget == (2,)
    assert hamming(mask, problem.sampled[0]).max() == 2


def test_renormalised_scale_keeps_the_sum_of_the_mask():
    model, u = linear(p=0.5, scale="renormalised"), batch(dtype=torch.float64).u
    problem, masks = masks_of(VAdD(noise="shared"), model, Batch(u=u))
    torch.testing.assert_close(problem.scale(masks)[0].sum(1), torch.full((len(u),), float(FEATURES)).double())


def test_search_direction_can_differ_from_the_loss():
    model, u = quiet(0.5).double(), batch(dtype=torch.float64).u
    problem, _ = masks_of(VAdD(noise="shared", search_divergence=reverse_kl), model, Batch(u=u))
    passes = Passes(model, Batch(u=u), seeded())
    target, output = passes.clean("unlabelled").logits, model.upper[1:](model.under(u))
    ones = (torch.ones(len(u), HIDDEN).double(),)
    torch.testing.assert_close(problem.divergence(ones), kl(output, target))


def test_any_target():
    model, rows = quiet(0.5), batch()
    uniform = torch.full((len(rows.u), CLASSES), 1 / CLASSES)
    term = AdD(target=lambda passes, rows: uniform, divergence=kl, rows="unlabelled", given="probabilities", delta=0.0)
    passes = Passes(model, rows, seeded())
    logits = passes.clean("unlabelled").logits
    assert term.per_example(Passes(model, Batch(u=rows.u), seeded())).mean().item() == pytest.approx(
        kl(uniform, logits, given="probabilities").mean().item()
    )


def test_vadd_on_the_labelled_rows():
    model, rows = quiet(0.5), batch()
    value = VAdD(rows="labelled").per_example(Passes(model, rows, seeded()))
    torch.testing.assert_close(value, VAdD().per_example(Passes(model, Batch(u=rows.x), seeded())))


def test_search_leaves_the_global_noise_alone():
    class Still(Search):
        def __call__(self, problem):
            return problem.sampled

    states = []
    for search in (Still(), FirstOrder(), Iterated(5), Exhaustive()):
        torch.manual_seed(0)
        VAdD(search=search)(noisy(), batch(), generator=seeded())
        states.append(torch.get_rng_state())
    assert all(torch.equal(states[0], state) for state in states[1:])


def test_search_and_adversarial_pass_see_the_same_noise():
    """With dropout above the layer, delta=0 and shared noise the two passes are the same pass."""
    value = VAdD(delta=0.0, noise="shared").per_example(Passes(noisy(norm=False), batch()))
    torch.testing.assert_close(value, torch.zeros_like(value), atol=1e-6, rtol=0)


@pytest.mark.parametrize("noise", ["shared", "independent"])
def test_zero_gradient_trap_is_named_once_and_the_probe_is_alive(noise):
    model, rows = quiet(p=0.0), Batch(u=batch().u)
    objective = VAdD(noise=noise)
    with pytest.warns(UserWarning, match=r"all-zero Jacobian.*Probe\(\)"):
        objective(model, rows)
    objective(model, rows)
    assert VAdD(noise=noise, search=Probe()).per_example(Passes(model, rows)).min() > 1e-4


def test_trap_is_open_where_lower_noise_or_views_differ():
    rows = batch()
    VAdD()(noisy(p=0.0), Batch(u=rows.u))
    VAdD()(quiet(p=0.0), rows)
    SAdD()(quiet(p=0.0), rows)


def test_works_without_gradients_as_in_evaluation():
    model = noisy().eval()
    with torch.no_grad():
        loss = (CrossEntropy() + SAdD())(model, batch())
    assert not loss.total.requires_grad
    assert loss.terms["sadd_cross_entropy"] > loss.terms["cross_entropy"]


def test_split_given_by_hand_equals_the_sequential_it_came_from():
    plain = stacked().double()
    by_hand_split = Split(plain[:1], plain[1:])
    rows, losses = batch(dtype=torch.float64), []
    for network in (plain, by_hand_split):
        torch.manual_seed(0)
        losses.append(VAdD()(network, rows, generator=seeded()).total)
    torch.testing.assert_close(*losses)


def test_delta_zero_makes_no_search():
    class Never(Search):
        def __call__(self, problem):
            raise AssertionError

    VAdD(delta=0.0, search=Never())(quiet(0.5), batch())
    VAdD(delta=0.0, search=Never(), budget="shared")(stacked(), batch())


def test_a_jacobian_of_nan_is_an_error_and_not_a_zero():
    model = quiet(0.5)
    with torch.no_grad():
        model.upper[1].weight[0] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinity in 16 of 16 examples"):
        VAdD()(model, batch())


def test_a_delta_too_small_for_the_layer_is_said_once():
    term = VAdD(delta=0.05)
    with pytest.warns(
        UserWarning, match="delta=0.05 of 10 units allows no flip.*smallest delta that allows one is 0.1"
    ):
        term(quiet(0.5), batch())
    term(quiet(0.5), batch())
