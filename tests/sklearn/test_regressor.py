"""The regressor: scikit-learn's own checks, and targets."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from advdrop.sklearn import AdversarialDropoutRegressor

EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": (
        "batches are drawn at random, so a weight of two is not a repeated row; as for scikit-learn's own networks"
    ),
}
X = np.linspace(-2, 2, 120)[:, None]
Y = 10 + 5 * np.sin(2 * X[:, 0])


@parametrize_with_checks([AdversarialDropoutRegressor(max_iter=60)], expected_failed_checks=lambda estimator: EXPECTED)
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


def regressor(**options):
    return AdversarialDropoutRegressor(**{"max_iter": 150, "p": 0.1, "weight": 0.1, "random_state": 0, **options})


def test_it_learns_from_some_targets():
    assert regressor().fit(X, np.where(np.arange(120) % 4 == 0, Y, np.nan)).score(X, Y) > 0.9


def test_targets_are_standardized():
    found, moved = regressor(max_iter=5).fit(X, Y), regressor(max_iter=5).fit(X, 1000 * Y - 7)
    np.testing.assert_allclose(moved.predict(X), 1000 * found.predict(X) - 7, rtol=1e-4)


def test_a_constant_target_is_predicted():
    np.testing.assert_allclose(regressor().fit(X, np.full(120, 3.0)).predict(X), 3.0, atol=0.1)


def test_partial_fit_keeps_the_scale_of_the_first_call():
    found = regressor().partial_fit(X, Y)
    before = found.predict(X)
    assert found.partial_fit(X, 100 * Y).n_iter_ == 2
    assert np.ptp(found.predict(X)) < 10 * np.ptp(before)


def test_early_stopping_looks_at_r2():
    found = regressor(early_stopping=True, weight=1.0).fit(X, Y)
    assert 0.5 < found.best_validation_score_ <= 1.0


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.full(120, np.nan), "every target is nan"),
        (np.full(120, np.inf), "infinity"),
        (np.zeros(119), "X has 120 rows and y has 119 targets"),
        (None, "requires y"),
    ],
)
def test_bad_targets_are_an_error(y, message):
    with pytest.raises(ValueError, match=message):
        regressor().fit(X, y)
