"""The passes of a step: how many there are, what they share, and what each of them sees."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from advdrop import (
    AT,
    VAT,
    AdversarialDropout,
    CrossEntropy,
    EntropyMinimization,
    PiModel,
    SAdD,
    Step,
    TransformationStability,
    VAdD,
)
from advdrop.lab.models import mnist_cnn
from advdrop.lab.models.layers import Dropout, GaussianNoise
from advdrop.objectives import Term
from advdrop.step.passes import Passes
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
)

X, U = 8, 16  # the rows of a small batch


class Products(TorchDispatchMode):
    """How many rows each product with a matrix of this shape had; backward passes multiply with another one."""

    def __init__(self, *shape):
        super().__init__()
        self.shape, self.rows = shape, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        place = {"mm": 0, "addmm": 1}.get(func.overloadpacket.__name__)
        if place is not None and tuple(args[place + 1].shape) == self.shape:
            self.rows.append(len(args[place]))
        return func(*args, **(kwargs or {}))


def test_other_masks_for_the_layers_of_a_pass():
    layers = AdversarialDropout(0.25, granularity="channel"), AdversarialDropout(0.75)
    model = nn.Sequential(nn.Conv2d(1, 50, 3), layers[0], nn.Flatten(), layers[1], nn.Linear(450, 3))
    u = torch.randn(40, 1, 5, 5)
    passes = passes_of(model, VAdD(), rows={"unlabeled": u})
    clean = passes.clean("unlabeled")
    again = passes.sample(clean)
    assert [tuple(mask.shape) for mask in again] == [(40, 50, 1, 1), (40, 450)]
    for mask, first, layer in zip(again, clean.masks, layers, strict=True):
        assert set(mask.flatten().tolist()) == {0.0, 1.0}
        assert mask.mean().item() == pytest.approx(1 - layer.p, abs=0.05)
        assert not torch.equal(mask, first)
    model.eval()
    passes = passes_of(model, VAdD(), rows={"unlabeled": u})
    assert all(bool((mask == 1).all()) for mask in passes.sample(passes.clean("unlabeled")))


LOWER_PASSES = {  # without unlabeled rows, and with them
    "plain": (CrossEntropy(), 1, 1),
    "sadd": (CrossEntropy() + SAdD(), 1, 1),
    "vadd shared": (CrossEntropy() + VAdD(noise="shared"), 1, 2),
    "vadd independent": (CrossEntropy() + VAdD(), 2, 3),
    "pi": (CrossEntropy() + PiModel(), 2, 3),
    "at": (CrossEntropy() + AT(), 2, 2),
    "vat": (CrossEntropy() + VAT(), 3, 4),
    "formula 7": (CrossEntropy() + VAdD() + VAT(), 4, 5),
    "stability": (CrossEntropy() + TransformationStability(passes=3), 3, 4),
}


@pytest.mark.parametrize(("objective", "supervised", "semi_supervised"), LOWER_PASSES.values(), ids=LOWER_PASSES)
@pytest.mark.parametrize("wrap", [lambda net: net, Wrapped], ids=["sequential", "any"])
def test_the_number_of_lower_passes(objective, supervised, semi_supervised, wrap):
    model, rows = wrap(noisy()), batch()
    for given, expected in ((only(rows, "x", "y"), supervised), (rows, semi_supervised)):
        with Products(FEATURES, 16) as products:
            run(model, objective, given)
        assert len(products.rows) == expected


def test_the_clean_pass_is_shared():
    rows = batch()
    passes = passes_of(noisy(), PiModel(), rows=only(rows, "x", "y"))
    assert passes.clean("unlabeled") is passes.clean("labeled")
    passes = passes_of(noisy(), PiModel(), rows=rows)
    assert passes.clean("unlabeled") is passes.clean("unlabeled")
    assert passes.clean("unlabeled") is not passes.clean("labeled")


def test_the_clean_pass_is_dropout_with_the_recorded_mask():
    model, rows = nn.Sequential(AdversarialDropout(p=0.4), nn.Linear(FEATURES, CLASSES)), batch()
    clean = passes_of(model, PiModel(), rows=rows).clean("labeled")
    (mask,) = clean.masks
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(clean.logits, model[1](rows["x"] * mask / 0.6))
    clean = passes_of(model.eval(), PiModel(), rows=rows).clean("labeled")
    assert (clean.masks[0] == 1).all()
    torch.testing.assert_close(clean.logits, model[1](rows["x"]))


def test_the_second_view_is_used_where_there_is_one():
    model, rows = quiet(0.0), batch()
    for given, kind, expected in (
        (rows, "unlabeled", rows["second_view"]),
        (rows, "labeled", rows["x"]),
        (only(rows, "unlabeled"), "unlabeled", rows["unlabeled"]),
        ({**only(rows, "x", "y"), "second_view": rows["x"] + 1}, "labeled", rows["x"] + 1),
    ):
        torch.testing.assert_close(passes_of(model, VAT(), rows=given).again(kind).logits, model(expected))


@pytest.mark.parametrize("wrap", [lambda net: net, Wrapped], ids=["sequential", "any"])
def test_the_global_noise_and_the_generator_decide_everything(wrap):
    model, objective, values = wrap(noisy()), CrossEntropy() + VAdD() + VAT(), []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        values.append(run(model, objective, seed=None, updating=()).loss.item())
    for seed in (0, 0, 1):
        torch.manual_seed(0)
        values.append(run(model, objective, seed=seed, updating=()).loss.item())
    assert values[0] == values[1] != values[2]
    assert values[3] == values[4] != values[5]


def test_each_pass_updates_running_statistics_when_it_alone_may():
    objective = CrossEntropy() + VAdD(noise="shared") + VAT() + PiModel()
    expected = {"labeled": 1, "clean": 1, "second": 1, "adversarial": 1, "search": 1, "input": 2}
    for name, times in expected.items():
        model = noisy()
        run(model, objective, updating={name})
        assert model[8].num_batches_tracked == times, name


class Repeated(nn.Module):
    """One layer that runs behind each of several modules."""

    def __init__(self, *widths):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(a, b) for a, b in zip((FEATURES, *widths), widths, strict=False))
        self.layer, self.last = AdversarialDropout(0.5, 0.3), nn.Linear(widths[-1], CLASSES)

    def forward(self, x):
        for part in self.parts:
            x = self.layer(part(x).tanh())
        return self.last(x)


@pytest.mark.parametrize("widths", [(HIDDEN, HIDDEN), (HIDDEN, 20, 5)])
def test_a_layer_that_runs_several_times_has_a_mask_for_each_run(widths):
    model = Repeated(*widths)
    clean = passes_of(model, VAdD()).clean("unlabeled")
    assert [mask.shape[1] for mask in clean.masks] == list(widths)
    assert clean.layers == (model.layer,) * len(widths)
    assert not torch.equal(clean.masks[0], clean.masks[1])
    loss = run(model, VAdD(), measure=True)
    assert loss.measures["vadd_kl/flips"] > int(0.3 * min(widths))
    assert all(gradient.abs().max() > 0 for gradient in gradients(model, loss.loss))


class Sometimes(nn.Module):
    """Its second layer runs in some passes, and its third to no effect."""

    def __init__(self, *runs):
        super().__init__()
        self.layers = nn.ModuleList(AdversarialDropout(0.5, 0.3) for _ in range(3))
        self.last, self.runs = nn.Linear(FEATURES, CLASSES), list(runs)

    def forward(self, x):
        self.layers[2](x)
        h = self.layers[0](x)
        return self.last(self.layers[1](h) if not self.runs or self.runs.pop(0) else h)


@pytest.mark.parametrize("runs", [(False, True), (True, False)], ids=["comes", "goes"])
def test_layers_that_come_or_go_are_refused(runs):
    for term in (VAdD(), VAT(noise="shared")):
        with pytest.raises(ValueError, match="run the same layers in the same order"):
            run(Sometimes(*runs), term)


def test_a_layer_without_effect_is_fine():
    assert run(Sometimes(), VAdD()).loss > 0


@pytest.mark.parametrize("term", [AT(), VAT()], ids=["at", "vat"])
@pytest.mark.parametrize(
    ("inputs", "shown"), [(torch.ones(2, 4).long(), "torch.int64"), ({"tokens": torch.ones(2, 4).long()}, "dict")]
)
def test_only_a_floating_point_tensor_can_be_moved(term, inputs, shown):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.last = nn.Embedding(5, 3), nn.Linear(12, CLASSES)

        def forward(self, tokens):
            return self.last(self.embedding(tokens).flatten(1))

    with pytest.raises(TypeError, match=rf"got {shown}; say which module's.*VAT\(at='embedding'\), or use VAdD"):
        run(Reader(), term, {"x": inputs, "y": torch.tensor([0, 1])})


@pytest.mark.parametrize("term", [AT(norm="l2"), VAT()], ids=["at", "vat"])
def test_a_sparse_input_cannot_be_moved(term):
    class Dense(nn.Linear):
        def forward(self, x):
            return super().forward(x.to_dense())

    x = torch.eye(2, FEATURES).to_sparse()
    with pytest.raises(TypeError, match=r"one dense floating-point tensor, got torch\.sparse_coo; say which module"):
        run(Dense(FEATURES, CLASSES), term, {"x": x, "y": torch.tensor([0, 1])})


# Passes that run as one batch.


def dropping(above=0.0, lower=Dropout, layer=0.5):
    """Noise below the layer, none above it unless wanted."""
    return nn.Sequential(
        nn.Linear(FEATURES, 12),
        nn.Tanh(),
        lower(0.4),
        nn.Linear(12, HIDDEN),
        nn.Tanh(),
        AdversarialDropout(layer, 0.3),
        nn.Dropout(above),
        nn.Linear(HIDDEN, CLASSES),
    )


@pytest.fixture
def rows_of(monkeypatch):
    """The numbers of rows with which each dense layer ran."""
    calls, forward = [], nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda module, x: calls.append((module, len(x))) or forward(module, x))
    return lambda module: [rows for called, rows in calls if called is module]


JOINED = {  # objective: the rows below the first noise, above it, and in the upper network without the adversarial pass
    "pi": (CrossEntropy() + PiModel(), [X, U, U], [X + U + U], [X + U + U]),
    "stability": (TransformationStability(passes=3), [U, U], [3 * U], [3 * U]),
    "pi and stability": (PiModel() + TransformationStability(passes=3), [U, U], [4 * U], [4 * U]),
    "cross-entropy and entropy": (CrossEntropy() + EntropyMinimization(), [X, U], [X + U], [X + U]),
    "vadd": (CrossEntropy() + VAdD(), [X, U, U], [X + U + U], [X + U, U, U]),
    "vadd alone": (VAdD(), [U, U], [U + U], [U, U, U]),
    "vadd twice": (VAdD() + VAdD(), [U, U], [3 * U], [U, U, U, U, U]),
    "vadd shared": (CrossEntropy() + VAdD(noise="shared"), [X, U], [X + U], [X + U, U, U]),
    "sadd and vadd": (SAdD() + VAdD(), [X, U, U], [X + U + U], [X + U, X, X, U, U]),
    "vat": (CrossEntropy() + VAT(), [X, U, U, U], [X + U, U, U], [X + U, U, U]),
    "pi on the labeled": (CrossEntropy() + PiModel(rows="labeled"), [X], [X + X], [X + X]),
    "plain": (CrossEntropy(), [X], [X], [X]),
}


@pytest.mark.parametrize(("objective", "below", "above", "upper"), JOINED.values(), ids=JOINED)
def test_passes_that_are_known_to_come_run_as_one_batch(objective, below, above, upper, rows_of):
    model = dropping()
    run(model, objective)
    assert rows_of(model[0]) == below
    assert rows_of(model[3]) == above
    assert rows_of(model[-1]) == upper


def test_without_unlabeled_rows_all_terms_share_the_labeled_ones(rows_of):
    model = dropping()
    run(model, CrossEntropy() + PiModel() + VAdD(), only(batch(), "x", "y"))
    assert rows_of(model[0]) == [X]
    assert rows_of(model[3]) == [3 * X]
    assert rows_of(model[-1]) == [2 * X, X, X]


class Unknown(nn.Module):
    def forward(self, h):
        return h


def changed(place, module):
    model = dropping()
    model.insert(place, module)
    return model


def hooked(model):
    model[3].register_forward_hook(lambda *_: None)
    return model


APART = {
    "batch norm below": (lambda: changed(3, nn.BatchNorm1d(12)), CrossEntropy() + PiModel(), 3),
    "batch norm above": (lambda: changed(6, nn.BatchNorm1d(HIDDEN)), CrossEntropy() + PiModel(), 3),
    "unknown below": (lambda: changed(2, Unknown()), CrossEntropy() + PiModel(), 3),
    "unknown above": (lambda: changed(6, Unknown()), CrossEntropy() + PiModel(), 3),
    "hook": (lambda: hooked(dropping()), CrossEntropy() + PiModel(), 3),
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
    run(model, objective)
    last_below = next(part for part in model[1:] if isinstance(part, nn.Linear))
    found = rows_of(last_below)
    assert len(found) == passes
    assert set(found) <= {X, U}
    assert max(rows_of(model[-1])) == U


@pytest.mark.parametrize("where", ["eval", "p=0"])
def test_dropout_above_that_is_off_is_no_hindrance_for_shared_noise(where, rows_of):
    model = dropping(above=0.2 if where == "eval" else 0.0)
    if where == "eval":
        model[6].eval()
    run(model, CrossEntropy() + VAdD(noise="shared"))
    assert rows_of(model[3]) == [X + U]


@pytest.mark.parametrize(
    ("objective", "rows"),
    [(CrossEntropy() + PiModel(), X + U + U), (VAdD(), U + U), (SAdD() + VAdD(noise="shared"), X + U)],
    ids=["pi", "vadd", "shared"],
)
def test_in_place_modules_above_the_layer_are_no_hindrance(objective, rows, rows_of):
    model, results = dropping(), []
    for in_place in (False, True):
        model[6] = nn.LeakyReLU(0.1, inplace=in_place)
        torch.manual_seed(1)
        loss = run(model, objective).loss
        results.append([loss, *gradients(model, loss)])
    assert rows_of(model[3]) == [rows, rows]
    close(*results)


@pytest.mark.parametrize(("side", "expected"), [(9, [X, U]), (8, [X + U])])
def test_rows_of_different_shapes_do_not_run_together(side, expected, rows_of):
    model = nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        *(AdversarialDropout(0.5, 0.3), nn.Linear(16, CLASSES)),
    )
    rows = {"x": torch.randn(X, 1, 8, 8), "y": torch.zeros(X).long(), "unlabeled": torch.randn(U, 1, side, side)}
    assert run(model, CrossEntropy() + EntropyMinimization(), rows).loss.isfinite()
    assert rows_of(model[-1]) == expected


def test_a_function_that_makes_logits_gets_the_rows_of_one_pass(rows_of):
    model, loss = quiet(p=0.0), {}
    for reuse in (True, False):
        step = Step(model, CrossEntropy() + EntropyMinimization(), logits=lambda out: out - out.mean(0), reuse=reuse)
        loss[reuse] = step(**only(batch(X, U), "x", "y", "unlabeled")).loss
    assert rows_of(model[-1]) == [X + U, X, U]
    close([loss[True]], [loss[False]], 1e-6)


class Convolutions(TorchDispatchMode):
    """How many rows each convolution had."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ == "convolution":
            self.rows.append(len(args[0]))
        return func(*args, **(kwargs or {}))


# Labeled rows; with unlabeled ones; with a second view of those; and with a second view of the labeled ones.
CONVOLUTIONS = {
    "pi": (
        CrossEntropy() + PiModel(),
        [[X, 16, 16], [X, U, 40, 40], [X, U, U, 40, 40], [X, X, 16, 16]],
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
    model, rows = mnist_cnn(shape=(1, 8, 8)), {"x": x, "y": torch.arange(X) % 10}
    found = []
    for more in ({}, {"unlabeled": u}, {"unlabeled": u, "second_view": v}, {"second_view": x + 1}):
        with Convolutions() as convolutions:
            run(model, objective, {**rows, **more})
        found.append(convolutions.rows)
    assert found == expected


def test_it_runs_once_for_passes_apart_too(apart):
    rows, model = {"x": torch.randn(X, 1, 8, 8), "y": torch.arange(X)}, mnist_cnn(shape=(1, 8, 8))
    with Convolutions() as convolutions:
        run(model, CrossEntropy() + PiModel() + VAdD(delta=0.05), rows)
    assert convolutions.rows == [X] * 7


def test_what_is_shared_is_computed_again_if_it_was_changed_in_place(apart):
    model, rows = nn.Sequential(nn.Linear(FEATURES, CLASSES)), only(batch(), "unlabeled")
    terms = run(model, PiModel() + EntropyMinimization(), rows, logits=lambda output: output.mul_(2.0)).terms
    assert terms["pi_model"] == 0
    expected = run(model, EntropyMinimization(), rows, logits=lambda output: 2.0 * output).loss
    torch.testing.assert_close(terms["entropy_minimization"], expected.detach())


@pytest.mark.parametrize("lower", [Dropout, nn.Dropout, GaussianNoise])
def test_joined_passes_of_the_same_rows_see_different_noise(lower, rows_of):
    model, rows = dropping(lower=lower), only(batch(), "unlabeled")
    passes = passes_of(model, TransformationStability(passes=3), VAdD(), rows=rows)
    made = [passes.clean("unlabeled"), passes.again("unlabeled"), passes.further("unlabeled")]
    hidden = [one.lower.h for one in made] + [passes.lower_again("unlabeled").h]
    assert rows_of(model[3]) == [4 * U]
    for i, h in enumerate(hidden):
        assert h.shape == (U, HIDDEN)
        for later in hidden[i + 1 :]:
            assert (h != later).any(1).sum() > U / 2
    assert len({tuple(one.masks[0].flatten().tolist()) for one in made}) == 3
    for one in made:
        torch.testing.assert_close(one.logits, model[-1](one.lower.h * one.masks[0] / 0.5))


def test_labeled_and_unlabeled_rows_see_different_noise(rows_of):
    model, rows = dropping(), only(batch(), "x", "y")
    passes = passes_of(model, CrossEntropy(), EntropyMinimization(), rows={**rows, "unlabeled": rows["x"].clone()})
    labeled, unlabeled = passes.clean("labeled"), passes.clean("unlabeled")
    assert rows_of(model[3]) == [2 * X]
    assert not torch.equal(labeled.lower.h, unlabeled.lower.h)
    assert not torch.equal(labeled.masks[0], unlabeled.masks[0])


def test_each_joined_pass_has_its_own_rows():
    model, rows = dropping().eval(), batch()
    passes = passes_of(model, CrossEntropy(), PiModel(), VAdD(), PiModel(rows="labeled"), rows=rows)
    for name, x in (("labeled", rows["x"]), ("unlabeled", rows["unlabeled"])):
        torch.testing.assert_close(passes.clean(name).logits, model(x))
        torch.testing.assert_close(passes.clean(name).lower.h, model[:5](x))
    torch.testing.assert_close(passes.again("unlabeled").logits, model(rows["second_view"]))
    torch.testing.assert_close(passes.again("labeled").logits, model(rows["x"]))
    torch.testing.assert_close(passes.lower_again("unlabeled").h, model[:5](rows["second_view"]))


def test_more_passes_than_were_announced_are_made_one_by_one(rows_of):
    @dataclass
    class Greedy(Term):
        rows: str = "unlabeled"

        def per_example(self, passes):
            seen = [passes.again(self.rows).logits for _ in range(3)]
            return sum((one - passes.clean(self.rows).logits).square().sum(1) for one in seen)

    model = dropping()
    assert run(model, CrossEntropy() + Greedy() + PiModel()).loss > 0
    assert rows_of(model[0]) == [X, U, U]
    assert rows_of(model[3]) == [X + U + U, U, U, U]


def test_an_announced_pass_is_given_out_once():
    passes = passes_of(dropping(), PiModel())
    first, second = passes.again("unlabeled"), passes.again("unlabeled")
    assert first is not second
    assert not torch.equal(first.lower.h, second.lower.h)


def test_the_law_of_the_loss_is_that_of_passes_apart():
    model = nn.Sequential(
        *(nn.Linear(FEATURES, 5), nn.Tanh(), Dropout(0.5), nn.Linear(5, 4)),
        *(AdversarialDropout(0.5, 0.25), nn.Linear(4, CLASSES)),
    )
    for parameter in model.parameters():
        parameter.data.mul_(2.0)
    rows, terms = only(batch(labeled=3, unlabeled=4), "x", "y", "unlabeled"), (PiModel(), VAdD(), VAdD(noise="shared"))

    def law(seeds):
        step, found = Step(model, terms[0] + terms[1] + terms[2]), []
        for seed in seeds:
            torch.manual_seed(seed)
            found.append(torch.stack(list(step(**rows).terms.values())))
        values = torch.stack(found).double()
        return values.mean(0), values.var(0) / len(values)

    together, variance = law(range(200))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Passes, "_separable", lambda *_: ([], []))
        apart, other_variance = law(range(1000, 1200))
    assert (together > 0).all()
    assert ((together - apart).abs() < 5 * (variance + other_variance).sqrt()).all()


def test_under_no_grad_the_value_is_that_with_gradients():
    model, values = dropping(), []
    for enabled in (True, False):
        torch.manual_seed(1)
        with torch.set_grad_enabled(enabled):
            values.append(run(model, CrossEntropy() + PiModel() + VAdD()).loss.item())
    assert values[0] == pytest.approx(values[1], rel=1e-6)
