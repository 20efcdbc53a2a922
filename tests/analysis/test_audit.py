"""The audit against all masks there are."""

from itertools import combinations

import pytest
import torch
from torch import nn

import advdrop
from advdrop import AdversarialDropout, Split
from advdrop.analysis.audit import affine
from advdrop.models import mnist_cnn

UNITS = 9


def network(kind, seed):
    """A layer of nine units below a linear classifier, or below a hidden layer."""
    torch.manual_seed(seed)
    above = [nn.Linear(UNITS, 4)] if kind == "affine" else [nn.Linear(UNITS, 7), nn.ReLU(), nn.Linear(7, 4)]
    return Split(nn.Sequential(nn.Linear(5, UNITS), nn.ReLU()), nn.Sequential(AdversarialDropout(0.5, 0.2), *above))


def examples(model, seed, count=30):
    """Labelled as the network sees them, but for every fifth."""
    x = 2 * torch.randn(count, 5, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        y = model.eval()(x).argmax(1)
    y[::5] = (y[::5] + 1) % 4
    return x, y


@torch.no_grad()
def exhaustive(model, x, y):
    """The smallest number of lost units that makes each example wrong; None if none does."""
    h, upper = model.under(x), model.upper[1:]
    found = [None] * len(x)
    for size in range(UNITS + 1):
        for lost in combinations(range(UNITS), size):
            kept = h.clone()
            kept[:, list(lost)] = 0.0
            wrong = upper(kept).argmax(1) != y
            found = [size if few is None and bool(w) else few for few, w in zip(found, wrong, strict=True)]
    return found


@pytest.mark.parametrize("seed", range(5))
def test_affine_networks_are_audited_exactly(seed):
    model = network("affine", seed)
    x, y = examples(model, seed)
    found = advdrop.audit(model, [(x[:20], y[:20]), (x[20:], y[20:])], budgets=range(UNITS + 1))
    truth = exhaustive(model, x, y)
    assert found.exact
    assert found.fewest == truth
    assert list(found.worst) == list(found.certain)
    for budget, accuracy in zip(found.budgets, found.worst, strict=True):
        assert accuracy == pytest.approx(100 * sum(few is None or few > budget for few in truth) / len(x))


@pytest.mark.parametrize("seed", range(5))
def test_the_bounds_of_other_networks_enclose_the_truth(seed):
    model = network("deep", seed)
    x, y = examples(model, seed)
    found = advdrop.audit(model, [(x, y)], budgets=range(UNITS + 1))
    truth = exhaustive(model, x, y)
    assert not found.exact
    for few, least, true in zip(found.fewest, found.at_least, truth, strict=True):
        assert least <= (UNITS + 1 if true is None else true)
        assert few is None or (true is not None and true <= few)
        assert (few == 0) == (true == 0)
        assert (few == 1) == (true == 1)  # every single unit was tried
    tight = sum(few == true for few, true in zip(found.fewest, truth, strict=True))
    assert tight >= 0.8 * len(x)  # and the search is good


@pytest.mark.parametrize("kind", ["affine", "deep"])
def test_the_lost_units_are_lost_for_a_reason(kind):
    model = network(kind, 0)
    x, y = examples(model, 0)
    found = advdrop.audit(model, [(x, y)], budgets=[UNITS])
    assert found.hanging
    h = model.under(x)
    for example, unit in found.hanging:
        broken = h[example].clone()
        assert int(model.upper[1:](broken).argmax()) == int(y[example])
        broken[unit] = 0.0
        assert int(model.upper[1:](broken).argmax()) != int(y[example])
    shares = [share for _, share in found.leaned_on]
    assert shares == sorted(shares, reverse=True)
    assert 0 < max(shares) <= 100


def test_random_losses_hurt_less_than_the_worst():
    model = network("deep", 1)
    x, y = examples(model, 1, 100)
    found = advdrop.audit(model, [(x, y)], budgets=[0, 1, 3], draws=20)
    assert found.random[0] == found.worst[0] == found.certain[0] == 80.0
    assert all(random >= worst for random, worst in zip(found.random, found.worst, strict=True))
    assert found.random[2] < found.random[0]
    again = advdrop.audit(model, [(x, y)], budgets=[0, 1, 3], draws=20)
    assert again == found


def test_without_singles_less_is_certain():
    model = network("deep", 2)
    x, y = examples(model, 2)
    found = advdrop.audit(model, [(x, y)], budgets=[1], singles=False)
    assert set(found.at_least) <= {0, 1}
    assert found.certain[1] == 0.0


def test_whole_channels_can_be_lost():
    torch.manual_seed(0)
    conv = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU())
    upper = nn.Sequential(
        AdversarialDropout(granularity="channel"), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)
    )
    model = Split(conv, upper)
    x = torch.randn(10, 1, 8, 8)
    y = model.eval()(x).argmax(1)
    found = advdrop.audit(model, [(x, y)], budgets=range(7))
    assert found.units == 6
    assert found.exact


def test_a_wrapped_network_is_audited():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(12, 5)
    y = plain(x).argmax(1)
    model = advdrop.wrap(plain, after="1")
    found = advdrop.audit(model, [(x, y)], budgets=[1, 8])
    assert found.exact
    assert found.units == 8


@pytest.mark.parametrize("training", [True, False])
def test_the_network_is_left_as_it_was(training):
    model = network("deep", 0)
    x, y = examples(model, 0)
    model.train(training)
    model.under[0].weight.requires_grad = False
    before = [parameter.clone() for parameter in model.parameters()]
    advdrop.audit(model, [(x, y)], budgets=[1])
    assert all(module.training is training for module in model.modules())
    assert [parameter.requires_grad for parameter in model.parameters()] == [False] + [True] * (len(before) - 1)
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def test_progress_and_names_are_told():
    model = network("affine", 0)
    x, y = examples(model, 0)
    told = []
    found = advdrop.audit(model, [(x[:20], y[:20]), (x[20:], y[20:])], budgets=[1], name="mine", progress=told.append)
    assert told == [20, 30]
    assert found.name == "mine"


def test_what_is_affine():
    assert not affine(mnist_cnn().upper)
    assert affine(nn.Linear(2, 2))
    assert not affine(nn.Sequential(nn.Linear(2, 2), nn.Softmax(1)))


def test_what_cannot_be_audited_is_told():
    with pytest.raises(ValueError, match=r"one AdversarialDropout layer, got 0 in Linear; advdrop.wrap"):
        advdrop.audit(nn.Linear(2, 2), [])
    with pytest.raises(ValueError, match="no examples"):
        advdrop.audit(network("affine", 0), [])
    with pytest.raises((ValueError, TypeError), match="budgets"):
        advdrop.audit(network("affine", 0), [], budgets=[-1])
