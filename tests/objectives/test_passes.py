"""One lower pass where one will do, and the same numbers as the full passes."""

import pytest
import torch
from torch import nn

from advdrop import (
    AT,
    VAT,
    AdversarialDropout,
    Batch,
    CrossEntropy,
    FirstOrder,
    PiModel,
    Ramp,
    SAdD,
    Split,
    TemporalEnsembling,
    TransformationStability,
    VAdD,
)
from advdrop.objectives import Passes
from small import CLASSES, FEATURES, HIDDEN, Opaque, Residual, batch, gradients, noisy, seeded


def sequential(p):
    return nn.Sequential(
        nn.Linear(FEATURES, 12),
        nn.Sequential(nn.Tanh(), nn.Dropout(0.3), nn.Linear(12, HIDDEN), AdversarialDropout(p, 0.3), nn.Tanh()),
        nn.Dropout(0.2),
        nn.Linear(HIDDEN, CLASSES),
    )


def two_layers(p):
    return nn.Sequential(
        nn.Linear(FEATURES, 12),
        nn.Dropout(0.3),
        AdversarialDropout(p, 0.2),
        nn.Linear(12, HIDDEN),
        nn.Dropout(0.3),
        AdversarialDropout(p, 0.3),
        nn.Linear(HIDDEN, CLASSES),
    )


@pytest.mark.parametrize("make", [noisy, sequential, two_layers, Residual])
@pytest.mark.parametrize("noise", ["shared", "independent"])
@pytest.mark.parametrize("p", [0.5, 0.0])
@pytest.mark.filterwarnings("ignore:Opaque could not be cut", "ignore:the mask search met an all-zero")
def test_reused_lower_pass_equals_full_passes(make, noise, p, apart):
    model, rows = make(p).double(), batch(dtype=torch.float64)
    objective = CrossEntropy() + VAdD(noise=noise) + SAdD(noise=noise) + VAT(noise=noise)
    results = []
    for network in (model, Opaque(model)):
        torch.manual_seed(1)
        loss = objective(network, rows, generator=seeded()).total
        results.append([loss, *gradients(model, loss)])
    for reused, full in zip(*results, strict=True):
        torch.testing.assert_close(reused, full, rtol=1e-12, atol=1e-12)


PASSES_BELOW = {
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


@pytest.mark.parametrize(("objective", "supervised", "semi_supervised"), PASSES_BELOW.values(), ids=PASSES_BELOW)
def test_number_of_lower_passes(objective, supervised, semi_supervised):
    model, rows, calls = noisy(), batch(), []
    model.under.register_forward_hook(lambda *_: calls.append(1))
    objective(model, Batch(rows.x, rows.y))
    assert len(calls) == supervised
    calls.clear()
    objective(model, rows)
    assert len(calls) == semi_supervised


def test_clean_pass_is_shared_by_the_terms_and_by_both_streams_without_unlabelled_rows():
    rows = batch()
    passes = Passes(noisy(), Batch(rows.x, rows.y))
    assert passes.clean("unlabelled") is passes.clean("labelled")
    passes = Passes(noisy(), rows)
    assert passes.clean("unlabelled") is passes.clean("unlabelled")
    assert passes.clean("unlabelled") is not passes.clean("labelled")


def test_clean_pass_is_plain_dropout_with_the_recorded_mask():
    model = nn.Sequential(AdversarialDropout(p=0.4), nn.Linear(FEATURES, CLASSES))
    clean = Passes(model, batch(), seeded()).clean("labelled")
    (mask,) = clean.masks
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(clean.logits, model[1](batch().x * mask / 0.6))


def test_second_view_is_used_where_there_is_one():
    model, rows = nn.Sequential(AdversarialDropout(0.0), nn.Linear(FEATURES, CLASSES)), batch()
    torch.testing.assert_close(Passes(model, rows).again("unlabelled").logits, model[1](rows.v))
    torch.testing.assert_close(Passes(model, Batch(u=rows.u)).again("unlabelled").logits, model[1](rows.u))
    supervised = Batch(rows.x, rows.y, v=rows.x + 1)
    torch.testing.assert_close(Passes(model, supervised).again("labelled").logits, model[1](rows.x + 1))


def test_evaluation_mode_samples_no_mask():
    clean = Passes(noisy().eval(), batch()).clean("labelled")
    assert (clean.masks[0] == 1).all()


def test_global_noise_and_generator_decide_everything():
    model, objective = noisy(), CrossEntropy() + VAdD() + VAT()
    values = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        values.append(objective(model, batch(), moving=()).total.item())
    assert values[0] == values[1] != values[2]


@pytest.mark.parametrize("rows", ["labelled", "unlabelled"])
def test_layer_used_twice_in_a_pass_has_one_mask(rows):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.last = AdversarialDropout(0.5), nn.Linear(FEATURES, CLASSES)

        def forward(self, x):
            return self.last(self.layer(self.layer(x)))

    clean = Passes(Twice(), batch(), seeded()).clean(rows)
    assert len(clean.masks) == 1


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Batch(), ValueError, "labelled images x, unlabelled images u"),
        (lambda: Batch(x=torch.ones(2, 3)), ValueError, "x and their labels y together"),
        (lambda: Batch(torch.ones(2, 3, dtype=torch.uint8), torch.zeros(2).long()), TypeError, r"x\.float\(\)"),
        (lambda: Batch(torch.ones(0, 3), torch.zeros(0).long()), ValueError, r"at least one example.*\(0, 3\)"),
        (lambda: Batch(torch.ones(2, 3), torch.zeros(2)), TypeError, r"integers, got torch.float32.*y.long\(\)"),
        (lambda: Batch(torch.ones(2, 3), torch.zeros(2, 3).long()), ValueError, r"vector \(B,\), got shape \(2, 3\)"),
        (lambda: Batch(torch.ones(2, 3), torch.zeros(4).long()), ValueError, "2 labelled images x and 4 labels"),
        (lambda: Batch(u=torch.ones(2, 3), v=torch.ones(2, 4)), ValueError, r"\(2, 3\) and \(2, 4\)"),
        (lambda: Batch(u=torch.ones(2, 3), index=torch.arange(3)), ValueError, "one integer for each of the 2"),
        (lambda: Batch(u=torch.ones(2, 3), index=torch.ones(2)), ValueError, "float32"),
        (lambda: Batch(u=torch.ones(2, 3), index=torch.tensor([True, False])), ValueError, "torch.bool"),
        (lambda: Batch([1.0], torch.zeros(1).long()), TypeError, "x must be a tensor, got list"),
    ],
)
def test_bad_batches_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


BAD_CALLS = {
    "labels out of range": (
        lambda: CrossEntropy()(noisy(), Batch(torch.ones(2, FEATURES), torch.tensor([0, CLASSES]))),
        ValueError,
        r"0\.\.2 for 3 outputs, got values from 0 to 3",
    ),
    "labels missing": (lambda: CrossEntropy()(noisy(), Batch(u=torch.ones(2, FEATURES))), ValueError, "needs label"),
    "no layer": (lambda: VAdD()(nn.Linear(FEATURES, CLASSES), batch()), ValueError, "AdversarialDropout layer"),
    "no logits": (lambda: PiModel()(nn.Identity(), Batch(u=torch.ones(2, 2, 2))), ValueError, r"logits \(B, C\)"),
    "progress": (lambda: CrossEntropy()(noisy(), batch(), progress=2.0), ValueError, "progress must be in"),
    "moving": (lambda: CrossEntropy()(noisy(), batch(), moving={"cleen"}), ValueError, "cleen"),
    "delta": (lambda: VAdD(delta=1.5), ValueError, "delta must be in .*1.5"),
    "delta type": (lambda: VAdD(delta="a"), TypeError, "delta must be a number"),
    "noise": (lambda: VAdD(noise="none"), ValueError, "'independent', 'shared', got 'none'"),
    "budget": (lambda: VAdD(budget="all"), ValueError, "'layer', 'shared', got 'all'"),
    "epsilon": (lambda: VAT(epsilon=0.0), ValueError, "epsilon must be positive"),
    "norm": (lambda: AT(norm="l1"), ValueError, "'linf', 'l2', got 'l1'"),
    "weight": (lambda: -1.0 * VAT(), ValueError, "not negative, got -1.0"),
    "no model": (lambda: VAdD()(batch(), noisy()), TypeError, "got a Batch as model"),
    "generator": (lambda: VAdD()(noisy(), batch(), generator=0), TypeError, "must be a torch.Generator, got 0"),
    "tuple": (lambda: VAdD()(noisy(), (batch().x, batch().y)), TypeError, r"takes a Batch, got tuple"),
    "rows": (lambda: VAdD(rows="labeled")(noisy(), batch()), ValueError, "'labelled', 'unlabelled', got 'labeled'"),
    "labels of the unlabelled": (lambda: SAdD(rows="unlabelled")(noisy(), batch()), ValueError, "labelled rows only"),
    "divergence": (lambda: VAdD(divergence="kl"), TypeError, "advdrop.kl, got 'kl'"),
    "search": (lambda: VAdD(search=FirstOrder), TypeError, r"FirstOrder\(\), got <class"),
    "momentum": (lambda: TemporalEnsembling(4, 3, momentum=1.0), ValueError, "momentum must be below 1"),
    "ramp class": (lambda: Ramp * VAdD(), TypeError, "unsupported operand"),
    "ramp": (lambda: Ramp(-3.0), ValueError, "maximum must be positive"),
    "sum": (lambda: VAT() + 1.0, TypeError, "unsupported operand"),
    "product": (lambda: VAT() * VAT(), TypeError, "unsupported operand"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_calls_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_distributed_wrapper_around_the_network_is_refused():
    ddp = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(ddp)
    with pytest.raises(TypeError, match="TrainingStep"):
        CrossEntropy()(ddp, batch())


def test_upper_network_that_changes_its_input_is_refused():
    upper = nn.Sequential(nn.LeakyReLU(0.1, inplace=True), AdversarialDropout(0.5), nn.Linear(HIDDEN, CLASSES))
    with pytest.raises(ValueError, match="inplace=False"):
        VAdD()(Split(nn.Linear(FEATURES, HIDDEN), upper), batch())


def test_layer_at_two_widths_is_refused_with_the_way_out():
    layer = AdversarialDropout(0.5)
    model = nn.Sequential(layer, nn.Linear(FEATURES, HIDDEN), layer, nn.Linear(HIDDEN, CLASSES))
    with pytest.raises(ValueError, match="one layer for each place"):
        VAdD()(model, batch())


class Sometimes(nn.Module):
    """Its second layer runs in every second pass only, its third to no effect."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(AdversarialDropout(0.5, 0.3) for _ in range(3))
        self.last, self.turns = nn.Linear(FEATURES, CLASSES), 0

    def forward(self, x):
        self.turns += 1
        self.layers[2](x)
        h = self.layers[0](x)
        return self.last(self.layers[1](h) if self.often or self.turns % 2 == 0 else h)


@pytest.mark.filterwarnings("ignore:Sometimes could not be cut")
def test_layers_that_come_and_go_are_refused_and_idle_ones_are_not():
    model = Sometimes()
    model.often = False
    with pytest.raises(ValueError, match="each pass must run all"):
        VAdD()(model, batch())
    model.often = True
    assert VAdD()(model, batch()).total > 0


def test_a_network_that_cannot_be_cut_is_not_tried_again_at_every_step():
    model = Sometimes()
    model.often = True
    with pytest.warns(UserWarning, match="could not be cut") as said:
        losses = [VAdD()(model, batch()).total for _ in range(3)]
    assert len(losses) == 3
    assert len(said) == 1
