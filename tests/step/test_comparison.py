"""Comparisons against numpy: which places count, and what examples without any of them are worth."""

import numpy as np
import pytest
import torch

from advdrop.divergences import kl, mse
from advdrop.step.batch import Batch
from advdrop.step.comparison import Comparison
from advdrop.step.outputs import Outputs
from small import close

B, C, T = 3, 4, 5
MISSING = -100


@pytest.fixture
def logits():
    return torch.randn(B, C, T, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def labels():
    y = torch.randint(0, C, (B, T), generator=torch.Generator().manual_seed(1))
    y[0, :3] = MISSING  # two places count
    y[1] = MISSING  # no place counts
    return y


def comparison(y, mask=None):
    """Return the comparison of a batch with these labels; the inputs have the mask of the places."""
    inputs = {"x": torch.zeros(B, T), **({} if mask is None else {"attention_mask": mask})}
    return Comparison(Batch(inputs, y), Outputs(ignore_index=MISSING))


def negative_log_likelihood(y, logits, counts):
    """Return the mean over the places that count of each example, scaled up for those without any: numpy."""
    z = logits.numpy()
    log_p = z - np.log(np.exp(z).sum(1, keepdims=True))
    found = np.zeros(B)
    for b in range(B):
        at = [t for t in range(T) if counts[b, t]]
        found[b] = np.mean([-log_p[b, y[b, t], t] for t in at]) if at else 0.0
    return torch.from_numpy(found * B / sum(counts.any(1).tolist()))


@pytest.mark.parametrize("compare", ["labels", "classes"])
def test_places_without_a_label_do_not_count(compare, logits, labels):
    found = getattr(comparison(labels), compare)(kl, logits)
    close(found, negative_log_likelihood(labels, logits, labels != MISSING))


def test_places_outside_of_the_mask_do_not_count(logits, labels):
    mask = torch.ones(B, T).long()
    mask[2, 1:] = 0
    found = comparison(labels, mask).classes(kl, logits)
    close(found, negative_log_likelihood(labels, logits, (labels != MISSING) & (mask != 0)))


def test_an_example_without_any_label_counts_where_labels_are_not_asked_for(logits, labels):
    target = logits.flip(1)
    found = comparison(labels)(kl, target, logits, "labeled")
    counts = torch.ones(B, T, dtype=torch.bool)
    counts[0, :3] = False
    each = (target.softmax(1) * (target.log_softmax(1) - logits.log_softmax(1))).sum(1)
    close(found, (each * counts).sum(1) / counts.sum(1))


def test_values_are_compared_output_by_output():
    y, outputs = torch.arange(6.0).view(3, 2), torch.zeros(3, 2)
    y[0, 0] = y[2, 0] = y[2, 1] = MISSING
    found = Comparison(Batch(torch.zeros(3, 1), y), Outputs(ignore_index=MISSING)).labels(mse, outputs)
    close(found, torch.tensor([1.0, (4.0 + 9.0) / 2, 0.0]) * 3 / 2)


def test_values_of_another_shape_are_refused():
    compare = Comparison(Batch(torch.zeros(3, 1), torch.zeros(3, 4)), Outputs())
    with pytest.raises(ValueError, match=r"the shape of the output, \(3, 2\), got \(3, 4\)"):
        compare.values(mse, torch.zeros(3, 2))
