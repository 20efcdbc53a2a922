import numpy as np
import pytest
from sklearn.linear_model import Lasso, Ridge

from advdrop.lab.studies import paths
from advdrop.lab.studies.paths import identities, linearization, measured, standardized


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(25, 3)) * [1.0, 5.0, 0.1] + 3
    return x, x @ [1.0, -0.3, 2.0] + rng.normal(size=25)


def test_standardizing(data):
    x, y = standardized(*data)
    np.testing.assert_allclose([*x.mean(0), y.mean()], 0, atol=1e-12)
    np.testing.assert_allclose([*x.std(0), y.std()], 1)


def test_the_identities_hold_to_the_last_digits():
    found = identities(problems=50)
    assert set(found) == {"training_identity", "dropout_identity"}
    assert max(found.values()) < 1e-12
    assert min(found.values()) > 0.0  # two different sums: equal to the last bit would mean that one was copied


def test_the_linearization_misses_some_masks(data):
    found = linearization(*standardized(*data))
    assert found["k"] == [1.0, 2.0, 3.0]
    assert all(0 <= share <= 100 for share in found["missed_percent"])
    assert any(share > 0 for share in found["missed_percent"])
    for missed, reached in zip(found["missed_percent"], found["reached_percent"], strict=True):
        assert (reached < 100) == (missed > 0)


def test_the_paths_are_those_of_the_models_they_are_named_after(data, monkeypatch):
    monkeypatch.setattr(paths, "DELTAS", (0.0, 0.1))
    monkeypatch.setattr(paths, "PENALTIES", (0.01, 1.0))
    monkeypatch.setattr(paths, "PROBLEMS", 3)
    told = []
    numbers, series = measured(*data, ["a", "b", "c"], told.append)
    x, y = standardized(*data)
    for i, alpha in enumerate(series["ridge/parameter"]):
        w = Ridge(alpha * len(x), fit_intercept=False).fit(x, y).coef_
        np.testing.assert_allclose([series[f"ridge/{name}"][i] for name in "abc"], w, atol=1e-5)
    for i, alpha in enumerate(series["lasso/parameter"]):
        w = Lasso(alpha, fit_intercept=False).fit(x, y).coef_
        np.testing.assert_allclose([series[f"lasso/{name}"][i] for name in "abc"], w, atol=1e-3)
    least = np.linalg.lstsq(x, y, rcond=None)[0]
    for method in ("training", "dropout"):
        np.testing.assert_allclose([series[f"{method}/{name}"][0] for name in "abc"], least, atol=1e-4)
    assert series["dropout/parameter"] == [0.0, 1.0, 2.0, 3.0]
    assert numbers["fits"] == 6.0
    assert numbers["not_converged"] == 0.0
    assert numbers["largest_gap"] <= 1e-8
    assert len(told) == 8  # the identities, lasso and ridge, and each fit
