"""The classifier: scikit-learn's own checks, labels, and what it says of predictions."""

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn.utils.estimator_checks import check_classifiers_classes, parametrize_with_checks

from advdrop.sklearn import AdversarialDropoutClassifier

EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": (
        "batches are drawn at random, so a weight of two is not a repeated row; as for scikit-learn's own networks"
    ),
    "check_classifiers_classes": "-1 is a row without a label; scikit-learn exempts its own such classifiers by name",
}
QUICK = AdversarialDropoutClassifier(updates=30, members=2, learning_rate=0.01)


@parametrize_with_checks([QUICK], expected_failed_checks=lambda estimator: EXPECTED)
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


def small(**options):
    chosen = {"updates": 20, "members": 4, "hidden_layer_sizes": (40,), "random_state": 0}
    return AdversarialDropoutClassifier(**chosen | options)


def test_the_check_that_is_exempted_by_name_passes_under_that_name():
    check_classifiers_classes("SelfTrainingClassifier", QUICK)


def test_it_learns_from_few_labels(moons):
    x, few, test, y = moons
    found = small(updates=100).fit(x, few)
    assert found.classes_.tolist() == [0, 1]
    assert found.score(test, y) > 0.75


def test_the_names_of_the_classes_make_no_difference(moons):
    x, few, _, _ = moons
    named = np.array(["no", "yes"], dtype=object)[few]
    named[few == -1] = -1
    found = small().fit(x, named)
    assert found.classes_.tolist() == ["no", "yes"]
    np.testing.assert_allclose(found.predict_proba(x), small().fit(x, few).predict_proba(x))
    assert set(found.predict(x)) <= {"no", "yes"}


@pytest.mark.parametrize("kind", [np.int8, np.float64, bool])
def test_labels_of_any_type(kind, moons):
    _, _, x, y = moons
    found = small().fit(x, y.astype(kind))
    assert found.predict(x).dtype == kind
    assert found.score(x, y.astype(kind)) > 0.7


def test_text_labels_and_a_frame_with_names(moons):
    _, _, x, y = moons
    frame = pd.DataFrame(x, columns=["left", "up"])
    found = small(updates=2).fit(frame, np.where(y == 1, "moon", "sun"))
    assert found.feature_names_in_.tolist() == ["left", "up"]
    assert set(found.predict(frame)) <= {"moon", "sun"}
    with pytest.raises(ValueError, match="feature names"):
        found.predict(frame[["up", "left"]])


def test_the_text_minus_one_is_a_label(moons):
    _, _, x, y = moons
    assert small(updates=2).fit(x, np.where(y == 1, "-1", "1")).classes_.tolist() == ["-1", "1"]


def test_partial_fit_with_classes_that_come_later(moons):
    _, _, x, y = moons
    found = small().partial_fit(x[y == 0], y[y == 0], classes=[0, 1, 7])
    found.partial_fit(x[y == 1], y[y == 1])
    assert found.predict_proba(x).shape == (100, 3)
    with pytest.raises(ValueError, match=r"the label 5, which is not among the classes \[0, 1, 7\]"):
        found.partial_fit(x, np.full(100, 5))


def test_probabilities_and_their_logarithms(moons):
    x, few, _, _ = moons
    found = small().fit(x, few)
    shares = found.predict_proba(x)
    np.testing.assert_allclose(shares.sum(1), 1.0)
    np.testing.assert_allclose(np.exp(found.predict_log_proba(x)), shares)
    np.testing.assert_array_equal(found.predict(x), found.classes_[shares.argmax(1)])


def with_classes(*classes):
    found = small()
    found.classes_ = np.array(classes)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_folds_have_the_labels_of_each_class_in_equal_parts(seed):
    y = np.repeat([0, 1, 2], [23, 7, 40])[np.random.default_rng(seed).permutation(70)]
    fold = with_classes(0, 1, 2)._folds(y, np.random.RandomState(seed))
    assert set(fold) == {0, 1, 2, 3, 4}
    for label in (0, 1, 2):
        counts = np.bincount(fold[y == label], minlength=5)
        assert np.ptp(counts) <= 1
    assert np.ptp(np.bincount(fold)) <= 1  # one class after the other, so that no part has the rest of all
    other = with_classes(0, 1, 2)._folds(y, np.random.RandomState(seed + 10))
    assert not np.array_equal(fold, other)


def test_a_class_with_one_label_is_never_left_out():
    y = np.array(["a", "b", "b", "c", "a", "b"])
    fold = with_classes("a", "b", "c")._folds(y, np.random.RandomState(0))
    assert fold[3] == -1
    assert (np.delete(fold, 3) >= 0).all()
    for part in range(5):
        assert set(y[fold != part]) == {"a", "b", "c"}


def hot(labels, classes=2):
    return np.eye(classes)[labels]


def test_skill_is_the_share_of_the_errors_of_a_guess_that_are_avoided():
    y, found = np.repeat([0, 1], 50), with_classes(0, 1)
    assert found._skill(y, hot(y)) == 1.0
    assert found._skill(y, hot(np.zeros(100, int))) == 0.0
    assert found._skill(y, hot(np.arange(100) % 2)) == 0.0
    assert found._skill(y, hot(1 - y)) == 0.0  # not negative
    assert found._skill(y, hot(np.where(np.arange(100) < 10, 1, y))) == pytest.approx(0.8)
    assert found._skill(np.zeros(5, int), hot(np.zeros(5, int))) == 0.0  # one class: nothing to guess
    rare, three = np.repeat([0, 1, 2], [80, 15, 5]), with_classes(0, 1, 2)
    guess = 0.8**2 + 0.15**2 + 0.05**2
    assert three._skill(rare, hot(np.zeros(100, int), 3)) == pytest.approx((0.8 - guess) / (1 - guess))


def test_scores_are_those_of_the_accuracy():
    found = with_classes(3, 7)
    scores = found._scores(np.array([3, 7, 7]), np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]))
    assert scores.tolist() == [1.0, 0.0, 1.0]


def test_the_mean_of_members_is_that_of_their_probabilities():
    outputs = np.random.default_rng(0).normal(size=(3, 5, 4)) * 3
    expected = np.mean([np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in outputs], axis=0)
    np.testing.assert_allclose(small()._mean(outputs), expected)
    assert np.isfinite(small()._mean(outputs * 1e4)).all()


@pytest.mark.parametrize("least", [19, 20])
def test_enough_labels_are_20_of_each_class(least):
    assert small()._enough(np.repeat([0, 1, 2], [50, least, 50])) == (least == 20)


def test_a_collapse_is_uncertainty_or_one_class():
    found, even = small(), np.tile([[0.9, 0.1], [0.1, 0.9]], (50, 1))
    assert found._collapse(even, even) == ""
    assert "highest probability is 0.58, for 2 classes" in found._collapse(np.tile([[0.58, 0.42]], (100, 1)), even)
    unsure = np.tile([[0.62, 0.38], [0.38, 0.62]], (50, 1))
    assert found._collapse(unsure, even) == ""  # 0.12 is more than a quarter of 0.4
    one = np.tile([[0.9, 0.1]], (100, 1))
    assert found._collapse(one, even) == "100 % of the rows are put in one class"
    assert found._collapse(one, one) == ""  # the labels say the same


def test_disagreement_is_the_mean_distance_from_the_mean(moons, each_output):
    x, few, _, _ = moons
    found = small(standardize=False).fit(x, few)
    each = []
    for arm in (found._semi, found._plain):
        for z in each_output(arm, x):
            each.append(np.exp(z) / np.exp(z).sum(1, keepdims=True))
    expected = np.zeros(100)
    for shares in each:
        for row in range(100):
            expected[row] += sum(abs(shares[row] - sum(each)[row] / len(each))) / 2 / len(each)
    np.testing.assert_allclose(found.disagreement(x), expected)
    assert (found.disagreement(x) >= 0).all()
    assert found.disagreement(x).max() <= 1.0
    assert found.disagreement(x).min() > 0.0


def test_one_member_agrees_with_itself(moons):
    x, few, _, _ = moons
    found = small(members=1, blend=0.0, updates=2).fit(x, few)
    assert found.disagreement(x).tolist() == [0.0] * 100


def test_members_that_contradict_each_other_disagree_by_half(moons, monkeypatch):
    x, few, _, _ = moons
    found = small(members=2, updates=1).fit(x, few)
    sure = np.stack([hot(np.zeros(100, int)), hot(np.ones(100, int))])
    monkeypatch.setattr(type(found), "_each_member", lambda self, x: sure)
    assert found.disagreement(x).tolist() == [0.5] * 100


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.full(100, -1), "every label is -1, .* label some rows of each class"),
        (np.zeros(100), r"at least two classes, got one class: \[0.0\]"),
        (np.where(np.arange(100) < 50, 3, -1), r"one class: \[3\]"),
        (np.linspace(0, 1, 100), "Unknown label type"),
    ],
)
def test_bad_labels_are_an_error(y, message, moons):
    with pytest.raises(ValueError, match=message):
        small().fit(moons[2], y)


def test_other_bad_input_is_an_error(moons):
    x, few, _, _ = moons
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        small().fit(csr_matrix(x), few)
    with pytest.raises(ValueError, match="needs the label of every row"):
        small(updates=1).fit(x, few).score(x, few)
    with pytest.raises(ValueError, match="two classes"):
        small().partial_fit(x, np.where(np.arange(100) == 0, 1, -1))
