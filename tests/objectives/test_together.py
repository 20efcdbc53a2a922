"""Passes that run as one batch, and what lies below the first noise once: the same law, and less work."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from advdrop import (
    AT,
    VAT,
    AdversarialDropout,
    Batch,
    CrossEntropy,
    EntropyMinimisation,
    PiModel,
    SAdD,
    Split,
    TransformationStability,
    VAdD,
)
from advdrop.models import mnist_cnn
from advdrop.models.layers import Dropout, GaussianNoise
from advdrop.objectives import Passes, Term
from small import CLASSES, FEATURES, HIDDEN, Opaque, batch, gradients, noisy, quiet, seeded

X, U = 8, 16  # the rows of a small batch


@pytest.fixture
def rows_of(monkeypatch):
    """The numbers of rows with which each dense layer ran."""
    calls, forward = [], nn.Linear.forward

    def watched(module, x):
        calls.append((module, len(x)))
        return forward(module, x)

    monkeypatch.setattr(nn.Linear, "forward", watched)

    def rows_of(module):
        return [rows for called, rows in calls if called is module]

    return rows_of


def dropping(above=0.0, lower=Dropout, layer=0.5):
    """Noise below the layer, none above it unless wanted."""
    return Split(
        nn.Sequential(nn.Linear(FEATURES, 12), nn.Tanh(), lower(0.4), nn.Linear(12, HIDDEN), nn.Tanh()),
        nn.Sequential(AdversarialDropout(layer, 0.3), nn.Dropout(above), nn.Linear(HIDDEN, CLASSES)),
    )


def first_of(model):
    return model.under[0]


def middle_of(model):
    return model.under[3]


def last_of(model):
    return model.upper[-1]


JOINED = {  # objective: the rows below the first noise, above it, and in the upper network without the adversarial pass
    "pi": (CrossEntropy() + PiModel(), [X, U, U], [X + U + U], [X + U + U]),
    "stability": (TransformationStability(passes=3), [U, U], [3 * U], [3 * U]),
    "pi and stability": (PiModel() + TransformationStability(passes=3), [U, U], [4 * U], [4 * U]),
    "cross-entropy and entropy": (CrossEntropy() + EntropyMinimisation(), [X, U], [X + U], [X + U]),
    "vadd": (CrossEntropy() + VAdD(), [X, U, U], [X + U + U], [X + U, U, U]),
    "vadd alone": (VAdD(), [U, U], [U + U], [U, U, U]),
    "vadd twice": (VAdD() + VAdD(), [U, U], [3 * U], [U, U, U, U, U]),
    "vadd shared": (CrossEntropy() + VAdD(noise="shared"), [X, U], [X + U], [X + U, U, U]),
    "sadd and vadd": (SAdD() + VAdD(), [X, U, U], [X + U + U], [X + U, X, X, U, U]),
    "vat": (CrossEntropy() + VAT(), [X, U, U, U], [X + U, U, U], [X + U, U, U]),
    "pi on the labelled": (CrossEntropy() + PiModel(rows="labelled"), [X], [X + X], [X + X]),
    "plain": (CrossEntropy(), [X], [X], [X]),
}


@pytest.mark.parametrize(("objective", "below", "above", "upper"), JOINED.values(), ids=JOINED)
def test_passes_that_are_known_to_come_run_as_one_batch(objective, below, above, upper, rows_of):
    model = dropping()
    objective(model, batch())
    assert rows_of(first_of(model)) == below
    assert rows_of(middle_of(model)) == above
    assert rows_of(last_of(model)) == upper


def test_without_unlabelled_rows_all_terms_share_the_labelled_ones(rows_of):
    model, rows = dropping(), batch()
    (CrossEntropy() + PiModel() + VAdD())(model, Batch(rows.x, rows.y))
    assert rows_of(first_of(model)) == [X]
    assert rows_of(middle_of(model)) == [3 * X]
    assert rows_of(last_of(model)) == [2 * X, X, X]


def test_unlabelled_rows_alone(rows_of):
    model = dropping()
    PiModel()(model, Batch(u=batch().u))
    assert rows_of(first_of(model)) == [U]
    assert rows_of(middle_of(model)) == [2 * U]


class Unknown(nn.Module):
    def forward(self, h):
        return h


def hooked(model):
    model.under[3].register_forward_hook(lambda *_: None)
    return model


def with_norm(place):
    model = dropping()
    getattr(model, place).insert({"under": 3, "upper": 1}[place], nn.BatchNorm1d({"under": 12, "upper": HIDDEN}[place]))
    return model


def with_unknown(place):
    model = dropping()
    getattr(model, place).insert(1, Unknown())
    return model


def in_place():
    model = dropping()
    model.upper.insert(1, nn.LeakyReLU(0.1, inplace=True))
    return model


APART = {
    "batch norm below": (lambda: with_norm("under"), CrossEntropy() + PiModel(), 3),
    "batch norm above": (lambda: with_norm("upper"), CrossEntropy() + PiModel(), 3),
    "unknown below": (lambda: with_unknown("under"), CrossEntropy() + PiModel(), 3),
    "unknown above": (lambda: with_unknown("upper"), CrossEntropy() + PiModel(), 3),
    "hook": (lambda: hooked(dropping()), CrossEntropy() + PiModel(), 3),
    "in place": (in_place, CrossEntropy() + PiModel(), 3),
    "at": (dropping, CrossEntropy() + AT() + PiModel(), 4),
    "at shared": (dropping, CrossEntropy() + AT(noise="shared") + PiModel(), 4),
    "vat shared": (dropping, CrossEntropy() + VAT(noise="shared"), 4),
    "vat shared and pi": (dropping, PiModel() + VAT(noise="shared"), 4),
    "vadd shared and dropout above": (lambda: dropping(above=0.2), CrossEntropy() + VAdD(noise="shared"), 2),
    "sadd shared and dropout above": (lambda: dropping(above=0.2), SAdD() + PiModel(), 3),
}


@pytest.mark.parametrize(("make", "objective", "passes"), APART.values(), ids=APART)
def test_passes_that_must_not_run_together_do_not(make, objective, passes, rows_of):
    model = make()
    objective(model, batch())
    last_below = [part for part in model.under if isinstance(part, nn.Linear)][-1]
    found = rows_of(last_below)
    assert len(found) == passes
    assert set(found) <= {X, U}
    assert max(rows_of(last_of(model))) == U


@pytest.mark.parametrize("where", ["eval", "p=0"])
def test_dropout_above_that_is_off_is_no_hindrance_for_shared_noise(where, rows_of):
    model = dropping(above=0.2 if where == "eval" else 0.0)
    if where == "eval":
        model.upper[1].eval()
    (CrossEntropy() + VAdD(noise="shared"))(model, batch())
    assert rows_of(middle_of(model)) == [X + U]


def convolutional():
    return Split(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        nn.Sequential(AdversarialDropout(0.5, 0.3), nn.Linear(16, CLASSES)),
    )


@pytest.mark.parametrize(("side", "expected"), [(9, [X, U]), (8, [X + U])])
def test_rows_of_different_shapes_do_not_run_together(side, expected, rows_of):
    model = convolutional()
    rows = Batch(torch.randn(X, 1, 8, 8), torch.zeros(X).long(), u=torch.randn(U, 1, side, side))
    loss = (CrossEntropy() + EntropyMinimisation())(model, rows)
    assert loss.total.isfinite()
    assert rows_of(last_of(model)) == expected


class Operators(TorchDispatchMode):
    """How many rows each convolution had."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.convolution.default:
            self.rows.append(len(args[0]))
        return func(*args, **(kwargs or {}))


CONVOLUTIONS = {  # objective: the rows of the convolutions for x; x and u; x, u and v; x and v
    "plain": (CrossEntropy(), [[X] * 3, [X] * 3, [X] * 3, [X] * 3]),
    "pi": (
        CrossEntropy() + PiModel(),
        [[X, 2 * X, 2 * X], [X, U, 40, 40], [X, U, U, 40, 40], [X, X, 2 * X, 2 * X]],
    ),
    "vadd independent": (
        CrossEntropy() + VAdD(delta=0.05),
        [[X, 2 * X, 2 * X], [X, U, 40, 40], [X, U, U, 40, 40], [X, X, 2 * X, 2 * X]],
    ),
    "vadd shared": (
        CrossEntropy() + VAdD(delta=0.05, noise="shared"),
        [[X] * 3, [X, U, 24, 24], [X, U, 24, 24], [X] * 3],
    ),
    "vat": (CrossEntropy() + VAT(), [[X] * 9, [X, U, 24, 24] + [U] * 6, [X, U, 24, 24] + [U] * 6, [X] * 9]),
}


@pytest.mark.parametrize(("objective", "expected"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_what_lies_below_the_first_noise_runs_once(objective, expected):
    draw = seeded()
    x, u, v = (torch.randn(n, 1, 8, 8, generator=draw) for n in (X, U, U))
    y, model = torch.arange(X) % 10, mnist_cnn(shape=(1, 8, 8))
    found = []
    for rows in (Batch(x, y), Batch(x, y, u=u), Batch(x, y, u=u, v=v), Batch(x, y, v=x + 1)):
        with Operators() as operators:
            objective(model, rows)
        found.append(operators.rows)
    assert found == expected


def test_it_runs_once_for_passes_apart_too(apart):
    rows, model = Batch(torch.randn(X, 1, 8, 8), torch.arange(X)), mnist_cnn(shape=(1, 8, 8))
    with Operators() as operators:
        (CrossEntropy() + PiModel() + VAdD(delta=0.05))(model, rows)
    assert operators.rows == [X] * 7


def ahead(model, rows, *views, **options):
    return Passes(model, rows, seeded(), ahead=views, **options)


CLEAN, SECOND, ADVERSARIAL = (("unlabelled", view) for view in ("clean", "second", "adversarial"))


@pytest.mark.parametrize("lower", [Dropout, nn.Dropout, GaussianNoise])
def test_joined_passes_of_the_same_rows_see_different_noise(lower, rows_of):
    model, u = dropping(lower=lower), batch().u
    passes = ahead(model, Batch(u=u), CLEAN, SECOND, SECOND, ADVERSARIAL)
    clean, one, other = passes.clean("unlabelled"), passes.again("unlabelled"), passes.again("unlabelled")
    hidden = [clean.h, one.h, other.h, passes.under_again("unlabelled")]
    assert rows_of(middle_of(model)) == [4 * U]
    for i, h in enumerate(hidden):
        assert h.shape == (U, HIDDEN)
        for later in hidden[i + 1 :]:
            assert (h != later).any(1).sum() > U / 2
    masks = [made.masks[0] for made in (clean, one, other)]
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == 3
    for made in (clean, one, other):
        (mask,) = made.masks
        torch.testing.assert_close(made.logits, last_of(model)(made.h * mask / 0.5))


def test_labelled_and_unlabelled_rows_see_different_noise(rows_of):
    model, rows = dropping(), batch()
    same = Batch(rows.x, rows.y, u=rows.x.clone())
    passes = ahead(model, same, ("labelled", "clean"), CLEAN)
    labelled, unlabelled = passes.clean("labelled"), passes.clean("unlabelled")
    assert rows_of(middle_of(model)) == [2 * X]
    assert not torch.equal(labelled.h, unlabelled.h)
    assert not torch.equal(labelled.masks[0], unlabelled.masks[0])


@pytest.mark.parametrize("lower", [Dropout, nn.Dropout, GaussianNoise])
def test_pi_has_something_to_lose_where_there_is_noise_and_nothing_where_there_is_none(lower):
    u = batch().u
    loss = PiModel()(dropping(lower=lower, layer=0.0), Batch(u=u)).total
    assert loss > 1e-4
    assert PiModel()(quiet(0.5), Batch(u=u)).total > 1e-4
    assert PiModel()(dropping(lower=lower).eval(), Batch(u=u)).total < 1e-12


def test_each_pass_has_its_own_rows():
    model, rows = dropping().eval(), batch()
    passes = ahead(model, rows, ("labelled", "clean"), CLEAN, SECOND, ADVERSARIAL, ("labelled", "second"))
    expected = {"labelled": rows.x, "unlabelled": rows.u}
    for name, x in expected.items():
        torch.testing.assert_close(passes.clean(name).logits, model(x))
        torch.testing.assert_close(passes.clean(name).h, model.under(x))
    torch.testing.assert_close(passes.again("unlabelled").logits, model(rows.v))
    torch.testing.assert_close(passes.again("labelled").logits, model(rows.x))
    torch.testing.assert_close(passes.under_again("unlabelled"), model.under(rows.v))


def test_more_passes_than_were_announced_are_made_one_by_one(rows_of):
    @dataclass
    class Greedy(Term):
        rows: str = "unlabelled"

        def per_example(self, passes):
            seen = [passes.again(self.rows).logits for _ in range(3)]
            return sum((one - passes.clean(self.rows).logits).square().sum(1) for one in seen)

    model = dropping()
    assert (CrossEntropy() + Greedy() + PiModel())(model, batch()).total > 0
    assert rows_of(first_of(model)) == [X, U, U]
    assert rows_of(middle_of(model)) == [X + U + U, U, U, U]


def test_an_announced_pass_is_given_out_once():
    passes = ahead(dropping(), batch(), CLEAN, SECOND)
    first, second = passes.again("unlabelled"), passes.again("unlabelled")
    assert first is not second
    assert not torch.equal(first.h, second.h)
    assert passes.clean("unlabelled") is passes.clean("unlabelled")


def mean_loss(objective, model, rows, seeds):
    """Over many seeds, and its standard error."""
    values = []
    for seed in seeds:
        torch.manual_seed(seed)
        values.append(objective(model, rows).total.item())
    values = torch.tensor(values, dtype=torch.float64)
    return values.mean().item(), values.std().item() / math.sqrt(len(values))


@pytest.mark.parametrize(
    "objective",
    [PiModel(), VAdD(), VAdD(noise="shared") + CrossEntropy()],
    ids=["pi", "vadd", "vadd shared"],
)
def test_the_law_of_the_loss_is_that_of_passes_apart(objective):
    model = Split(
        nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), Dropout(0.5), nn.Linear(5, 4)),
        nn.Sequential(AdversarialDropout(0.5, 0.25), nn.Linear(4, CLASSES)),
    )
    for parameter in model.parameters():
        parameter.data.mul_(2.0)
    rows = replace(batch(labelled=3, unlabelled=4), v=None)
    together, error = mean_loss(objective, model, rows, range(400))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Passes, "_on_their_own", lambda passes: False)
        apart, other_error = mean_loss(objective, model, rows, range(1000, 1400))
    assert together > 0
    assert abs(together - apart) < 5 * math.hypot(error, other_error)


@pytest.mark.parametrize("objective", [CrossEntropy() + PiModel(), CrossEntropy() + VAdD() + VAT()], ids=["pi", "vadd"])
@pytest.mark.parametrize("moving", [None, ()])
@pytest.mark.filterwarnings("ignore:Opaque could not be cut")
def test_running_statistics_move_as_they_would_without_anything_shared(objective, moving):
    def make():
        torch.manual_seed(1)
        return Split(
            nn.Sequential(nn.Linear(FEATURES, 12), nn.Dropout(0.3), nn.BatchNorm1d(12), nn.Linear(12, HIDDEN)),
            nn.Sequential(AdversarialDropout(0.5, 0.3), nn.BatchNorm1d(HIDDEN), nn.Linear(HIDDEN, CLASSES)),
        ).double()

    options, found = {} if moving is None else {"moving": moving}, []
    for model, network in ((m := make(), m), (m := make(), Opaque(m))):
        torch.manual_seed(2)
        loss = objective(network, batch(dtype=torch.float64), generator=seeded(), **options).total
        buffers = [buffer.double() for buffer in model.buffers()]
        assert any(buffer.abs().max() > 1 for buffer in buffers) == (moving is None)
        found.append([loss, *gradients(model, loss), *buffers])
    for ours, full in zip(*found, strict=True):
        torch.testing.assert_close(ours, full, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("objective", [CrossEntropy() + PiModel(), CrossEntropy() + VAdD()], ids=["pi", "vadd"])
def test_a_network_with_batch_norm_computes_what_it_did_apart(objective):
    results = []
    for together in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not together:
                patch.setattr(Passes, "_on_their_own", lambda passes: False)
            torch.manual_seed(1)
            model = noisy()
            loss = objective(model, batch(), generator=seeded()).total
            results.append([loss, *gradients(model, loss), *model.buffers()])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


class InPlace(nn.Module):
    """Its first step works on its input."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(HIDDEN, CLASSES)

    def forward(self, h):
        return self.last(h.mul_(0.5))


@pytest.mark.parametrize(
    "upper",
    [nn.Sequential(nn.LeakyReLU(0.5, inplace=True), nn.Linear(HIDDEN, CLASSES)), InPlace()],
    ids=["module", "unknown"],
)
def test_a_pass_that_changes_what_is_shared_is_alone_with_it(upper):
    model = Split(nn.Linear(FEATURES, HIDDEN), upper).double()
    rows = Batch(u=batch(dtype=torch.float64).u)
    assert PiModel()(model, rows).total == 0
    loss = (PiModel() + TransformationStability(passes=3) + EntropyMinimisation())(model, rows).total
    expected = EntropyMinimisation()(model, rows).total
    assert torch.equal(loss, expected)
    for ours, alone in zip(gradients(model, loss), gradients(model, expected), strict=True):
        torch.testing.assert_close(ours, alone)


def test_in_place_dropout_behind_the_beginning_leaves_it_alone():
    model = Split(
        nn.Sequential(nn.Linear(FEATURES, 12), nn.Dropout(0.5, inplace=True), nn.Linear(12, HIDDEN)),
        nn.Sequential(AdversarialDropout(0.0, 0.3), nn.Linear(HIDDEN, CLASSES)),
    )
    passes = Passes(model, Batch(u=batch().u))
    hidden = torch.stack([passes.again("unlabelled").h for _ in range(20)]).detach()
    # A mask on top of masks would leave fewer and fewer units: the variance over the passes would die out.
    assert hidden[10:].var(0).mean() > 0.3 * hidden[:10].var(0).mean()


def test_under_no_grad_the_value_is_that_with_gradients():
    model, objective, values = dropping(), CrossEntropy() + PiModel(), []
    for enabled in (True, False):
        torch.manual_seed(1)
        with torch.set_grad_enabled(enabled):
            values.append(objective(model, batch(), generator=seeded()).total.item())
    assert values[0] == pytest.approx(values[1], rel=1e-6)
