"""L_AdD against its formula, written out by hand."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from advdrop import (
    EMA,
    VAT,
    AdD,
    AdversarialDropout,
    CrossEntropy,
    Exhaustive,
    FirstOrder,
    Iterated,
    PiModel,
    Probe,
    RandomFlips,
    SAdD,
    Search,
    Step,
    TemporalEnsembling,
    VAdD,
    cross_entropy,
    kl,
    qe,
    reverse_kl,
    sample_mask,
)
from advdrop.checks import NonFiniteError
from advdrop.masks import MaskProblem, hamming
from small import (
    CLASSES,
    FEATURES,
    HIDDEN,
    Wrapped,
    batch,
    close,
    gradients,
    noisy,
    only,
    passes_of,
    quiet,
    run,
    seeded,
    values,
)


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


@pytest.fixture
def rows():
    return batch(dtype=torch.float64)


REFERENCES = {
    kl: (lambda t, o: o - t, lambda t, o: (t * np.log(t / o)).sum(1)),
    cross_entropy: (lambda t, o: o - t, lambda t, o: -(t * np.log(o)).sum(1)),
    qe: (
        lambda t, o: 2 / CLASSES * o * ((o - t) - ((o - t) * o).sum(1, keepdims=True)),
        lambda t, o: ((t - o) ** 2).mean(1),
    ),
}


@pytest.mark.parametrize("divergence", REFERENCES)
def test_vadd_against_numpy(rows, divergence):
    model, u = linear(), rows["unlabeled"].numpy()
    mask = sample_mask(rows["unlabeled"], 0.5, seeded()).numpy()
    w, b = (parameter.detach().numpy() for parameter in model[1].parameters())
    target = softmax((u * mask / 0.5) @ w.T + b)
    expected, flipped = by_hand(model, u, mask, target, *REFERENCES[divergence], 0.5, budget=2)
    ours = values(model, VAdD(divergence=divergence, noise="shared"), only(rows, "unlabeled"))
    np.testing.assert_allclose(ours.detach(), expected, rtol=1e-10)
    assert (flipped != mask).any(1).all()


def test_sadd_against_numpy(rows):
    model = linear()
    mask = sample_mask(rows["x"], 0.5, seeded()).numpy()
    onehot, (slope, value) = np.eye(CLASSES)[rows["y"]], REFERENCES[cross_entropy]
    expected, _ = by_hand(model, rows["x"].numpy(), mask, onehot, slope, value, 0.5, budget=2)
    np.testing.assert_allclose(values(model, SAdD(), only(rows, "x", "y")).detach(), expected, rtol=1e-10)


class Spy(Search):
    """Another search, and what it was asked and found."""

    def __init__(self, search):
        self.search, self.problem, self.masks = search, None, None

    def __call__(self, problem: MaskProblem):
        self.problem, self.masks = problem, self.search(problem)
        return self.masks


def spied(term, model, rows):
    """The problem of a term's search, and the masks that it found."""
    term = copy.copy(term)
    term.search = spy = Spy(term.search)
    values(model, term, rows)
    return spy.problem, spy.masks


def test_the_gradient_flows_through_both_branches_and_not_through_the_mask(rows):
    model, spy = quiet(p=0.5).double(), Spy(FirstOrder())
    ours = values(model, VAdD(noise="shared", search=spy), only(rows, "unlabeled")).mean()
    h, rest = model[:2](rows["unlabeled"]), model[3:]
    clean, adversarial = rest(h * sample_mask(h, 0.5, seeded()) / 0.5), rest(h * spy.masks[0] / 0.5)
    close(gradients(model, ours), gradients(model, kl(clean, adversarial).mean()))


def test_sadd_is_at_least_the_plain_loss():
    for model, search in ((linear(p=0.0).float(), FirstOrder()), (quiet(0.5), Exhaustive())):  # convex, or exact
        term = SAdD(search=search)
        passes = passes_of(model, term, CrossEntropy())
        adversarial, plain = term.per_example(passes), CrossEntropy().per_example(passes)
        assert (adversarial >= plain).all()
        assert (adversarial > plain).any()


@pytest.mark.parametrize("search", [FirstOrder(), Iterated(), Probe(), RandomFlips()])
def test_vadd_is_never_negative_and_the_exact_search_is_the_highest(search, rows):
    model = quiet(0.5).double()
    found, best = (values(model, VAdD(search=how, noise="shared"), rows) for how in (search, Exhaustive()))
    assert (found >= 0).all()
    assert (found <= best + 1e-12).all()


@pytest.mark.parametrize("noise", ["shared", "independent"])
def test_without_flips_it_is_the_unperturbed_loss(noise):
    model, rows = quiet(0.5), only(batch(), "x", "y", "unlabeled")
    loss = run(model, CrossEntropy() + SAdD(delta=0.0, noise=noise) + VAdD(delta=0.0, noise=noise), rows).terms
    torch.testing.assert_close(loss["sadd_cross_entropy"], loss["cross_entropy"])
    assert abs(loss["vadd_kl"]) < 1e-7


def test_shared_noise_is_that_of_the_clean_pass_also_above_the_layer():
    value = values(noisy(norm=False), VAdD(delta=0.0, noise="shared"))
    torch.testing.assert_close(value, torch.zeros_like(value), atol=1e-6, rtol=0)
    assert values(noisy(norm=False), VAdD(delta=0.0)).min() > 1e-6


@pytest.mark.parametrize("norm", [False, True], ids=["passes together", "passes apart"])
@pytest.mark.parametrize("noise", ["shared", "independent"])
@pytest.mark.parametrize("wrap", [nn.Sequential, Wrapped])
def test_the_search_and_the_adversarial_pass_see_the_same_noise(norm, noise, wrap):
    class Look(Search):
        def __call__(self, problem):
            self.seen = problem.divergence(problem.scale(problem.sampled))
            return problem.sampled

    look = Look()
    torch.testing.assert_close(values(wrap(noisy(norm=norm)), VAdD(noise=noise, search=look)), look.seen)


def stacked(p=0.5):
    return nn.Sequential(
        nn.Linear(FEATURES, 8),
        AdversarialDropout(p, delta=0.25),
        nn.Linear(8, HIDDEN),
        nn.Tanh(),
        AdversarialDropout(p, delta=0.5),
        nn.Linear(HIDDEN, CLASSES),
    )


def test_a_budget_for_each_layer_and_a_shared_one():
    model, rows = stacked(), batch()
    problem, masks = spied(VAdD(), model, rows)
    assert problem.budget == (2, 5)
    flips = [hamming(before, after) for before, after in zip(problem.sampled, masks, strict=True)]
    assert all((used <= limit).all() for used, limit in zip(flips, problem.budget, strict=True))
    problem, masks = spied(VAdD(budget="shared"), model, rows)
    assert problem.budget == 7
    flips = torch.stack([hamming(before, after) for before, after in zip(problem.sampled, masks, strict=True)])
    assert (flips.sum(0) <= 7).all()
    assert (flips[0] > 2).any() or (flips[1] > 5).any()
    assert spied(VAdD(delta=0.5), model, rows)[0].budget == (4, 5)


def test_channels_are_flipped_whole():
    layer = AdversarialDropout(0.5, 0.25, granularity="channel")
    model = nn.Sequential(nn.Conv2d(1, 8, 3), layer, nn.Flatten(), nn.Linear(8 * 9, 3))
    problem, (mask,) = spied(VAdD(), model, {"unlabeled": torch.randn(4, 1, 5, 5)})
    assert mask.shape == (4, 8, 1, 1)
    assert problem.budget == (2,)
    assert hamming(mask, problem.sampled[0]).max() == 2


def test_the_scale_of_the_layer_is_that_of_the_search(rows):
    model = linear(p=0.5, scale="renormalized")
    problem, masks = spied(VAdD(noise="shared"), model, only(rows, "unlabeled"))
    torch.testing.assert_close(problem.scale(masks)[0].sum(1), torch.full((16,), float(FEATURES)).double())


def test_the_search_may_have_a_divergence_of_its_own(rows):
    model, given = quiet(0.5).double(), only(rows, "unlabeled")
    term = VAdD(noise="shared", search_divergence=reverse_kl)
    problem, _ = spied(term, model, given)
    target = passes_of(model, term, rows=given).clean("unlabeled").logits
    output = model[3:](model[:2](rows["unlabeled"]))
    torch.testing.assert_close(problem.divergence((torch.ones(16, HIDDEN).double(),)), kl(output, target))


def test_any_target():
    model, rows = quiet(0.5), only(batch(), "unlabeled")
    uniform = torch.full((16, CLASSES), 1 / CLASSES)
    term = AdD(target=lambda passes, rows: uniform, divergence=kl, rows="unlabeled", given="probabilities", delta=0.0)
    logits = passes_of(model, term, rows=rows).clean("unlabeled").logits
    torch.testing.assert_close(values(model, term, rows), kl(uniform, logits, given="probabilities"))


def test_a_detached_target_has_the_same_value_and_no_gradient(rows):
    model, spy, given = quiet(p=0.5).double(), Spy(FirstOrder()), only(rows, "unlabeled")
    ours = values(model, VAdD(noise="shared", search=spy, detach=True), given)
    torch.testing.assert_close(ours, values(model, VAdD(noise="shared"), given), rtol=0, atol=0)
    h, rest = model[:2](rows["unlabeled"]), model[3:]
    clean, adversarial = rest(h * sample_mask(h, 0.5, seeded()) / 0.5), rest(h * spy.masks[0] / 0.5)
    found = gradients(model, ours.mean())
    close(found, gradients(model, kl(clean.detach(), adversarial).mean()))
    undetached = gradients(model, values(model, VAdD(noise="shared"), given).mean())
    assert not torch.allclose(undetached[0], found[0])


def test_a_gradient_of_the_target_alone_is_cut():
    model, rows = quiet(0.5), only(batch(), "unlabeled")
    target = torch.zeros(16, CLASSES, requires_grad=True)
    for detach in (False, True):
        term = AdD(target=lambda passes, rows: target, divergence=kl, rows="unlabeled", detach=detach)
        (slope,) = torch.autograd.grad(values(model, term, rows).sum(), target, allow_unused=True)
        assert (slope is None) == detach


@pytest.mark.parametrize("power", [1.0, 2.5])
@pytest.mark.parametrize("divergence", REFERENCES)
def test_confidence_weighs_each_row_by_its_target(rows, divergence, power):
    model, u = linear(), rows["unlabeled"].numpy()
    mask = sample_mask(rows["unlabeled"], 0.5, seeded()).numpy()
    w, b = (parameter.detach().numpy() for parameter in model[1].parameters())
    target = softmax((u * mask / 0.5) @ w.T + b)
    expected, _ = by_hand(model, u, mask, target, *REFERENCES[divergence], 0.5, budget=2)
    weight = ((target.max(1) - 1 / CLASSES) / (1 - 1 / CLASSES)) ** power
    term = VAdD(divergence=divergence, noise="shared", confidence=power)
    np.testing.assert_allclose(
        values(model, term, only(rows, "unlabeled")).detach(), weight * expected, rtol=1e-10, atol=1e-14
    )


def test_the_weight_of_a_row_is_a_constant(rows):
    model, given = quiet(0.5).double(), only(rows, "unlabeled")
    term = VAdD(noise="shared", confidence=1.0)
    target = passes_of(model, term, rows=given).clean("unlabeled").logits.detach().softmax(1)
    weight = (target.amax(1) - 1 / CLASSES) / (1 - 1 / CLASSES)
    plain = values(model, VAdD(noise="shared"), given)
    close(gradients(model, values(model, term, given).sum()), gradients(model, (weight * plain).sum()))


def test_labels_are_certain():
    model, rows = quiet(0.5), only(batch(), "x", "y")
    torch.testing.assert_close(values(model, SAdD(confidence=1.0), rows), values(model, SAdD(), rows))


def test_the_flips_may_start_from_a_fresh_mask(rows):
    model, u, generator = linear(), rows["unlabeled"].numpy(), seeded()
    mask, fresh = (sample_mask(rows["unlabeled"], 0.5, generator).numpy() for _ in range(2))
    w, b = (parameter.detach().numpy() for parameter in model[1].parameters())
    target = softmax((u * mask / 0.5) @ w.T + b)
    expected, flipped = by_hand(model, u, fresh, target, *REFERENCES[kl], 0.5, budget=2)
    term = VAdD(noise="shared", fresh=True)
    np.testing.assert_allclose(values(model, term, only(rows, "unlabeled")).detach(), expected, rtol=1e-10)
    problem, (found,) = spied(term, model, only(rows, "unlabeled"))
    np.testing.assert_array_equal(problem.sampled[0], fresh)
    np.testing.assert_array_equal(found, flipped)
    assert hamming(found, problem.sampled[0]).max() == 2


def test_without_flips_a_fresh_mask_is_the_pi_model(rows):
    model, generator = linear(), seeded()
    clean, again = (
        model[1](rows["unlabeled"] * sample_mask(rows["unlabeled"], 0.5, generator) / 0.5) for _ in range(2)
    )
    term = VAdD(noise="shared", fresh=True, delta=0.0)
    torch.testing.assert_close(values(model, term, only(rows, "unlabeled")), kl(clean, again))


@pytest.mark.parametrize("noise", ["shared", "independent"])
def test_the_options_change_nothing_unless_asked_for(noise):
    losses, after = [], []
    for options in ({}, {"detach": False, "confidence": 0.0, "fresh": False}, {"detach": True}, {"fresh": True}):
        torch.manual_seed(0)
        model, generator = quiet(0.5), seeded()
        loss = Step(model, VAdD(noise=noise, **options))(**only(batch(), "unlabeled"), generator=generator).loss
        losses.append((loss.item(), gradients(model, loss)[0]))
        after.append(generator.get_state())
    assert losses[0][0] == losses[1][0] == losses[2][0] != losses[3][0]
    assert torch.equal(losses[0][1], losses[1][1])
    assert torch.equal(after[0], after[1])  # nothing more is drawn
    assert torch.equal(after[0], after[2])
    assert not torch.equal(after[0], after[3])


def test_vadd_on_the_labeled_rows():
    model, rows = quiet(0.5), batch()
    on_labeled = values(model, VAdD(rows="labeled"), rows)
    torch.testing.assert_close(on_labeled, values(model, VAdD(), {"unlabeled": rows["x"]}))
    torch.testing.assert_close(on_labeled, values(model, VAdD(), only(rows, "x", "y")))


def test_the_search_leaves_the_global_noise_alone():
    class Idle(Search):
        def __call__(self, problem):
            return problem.sampled

    states = []
    for search in (Idle(), FirstOrder(), Iterated(5), Exhaustive()):
        torch.manual_seed(0)
        run(noisy(), VAdD(search=search))
        states.append(torch.get_rng_state())
    assert all(torch.equal(states[0], state) for state in states[1:])


@pytest.mark.parametrize("noise", ["shared", "independent"])
def test_a_zero_jacobian_is_told_once_and_the_probe_is_alive(noise):
    model, rows, objective = quiet(p=0.0), only(batch(), "unlabeled"), VAdD(noise=noise)
    with pytest.warns(UserWarning, match=r"all-zero Jacobian.*Probe\(\)"):
        run(model, objective, rows)
    run(model, objective, rows)
    assert values(model, VAdD(noise=noise, search=Probe()), rows).min() > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_small_jacobian_is_not_taken_for_zero(dtype):
    """The passes differ by the noise beside the layer, and what is behind the layer has small weights."""

    class Beside(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.noise = AdversarialDropout(p=0.5, delta=0.5), nn.Dropout(0.5)
            self.small, self.large = nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES)
            self.small.weight.data *= 2e-7

        def forward(self, x):
            return self.large(self.noise(x)) + self.small(self.layer(x))

    torch.manual_seed(0)
    x = batch()["unlabeled"].to(dtype)
    measures = Step(Beside().to(dtype), VAdD())(unlabeled=x, measure=True).measures  # a warning would be an error
    assert measures["vadd_kl/flips"] > 0


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_a_flat_divergence_is_not_taken_for_agreement(p):
    """The slope of QE is below the rounding of float32 if 1,000 classes are about equally probable."""
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), AdversarialDropout(p, 0.1), nn.Linear(64, 1000))
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        run(model, VAdD(divergence=qe), only(batch(), "unlabeled"))
    assert ["all-zero Jacobian" in str(one.message) for one in given] == [True] * (p == 0.0)


def test_lower_noise_or_a_second_view_give_the_search_something_to_go_by():
    rows = batch()
    run(noisy(p=0.0), VAdD(), only(rows, "unlabeled"))
    run(quiet(p=0.0), VAdD(), rows)
    run(quiet(p=0.0), SAdD(), rows)


def test_it_works_without_gradients_in_evaluation_mode():
    model = noisy().eval()
    with torch.no_grad():
        loss = run(model, CrossEntropy() + SAdD())
    assert not loss.loss.requires_grad
    assert loss.terms["sadd_cross_entropy"] > loss.terms["cross_entropy"]


def test_without_a_budget_there_is_no_search():
    class Never(Search):
        def __call__(self, problem):
            raise AssertionError

    run(quiet(0.5), VAdD(delta=0.0, search=Never()))
    run(stacked(), VAdD(delta=0.0, search=Never(), budget="shared"))


def test_a_jacobian_of_nan_is_an_error_that_names_the_term():
    model = quiet(0.5)
    with torch.no_grad():
        model[3].weight[0] = torch.nan
    with pytest.raises(NonFiniteError, match=r"^vadd_kl: jacobian has NaN or infinity in 16 of 16 examples"):
        run(model, VAdD())


def test_a_delta_too_small_for_the_layer_is_told_once():
    term = VAdD(delta=0.05)
    with pytest.warns(UserWarning, match=r"delta=0.05 of 10 units allows no flip.*smallest delta.*one is 0.1"):
        run(quiet(0.5), term)
    run(quiet(0.5), term)


@pytest.mark.parametrize(
    ("budget", "message"), [("layer", "delta=0.15 of 6 units allows"), ("shared", r"delta=0\.059.* of 16 units allows")]
)
def test_the_warning_is_true_for_several_layers(budget, message):
    layers = AdversarialDropout(0.5, 0.005), AdversarialDropout(0.5, 0.15)
    net = nn.Sequential(nn.Linear(FEATURES, 10), layers[0], nn.Linear(10, 6), layers[1], nn.Linear(6, CLASSES))
    with pytest.warns(UserWarning, match=message):
        run(net, VAdD(budget=budget))


REFUSED = {
    "delta": (lambda: VAdD(delta=1.5), ValueError, "delta must be in .*1.5"),
    "delta type": (lambda: VAdD(delta="a"), TypeError, "delta must be a number"),
    "noise": (lambda: VAdD(noise="none"), ValueError, "'independent', 'shared', got 'none'"),
    "budget": (lambda: VAdD(budget="all"), ValueError, "'layer', 'shared', got 'all'"),
    "divergence": (lambda: VAdD(divergence="kl"), TypeError, "advdrop.kl, got 'kl'"),
    "search divergence": (lambda: VAdD(search_divergence="kl"), TypeError, "search_divergence must be.*got 'kl'"),
    "target": (lambda: VAdD(target=EMA), TypeError, "target must be a function, a network .* or an EMA, got <class"),
    "confidence": (lambda: VAdD(confidence=-0.5), ValueError, "confidence must be .*got -0.5"),
    "confidence type": (lambda: VAdD(confidence=True), TypeError, "confidence must be a number"),
    "search": (lambda: VAdD(search=FirstOrder), TypeError, r"FirstOrder\(\), got <class"),
    "rows": (lambda: run(noisy(), VAdD(rows="labelled")), ValueError, "'labeled', 'unlabeled', got 'labelled'"),
    "labels of the unlabeled": (lambda: run(noisy(), SAdD(rows="unlabeled")), ValueError, "labeled rows only"),
    "no layer": (
        lambda: run(nn.Linear(FEATURES, CLASSES), VAdD()),
        ValueError,
        r"VAdD needs a model with an AdversarialDropout layer, and none ran in Linear; call advdrop.insert\(",
    ),
}


@pytest.mark.parametrize(("make", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_makes_no_sense_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("weights", [1.0, 0.1, 0.03, 0.01, 0.001])
@pytest.mark.parametrize(
    "make", [VAdD, SAdD, lambda: VAdD(search=Iterated(2))], ids=["vadd", "sadd", "iterated"]
)  # a new term each time, because a term looks at its first searches only
def test_small_weights_find_all_flips_in_every_precision_and_are_not_called_zero(dtype, autocast, weights, make):
    term = make()
    model = nn.Sequential(
        *(nn.Linear(20, 64), nn.Tanh(), AdversarialDropout(0.5, 0.25)),
        *(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)),
    )
    with torch.no_grad():
        for parameter in model[3:].parameters():
            parameter.mul_(weights)
    autocast = autocast and dtype.itemsize == 2
    model = model if autocast else model.to(dtype)
    rows = {"x": torch.randn(32, 20).to(torch.float32 if autocast else dtype), "y": torch.arange(32) % 10}
    with torch.autocast("cpu", dtype if autocast else torch.bfloat16, enabled=autocast), warnings.catch_warnings():
        if weights == 0.001:  # here the outputs of the two passes agree up to the rounding of float32
            warnings.filterwarnings("ignore", "the mask search found an all-zero Jacobian")
        measures = run(model, term, rows, measure=True).measures
    assert measures[f"{term.name}/flips"] == 16


class Experts(nn.Module):
    """Sends each row to one of several experts. The last ones get no row."""

    def __init__(self, options, idle=0, busy=2):
        super().__init__()
        experts = [
            nn.Sequential(nn.Linear(FEATURES, HIDDEN), AdversarialDropout(0.5, 0.3, **options), nn.Linear(HIDDEN, 3))
            for _ in range(busy)
        ]
        self.experts, self.busy = nn.ModuleList([*experts, *copy.deepcopy(experts[:1] * idle)]), busy

    def forward(self, x):
        chosen, output = torch.arange(len(x)) % max(self.busy, 1), x.new_zeros(len(x), CLASSES)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().flatten()
            output = output.index_add(0, rows, expert(x[rows]))
        return output


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("options", [{}, {"granularity": "feature"}, {"scale": "renormalized"}], ids=str)
@pytest.mark.parametrize("search", [FirstOrder(), Iterated(2), Probe(), RandomFlips()], ids=str)
def test_a_layer_without_rows_has_nothing_to_flip(options, search, dtype):
    """An expert that gets no token changes nothing."""
    found = []
    for idle in (0, 1):
        torch.manual_seed(0)
        model, rows = Experts(options, idle, busy=1).to(dtype), batch()
        rows = {"x": rows["x"].to(dtype), "y": rows["y"]}
        torch.manual_seed(1)
        found.append(run(model, VAdD(search=search), rows, measure=True))
    assert torch.equal(found[0].loss, found[1].loss)
    assert found[0].measures == found[1].measures


class Placed(nn.Module):
    """A layer on units of any shape."""

    def __init__(self, there, back, granularity="unit"):
        super().__init__()
        self.first, self.layer, self.last = (
            nn.Linear(FEATURES, 12),
            AdversarialDropout(0.5, 0.5, granularity=granularity),
            nn.Linear(12, CLASSES),
        )
        self.there, self.back = there, back

    def forward(self, x):
        return self.last(self.back(self.layer(self.there(self.first(x)))))


ROWS_LAST = {
    "time first": (lambda h: h.view(16, 3, 4).transpose(0, 1), lambda h: h.transpose(0, 1).flatten(1)),
    "time first, a multiple": (
        lambda h: h.repeat(1, 8).view(16, 32, 3).transpose(0, 1),
        lambda h: h.transpose(0, 1).flatten(1)[:, :12],
    ),
    "a new first dimension": (lambda h: h[None], lambda h: h[0]),
    "transposed": (lambda h: h.t(), lambda h: h.t()),
}
ROWS_FIRST = {
    "units": (lambda h: h, lambda h: h),
    "sequence": (lambda h: h.view(16, 3, 4), lambda h: h.flatten(1)),
    "as many steps as rows": (lambda h: h.repeat(1, 4).view(16, 16, 3), lambda h: h.flatten(1)[:, :12]),
    "tokens below each other": (lambda h: h.view(48, 4), lambda h: h.view(16, 12)),
}


@pytest.mark.parametrize("granularity", ["unit", "feature"])
@pytest.mark.parametrize(("there", "back"), ROWS_LAST.values(), ids=ROWS_LAST)
def test_units_whose_first_dimension_is_not_the_examples_are_told_once(there, back, granularity):
    step, rows = Step(Placed(there, back, granularity), VAdD() + SAdD()), only(batch(16), "x", "y")
    with pytest.warns(UserWarning, match=r"must be the 16 examples, got units of shape.*batch_first=True") as told:
        step(**rows)
    assert len(told) == 1
    step(**rows)


@pytest.mark.parametrize(("there", "back"), ROWS_FIRST.values(), ids=ROWS_FIRST)
def test_units_of_the_examples_are_not_told(there, back):
    run(Placed(there, back), VAdD() + SAdD(), only(batch(16), "x", "y"))


@pytest.mark.parametrize(
    "make", [VAdD, PiModel, VAT, lambda divergence: TemporalEnsembling(8, 3, divergence=divergence)]
)
def test_a_divergence_is_a_function(make):
    for wrong in ("kl", None, 1.0):
        with pytest.raises(TypeError, match=r"divergence must be a function such as advdrop.kl, got"):
            make(divergence=wrong)


class Stuck(nn.Module):
    """Runs the layer where no gradient is recorded."""

    def __init__(self):
        super().__init__()
        self.lower, self.last = (
            nn.Sequential(nn.Linear(FEATURES, HIDDEN), AdversarialDropout(0.5, 0.3)),
            nn.Linear(HIDDEN, CLASSES),
        )

    def forward(self, x):
        with torch.no_grad():
            h = self.lower(x)
        return self.last(h)


@pytest.mark.parametrize("search", [FirstOrder(), Probe()])
def test_a_layer_that_no_gradient_reaches_is_told(search):
    with pytest.warns(UserWarning, match=r"no gradient reaches a mask: the layer runs under torch.no_grad\(\)"):
        run(Stuck(), VAdD(search=search))
    with pytest.raises(
        RuntimeError, match=r"needs a divergence with a gradient.*the layer runs under torch.no_grad\(\)"
    ):
        run(Stuck().requires_grad_(False), VAdD(search=search))
