"""The regressor: scikit-learn's own checks, and targets."""

import numpy as np
import pytest
from sklearn.metrics import r2_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from advdrop.sklearn import AdversarialDropoutRegressor
from advdrop.sklearn.regressor import Spread

EXPECTED = {
    **dict.fromkeys(
        ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"),
        "batches are drawn at random, so a weight of two is not a repeated row; as for scikit-learn's own networks",
    ),
}
QUICK = AdversarialDropoutRegressor(updates=60, members=2, learning_rate=0.01)
X = np.linspace(-2, 2, 120)[:, None]
Y = 10 + 5 * np.sin(2 * X[:, 0])
SOME = np.where(np.arange(120) % 4 == 0, Y, np.nan)


@parametrize_with_checks([QUICK], expected_failed_checks=lambda estimator: EXPECTED)
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


def small(**options):
    return AdversarialDropoutRegressor(**{"updates": 20, "members": 4, "random_state": 0, **options})


def test_it_learns_from_some_targets():
    found = small(updates=200, learning_rate=0.01).fit(X, SOME)
    assert found.score(X, Y) > 0.8
    assert found.skill_ > 0.5


def test_targets_are_standardized():
    found, moved = (small().fit(X, 1000 * y - 7 if far else y) for far, y in ((False, SOME), (True, SOME)))
    np.testing.assert_allclose(moved.predict(X), 1000 * found.predict(X) - 7, rtol=1e-4)
    assert moved.skill_ == pytest.approx(found.skill_, abs=1e-4)


@pytest.mark.parametrize("value", [3.0, 0.1, 1e-6, 0.0])
def test_a_constant_target_is_predicted(value):
    found = small(updates=60).fit(X, np.where(np.arange(120) % 3 == 0, value, np.nan))
    np.testing.assert_allclose(found.predict(X), value, rtol=1e-12, atol=1e-300)
    assert (found.skill_, found.collapsed_) == (0.0, False)  # a guess is right


def test_a_prediction_is_the_mean_of_the_members(each_output):
    found = small(blend=0.25, standardize=False).fit(X, SOME)
    semi, plain = (each_output(arm, X).mean(0)[:, 0] for arm in (found._semi, found._plain))
    known = SOME[~np.isnan(SOME)]
    expected = (0.75 * semi + 0.25 * plain) * known.std() + known.mean()
    np.testing.assert_allclose(found.predict(X), expected)


def test_targets_are_standardized_by_all_targets_seen():
    found, seen = small(), []
    for targets in (Y[:1], 100 * Y[1:60], Y[60:] - 7):
        seen.extend(targets)
        found.partial_fit(X[: len(targets)], targets)
        assert (found._target_mean, found._target_scale) == pytest.approx((np.mean(seen), np.std(seen)))
    assert len(found.loss_curve_) == 3


@pytest.mark.parametrize("weights", [None, np.arange(120.0)])
@pytest.mark.parametrize("split", [1, 50])
def test_the_spread_of_parts_is_that_of_the_whole(weights, split):
    of_rows = np.ones(120) if weights is None else weights
    mean = np.average(Y, weights=of_rows)
    expected = (of_rows.sum(), mean, np.average((Y - mean) ** 2, weights=of_rows))
    assert Spread.of(Y, weights) == pytest.approx(expected)
    parts = [Spread.of(Y[rows], of_rows[rows]) for rows in (slice(split + 1), slice(split + 1, None))]
    assert parts[0] + parts[1] == pytest.approx(expected)


@pytest.mark.parametrize("weight", [0.0, 1e-12])
def test_targets_that_hardly_count_do_not_set_the_scale(weight):
    out = np.arange(120) < 3
    far, weights = np.where(out, 1e5, Y), np.where(out, weight, 1.0)
    found = small().fit(X, far, sample_weight=weights)
    assert (found._target_mean, found._target_scale) == pytest.approx((Y[3:].mean(), Y[3:].std()), rel=1e-4)
    assert small().partial_fit(X, far, sample_weight=weights)._target_scale == pytest.approx(Y[3:].std(), rel=1e-4)
    if not weight:
        without = small().fit(X, np.where(out, np.nan, Y))
        np.testing.assert_allclose(found.predict(X), without.predict(X), atol=1e-5)


@pytest.mark.parametrize("members", [1, 4])
def test_another_scale_of_the_targets_changes_no_prediction(members):
    found = small(members=members).partial_fit(X, Y)
    before = found.predict(X)
    found._measure_more(Spread.of(1000 * Y))
    assert found._target_scale > 100
    np.testing.assert_allclose(found.predict(X), before, rtol=1e-4)


@pytest.mark.parametrize("first", [1, 5])
def test_the_first_part_does_not_decide_what_can_be_learned(first):
    found, y = small(learning_rate=0.01).partial_fit(X[:first], 1000 * Y[:first]), 1000 * Y
    for _ in range(60):
        found.partial_fit(X, y)
    assert found.score(X, y) > 0.6


def measured(targets):
    found = small()
    found._measure(Spread.of(targets))
    return found


def test_skill_is_r2_but_not_negative():
    y, rng = np.array([1.0, 2.0, 4.0, 9.0]), np.random.default_rng(0)
    found = measured(y)

    def outputs(predictions):
        return ((predictions - y.mean()) / y.std())[:, None]

    near = y + 0.3 * rng.normal(size=4)
    assert found._skill(y, outputs(y)) == pytest.approx(1.0)
    assert found._skill(y, outputs(np.full(4, 4.0))) == pytest.approx(0.0, abs=1e-12)
    assert found._skill(y, outputs(-y)) == 0.0
    assert found._skill(y, outputs(near)) == pytest.approx(r2_score(y, near))
    assert found._scores(y, outputs(near)).mean() == pytest.approx(r2_score(y, near))
    assert found._skill(np.array([3.0]), np.zeros((1, 1))) <= 1.0  # a spread of zero is no division by zero


def test_folds_are_equal_parts():
    found = small()._folds(np.zeros(23), np.random.RandomState(0))
    assert sorted(np.bincount(found)) == [4, 4, 5, 5, 5]
    assert not np.array_equal(found, np.arange(23) % 5)
    assert small()._folds(np.zeros(1), np.random.RandomState(0)).tolist() == [-1]


@pytest.mark.parametrize("count", [99, 100])
def test_the_gain_is_measured_from_100_targets(count):
    found = small(updates=30).fit(X, np.where(np.arange(120) < count, Y, np.nan))
    assert (found.unlabeled_gain_ is not None) == (count == 100)
    if found.unlabeled_gain_ is not None:
        assert found.unlabeled_gain_.standard_error > 0


def test_one_target_is_no_reason_to_use_the_other_rows():
    found = small().fit(X, np.where(np.arange(120) == 5, Y, np.nan))
    assert found.skill_ == 0.0
    assert found._semi.trust.value == 0.0
    assert np.isfinite(found.predict(X)).all()


def test_a_collapse_is_the_same_value_for_all_rows():
    found, wide = small(), np.linspace(-1, 1, 50)[:, None]
    assert found._collapse(wide, wide) == ""
    assert found._collapse(0.3 * wide, wide) == ""
    assert found._collapse(0.2 * wide, wide) == "they are nearly the same for all rows"
    assert found._collapse(0 * wide, 0 * wide) == ""


def test_targets_are_compared_as_values():
    term = small()._consistency(4, 2)
    assert term.target.values
    assert (term.target.members, term.target.groups) == (4, 2)
    assert term.confidence == 0.0
    assert term.detach


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.full(120, np.nan), "every target is missing"),
        (np.full(120, np.inf), "infinity"),
        (np.linspace(-3e300, 1, 120), r"y has 3e\+300, whose square is no number; divide all targets"),
        (np.zeros(119), r"inconsistent numbers of samples: \[120, 119\]"),
        (None, "requires y"),
    ],
)
def test_bad_targets_are_an_error(y, message):
    with pytest.raises(ValueError, match=message):
        small().fit(X, y)
