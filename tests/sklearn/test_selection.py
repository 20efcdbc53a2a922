"""Cross-validation with unlabeled rows: they are in every training set, and in no score."""

import pickle

import numpy as np
import pandas as pd
import pytest
from joblib import parallel_config
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    StratifiedKFold,
    cross_val_predict,
    cross_val_score,
    learning_curve,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from advdrop.sklearn import (
    AdversarialDropoutClassifier,
    AdversarialDropoutRegressor,
    SemiSupervisedKFold,
    labeled_scorer,
)


def small(**options):
    return AdversarialDropoutClassifier(
        **{"updates": 5, "members": 2, "random_state": 0, "measure_gain": False} | options
    )


@pytest.fixture
def mixed(moons):
    """100 rows, of which the last 60 have no label."""
    _, _, x, y = moons
    return x, np.where(np.arange(100) < 40, y, -1)


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "random_state": 3}])
@pytest.mark.parametrize("gap", [-1, None, np.nan])
def test_the_labeled_rows_are_divided_as_if_they_were_alone(options, gap):
    rng = np.random.default_rng(0)
    known = rng.permutation(np.repeat([0, 1, 2], [20, 10, 7]))
    rows = np.sort(rng.choice(80, 37, replace=False))
    y = np.full(80, gap, dtype=object)
    y[rows] = known
    expected = [rows[test] for _, test in StratifiedKFold(4, **options).split(known, known)]
    found = list(SemiSupervisedKFold(4, **options).split(np.zeros((80, 1)), y))
    assert len(found) == SemiSupervisedKFold(4).get_n_splits() == 4
    for (train, test), other in zip(found, expected, strict=True):
        assert test.tolist() == other.tolist()
        assert sorted([*train, *test]) == list(range(80))


def test_targets_are_not_stratified():
    y = np.array([0.5, np.nan, 2.25, 1.0, np.nan, 7.0])
    found = [test.tolist() for _, test in SemiSupervisedKFold(2).split(y, y)]
    assert found == [[0, 2], [3, 5]]
    whole = np.array([5.0, np.nan, 2.0, 1.0, np.nan, 7.0])
    with pytest.raises(ValueError, match=r"the class 1.0 has 1 labels, fewer than n_splits=2.*stratify=False"):
        list(SemiSupervisedKFold(2).split(whole, whole))
    found = [test.tolist() for _, test in SemiSupervisedKFold(2, stratify=False).split(whole, whole)]
    assert found == [[0, 2], [3, 5]]


@pytest.mark.parametrize("gap", [0.25, np.nan])
def test_minus_one_is_a_target_of_a_regression_like_any_other(gap):
    y = np.array([-1.0, 0.5, 2.0, -1.0, 1.5, gap, -1.0, 3.0])
    tested = np.concatenate([test for _, test in SemiSupervisedKFold(2).split(y[:, None], y)])
    assert sorted(tested) == np.flatnonzero(~np.isnan(y)).tolist()


def test_the_scorer_of_a_regressor_counts_targets_of_minus_one():
    y = np.array([-1.0, 0.0, 2.0, np.nan])
    always = DummyRegressor(strategy="constant", constant=0.0).fit([[0]], [0])
    assert labeled_scorer("neg_mean_squared_error")(always, y[:, None], y) == pytest.approx(-5 / 3)


def test_a_rare_class_is_told():
    y = np.array(["a"] * 5 + ["b"] * 2 + [None] * 3, dtype=object)
    with pytest.warns(UserWarning, match="the class 'b' has 2 labels, fewer than n_splits=3") as told:
        assert len(list(SemiSupervisedKFold(3).split(y, y))) == 3
    assert len(told) == 1


def test_what_cannot_be_divided_is_an_error():
    x = np.zeros((6, 1))
    for y, message in (
        (np.full(6, -1), "n_splits=2 is more than the 0 rows"),
        (np.array([0, 1, -1, -1, -1, -1]), "the class 0 has 1 labels"),
        (np.tile([-1, 1], 3), "The label -1 means"),
        (None, "requires y"),
    ):
        with pytest.raises(ValueError, match=message):
            list(SemiSupervisedKFold(2).split(x, y))
    for options in ({"n_splits": 1}, {"random_state": 3}):
        with pytest.raises(ValueError, match=r"n_splits|random_state"):
            SemiSupervisedKFold(**options)
    assert len(list(SemiSupervisedKFold(2, unlabeled=None).split(x, np.tile([-1, 1], 3)))) == 2


def test_splitter_and_scorer_can_be_copied_and_shown():
    splitter = SemiSupervisedKFold(3, shuffle=True, random_state=1, unlabeled="?")
    assert repr(pickle.loads(pickle.dumps(splitter))) == repr(splitter)
    assert "unlabeled='?'" in repr(splitter)
    scorer = labeled_scorer("f1_macro", unlabeled=None)
    assert repr(clone(scorer, safe=False)) == repr(pickle.loads(pickle.dumps(scorer))) == repr(scorer)
    assert repr(scorer) == "labeled_scorer('f1_macro', unlabeled=None)"


def hand_made(model, x, y, splitter):
    """The scores of a loop over the splits, with the labels of the test sets compared one by one."""
    for train, test in splitter.split(x, y):
        predicted = clone(model).fit(x[train], y[train]).predict(x[test])
        yield np.mean([one == other for one, other in zip(predicted, y[test], strict=True) if other != -1])


def test_scores_are_those_of_a_loop(mixed):
    x, y = mixed
    for splitter in (SemiSupervisedKFold(3), KFold(3, shuffle=True, random_state=0)):
        expected = list(hand_made(small(), x, y, splitter))
        for scoring in (None, labeled_scorer("accuracy")):
            assert cross_val_score(small(), x, y, cv=splitter, scoring=scoring).tolist() == pytest.approx(expected)
    expected = list(hand_made(small(), x, y, SemiSupervisedKFold(3)))
    assert cross_val_score(small(), x, y, cv=SemiSupervisedKFold(3), scoring="accuracy").tolist() == expected
    as_nan = np.where(y == -1, np.nan, y)
    assert cross_val_score(small(), x, as_nan, cv=SemiSupervisedKFold(3)).tolist() == expected


def test_other_scores(mixed):
    x, y = mixed
    text = np.array([None, "no", "yes"], dtype=object)[y + 1]
    for scoring in ("roc_auc", "neg_log_loss", "balanced_accuracy"):
        one = cross_val_score(small(), x, text, cv=SemiSupervisedKFold(2), scoring=scoring)
        other = cross_val_score(small(), x, text, cv=SemiSupervisedKFold(2), scoring=labeled_scorer(scoring))
        assert np.isfinite(one).all()
        assert one.tolist() == other.tolist()
    numbers = AdversarialDropoutRegressor(updates=5, members=2, random_state=0)
    target = np.where(y == -1, np.nan, x[:, 0])
    one, other = (
        cross_val_score(numbers, x, target, cv=SemiSupervisedKFold(3), scoring=scoring)
        for scoring in (None, labeled_scorer("r2"))
    )
    assert np.isfinite(one).all()
    assert one.tolist() == other.tolist()


def test_the_scorer_weighs_rows_and_refuses_what_it_would_misread():
    always = DummyClassifier(strategy="constant", constant=1).fit([[0], [0]], [-1, 1])
    x, y = np.zeros((4, 1)), np.array([1, 0, -1, 1])
    with pytest.raises(ValueError, match="-1 is a class of the estimator"):
        labeled_scorer()(always, x, y)
    assert labeled_scorer(unlabeled=0)(always, x, y) == pytest.approx(2 / 3)
    assert labeled_scorer(unlabeled=0)(always, x, y, sample_weight=[1, 5, 2, 5]) == pytest.approx(6 / 8)
    with pytest.raises(ValueError, match="got 0 of 2"):
        labeled_scorer(unlabeled=0)(always, x[:2], [0, 0])
    with pytest.raises(ValueError, match="scoring"):
        labeled_scorer("acuracy")


def test_a_search_over_delta_one_by_one_and_two_at_a_time(mixed):
    x, y = mixed
    found = []
    for data, jobs in ((x, None), (pd.DataFrame(x, columns=["a", "b"]), 2)):
        pipe = make_pipeline(MinMaxScaler(), small())
        grid = {"adversarialdropoutclassifier__delta": [0.05, 0.2]}
        search = GridSearchCV(pipe, grid, cv=SemiSupervisedKFold(2), n_jobs=jobs, error_score="raise")
        with parallel_config(backend="threading"):  # new processes would import torch for many seconds
            search.fit(data, y)
        assert search.score(data, y) == search.score(data[:40], y[:40])
        found.append(search.cv_results_["mean_test_score"].tolist())
    assert found[0] == found[1]
    assert np.isfinite(found).all()


def test_learning_curves(mixed):
    x, y = mixed
    sizes, train, test = learning_curve(
        small(), x, y, cv=SemiSupervisedKFold(2), train_sizes=[0.5, 1.0], shuffle=True, random_state=0,
        scoring=labeled_scorer("accuracy"), error_score="raise",
    )  # fmt: skip
    assert sizes.tolist() == [40, 80]
    assert np.isfinite([train, test]).all()
    assert (20 * train[1] % 1 == 0).all()  # of 80 rows, 20 have a label
    assert (train[1] > 0.4).all()


def test_predictions_of_all_rows(mixed):
    x, y = mixed
    folds = KFold(4, shuffle=True, random_state=0)
    found = cross_val_predict(small(), x, y, cv=folds)
    assert set(found) <= {0, 1}
    for train, test in folds.split(x):
        assert found[test].tolist() == small().fit(x[train], y[train]).predict(x[test]).tolist()
    with pytest.raises(ValueError, match="partitions"):
        cross_val_predict(small(), x, y, cv=SemiSupervisedKFold(2))


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_a_fitted_classifier_can_be_calibrated_with_labels_that_were_held_out(moons):
    x, few, test, y = moons
    model = small(updates=100).fit(x, few)
    found = CalibratedClassifierCV(FrozenEstimator(model)).fit(test, y)
    assert found.classes_.tolist() == [0, 1]

    def log_loss(shares):
        return -np.log(shares[np.arange(100), y]).mean()

    with pytest.raises(ValueError, match="contains NaN"):  # scikit-learn would count -1 as a class
        CalibratedClassifierCV(small(), cv=SemiSupervisedKFold(2)).fit(x, np.where(few == -1, np.nan, few))
    assert log_loss(found.predict_proba(test)) < log_loss(model.predict_proba(test))
