"""Which rows have a label: every way to leave one out, and every way to mistake one."""

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import bsr_array, coo_array

from advdrop.sklearn import AdversarialDropoutClassifier, AdversarialDropoutRegressor
from advdrop.sklearn.labels import classes_of, is_missing, labeled_rows, read_labels, read_targets

SERIES = {
    "Int64": pd.Series([2, pd.NA, 1, 2, pd.NA], dtype="Int64"),
    "Float64": pd.Series([2.0, pd.NA, 1.0, 2.0, pd.NA], dtype="Float64"),
    "object": pd.Series([2, None, 1, 2, float("nan")], dtype=object),
    "category": pd.Series([2, None, 1, 2, None]).astype("category"),
    "float": pd.Series([2.0, np.nan, 1.0, 2.0, np.nan]),
    "masked": np.ma.array([2, 1, 1, 2, 7], mask=[0, 1, 0, 0, 1]),
    "index": pd.Series([2, -1, 1, 2, -1], index=[9, 8, 7, 6, 5]),
}


@pytest.mark.parametrize("y", [*SERIES.values(), [2, None, 1, 2, pd.NA], (2, -1, 1, 2, -1)])
def test_numbers_with_missing_labels(y):
    labels, labeled = read_labels(y)
    assert labeled.tolist() == [True, False, True, True, False]
    assert labels[labeled].tolist() == [2, 1, 2]
    assert labels.dtype.kind in "if"
    assert set(labels) == {1, 2}  # the gaps are filled with a label


@pytest.mark.parametrize("gap", [None, np.nan, pd.NA, -1, np.float32("nan")])
@pytest.mark.parametrize("form", [list, lambda y: np.array(y, dtype=object), lambda y: pd.Series(y, dtype=object)])
def test_text_with_missing_labels(gap, form):
    labels, labeled = read_labels(form(["yes", gap, "no", "yes"]))
    assert labeled.tolist() == [True, False, True, True]
    assert labels[labeled].tolist() == ["yes", "no", "yes"]


def test_text_of_numpy():
    y = np.array(["yes", "?", "no"], dtype=np.dtypes.StringDType())
    for marker, expected in (("?", [True, False, True]), (-1, [True] * 3)):
        labels, labeled = read_labels(y, marker)
        assert labeled.tolist() == expected
        assert labels[labeled].tolist() == y[labeled].tolist()


@pytest.mark.parametrize("dtype", ["category", "string", "str"])
def test_text_of_pandas(dtype):
    labels, labeled = read_labels(pd.Series(["yes", None, "no"], dtype=dtype))
    assert labeled.tolist() == [True, False, True]
    assert labels[labeled].tolist() == ["yes", "no"]


@pytest.mark.parametrize(
    ("y", "marker", "expected"),
    [
        ([1, -1, 0], None, [1, 1, 1]),
        ([1, -1, np.nan], None, [1, 1, 0]),
        ([1, -1, 0], 0, [1, 1, 0]),
        ([1.0, -9.0, 0.0], -9, [1, 0, 1]),
        ([1, -1, 0], 7, [1, 1, 1]),  # it occurs nowhere
        ([1, -1, 0], np.nan, [1, 1, 1]),
        (["a", "?", "b"], "?", [1, 0, 1]),
        (["a", "?", None], "?", [1, 0, 0]),
        (["a", "-1", "b"], -1, [1, 1, 1]),
        (np.array(["a", "-1", "b"]), "-1", [1, 0, 1]),
        (np.array(["a", "b"]), -1, [1, 1]),
        (np.array(["a", 3, "3"], dtype=object), 3, [1, 0, 1]),
        (np.array([True, False]), 1, [1, 1]),
        (np.array([True, False, 1], dtype=object), 1, [1, 1, 0]),
        (np.array([3, 255], dtype=np.uint8), -1, [1, 1]),
    ],
)
def test_the_marker(y, marker, expected):
    assert read_labels(y, marker)[1].tolist() == [bool(one) for one in expected]


def test_what_cannot_be_told_apart_is_an_error():
    for y in ([1, -1, np.nan], ["a", -1, None]):
        with pytest.raises(ValueError, match=r"both -1 and a missing value .* pass unlabeled=None"):
            read_labels(y)
    with pytest.raises(ValueError, match=r"unlabeled='\?' is text, and the labels are numbers"):
        read_labels([1, 2, 3], "?")
    with pytest.raises(ValueError, match="all text or all numbers, got 'a' and 1"):
        read_labels(["a", 1, None])
    with pytest.raises(ValueError, match=r"Unknown label type: .* got {}"):
        read_labels(np.array([1, {}], dtype=object))
    with pytest.raises(ValueError, match="infinity"):
        read_labels([1.0, np.inf])
    with pytest.raises(ValueError, match="requires y"):
        read_labels(None)
    with pytest.raises(ValueError, match="1d array"):
        read_labels(np.zeros((4, 2)))
    with pytest.warns(UserWarning, match="column-vector"):
        assert read_labels(np.array([[1], [-1]]))[1].tolist() == [True, False]


@pytest.mark.parametrize("kind", [int, float])
def test_plus_and_minus_one_are_explained(kind):
    x, y = np.arange(10.0)[:, None], np.tile([-1, 1], 5).astype(kind)
    model = AdversarialDropoutClassifier(updates=2, members=2, random_state=0)
    for learn in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match=r"one class: \[1.*\]. The label -1 means .* pass unlabeled=None"):
            learn(x, y)
    assert model.set_params(unlabeled=None).fit(x, y).classes_.tolist() == [-1, 1]
    some = np.where(np.arange(10) < 6, y, 0)
    assert model.set_params(unlabeled=0).fit(x, some).classes_.tolist() == [-1, 1]
    assert model.unlabeled_answer_ != "There are no unlabeled rows."
    assert model.score(x, some) == model.score(x[:6], y[:6])


def test_classes():
    assert classes_of(np.array([3, 1, 3]), -1, True).tolist() == [1, 3]
    with pytest.raises(ValueError, match=r"one class: \[1\]$"):  # nothing is marked
        classes_of(np.array([1, 1]), -1, False)
    with pytest.raises(ValueError, match=r"one class: \['a'\]$"):
        classes_of(np.array(["a"]), -1, True)
    for text in ("nan", "None", "<NA>"):
        with pytest.warns(UserWarning, match=f"the text '{text}' is used as a class"):
            classes_of(np.array(["a", text]), -1, False)
        assert len(classes_of(np.array(["a", text]), None, False)) == 2


def test_a_marker_among_the_classes_of_a_partial_fit_is_no_class(moons):
    x, few, _, _ = moons
    model = AdversarialDropoutClassifier(members=2, random_state=0)
    assert model.partial_fit(x, few, classes=[-1, 0, 1]).classes_.tolist() == [0, 1]


@pytest.mark.parametrize("gap", [np.nan, None, pd.NA, -1])
def test_every_gap_gives_the_same_fit(gap, moons):
    x, few, _, _ = moons
    y = few.astype(object)
    y[few == -1] = gap
    made = [AdversarialDropoutClassifier(updates=5, members=2, random_state=0).fit(x, one) for one in (few, y)]
    np.testing.assert_array_equal(made[0].predict_proba(x), made[1].predict_proba(x))
    assert made[1].predict(x).dtype.kind == "i"


def test_times_that_are_missing():
    days = pd.Series(pd.to_datetime(["2020-01-01", None, "2021-01-01"]))
    assert read_labels(days)[1].tolist() == [True, False, True]
    values, known = read_targets(days - days[0])
    assert known.tolist() == [True, False, True]
    assert np.isnan(values[1])


def test_targets():
    for y in (
        [1.5, None, 2],
        [1.5, pd.NA, 2],
        np.array([1.5, np.nan, 2.0]),
        pd.Series([1.5, pd.NA, 2], dtype="Float64"),
        np.ma.array([1.5, 7.0, 2.0], mask=[0, 1, 0]),
    ):
        targets, labeled = read_targets(y)
        assert labeled.tolist() == [True, False, True]
        assert targets[labeled].tolist() == [1.5, 2.0]
    assert is_missing(np.array([1, 2])).tolist() == [False, False]
    with pytest.raises(ValueError, match="infinity"):
        read_targets([np.inf, 1])
    with pytest.raises(ValueError, match="could not convert"):
        read_targets(["a", 1])


def test_scores_are_those_of_the_rows_with_a_label(moons):
    x, few, test, y = moons
    model = AdversarialDropoutClassifier(updates=20, members=2, random_state=0).fit(x, few)
    mixed = np.where(np.arange(100) % 3 == 0, y, -1)
    weights = np.arange(100.0)
    rows = mixed != -1
    assert model.score(test, mixed) == np.mean(model.predict(test[rows]) == y[rows])
    expected = np.average(model.predict(test[rows]) == y[rows], weights=weights[rows])
    assert model.score(test, mixed, sample_weight=weights) == pytest.approx(expected)
    assert model.score(pd.DataFrame(test).to_numpy().tolist(), mixed.tolist()) == model.score(test, mixed)
    for form in (bsr_array, coo_array):
        assert model.score(form(test), mixed) == model.score(test, mixed)
    numbers = AdversarialDropoutRegressor(updates=5, members=2, random_state=0).fit(x, x[:, 0])
    target = np.where(rows, test[:, 0], np.nan)
    assert numbers.score(test, target) == numbers.score(test[rows], test[rows, 0])
    with pytest.raises(ValueError, match="at least 2 rows with a label, got 1 of 100"):
        numbers.score(test, np.where(np.arange(100) == 3, 1.0, np.nan))
    with pytest.raises(ValueError, match="inconsistent"):
        labeled_rows(test, mixed[:50], rows[:50])
