"""scikit-learn's own checks, and what they do not ask."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.datasets import make_moons
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import check_classifiers_classes, parametrize_with_checks
from torch import nn

from advdrop.estimator import AdversarialDropoutClassifier, AdversarialDropoutRegressor

WEIGHTS = "batches are drawn at random, so a weight of two is no repeated row; as for scikit-learn's own networks"
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": WEIGHTS,
    "check_classifiers_classes": "-1 is a row without a label, as in sklearn.semi_supervised, exempted by name",
}


@parametrize_with_checks(
    [AdversarialDropoutClassifier(max_iter=20), AdversarialDropoutRegressor(max_iter=60)],
    expected_failed_checks=lambda estimator: EXPECTED,
)
def test_scikit_learn_takes_it_for_one_of_its_own(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def moons():
    """Two classes, 200 rows, of which the last 100 are for testing, and ten labels."""
    x, y = make_moons(200, noise=0.15, random_state=0)
    few = y[:100].copy()
    few[10:] = -1
    return x[:100], few, x[100:], y[100:]


def small(**options):
    return AdversarialDropoutClassifier(**({"max_iter": 30, "random_state": 0, "hidden_layer_sizes": (40,)} | options))


def test_the_check_that_is_exempted_by_name_passes_under_that_name():
    """With -1 among the labels only where scikit-learn's own semi-supervised classifiers take it."""
    check_classifiers_classes("SelfTrainingClassifier", small())


def test_rows_without_a_label_count(moons):
    x, few, _, _ = moons
    with_them = small().fit(x, few)
    without = small().fit(x[few != -1], few[few != -1])
    assert with_them.classes_.tolist() == [0, 1]
    assert not np.allclose(with_them.predict_proba(x), without.predict_proba(x))


def test_the_labels_of_unlabelled_rows_are_not_looked_at(moons):
    """And the order in which the classes come makes no difference but for their names."""
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


def test_the_same_state_gives_the_same_network_and_leaves_the_global_one_alone(moons):
    x, few, _, _ = moons
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = small(random_state=3).fit(x, few)
    assert torch.equal(torch.rand(3), expected)
    np.testing.assert_array_equal(one.predict_proba(x), small(random_state=3).fit(x, few).predict_proba(x))
    assert not np.allclose(one.predict_proba(x), small(random_state=4).fit(x, few).predict_proba(x))


def test_the_adversary_is_there(moons):
    x, few, _, _ = moons
    plain, adversarial = (small(weight=weight).fit(x, few).predict_proba(x) for weight in (0.0, 1.0))
    assert not np.allclose(plain, adversarial)


def test_a_second_fit_forgets_the_first(moons):
    x, few, test, y = moons
    found = small().fit(test, y)
    np.testing.assert_array_equal(found.fit(x, few).predict_proba(x), small().fit(x, few).predict_proba(x))
    assert found.n_iter_ == len(found.loss_curve_) == 30


def test_partial_fits_add_up(moons):
    x, few, _, _ = moons
    found = small()
    for epoch in range(1, 41):
        found.partial_fit(x, few, classes=[0, 1])
        assert found.n_iter_ == epoch
    assert found.loss_curve_[-1] < found.loss_curve_[0]
    assert found.score(x[:10], few[:10]) > 0.8


def test_partial_fit_knows_classes_that_come_later(moons):
    _, _, x, y = moons
    found = small().partial_fit(x[y == 0], y[y == 0], classes=[0, 1, 7])
    found.partial_fit(x[y == 1], y[y == 1])
    assert found.predict_proba(x).shape == (100, 3)
    with pytest.raises(ValueError, match=r"the label 5, which is not among the classes \[0, 1, 7\]"):
        found.partial_fit(x, np.full(100, 5))


def test_weights_count(moons):
    _, _, x, y = moons
    found = small().fit(x, y, sample_weight=np.where(y == 1, 50.0, 1.0))
    assert found.predict(x).mean() > small().fit(x, y).predict(x).mean()
    nothing = small().fit(x, y, sample_weight=np.ones(100))
    np.testing.assert_allclose(nothing.predict_proba(x), small().fit(x, y).predict_proba(x))


def test_early_stopping_keeps_the_best_of_what_it_saw(moons):
    _, _, x, y = moons
    found = small(early_stopping=True, validation_fraction=0.2, n_iter_no_change=3, max_iter=200).fit(x, y)
    assert found.n_iter_ < 200
    assert 0.5 < found.best_validation_score_ <= 1.0


@pytest.mark.parametrize("kind", [small(), AdversarialDropoutRegressor(max_iter=5, random_state=0)])
def test_pickles_and_clones(kind, moons):
    _, _, x, y = moons
    fitted = clone(kind).fit(x, y)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(x), fitted.predict(x))
    again.partial_fit(x, y)
    assert not hasattr(clone(fitted), "network_")
    assert clone(fitted).get_params() == kind.get_params()


def test_grids_and_pipelines(moons):
    _, _, x, y = moons
    search = GridSearchCV(
        make_pipeline(MinMaxScaler(), small(max_iter=5)), {"adversarialdropoutclassifier__delta": [0.05, 0.2]}, cv=2
    )
    assert search.fit(x, y).best_score_ > 0.5


def test_progress_is_shown_when_asked_for(moons, capsys):
    x, few, _, _ = moons
    small(verbose=True, max_iter=20, early_stopping=True, validation_fraction=0.3).fit(x, few)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("epoch 2 of 20, loss ")
    assert "best score" in lines[0]
    assert len(lines) == 10
    small(max_iter=2).fit(x, few)
    assert capsys.readouterr().out == ""


def test_several_layers_and_a_number_for_one(moons):
    _, _, x, y = moons
    deep = small(hidden_layer_sizes=(30, 20), max_iter=2).fit(x, y)
    assert [layer.out_features for layer in deep.network_.modules() if isinstance(layer, nn.Linear)] == [30, 20, 2]
    assert small(hidden_layer_sizes=25, max_iter=2).fit(x, y).network_.upper[1].in_features == 25


def test_constant_features_are_no_trouble(moons):
    _, _, x, y = moons
    found = small(max_iter=5).fit(np.column_stack([x, np.full(100, 1e6)]), y)
    assert np.isfinite(found.predict_proba(np.column_stack([x, np.full(100, 1e6)]))).all()


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.full(100, -1), "every label is -1, .* label some rows of each class"),
        (np.zeros(100), r"two classes at least, .* one class: \[0.0\]"),
        (np.where(np.arange(100) < 50, 3, -1), r"one class: \[3\]"),
        (np.linspace(0, 1, 100), "Unknown label type"),
    ],
)
def test_labels_that_are_none_are_told(y, message, moons):
    with pytest.raises(ValueError, match=message):
        small().fit(moons[2], y)


def test_other_bad_input_is_told(moons):
    x, few, test, y = moons
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        small().fit(csr_matrix(x), few)
    with pytest.raises(ValueError, match="needs the label of every row"):
        small(max_iter=1).fit(x, few).score(x, few)
    with pytest.raises(ValueError, match="two classes"):
        small(early_stopping=True).fit(x, np.where(np.arange(100) == 0, 1, -1))
    with pytest.raises(ValueError, match="would hold back 2 of 2 labelled rows"):
        small(early_stopping=True, validation_fraction=0.9).fit(x[:2], [0, 1])
    with pytest.raises(ValueError, match="nothing to learn from"):
        small().fit(x, few, sample_weight=(few == -1).astype(float))
    with pytest.raises(ValueError, match="The 'delta' parameter"):
        small(delta=2.0).fit(test, y)
    with pytest.raises(NotFittedError):
        small().predict(x)


def test_the_regressor_learns_from_some_targets():
    x = np.linspace(-2, 2, 120)[:, None]
    y = 10 + 5 * np.sin(2 * x[:, 0])
    few = np.where(np.arange(120) % 4 == 0, y, np.nan)
    found = AdversarialDropoutRegressor(max_iter=150, p=0.1, weight=0.1, random_state=0).fit(x, few)
    assert found.score(x, y) > 0.9
    stopped = AdversarialDropoutRegressor(max_iter=150, p=0.1, random_state=0, early_stopping=True).fit(x, y)
    assert stopped.best_validation_score_ > 0.5
    with pytest.raises(ValueError, match="every target is nan"):
        AdversarialDropoutRegressor().fit(x, np.full(120, np.nan))
    with pytest.raises(ValueError, match="infinity"):
        AdversarialDropoutRegressor().fit(x, np.full(120, np.inf))


def test_automatic_choices_follow_the_table():
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    few = np.where(np.arange(40) < 10, y, -1)
    found = [AdversarialDropoutClassifier(max_iter=1, random_state=0).fit(x, labels)._training for labels in (few, y)]
    assert [made.noise for made in found] == pytest.approx([0.6 * 0.75, 0.0])
    assert [made.batch_size for made in found] == [10, 10]
    regressor = AdversarialDropoutRegressor(max_iter=1, random_state=0).fit(x, np.where(few == -1, np.nan, y))
    assert regressor._training.noise == 0.0
    own = AdversarialDropoutClassifier(max_iter=1, noise=0.2, batch_size=7, random_state=0).fit(x, few)._training
    assert (own.noise, own.batch_size) == (0.2, 7)
