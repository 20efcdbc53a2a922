import numpy as np
import pytest
import torch
from torch import nn

from advdrop import Step, TemporalEnsembling, bernoulli_kl, mse, qe
from small import CLASSES, FEATURES, batch, close, gradients, only, run, values


@pytest.fixture
def model():
    return nn.Linear(FEATURES, CLASSES).double()


@pytest.fixture
def rows():
    return only(batch(dtype=torch.float64), "unlabeled", "index")


def output(model, x):
    return model(x).softmax(1).detach().numpy()


def test_the_target_is_the_corrected_average_of_the_past(model, rows):
    term, past = TemporalEnsembling(examples=20, classes=CLASSES, momentum=0.6), []
    for step in range(4):
        u = rows["unlabeled"] + 0.1 * step
        ours = values(model, term, {**rows, "unlabeled": u}).detach()
        f, expected = output(model, u), np.zeros(16)
        if past:
            weights = np.array([0.4 * 0.6 ** (step - 1 - i) for i in range(step)])
            target = np.tensordot(weights, np.array(past), 1) / weights.sum()
            expected = ((target - f) ** 2).mean(1)
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-12)
        past.append(f)
    assert term.seen.tolist() == [4.0] * 16 + [0.0] * 4


@pytest.mark.parametrize(("divergence", "compared"), [(mse, lambda z: z), (bernoulli_kl, torch.sigmoid)])
def test_values_and_answers_are_averaged_as_they_are_compared(model, rows, divergence, compared):
    term, u = TemporalEnsembling(examples=16, classes=CLASSES, divergence=divergence), rows["unlabeled"]
    values(model, term, rows)
    assert values(model, term, rows).abs().max() < 1e-6  # the same outputs as before
    target = compared(model(u)).detach()
    ours = values(model, term, {**rows, "unlabeled": u + 0.3})
    torch.testing.assert_close(ours, divergence(target, model(u + 0.3), given="probabilities"), rtol=1e-4, atol=1e-6)


def test_certain_answers_stay_probabilities():
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, 50.0)  # the sigmoid is 1
    step = Step(model, TemporalEnsembling(examples=1, classes=1, divergence=bernoulli_kl))
    for _ in range(40):
        assert step(unlabeled=torch.ones(1, 1), index=torch.tensor([0])).loss < 1e-6


def test_rows_are_counted_and_not_epochs(model, rows):
    term, u = TemporalEnsembling(examples=16, classes=CLASSES), rows["unlabeled"]
    values(model, term, {"unlabeled": u[:8], "index": torch.arange(8)})
    second = values(model, term, rows).detach()
    np.testing.assert_allclose(second[:8], 0.0, atol=1e-12)
    assert (second[8:] == 0.0).all()
    values(model, term, {"unlabeled": u[:8] + 1.0, "index": torch.arange(8, 16).to(torch.uint16)})
    assert term.seen.tolist() == [2.0] * 16


def test_no_gradient_comes_from_the_target(model, rows):
    term, moved = TemporalEnsembling(examples=16, classes=CLASSES), rows["unlabeled"] + 0.3
    values(model, term, rows)
    target = torch.tensor(output(model, rows["unlabeled"]))
    ours = gradients(model, run(model, term, {**rows, "unlabeled": moved}).loss)
    close(ours, gradients(model, qe(target, model(moved), given="probabilities").mean()), 1e-4)


def test_nothing_is_learned_from_a_validation_loss(model, rows):
    term = TemporalEnsembling(examples=16, classes=CLASSES)
    with torch.no_grad():
        run(model, term, rows)
    assert (term.seen == 0).all()
    assert (term.ensemble == 0).all()


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (None, "call the step with index="),
        (torch.arange(16) + 1, r"0\.\.15, got values from 1 to 16"),
        (torch.arange(16) - 1, r"0\.\.15, got values from -1 to 14"),
    ],
)
def test_the_rows_must_be_known(model, rows, index, message):
    with pytest.raises(ValueError, match=message):
        run(model, TemporalEnsembling(16, CLASSES), {**rows, "index": index})


def test_the_positions_are_those_of_the_rows_of_the_term(model, rows):
    term = TemporalEnsembling(16, CLASSES, rows="labeled")
    with pytest.raises(ValueError, match="index= has the positions of the unlabeled rows"):
        run(model, term, {**batch(dtype=torch.float64), **rows})
    run(model, term, {**only(batch(dtype=torch.float64), "x", "y"), "index": torch.arange(8)})
    assert term.seen.sum() == 8


def test_the_options_are_checked(model, rows):
    with pytest.raises(ValueError, match="classes=5, but the network has 3"):
        run(model, TemporalEnsembling(16, 5), rows)
    with pytest.raises(ValueError, match="momentum must be below 1"):
        TemporalEnsembling(4, 3, momentum=1.0)
