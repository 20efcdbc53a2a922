"""Which rows have a label or a target, and which do not."""

from __future__ import annotations

import warnings
from math import isfinite
from numbers import Number
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import _safe_indexing, indexable
from sklearn.utils.validation import _check_sample_weight, column_or_1d

Array = npt.NDArray[Any]
Marker = int | float | str | None
"""What stands for a label that is missing."""

UNLABELED = -1
"""The label of a row without one, as in ``sklearn.semi_supervised``."""
LOOK_MISSING = ("-1", "nan", "NaN", "None", "<NA>")
"""Texts that come from missing labels when an array is converted to text."""


def read_labels(y: Any, unlabeled: Marker = UNLABELED) -> tuple[Array, Array]:
    """Return the labels ``(N,)`` and which of them are known ``(N,)``; unknown ones are filled with a known one.

    NaN, None and pd.NA never are labels, and neither is the marker.

    Args:
        y: labels ``(N,)``: numbers or text, a list, an array or a Series.
        unlabeled: the marker; None if only NaN, None and pd.NA stand for a missing label.

    >>> read_labels(["yes", None, "no"])[1].tolist(), read_labels([1, -1, 2])[1].tolist()
    ([True, False, True], [True, False, True])
    >>> read_labels([1, -1, 2], unlabeled=None)[1].tolist(), read_labels([1, -1, 2], unlabeled=2)[1].tolist()
    ([True, True, True], [True, True, False])
    """
    labels = _column(y)
    missing = is_missing(labels)
    marked = _is_marker(labels, unlabeled)
    if unlabeled == UNLABELED and marked.any() and missing.any():
        raise ValueError(
            f"y has both {UNLABELED} and a missing value (NaN, None or pd.NA), so it is not clear whether {UNLABELED} "
            f"is a class. If it is, pass unlabeled=None; if not, replace the missing values by {UNLABELED}"
        )
    labeled = ~(missing | marked)
    if not labeled.any():
        return labels, labeled
    known = _same_kind(labels[labeled])
    if known.dtype.kind == "f" and np.isinf(known).any():
        raise ValueError("Input y contains infinity, which is not a label")
    filled = np.full(len(labels), known[0], dtype=known.dtype)
    filled[labeled] = known
    return filled, labeled


def read_targets(y: Any) -> tuple[Array, Array]:
    """Return the targets of a regression ``(N,)`` and which of them are known; NaN, None and pd.NA are none.

    >>> read_targets([0.5, None, 2])
    (array([0.5, nan, 2. ]), array([ True, False,  True]))
    """
    values = _column(y)
    missing = is_missing(values)
    targets = np.full(len(values), np.nan)
    targets[~missing] = values[~missing].astype(np.float64)
    if np.isinf(targets).any():
        raise ValueError("Input y contains infinity; a row without a target has NaN")
    return targets, ~np.isnan(targets)


def has_fractions(y: Any) -> bool:
    """Return True if a number has a fraction: then these are targets of a regression, not labels of classes.

    >>> has_fractions([-1, 0.5, None]), has_fractions([-1.0, 0.0, None]), has_fractions(["0.5", -1])
    (True, False, False)
    """
    return any(isinstance(one, float | np.floating) and isfinite(one) and one % 1 != 0 for one in _column(y).tolist())


def classes_of(labels: Array, unlabeled: Marker, marked: bool) -> Array:
    """Return the classes in order.

    Args:
        labels: all known labels, or the classes.
        unlabeled: the marker.
        marked: whether y has rows without a label.
    """
    classes = np.unique(labels)
    if len(classes) < 2:
        plus_and_minus = marked and unlabeled == UNLABELED and classes.tolist() == [1]
        raise ValueError(
            f"a classifier needs labels of at least two classes, got one class: {classes.tolist()}"
            + (
                ". The label -1 means that a row has no label. If the classes are -1 and +1, pass unlabeled=None, "
                "and mark missing labels by NaN or None, or by a marker of your own: unlabeled=0"
                if plus_and_minus
                else ""
            )
        )
    if unlabeled == UNLABELED and (found := [text for text in LOOK_MISSING if text in classes.tolist()]):
        warnings.warn(
            f"the text {found[0]!r} is used as a class. If it means that a row has no label, "
            f"pass unlabeled={found[0]!r}; if it is a class, pass unlabeled=None",
            stacklevel=4,
        )
    return classes


def labeled_rows(X: Any, y: Array, labeled: Array, sample_weight: Any = None, least: int = 1) -> tuple[Any, Array, Any]:
    """Return the rows, the labels and the weights of the rows that have a label; a score needs some of them.

    Args:
        X: features of N rows.
        y: labels, ``(N,)``.
        labeled: which of them are known, ``(N,)``.
        sample_weight: weights, ``(N,)``, or None.
        least: the least number of rows.
    """
    rows = np.flatnonzero(labeled)
    if len(rows) == len(y):
        return X, y, sample_weight
    if len(rows) < least:
        raise ValueError(
            f"a score needs at least {least} rows with a label, got {len(rows)} of {len(y)}; "
            "advdrop.sklearn.SemiSupervisedKFold makes test sets of labeled rows"
        )
    x, y, sample_weight = indexable(X, y, sample_weight)  # a sparse table of any format
    weights = None if sample_weight is None else _safe_indexing(sample_weight, rows)
    return _safe_indexing(x, rows), y[rows], weights


def counted_rows(x: Any, labeled: Array, sample_weight: Any) -> tuple[Array, Array | None]:
    """Return which labels count, ``(N,)``, and the checked weights; a row of weight 0 is used as one without a label.

    Args:
        x: features of N rows.
        labeled: which labels are known, ``(N,)``.
        sample_weight: weights, ``(N,)``, or None.
    """
    if sample_weight is None:
        return labeled, None
    weights = np.asarray(_check_sample_weight(sample_weight, x, ensure_non_negative=True))
    counted = labeled & (weights != 0)
    if not counted.any():
        raise ValueError("no row has a label and a weight above 0, so there is nothing to learn from")
    return counted, weights


def is_missing(y: Array) -> Array:
    """Return which values are NaN, NaT, None or pd.NA, ``(N,)``."""
    if y.dtype.kind in "fmM":  # numbers, and times, where it is NaT
        return np.isnan(y)
    if y.dtype != object:
        return np.zeros(len(y), dtype=bool)
    missing = [one is None or type(one).__name__ in ("NAType", "NaTType") or _is_nan(one) for one in y]
    return np.array(missing, dtype=bool)


def _is_nan(one: Any) -> bool:
    return isinstance(one, float | np.floating) and bool(one != one)


def _column(y: Any) -> Array:
    """Return an array ``(N,)`` that keeps None, NaN and pd.NA among texts; a masked value is None."""
    if y is None:
        raise ValueError("this estimator requires y to be passed, but the target y is None")
    column = np.asarray(y)
    if isinstance(y, np.ma.MaskedArray):
        column = column.astype(object)
        column[np.ma.getmaskarray(y)] = None
    if column.dtype.kind == "T" or (column.dtype.kind in "US" and isinstance(y, list | tuple)):
        column = np.asarray(y, dtype=object)  # otherwise NaN would be the text "nan"
    return np.asarray(column_or_1d(column, warn=True))


def _is_marker(labels: Array, marker: Marker) -> Array:
    """Return which labels are the marker, ``(N,)``; the text "-1" is not the number -1, and True is not 1."""
    text = isinstance(marker, str)
    kind = labels.dtype.kind
    if marker is None or (kind == "b" and not text) or (kind in "US" and not text):
        return np.zeros(len(labels), dtype=bool)
    if kind != "O":
        if text and kind not in "US":
            raise ValueError(f"unlabeled={marker!r} is text, and the labels are numbers; the marker must be a number")
        return np.asarray(labels == marker)
    same = [
        isinstance(label, str) == text and not isinstance(label, bool | np.bool_) and _is_equal(label, marker)
        for label in labels
    ]
    return np.array(same, dtype=bool)


def _is_equal(label: Any, marker: Marker) -> bool:
    return isinstance(label, str | Number | np.number) and bool(label == marker)


def _same_kind(labels: Array) -> Array:
    """Return labels that are all text or all numbers; anything else is an error."""
    if labels.dtype != object:
        return labels
    text = [isinstance(label, str) for label in labels]
    if all(text):
        return labels
    if any(text):
        word, number = labels[text.index(True)], labels[text.index(False)]
        raise ValueError(f"labels must be all text or all numbers, got {word!r} and {number!r}")
    if wrong := [label for label in labels if not isinstance(label, Number | np.number | np.bool_)]:
        raise ValueError(f"Unknown label type: a label must be text or a number, got {wrong[0]!r}")
    return np.array(labels.tolist())
