"""R-Drop and fraternal dropout: the supervised loss of two passes, and how far apart they are."""

import numpy as np
import pytest
import torch
from torch import nn

from advdrop import AT, BinaryCrossEntropy, CrossEntropy, FraternalDropout, RDrop, Step, bernoulli_kl
from small import batch, only, passes_of, quiet, run


def both(model, term, rows):
    """Two passes as the term makes them, their class probabilities and the labels, in numpy."""
    passes = passes_of(model, term, rows=rows)
    logits = [passes.clean("labeled").logits, passes.again("labeled").logits]
    assert not torch.equal(*logits)
    z = [tensor.detach().numpy() for tensor in logits]
    return z, [np.exp(one) / np.exp(one).sum(1, keepdims=True) for one in z], rows["y"].numpy()


@pytest.fixture
def rows():
    return only(batch(dtype=torch.float64), "x", "y")


@pytest.mark.parametrize("alpha", [0.0, 1.0, 5.0])
def test_r_drop_is_its_equation(rows, alpha):
    model, term = quiet(0.5).double(), RDrop(alpha)
    _, (p, q), y = both(model, term, rows)
    at = np.arange(len(y)), y
    kl = (p * np.log(p / q)).sum(1) + (q * np.log(q / p)).sum(1)
    expected = -np.log(p[at]) - np.log(q[at]) + alpha / 2 * kl
    assert run(model, term, rows).loss.item() == pytest.approx(expected.mean(), rel=1e-12)


@pytest.mark.parametrize("kappa", [0.0, 0.15, 3.0])
def test_fraternal_dropout_is_its_equation(rows, kappa):
    model, term = quiet(0.5).double(), FraternalDropout(kappa)
    (one, other), (p, q), y = both(model, term, rows)
    at = np.arange(len(y)), y
    expected = (-np.log(p[at]) - np.log(q[at])) / 2 + kappa / one.shape[1] * ((one - other) ** 2).sum(1)
    assert run(model, term, rows).loss.item() == pytest.approx(expected.mean(), rel=1e-12)


def test_the_loss_keeps_its_options(rows):
    model = quiet().double()  # without noise, both passes are the same
    plain, smooth = (run(model, CrossEntropy(label_smoothing=s), rows).loss.item() for s in (0.0, 0.5))
    assert plain != smooth
    assert run(model, RDrop(loss=CrossEntropy(label_smoothing=0.5)), rows).loss.item() == pytest.approx(2 * smooth)
    assert run(model, FraternalDropout(loss=CrossEntropy(label_smoothing=0.5)), rows).loss.item() == pytest.approx(
        smooth
    )


def test_many_labels():
    rows = {"x": torch.randn(4, 6), "y": torch.randint(2, (4, 3)).float()}
    term = RDrop(2.0, loss=BinaryCrossEntropy(), divergence=bernoulli_kl)
    model = quiet(0.5)
    passes = passes_of(model, term, rows=rows)
    z = [passes.clean("labeled").logits, passes.again("labeled").logits]
    loss = sum(nn.functional.binary_cross_entropy_with_logits(one, rows["y"]) for one in z)
    kl = sum(bernoulli_kl(*pair).mean() for pair in ((z[0], z[1]), (z[1], z[0])))
    torch.testing.assert_close(run(model, term, rows).loss, loss + kl)


def test_rows_without_a_label_have_no_loss_but_must_agree(rows):
    model, labeled = quiet(0.5).double(), torch.tensor([True] * 3 + [False] * 5)
    y = rows["y"].where(labeled, -100)
    _, (p, q), _ = both(model, RDrop(), rows)
    at = np.arange(3), rows["y"][:3].numpy()
    kl = (p * np.log(p / q)).sum(1) + (q * np.log(q / p)).sum(1)
    expected = (-np.log(p[at]) - np.log(q[at])).mean() + kl.mean() / 2
    assert run(model, RDrop(), {"x": rows["x"], "y": y}, ignore_index=-100).loss.item() == pytest.approx(expected)


@pytest.mark.parametrize("wrong", [-1.0, float("nan")])
def test_the_options_are_checked(wrong):
    with pytest.raises(ValueError, match="alpha must be zero or more"):
        RDrop(wrong)
    with pytest.raises(ValueError, match="kappa must be zero or more"):
        FraternalDropout(wrong)


@pytest.mark.parametrize("term", [AT, RDrop, FraternalDropout])
@pytest.mark.parametrize("loss", [CrossEntropy, torch.nn.functional.cross_entropy, nn.CrossEntropyLoss()])
def test_a_loss_is_one_of_ours(term, loss):
    with pytest.raises(TypeError, match=r"loss must be a supervised loss such as CrossEntropy\(\), got"):
        term(loss=loss)


def test_they_need_labels():
    with pytest.raises(ValueError, match="needs label"):
        Step(quiet(), RDrop())(unlabeled=torch.ones(2, 6))
