import numpy as np
import pytest
import torch
from torch import nn

from advdrop import MutualExclusivity, TransformationStability
from advdrop.objectives.sajjadi import mutual_exclusivity
from small import CLASSES, FEATURES, batch, values


@pytest.fixture
def model():
    return nn.Linear(FEATURES, CLASSES).double()


@pytest.fixture
def rows():
    return batch(dtype=torch.float64)


@pytest.mark.parametrize(("passes", "pairs"), [(2, 1), (3, 2), (5, 4)])
def test_transformation_stability(model, rows, passes, pairs):
    # All passes but the first see the second view, and there is no noise: only pairs with the first differ.
    first, other = (model(rows[name]).softmax(1).detach().numpy() for name in ("unlabeled", "second_view"))
    ours = values(model, TransformationStability(passes=passes), rows).detach()
    np.testing.assert_allclose(ours, pairs * ((first - other) ** 2).sum(1))


def test_transformation_stability_counts_every_pair_of_passes():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(FEATURES, CLASSES))
    two, four = (
        np.mean([values(model, TransformationStability(passes=n)).mean().item() for _ in range(100)]) for n in (2, 4)
    )
    assert 5 < four / two < 7  # 6 pairs instead of 1


def test_mutual_exclusivity(model, rows):
    f = model(rows["unlabeled"]).softmax(1).detach().numpy()
    expected = -sum(f[:, k] * np.prod(np.delete(1 - f, k, axis=1), axis=1) for k in range(CLASSES))
    np.testing.assert_allclose(values(model, MutualExclusivity(), rows).detach(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_mutual_exclusivity_of_a_certain_output_is_minus_one_with_a_finite_gradient(dtype):
    logits = torch.tensor([[200.0, 0.0, -200.0]], dtype=dtype, requires_grad=True)
    value = mutual_exclusivity(logits)
    value.sum().backward()
    assert value.item() == pytest.approx(-1.0, abs=1e-5)
    assert logits.grad.isfinite().all()


def test_two_passes_at_least():
    with pytest.raises(ValueError, match="passes must be at least 2, got 1"):
        TransformationStability(passes=1)
