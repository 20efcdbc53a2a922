"""The classifier: scikit-learn's own checks, and labels."""

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


@parametrize_with_checks([AdversarialDropoutClassifier(max_iter=20)], expected_failed_checks=lambda estimator: EXPECTED)
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


def small(**options):
    return AdversarialDropoutClassifier(**({"max_iter": 30, "random_state": 0, "hidden_layer_sizes": (40,)} | options))


def test_the_check_that_is_exempted_by_name_passes_under_that_name():
    check_classifiers_classes("SelfTrainingClassifier", small())


def test_it_learns_from_few_labels(moons):
    x, few, test, y = moons
    found = small(max_iter=60).fit(x, few)
    assert found.classes_.tolist() == [0, 1]
    assert found.score(test, y) > 0.8


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
    found = small(max_iter=2).fit(x, y.astype(kind))
    assert found.predict(x).dtype == kind
    assert found.score(x, y.astype(kind)) > 0.5


def test_text_labels_and_a_frame_with_names(moons):
    _, _, x, y = moons
    frame = pd.DataFrame(x, columns=["left", "up"])
    found = small(max_iter=2).fit(frame, np.where(y == 1, "moon", "sun"))
    assert found.feature_names_in_.tolist() == ["left", "up"]
    assert set(found.predict(frame)) <= {"moon", "sun"}
    with pytest.raises(ValueError, match="feature names"):
        found.predict(frame[["up", "left"]])


def test_partial_fit_with_classes_that_come_later(moons):
    _, _, x, y = moons
    found = small().partial_fit(x[y == 0], y[y == 0], classes=[0, 1, 7])
    found.partial_fit(x[y == 1], y[y == 1])
    assert found.predict_proba(x).shape == (100, 3)
    with pytest.raises(ValueError, match=r"the label 5, which is not among the classes \[0, 1, 7\]"):
        found.partial_fit(x, np.full(100, 5))


def test_early_stopping_holds_back_rows_of_every_class(moons):
    _, _, x, _ = moons
    rare = (np.arange(100) < 10).astype(int)
    found = small(max_iter=1, validation_fraction=0.2).fit(x, rare)
    held = found._held_back(rare, np.arange(100))
    assert (len(held), rare[held].sum()) == (20, 2)
    single = (np.arange(100) < 1).astype(int)  # a class of one row cannot be divided
    assert len(found._held_back(single, np.arange(100))) == 20


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
        small(max_iter=1).fit(x, few).score(x, few)
    with pytest.raises(ValueError, match="two classes"):
        small(early_stopping=True).fit(x, np.where(np.arange(100) == 0, 1, -1))
