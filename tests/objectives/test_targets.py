"""The targets g of AdD, compared with a loop over the members of an ensemble."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from advdrop import AdversarialDropout, OtherMembers, Step, VAdD, kl
from advdrop.objectives.targets import clean_output, confidence, labels
from advdrop.sklearn.members import perceptrons
from small import FEATURES, batch, only, passes_of, quiet, seeded


def outputs(members, rows=4, classes=3):
    return torch.randn(members * rows, classes, dtype=torch.float64, generator=seeded(2))


def given(logits):
    """Passes whose clean output is known."""

    def clean(rows):
        assert rows == "unlabeled"
        return SimpleNamespace(logits=logits)

    return SimpleNamespace(clean=clean)


def by_loop(logits, members, groups, values):
    """The mean of the other members of the group, one row of one member after the other."""
    each = np.split(logits.detach().numpy(), members)
    if not values:
        each = [np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in each]
    size, found = members // groups, []
    for member in range(members):
        first = member // size * size
        others = [each[other] for other in range(first, first + size) if other != member]
        found.append(sum(others) / len(others))
    return np.concatenate(found)


@pytest.mark.parametrize(("members", "groups"), [(2, 1), (5, 1), (4, 2), (6, 2), (6, 3)])
@pytest.mark.parametrize("values", [False, True])
def test_the_target_is_the_mean_of_the_others_of_the_group(members, groups, values):
    logits = outputs(members)
    found = OtherMembers(members, values=values, groups=groups)(given(logits), "unlabeled")
    np.testing.assert_allclose(found, by_loop(logits, members, groups, values), atol=1e-12)
    if not values:
        torch.testing.assert_close(found.sum(1), torch.ones(len(logits), dtype=torch.float64))


def test_a_member_is_not_among_its_own_teachers():
    logits = outputs(6).requires_grad_()
    target = OtherMembers(6, groups=2)(given(logits), "unlabeled")
    (slope,) = torch.autograd.grad(target[4:8].square().sum(), logits)  # the second member of the first group
    reached = slope.unflatten(0, (6, 4)).abs().amax((1, 2)) > 1e-12
    assert reached.tolist() == [True, False, True, False, False, False]


def test_it_is_the_target_of_a_step():
    network, u = perceptrons(3, [FEATURES, 10], 3, AdversarialDropout(0.5, 0.2)), batch()["unlabeled"]
    term = VAdD(target=OtherMembers(3), given="probabilities", delta=0.0, noise="shared")
    logits = passes_of(network, term, rows={"unlabeled": u}).clean("unlabeled").logits
    expected = kl(torch.tensor(by_loop(logits, 3, 1, False)), logits, given="probabilities").mean()
    loss = Step(network, term)(unlabeled=u, generator=seeded()).loss
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: OtherMembers(1), ValueError, "members must be at least 2, got 1"),
        (lambda: OtherMembers(2.0), TypeError, "members must be an int"),
        (lambda: OtherMembers(4, groups=0), ValueError, "groups must be at least 1, got 0"),
        (lambda: OtherMembers(5, groups=2), ValueError, "5 members do not form 2 groups of equal size"),
        (lambda: OtherMembers(4, groups=4), ValueError, "at least two members each"),
    ],
)
def test_ensembles_that_cannot_be_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_the_targets_of_the_paper():
    model, rows = quiet(0.5), batch()
    passes = passes_of(model, VAdD(), rows=rows)
    assert clean_output(passes, "unlabeled") is passes.clean("unlabeled").logits
    assert torch.equal(labels(passes, "labeled"), rows["y"])
    with pytest.raises(ValueError, match="labeled rows only, got rows='unlabeled'"):
        labels(passes, "unlabeled")
    assert clean_output(passes_of(model, VAdD(), rows=only(rows, "x", "y")), "unlabeled").shape == (8, 3)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_confidence_is_its_formula(power):
    logits = outputs(1, rows=8, classes=4)
    p = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(1, keepdims=True)
    expected = ((p.max(1) - 1 / 4) / (1 - 1 / 4)) ** power
    np.testing.assert_allclose(confidence(logits, "logits", power), expected, atol=1e-12)
    np.testing.assert_allclose(confidence(torch.as_tensor(p), "probabilities", power), expected, atol=1e-12)


def test_confidence_at_its_ends():
    even, sure = torch.full((1, 3), 1 / 3), torch.tensor([[0.0, 1.0, 0.0]])
    assert confidence(torch.cat([even, sure]), "probabilities", 1.0).tolist() == pytest.approx([0.0, 1.0], abs=1e-6)
    below = torch.full((1, 3), 0.33333)  # rounded: never a root of a negative number
    assert confidence(below, "probabilities", 0.5).tolist() == [0.0]
    assert confidence(torch.tensor([2, 0]), "logits", 1.0).tolist() == [1.0, 1.0]  # labels
    assert not confidence(even.requires_grad_(), "probabilities", 1.0).requires_grad


def test_the_confidence_in_a_single_class_is_one():
    assert confidence(torch.zeros(2, 1), "logits", 2.0).tolist() == [1.0, 1.0]
