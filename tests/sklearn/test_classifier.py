"""The classifier: scikit-learn's own checks, labels, and what it says of predictions."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_classifiers_classes, parametrize_with_checks

from advdrop.sklearn import AdversarialDropoutClassifier

EXPECTED = {
    **dict.fromkeys(
        ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"),
        "batches are drawn at random, so a weight of two is not a repeated row; as for scikit-learn's own networks",
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
    text = np.where(y == 1, "-1", "1")
    assert small(updates=2, unlabeled=None).fit(x, text).classes_.tolist() == ["-1", "1"]
    with pytest.warns(UserWarning, match=r"the text '-1' is used as a class.*pass unlabeled='-1'.*unlabeled=None"):
        small(updates=2).fit(x, text)


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
        (np.full(100, -1), "every label is -1 or missing, .* label some rows of each class"),
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
    with pytest.raises(ValueError, match=r"at least 1 rows with a label, got 0 of 5; .*SemiSupervisedKFold"):
        small(updates=1).fit(x, few).score(x[-5:], few[-5:])
    with pytest.raises(ValueError, match="two classes"):
        small().partial_fit(x, np.where(np.arange(100) == 0, 1, -1))


# Weights of classes, and smoothed labels


def test_class_weights_are_weights_of_rows(moons):
    _, _, x, y = moons
    rows = np.arange(100) % 3 + 1.0
    for class_weight, factors in (({0: 1.0, 1: 5.0}, [1.0, 5.0]), ({1: 3.0}, [1.0, 3.0])):
        expected = small().fit(x, y, sample_weight=rows * np.array(factors)[y])
        found = small(class_weight=class_weight).fit(x, y, sample_weight=rows)
        np.testing.assert_array_equal(found.predict_proba(x), expected.predict_proba(x))


def test_balanced_weights_count_labels_only():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 2)), np.repeat([0, 1, -1], [24, 6, 30])
    found = small(class_weight="balanced").fit(x, y)
    expected = small().fit(x, y, sample_weight=np.repeat([30 / 48, 30 / 12, 1.0], [24, 6, 30]))
    np.testing.assert_array_equal(found.predict_proba(x), expected.predict_proba(x))
    named = np.array([None, "a", "b"], dtype=object)[y + 1]
    np.testing.assert_array_equal(small(class_weight="balanced").fit(x, named).predict_proba(x), found.predict_proba(x))
    weights = np.where(y == 1, 0.0, 1.0)  # rows of weight 0 have no label
    assert small(class_weight="balanced", updates=2).fit(x, y, sample_weight=weights).classes_.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({0: 1.0, 7: 2.0}, r"class_weight has 7, which is not among the classes \[0, 1\]"),
        ({0: -1.0}, "numbers from 0 on, got -1.0"),
        ({0: float("nan")}, "numbers from 0 on, got nan"),
        ("even", "The 'class_weight' parameter"),
    ],
)
def test_bad_class_weights_are_an_error(weights, message, moons):
    _, _, x, y = moons
    with pytest.raises(ValueError, match=message):
        small(class_weight=weights).fit(x, y)


def test_class_weights_of_parts(moons):
    _, _, x, y = moons
    with pytest.raises(ValueError, match="partial_fit takes a dict"):
        small(class_weight="balanced").partial_fit(x, y)
    only = np.flatnonzero(y == 0)
    assert small(class_weight={1: 2.0}).partial_fit(x[only], y[only], classes=[0, 1]).classes_.tolist() == [0, 1]


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_smoothed_labels_are_spread_over_all_classes(share):
    found = with_classes("a", "b", "c").set_params(label_smoothing=share)
    logits = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]])
    value = found._divergences[0](found._targets(np.array(["c", "a"])), logits)
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([2, 0]), label_smoothing=share, reduction="none")
    torch.testing.assert_close(value, expected)


def test_labels_may_be_smoothed_after_a_fit(moons):
    _, _, x, y = moons
    found = small().fit(x, y).set_params(label_smoothing=0.3)
    logits = torch.tensor([[1.0, -2.0], [0.0, 3.0]])
    value = found._semi.supervised.divergence(found._targets(np.array([1, 0])), logits)
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([1, 0]), label_smoothing=0.3, reduction="none")
    torch.testing.assert_close(value, expected)


def test_smoothing_makes_predictions_less_certain(moons):
    _, _, x, y = moons
    sure, smooth = (small(updates=60, label_smoothing=share).fit(x, y).predict_proba(x) for share in (0.0, 0.4))
    assert smooth.max(1).mean() < sure.max(1).mean()
    with pytest.raises(ValueError, match="label_smoothing"):
        small(label_smoothing=1.0).fit(x, y)


def test_all_parameters_survive_a_copy():
    chosen = {"unlabeled": "?", "class_weight": {"a": 2.0}, "label_smoothing": 0.1, "verbose": False}
    model = AdversarialDropoutClassifier().set_params(**chosen)
    for copy in (clone(model), pickle.loads(pickle.dumps(model))):
        assert copy.get_params() == model.get_params()
        assert chosen.items() <= copy.get_params().items()
