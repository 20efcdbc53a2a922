"""The audit compared with a search over all masks."""

from dataclasses import replace
from itertools import combinations

import pytest
import torch
from torch import nn

from advdrop.analysis.audit import audit
from advdrop.analysis.worst import affine, affine_above
from advdrop.insertion import adversarial_layers, insert
from advdrop.masks import AdversarialDropout
from analyses import AUDIT

UNITS = 9


def below():
    return [nn.Linear(5, UNITS), nn.ReLU()]


def above(kind):
    return [nn.Linear(UNITS, 4)] if kind == "affine" else [nn.Linear(UNITS, 7), nn.ReLU(), nn.Linear(7, 4)]


def network(kind, seed):
    """A Sequential with a layer of nine units below a linear classifier, or below a hidden layer."""
    torch.manual_seed(seed)
    return nn.Sequential(*below(), AdversarialDropout(0.5, 0.2), *above(kind))


class Branches(nn.Module):
    """A network with a forward pass of its own: the masked units are added to others."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*below())
        self.side = nn.Linear(5, UNITS)
        self.layer = AdversarialDropout(0.5, 0.2)
        self.head = nn.Sequential(*above("deep"))

    def forward(self, x, shift=0.0):
        side = torch.tanh(self.side(x)) + shift
        return {"logits": self.head(self.layer(self.body(x)) + side)}


def examples(model, seed, count=30):
    """Random examples with the predictions as labels, except for every fifth."""
    x = 2 * torch.randn(count, 5, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        output = model.eval()(x)
    y = (output if isinstance(output, torch.Tensor) else output["logits"]).argmax(1)
    y[::5] = (y[::5] + 1) % 4
    return x, y


@torch.no_grad()
def exhaustive(logits, y):
    """The smallest number of lost units that makes each example wrong; None if none does."""
    found = [None] * len(y)
    for size in range(UNITS + 1):
        for lost in combinations(range(UNITS), size):
            mask = torch.ones(UNITS)
            mask[list(lost)] = 0.0
            wrong = logits(mask).argmax(1) != y
            found = [size if few is None and bool(w) else few for few, w in zip(found, wrong, strict=True)]
    return found


def truth(model, x, y):
    return exhaustive(lambda mask: model[3:](model[:2](x) * mask.to(x.dtype)), y)


def check_bounds(found, true):
    assert not found.exact
    for few, least, fewest in zip(found.fewest, found.at_least, true, strict=True):
        assert least <= (UNITS + 1 if fewest is None else fewest)
        assert few is None or (fewest is not None and fewest <= few)
        assert (few == 0) == (fewest == 0)
        assert (few == 1) == (fewest == 1)  # every single unit was tried
    tight = sum(few == fewest for few, fewest in zip(found.fewest, true, strict=True))
    assert tight >= 0.8 * len(true)  # and the search is good


@pytest.mark.parametrize("bias", [True, False])  # without it, the loss of all active units is a tie of all classes
@pytest.mark.parametrize("seed", range(5))
def test_affine_networks_are_audited_exactly(seed, bias):
    model = network("affine", seed)
    if not bias:
        nn.init.zeros_(model[3].bias)
    x, y = examples(model, seed)
    found = audit(model, [(x[:20], y[:20]), (x[20:], y[20:])], budgets=range(UNITS + 1))
    true = truth(model, x, y)
    assert found.exact
    assert found.fewest == true
    assert list(found.worst) == list(found.certain)
    for budget, accuracy in zip(found.budgets, found.worst, strict=True):
        assert accuracy == pytest.approx(100 * sum(few is None or few > budget for few in true) / len(x))


@pytest.mark.parametrize("seed", range(5))
def test_in_half_precision_an_audit_gives_bounds(seed):
    model = network("affine", seed)
    x, y = examples(model, seed, count=60)
    model, x = model.bfloat16(), x.bfloat16()
    check_bounds(audit(model, [(x, y)], budgets=range(UNITS + 1)), truth(model, x, y))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_may_be_integers_of_any_type(dtype):
    model = network("affine", 0)
    x, y = examples(model, 0)
    assert audit(model, (x, y.to(dtype)), examples=20) == audit(model, (x, y), examples=20)


@pytest.mark.parametrize("seed", range(5))
def test_the_bounds_of_other_networks_enclose_the_truth(seed):
    model = network("deep", seed)
    x, y = examples(model, seed)
    check_bounds(audit(model, [(x, y)], budgets=range(UNITS + 1)), truth(model, x, y))


@pytest.mark.filterwarnings("ignore:only . of . torch calls")
@pytest.mark.parametrize("trainable", [True, False])
def test_any_network_can_be_audited(trainable):
    torch.manual_seed(0)
    model = Branches().requires_grad_(trainable)
    x, y = examples(model, 0)
    found = audit(model, [(x, y)], budgets=range(UNITS + 1))
    side = torch.tanh(model.side(x))
    check_bounds(found, exhaustive(lambda mask: model.head(model.body(x) * mask + side), y))
    assert audit(model, [({"x": x}, y)], budgets=range(UNITS + 1)) == found
    assert audit(model, [((x, 0.0), y)], budgets=range(UNITS + 1)) == found


@pytest.mark.parametrize("kind", ["affine", "deep"])
@pytest.mark.parametrize("after", ["1", "0.1"])
def test_an_inserted_layer_gives_the_same_audit(kind, after):
    model = network(kind, 0)
    x, y = examples(model, 0)
    expected = audit(model, [(x, y)], budgets=[1, UNITS])
    plain = nn.Sequential(*model[:2], *model[3:]) if after == "1" else nn.Sequential(model[:2], *model[3:])
    found = audit(insert(plain, after=after), [(x, y)], budgets=[1, UNITS])
    assert found.exact == (kind == "affine")
    assert found == expected


@pytest.mark.parametrize("kind", ["affine", "deep"])
def test_the_loss_of_the_unit_changes_a_fragile_example(kind):
    model = network(kind, 0)
    x, y = examples(model, 0)
    found = audit(model, [(x, y)], budgets=[UNITS])
    assert found.fragile_examples
    h = model[:2](x)
    for example, unit in found.fragile_examples:
        without = h[example].clone()
        assert int(model[3:](without).argmax()) == int(y[example])
        without[unit] = 0.0
        assert int(model[3:](without).argmax()) != int(y[example])
    shares = [share for _, share in found.critical_units]
    assert shares == sorted(shares, reverse=True)
    assert 0 < max(shares) <= 100


def test_random_losses_hurt_less_than_the_worst():
    model = network("deep", 1)
    x, y = examples(model, 1, 100)
    found = audit(model, [(x, y)], budgets=[0, 1, 3], draws=20)
    assert found.random[0] == found.worst[0] == found.certain[0] == 80.0
    assert all(random >= worst for random, worst in zip(found.random, found.worst, strict=True))
    assert found.random[2] < found.random[0]
    again = audit(model, [(x, y)], budgets=[0, 1, 3], draws=20)
    assert again == found


@pytest.mark.parametrize("options", [{"budgets": [1], "singles": False}, {"budgets": [0]}])
def test_without_singles_less_is_certain(options):
    model = network("deep", 2)
    x, y = examples(model, 2)
    found = audit(model, [(x, y)], **options)
    assert set(found.at_least) == {0, 1}
    assert found.certain[1:] == [0.0] * (len(found.budgets) - 1)


def test_whole_channels_can_be_lost():
    torch.manual_seed(0)
    layer = AdversarialDropout(granularity="channel")
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), layer, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    x = torch.randn(10, 1, 8, 8)
    y = model.eval()(x).argmax(1)
    found = audit(model, [(x, y)], budgets=range(7))
    assert found.units == 6
    assert found.exact


def test_a_layer_that_runs_twice_loses_the_same_units_twice():
    torch.manual_seed(0)
    layer = AdversarialDropout()
    model = nn.Sequential(*below(), layer, nn.Linear(UNITS, UNITS), layer, nn.Linear(UNITS, 4))
    x, y = examples(model, 0)
    found = audit(model, [(x, y)], budgets=range(UNITS + 1))
    check_bounds(found, exhaustive(lambda mask: model[5](model[3](model[:2](x) * mask) * mask), y))


@pytest.mark.parametrize("training", [True, False])
def test_the_network_is_left_as_it_was(training):
    model = network("deep", 0)
    x, y = examples(model, 0)
    model.train(training)
    model[0].weight.requires_grad = False
    before = [parameter.clone() for parameter in model.parameters()]
    noise = torch.get_rng_state()
    with torch.no_grad():
        audit(model, [(x, y)], budgets=[1])
    assert torch.equal(torch.get_rng_state(), noise)
    assert all(module.training is training for module in model.modules())
    assert [parameter.requires_grad for parameter in model.parameters()] == [False] + [True] * (len(before) - 1)
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def test_progress_is_reported_and_the_name_is_kept():
    model = network("affine", 0)
    x, y = examples(model, 0)
    finished = []
    found = audit(model, [(x[:20], y[:20]), (x[20:], y[20:])], budgets=[1], name="mine", progress=finished.append)
    assert finished == [20, 30]
    assert found.name == "mine"


def test_what_is_known_to_be_affine():
    assert affine(nn.Linear(2, 2))
    assert affine(nn.BatchNorm1d(2))
    assert not affine(nn.BatchNorm1d(2, track_running_stats=False))
    assert not affine(nn.Softmax(1))
    hooked = nn.Linear(2, 2)
    hooked.register_forward_hook(lambda module, given, output: output.relu())
    assert not affine(hooked)
    layer, other = AdversarialDropout(), AdversarialDropout()
    assert affine_above(nn.Sequential(nn.ReLU(), nn.Sequential(layer, nn.Linear(2, 2)), nn.Dropout()), layer)
    assert affine_above(nn.Sequential(other, nn.ReLU(), layer, nn.Linear(2, 2), other), layer)
    assert not affine_above(nn.Sequential(layer, nn.Linear(2, 2), layer), layer)
    assert not affine_above(nn.Sequential(nn.Linear(2, 2), other), layer)
    branches = Branches()
    assert not affine_above(branches, branches.layer)

    def above_inserted(*modules):
        network = insert(nn.Sequential(*modules), after="0")
        return affine_above(network, *adversarial_layers(network))

    assert above_inserted(nn.ReLU(), nn.Linear(2, 2))
    assert not above_inserted(nn.Linear(2, 2), nn.ReLU())
    shared = nn.Identity()
    assert not above_inserted(shared, nn.Linear(2, 2), shared)
    block = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    network = insert(insert(nn.Sequential(block, nn.Linear(2, 2)), after="0"), after="0.0")
    behind, inside = (hook.layer for part in (block, block[0]) for hook in part._forward_hooks.values())
    assert affine_above(network, behind)
    assert not affine_above(network, inside)


class Silent(nn.Module):
    """A network that does not run its layer, or runs it on units whose first dimension is not the rows."""

    def __init__(self, runs):
        super().__init__()
        self.layer, self.runs = AdversarialDropout(), runs

    def forward(self, x):
        return self.layer(x.T).T if self.runs else x


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


def test_errors():
    with pytest.raises(ValueError, match=r"one AdversarialDropout layer, got 0 in Linear; advdrop.insert"):
        audit(nn.Linear(2, 2), [])
    with pytest.raises(ValueError, match="no examples"):
        audit(network("affine", 0), [])
    with pytest.raises((ValueError, TypeError), match="budgets"):
        audit(network("affine", 0), [], budgets=[-1])
    x, y = torch.ones(3, 4), torch.zeros(3, dtype=torch.long)
    with pytest.raises(ValueError, match="layer of Silent did not run"):
        audit(Silent(runs=False), [(x, y)])
    with pytest.raises(ValueError, match=r"must be the 3 examples, got units of shape \(4, 3\)"):
        audit(Silent(runs=True), [(x, y)])
    with pytest.raises(ValueError, match=r"got tuple; say .*, or wrap the network in a module that returns them"):
        audit(insert(nn.Sequential(nn.Linear(4, 4), Pair(4, 2)), after="0"), [(x, y)])
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"an audit needs gradients, .* use torch.no_grad"):
        audit(nn.Sequential(nn.Linear(4, 2)), [(x, y)], layers="all")


class Centered(Branches):
    """A network that changes its input."""

    def forward(self, x):
        return super().forward(x.sub_(0.5))


@pytest.mark.parametrize("layers", [None, ["body.0"]])
def test_a_network_that_changes_its_input_is_refused(layers):
    x, y = torch.ones(3, 5), torch.zeros(3, dtype=torch.long)
    with pytest.raises(ValueError, match="changes its input in place, and an audit runs it several times"):
        audit(Centered(), [(x, y)], layers=layers)


def test_the_median_counts_right_predictions_only():
    assert AUDIT.median == 2
    assert replace(AUDIT, fewest=[0, None, None, None, 2]).median is None
    assert replace(AUDIT, fewest=[0, 0]).median is None


def test_summary():
    assert AUDIT.summary.splitlines() == [
        "one: 12 units, 5 examples, 80.0 % right (bounds: the smallest numbers that were found)",
        "2 lost units change half of the right predictions; 3 change with at most 4",
        "most critical units: 7 (50.0 %), 3 (25.0 %)",
        "examples that depend on one unit: 1 (unit 7)",
    ]
    assert "no example was found that depends on one unit" in replace(AUDIT, fragile_examples=[]).summary
    assert "no example depends on one unit" in replace(AUDIT, fragile_examples=[], at_least=[0, 2, 2, 2, 2]).summary
    assert "and 2 more" in replace(AUDIT, fragile_examples=[(i, 0) for i in range(7)]).summary
    assert "4 lost units change less than half" in replace(AUDIT, fewest=[0, None, None, None, 2]).summary
    assert "(exact)" in replace(AUDIT, exact=True).summary
    wrong = replace(AUDIT, fewest=[0] * 5, fragile_examples=[])
    assert wrong.summary == f"{AUDIT.name}: {AUDIT.units} units, {AUDIT.examples} examples, and no prediction is right"


def test_json_has_all_values():
    values = AUDIT.json()
    assert values["fewest"] == [0, 1, 3, None, 2]
    assert values["median"] == 2


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.full((2, 3), float("nan")), torch.tensor([0, 1]), "output of the network has NaN or infinity in 2 of 2"),
        (torch.ones(2, 3), torch.tensor([0, 2]), r"labels must be in 0\.\.1 for 2 outputs"),
        (torch.ones(2, 3), torch.tensor([0, -1]), r"labels must be in 0\.\.1 for 2 outputs"),
    ],
)
def test_values_that_would_be_counted_as_something_else_are_refused(x, y, message):
    model = nn.Sequential(AdversarialDropout(), nn.Linear(3, 2))
    with pytest.raises(ValueError, match=message):
        audit(model, [(x, y)], budgets=(1,), draws=1)


class Direction(nn.Module):
    """Divides by the norm of the units, so the output is NaN if all are lost."""

    def forward(self, h):
        return h / h.norm(dim=1, keepdim=True)


def test_an_output_that_is_not_finite_is_wrong():
    model = nn.Sequential(AdversarialDropout(), Direction(), nn.Linear(3, 2))
    nn.init.constant_(model[2].weight, 0.0)
    model[2].bias.data.copy_(torch.tensor([1.0, 0.0]))  # always the class 0, which is also the place of the first NaN
    found = audit(model, [(torch.ones(4, 3), torch.zeros(4, dtype=torch.long))], budgets=(0, 2, 3), draws=2)
    assert found.random == found.worst == [100.0, 100.0, 0.0]
    assert found.fewest == [3] * 4
