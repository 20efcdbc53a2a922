import numpy as np
import pytest
import torch
from torch import nn

from advdrop import AdversarialDropout, CrossEntropy, DeepSupervision, Probe, Step, VAdD
from advdrop.objectives.deep_supervision import features, squared_hinge
from small import CLASSES, FEATURES, Wrapped, batch, noisy, only, run, seeded, values


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()


def supervision(model, places=(nn.Tanh,)):
    term = DeepSupervision.of(model, torch.zeros(2, FEATURES, dtype=next(model.parameters()).dtype), CLASSES, places)
    term.heads.to(next(model.parameters()).dtype)
    return term


def test_the_value_is_the_sum_of_the_squared_hinge_losses_of_the_heads(model):
    rows, term = batch(dtype=torch.float64), supervision(model)
    assert [(head.in_features, head.out_features) for head in term.heads] == [(8, CLASSES), (5, CLASSES)]
    for head in term.heads:
        nn.init.normal_(head.weight, std=2.0)  # outputs on both sides of the margin
    signs = 2.0 * np.eye(CLASSES)[rows["y"]] - 1
    expected = 0.0
    for head, depth in zip(term.heads, (2, 4), strict=True):
        output = head(model[:depth](rows["x"])).detach().numpy()
        expected = expected + (np.maximum(0, 1 - signs * output) ** 2).sum(1)
    np.testing.assert_allclose(values(model, term, rows).detach(), expected)


def test_a_place_is_a_name_or_a_class(model):
    assert [head.in_features for head in supervision(model, ("3",)).heads] == [5]
    assert [head.in_features for head in supervision(model, ("2", nn.Tanh)).heads] == [8, 5, 5]
    with pytest.raises(ValueError, match="no module 'x'; there are 0, 1"):
        supervision(model, ("x",))
    with pytest.raises(ValueError, match="no module Conv2d"):
        supervision(model, (nn.Conv2d,))
    with pytest.raises(ValueError, match="at least one hidden layer"):
        supervision(model, ())


def test_each_term_has_its_own_hidden_layers(model):
    low, high = supervision(model, ("0",)), supervision(model, (nn.Tanh,))
    rows = only(batch(dtype=torch.float64), "x", "y")
    alone = [Step(model, term)(**rows).loss for term in (low, high)]
    torch.testing.assert_close(Step(model, low + high)(**rows).loss, sum(alone))


@pytest.mark.parametrize("wrap", [lambda net: net, Wrapped])
def test_an_output_that_is_changed_in_place_is_told(wrap):
    net = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(inplace=True), nn.Linear(8, CLASSES))
    first, changed = ("net.0", "net.1") if wrap is Wrapped else ("0", "1")
    with pytest.raises(ValueError, match=f"what the module '{first}' returns is changed in place above it.*inplace=Fa"):
        supervision(wrap(net), (first,))
    term = supervision(wrap(net), (changed,))
    found = run(wrap(net), term, batch()).loss
    net[1].inplace = False
    torch.testing.assert_close(run(wrap(net), term, batch()).loss, found)


def test_a_module_that_runs_several_times_is_told():
    """The hidden layer would be that of its last run alone."""
    shared = nn.Tanh()
    model = nn.Sequential(nn.Linear(FEATURES, 8), shared, nn.Linear(8, 5), shared, nn.Linear(5, CLASSES))
    with pytest.raises(ValueError, match=r"module '1' runs several times in a pass.*a module of its own"):
        supervision(model)


def test_what_is_above_a_head_gets_no_gradient_from_it(model):
    loss = run(model, supervision(model, ("1",)), batch(dtype=torch.float64)).loss
    first, second = torch.autograd.grad(loss, [model[0].weight, model[2].weight], allow_unused=True)
    assert first.abs().max() > 0
    assert second is None


def test_the_hidden_units_are_those_of_the_pass_that_the_cross_entropy_uses():
    """One pass and not two: with dropout below the head, the head sees the units that lead to the output."""
    seen = []
    net = nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))
    term = supervision(net, ("1",))
    net[2].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    step = Step(net, CrossEntropy() + term)
    passes = step.passes(_batch(), tuple(part for _, part in step.objective.parts))
    hidden = passes.hidden("labeled", ("1",))
    assert len(seen) == 1
    assert torch.equal(hidden["1"], seen[0])


def _batch():
    from advdrop.step.batch import Batch

    return Batch(**batch())


@pytest.mark.parametrize("wrap", [lambda net: net, Wrapped])
def test_it_adds_up_with_adversarial_dropout(wrap):
    net = wrap(noisy())
    objective = CrossEntropy() + supervision(net, (nn.Tanh,)) + VAdD()
    loss = run(net, objective)
    assert loss.loss.isfinite()
    assert not any(module._forward_hooks for module in net.modules())


def test_the_heads_are_trained_and_saved_by_the_step_and_not_part_of_the_network(model):
    step = Step(model, CrossEntropy() + supervision(model))
    names = {name for name in step.state_dict() if name.startswith("trained.")}
    assert names == {f"trained.deep_supervision.{i}.{kind}" for i in (0, 1) for kind in ("weight", "bias")}
    assert len(model.state_dict()) == 6


def test_feature_maps_are_averaged():
    maps = torch.arange(2 * 3 * 8 * 8, dtype=torch.float32).reshape(2, 3, 8, 8)
    expected = maps.reshape(2, 3, 4, 2, 4, 2).mean((3, 5)).flatten(1)
    torch.testing.assert_close(features(maps), expected)
    assert features(torch.zeros(2, 3, 1, 2)).shape == (2, 6)


def test_a_wrong_label_is_named():
    with pytest.raises(ValueError, match=r"labels must be in 0\.\.2"):
        squared_hinge(torch.zeros(1, 3), torch.tensor([3]))


def test_a_network_that_changed_since_the_heads_were_made(model):
    term = supervision(model)
    with pytest.raises(ValueError, match="2 heads for 1 hidden layers: 1"):
        run(model[:3], CrossEntropy() + term, batch(dtype=torch.float64))


@pytest.mark.parametrize("places", ["10", nn.Tanh])
def test_places_are_several(places):
    chain = nn.Sequential(*(nn.Linear(FEATURES, FEATURES) for _ in range(11)))
    with pytest.raises(TypeError, match="places must be several names or classes, got"):
        DeepSupervision.of(chain, torch.zeros(2, FEATURES), CLASSES, places)


def test_heads_are_linear(model):
    heads = nn.ModuleList(nn.Sequential(head) for head in supervision(model).heads)
    with pytest.raises(TypeError, match=r"must be nn\.Linear, got Sequential"):
        run(model, DeepSupervision(supervision(model).places, heads), batch(dtype=torch.float64))


def test_sequences_of_another_length_than_that_of_the_heads():
    model = Reader()
    term = DeepSupervision.of(model, torch.zeros(2, 4, FEATURES), CLASSES, ("lstm",))
    rows = {"x": torch.zeros(2, 5, FEATURES), "y": torch.tensor([0, 1])}
    with pytest.raises(ValueError, match=r"the head of 'lstm' takes \d+ units, and 'lstm' returns \d+.*pad them"):
        run(model, term, rows)


def test_rows_without_a_label_are_left_out(model):
    rows, term = batch(dtype=torch.float64), supervision(model)
    x, y = rows["x"], rows["y"].clone()
    y[::3] = -100
    found = run(model, term, {"x": x, "y": y}, ignore_index=-100).loss
    torch.testing.assert_close(found, run(model, term, {"x": x[y >= 0], "y": y[y >= 0]}).loss)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.last = nn.LSTM(FEATURES, 8, batch_first=True), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.last(self.lstm(x)[0][:, -1])


def test_a_module_that_returns_a_tuple():
    model, x, y = Reader(), torch.randn(4, 3, FEATURES), torch.arange(4) % CLASSES
    term = DeepSupervision.of(model, x, CLASSES, ("lstm",))
    [head] = term.heads
    expected = squared_hinge(head(model.lstm(x)[0].flatten(1)), y).mean()
    torch.testing.assert_close(run(model, term, {"x": x, "y": y}).loss, expected)


@pytest.mark.parametrize("above", [False, True])
def test_a_hidden_layer_may_be_a_block(above):
    block = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh())
    inner = nn.Sequential(AdversarialDropout(0.0, 0.2), nn.Linear(8, 8)) if above else AdversarialDropout(0.0, 0.2)
    model = nn.Sequential(block, inner, nn.Linear(8, CLASSES))
    term = supervision(model, ("1" if above else "0",))
    objective = CrossEntropy() + term + VAdD(search=Probe())
    found, full = (Step(model, objective, reuse=reuse)(**batch(), generator=seeded()) for reuse in (True, False))
    torch.testing.assert_close(found.terms, full.terms)
