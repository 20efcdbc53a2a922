"""Cross-validation of tables in which some rows have no label."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sklearn.base import is_regressor
from sklearn.metrics import get_scorer
from sklearn.model_selection import BaseCrossValidator, KFold, StratifiedKFold
from sklearn.utils.multiclass import type_of_target

from advdrop.sklearn.labels import UNLABELED, Array, Marker, classes_of, has_fractions, labeled_rows, read_labels


class SemiSupervisedKFold(BaseCrossValidator):
    """Divide the labeled rows into K test sets. Unlabeled rows are in every training set and in no test set.

    So every score is that of labeled rows. It is the ``cv`` of ``cross_val_score``, ``GridSearchCV`` and the like.

    Args:
        n_splits: K.
        shuffle: whether to shuffle the rows first.
        random_state: the seed of the shuffling.
        stratify: whether each test set has the same share of every class. Numbers with fractions are targets of a
            regression and are never stratified; for integer targets of a regression, pass False.
        unlabeled: the label of rows without one, as in the classifier. NaN, None and pd.NA always mean that. Among
            numbers with fractions, -1 is a target; for integer targets of a regression, pass None.

    >>> y = np.array([0, -1, 1, 0, -1, 1])
    >>> for train, test in SemiSupervisedKFold(2).split(y[:, None], y):
    ...     print(train, test)
    [1 3 4 5] [0 2]
    [0 1 2 4] [3 5]
    """

    def __init__(
        self,
        n_splits: int = 5,
        *,
        shuffle: bool = False,
        random_state: int | np.random.RandomState | None = None,
        stratify: bool = True,
        unlabeled: Marker = UNLABELED,
    ) -> None:
        KFold(n_splits, shuffle=shuffle, random_state=random_state)  # checks the arguments
        self.n_splits, self.shuffle, self.random_state = n_splits, shuffle, random_state
        self.stratify, self.unlabeled = stratify, unlabeled

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Return K."""
        del X, y, groups
        return self.n_splits

    def _iter_test_indices(self, X: Any = None, y: Any = None, groups: Any = None) -> Iterator[Array]:
        """Yield the positions of the rows of each test set."""
        del X, groups
        regression = self.unlabeled == UNLABELED and has_fractions(y)  # where -1 is a target like any other
        labels, labeled = read_labels(y, None if regression else self.unlabeled)
        rows = np.flatnonzero(labeled)
        if len(rows) < self.n_splits:
            raise ValueError(f"n_splits={self.n_splits} is more than the {len(rows)} rows that have a label")
        known = labels[rows]
        stratify = self.stratify and type_of_target(known) != "continuous"
        if stratify:
            self._check_classes(known, not labeled.all())
        folds = (StratifiedKFold if stratify else KFold)(
            self.n_splits, shuffle=self.shuffle, random_state=self.random_state
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The least populated class")  # _check_classes warns
            for _, test in folds.split(rows, known):
                yield rows[test]

    def _check_classes(self, known: Array, marked: bool) -> None:
        classes = classes_of(known, self.unlabeled, marked)
        counts = np.array([(known == label).sum() for label in classes])
        rare, most = classes[counts.argmin()], counts.max()
        if counts.min() < self.n_splits:
            message = (
                f"the class {rare.item() if hasattr(rare, 'item') else rare!r} has {counts.min()} labels, fewer than "
                f"n_splits={self.n_splits}, so some test sets do not have it; choose fewer splits, or pass "
                "stratify=False if these are targets of a regression"
            )
            if most < self.n_splits:
                raise ValueError(message)
            warnings.warn(message, stacklevel=4)


class LabeledScorer:
    """A scorer that leaves out the rows without a label; see :func:`labeled_scorer`."""

    def __init__(self, scoring: str | Callable[..., float], unlabeled: Marker) -> None:
        self.scoring, self.unlabeled = scoring, unlabeled
        self._scorer = get_scorer(scoring)

    def __call__(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the score of a fitted estimator for the rows that have a label."""
        regression = self.unlabeled == UNLABELED and is_regressor(estimator)  # where -1 is a target like any other
        labels, labeled = read_labels(y, None if regression else self.unlabeled)
        if not labeled.all() and self.unlabeled in list(getattr(estimator, "classes_", [])):
            raise ValueError(
                f"{self.unlabeled!r} is a class of the estimator, and the scorer takes it for a missing label; pass "
                "the same unlabeled=... to both"
            )
        x, known, weights = labeled_rows(X, labels, labeled, sample_weight)
        return float(self._scorer(estimator, x, known, **({} if weights is None else {"sample_weight": weights})))

    def __repr__(self) -> str:
        return f"labeled_scorer({self.scoring!r}, unlabeled={self.unlabeled!r})"


def labeled_scorer(scoring: str | Callable[..., float] = "accuracy", *, unlabeled: Marker = UNLABELED) -> LabeledScorer:
    """Return a scorer that leaves out the rows without a label, for ``scoring=...`` of scikit-learn.

    It is needed where a test set has such rows: with other splitters than :class:`SemiSupervisedKFold`, and for the
    scores of training sets.

    Args:
        scoring: the name of a score, such as ``"accuracy"``, ``"roc_auc"`` or ``"r2"``, or a scorer of scikit-learn.
        unlabeled: the label of rows without one. NaN, None and pd.NA always mean that. For a regressor, -1 is a target.

    >>> from sklearn.dummy import DummyClassifier
    >>> always = DummyClassifier(strategy="constant", constant=1).fit([[0], [0]], [0, 1])
    >>> labeled_scorer("accuracy")(always, [[0], [0], [0], [0]], [1, 1, 0, -1])
    0.6666666666666666
    """
    return LabeledScorer(scoring, unlabeled)
