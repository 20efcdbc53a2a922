import numpy as np
import pytest
import torch
from torch import nn

from advdrop import CrossEntropy, MutualExclusivity, Step, TransformationStability
from advdrop.objectives.sajjadi import mutual_exclusivity
from advdrop.step.batch import Batch
from advdrop.step.passes import Passes
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


@pytest.mark.parametrize("passes", [2, 3, 5])
@pytest.mark.parametrize("together", [True, False])
def test_every_pass_has_a_view_of_its_own_as_printed(model, rows, passes, together, monkeypatch):
    if not together:
        monkeypatch.setattr(Passes, "_separable", lambda *_: ([], []))
    more = [rows["unlabeled"] + shift for shift in (0.5, -0.5, 1.0)]
    views = [rows["unlabeled"], rows["second_view"], *more][:passes]
    f = [model(view).softmax(1).detach().numpy() for view in views]
    expected = sum(((f[j] - f[k]) ** 2).sum(1) for j in range(passes) for k in range(j + 1, passes))
    rows = {**rows, "more_views": more[: passes - 2]}
    np.testing.assert_allclose(values(model, TransformationStability(passes=passes), rows).detach(), expected)


def test_every_pass_has_a_view_of_its_own_if_the_labeled_rows_have_another_shape():
    """Rows of two shapes do not run together."""
    model, rows = nn.Linear(FEATURES, CLASSES), batch()
    more = [rows["unlabeled"] + shift for shift in (0.5, -0.5)]
    f = [model(view).softmax(1) for view in (rows["unlabeled"], rows["second_view"], *more)]
    expected = sum(((f[j] - f[k]) ** 2).sum(1) for j in range(4) for k in range(j + 1, 4)).mean()
    x, y = rows["x"][:, None], rows["y"][:, None]
    step = Step(nn.Sequential(model), CrossEntropy() + TransformationStability(4), classes=-1)
    terms = step(x, y, unlabeled=rows["unlabeled"], second_view=rows["second_view"], more_views=more).terms
    torch.testing.assert_close(terms["transformation_stability"], expected.detach())


@pytest.mark.parametrize("together", [True, False])
def test_each_of_two_terms_has_all_views(model, rows, together, monkeypatch):
    if not together:
        monkeypatch.setattr(Passes, "_separable", lambda *_: ([], []))
    rows = {**rows, "more_views": [rows["unlabeled"] + shift for shift in (0.5, -0.5, 1.0)]}
    terms = TransformationStability(3), TransformationStability(5)
    found = Step(model, sum(terms))(**rows).terms.values()
    for value, term in zip(found, terms, strict=True):
        torch.testing.assert_close(value, values(model, term, rows).mean().detach())


def test_mutual_exclusivity_is_summed_over_the_passes(model, rows):
    more = [rows["unlabeled"] + 0.5]
    plain, both = (values(model, TransformationStability(3, w), {**rows, "more_views": more}) for w in (0.0, 0.1))
    views = [rows["unlabeled"], rows["second_view"], *more]
    expected = 0.1 * sum(mutual_exclusivity(model(view)) for view in views)
    torch.testing.assert_close(both - plain, expected)


def test_more_views_are_checked(rows):
    with pytest.raises(ValueError, match="more_views needs a second_view"):
        Batch(rows["x"], rows["y"], more_views=[rows["x"]])
    with pytest.raises(ValueError, match="more_views"):
        Batch(**rows, more_views=[rows["x"]])


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
