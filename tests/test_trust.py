"""How far unlabeled data are trusted."""

import numpy as np
import pytest
import torch

from advdrop.schedules import Factor
from advdrop.trust import collapse, skill_error, skill_of, trust_in


def test_the_skill_of_a_guess_is_zero_and_that_of_no_error_is_one():
    shares = torch.tensor([0.2, 0.3, 0.5])
    guess = 0.04 + 0.09 + 0.25
    assert skill_of(guess, shares) == pytest.approx(0.0, abs=1e-7)
    assert skill_of(1.0, shares) == 1.0
    assert skill_of((1 + guess) / 2, shares) == pytest.approx(0.5)
    assert skill_of(0.1, shares) == 0.0  # never below
    assert skill_of(1.0, torch.tensor([1.0])) == 0.0  # one class: nothing to know


def test_the_error_of_the_skill_is_that_of_simulated_labels():
    rng, labels, classes, skill = np.random.default_rng(0), 60, 4, 0.6
    accuracy = 1 / classes + (1 - 1 / classes) * skill
    drawn = rng.binomial(labels, accuracy, 20_000) / labels
    found = (drawn - 1 / classes) / (1 - 1 / classes)
    assert skill_error(skill, labels, classes) == pytest.approx(found.std(), rel=0.02)
    assert skill_error(0.5, 0, 4) == skill_error(0.5, 10, 1) == 1.0  # nothing was measured


def test_only_skill_beyond_one_standard_error_is_trusted():
    assert trust_in(0.9, 0.1) == pytest.approx(0.64)
    assert trust_in(0.1, 0.1) == trust_in(0.0, 0.2) == 0.0
    assert Factor(trust_in(1.0, 0.0))(0.3) == 1.0


def rows(certainty, classes):
    """Probabilities of eight rows: as certain, and in these classes by turns."""
    p = torch.full((8, 3), (1 - certainty) / 2)
    p[torch.arange(8), torch.tensor([classes[row % len(classes)] for row in range(8)])] = certainty
    return p


@pytest.mark.parametrize(
    ("p", "reference", "reason"),
    [
        (rows(0.9, [0, 1, 2]), rows(0.9, [0, 1, 2]), ""),
        (rows(0.48, [0, 1, 2]), rows(0.9, [0, 1, 2]), ""),
        (rows(0.46, [0, 1, 2]), rows(0.9, [0, 1, 2]), "the mean of the highest probability is 0.46, for 3 classes"),
        (rows(0.34, [0, 1, 2]), rows(0.34, [0, 1, 2]), ""),  # early in a training nobody is certain
        (rows(0.9, [1]), rows(0.9, [0, 1, 2]), "100 % of the rows are put in one class"),
        (rows(0.9, [1]), rows(0.9, [1]), ""),  # so do the labels alone
    ],
)
def test_a_collapse_is_told_by_certainty_and_class_shares_beside_the_labels_alone(p, reference, reason):
    assert collapse(p, reference) == reason
