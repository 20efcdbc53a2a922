"""The scikit-learn estimator compared with others on tables, with all labels and with few.

    python benchmarks/tabular.py [--splits 10] [--json results/tabular.json]

Each split is a stratified half for testing and a half for training. All training rows are labeled, or five of each
class. Every method sees the same rows and the same standardized features; a method that cannot use unlabeled rows gets
the labeled rows only. ``covtype-like`` is made here with the shape of the forest cover table: 10 numbers, 44
indicators, 7 classes of unequal size. The second table compares the time of an update with MLPClassifier's, from whole
fits with the same updates on labeled rows, which take turns.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

from advdrop import AdversarialDropoutClassifier
from advdrop.lab.report.text_table import table as text_table
from measure import progress, record

HIDDEN = (128,)
FEW = 5
"""Labels of each class, where labels are few."""
Data = tuple[np.ndarray, np.ndarray]


def covtype_like() -> Data:
    """3,000 rows: ten numbers that tell something, two blocks of indicators that tell a little."""
    x, y = make_classification(
        3000,
        10,
        n_informative=8,
        n_redundant=2,
        n_classes=7,
        n_clusters_per_class=1,
        weights=[0.37, 0.48, 0.06, 0.01, 0.02, 0.03],
        flip_y=0.02,
        random_state=0,
    )
    rng = np.random.default_rng(0)
    area, soil = (y + rng.integers(0, 4, len(y))) % 4, (3 * y + rng.integers(0, 12, len(y))) % 40
    return np.hstack([x, np.eye(4)[area], np.eye(40)[soil]]), y


DATASETS: dict[str, Callable[[], Data]] = {
    "digits": lambda: load_digits(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "breast cancer": lambda: load_breast_cancer(return_X_y=True),
    "iris": lambda: load_iris(return_X_y=True),
    "covtype-like": covtype_like,
}


def methods(seed: int) -> dict[str, Any]:
    """What is compared, new every time."""
    return {
        "advdrop": AdversarialDropoutClassifier(HIDDEN, random_state=seed),
        "MLP": MLPClassifier(HIDDEN, max_iter=500, random_state=seed),
        "self-training MLP": SelfTrainingClassifier(MLPClassifier(HIDDEN, max_iter=500, random_state=seed)),
        "label spreading": LabelSpreading(kernel="knn", n_neighbors=7),
    }


def splits(data: Data, few: bool, count: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Training rows with the labels that are left (-1 elsewhere), and test rows."""
    for seed in range(count):
        x, x_test, y, y_test = train_test_split(*data, test_size=0.5, random_state=seed, stratify=data[1])
        scaler = StandardScaler().fit(x)
        left = y.copy()
        if few:
            order = np.random.default_rng(seed).permutation(len(y))
            kept = np.concatenate([order[y[order] == c][:FEW] for c in np.unique(y)])
            left[np.setdiff1d(order, kept)] = -1
        yield scaler.transform(x), left, scaler.transform(x_test), y_test


def measure(name: str, few: bool, count: int) -> list[dict[str, Any]]:
    """A row for each method: the accuracy of each split."""
    scores: dict[str, list[float]] = {method: [] for method in methods(0)}
    data = DATASETS[name]()
    for seed, (x, y, x_test, y_test) in enumerate(splits(data, few, count)):
        for method, model in methods(seed).items():
            if method == "MLP":
                x_fit, y_fit = x[y != -1], y[y != -1]
            else:
                x_fit, y_fit = x, y
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                warnings.simplefilter("ignore", UserWarning)  # self-training says that it has no row without a label
                scores[method].append(round(float(model.fit(x_fit, y_fit).score(x_test, y_test)), 5))
        progress(f"{name}, {'few' if few else 'all'} labels: split {seed + 1} of {count}")
    labels = FEW * len(np.unique(data[1])) if few else len(data[1]) - len(data[1]) // 2
    return [{"data": name, "labels": labels, "few": few, "method": m, "accuracy": a} for m, a in scores.items()]


def cost(batch_size: int, epochs: int = 20, repeats: int = 7) -> dict[str, Any]:
    """The time of a fit relative to MLPClassifier's, for the same updates of the same rows, in turns."""
    x, y = load_digits(return_X_y=True)
    x, y = StandardScaler().fit_transform(x)[: 8 * batch_size], y[: 8 * batch_size]
    models = {
        "advdrop": AdversarialDropoutClassifier(HIDDEN, max_iter=epochs, batch_size=batch_size, random_state=0),
        "MLP": MLPClassifier(
            HIDDEN, max_iter=epochs, batch_size=batch_size, tol=0.0, n_iter_no_change=epochs, random_state=0
        ),
    }
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(repeats):
        for name, model in models.items():
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model.fit(x, y)
            times[name].append(time.perf_counter() - start)
    ratios = [ours / theirs for ours, theirs in zip(times["advdrop"], times["MLP"], strict=True)]
    updates = epochs * len(x) / batch_size
    return {
        "batch_size": batch_size,
        "cost": round(median(ratios), 2),
        "milliseconds": {name: round(1e3 * median(t) / updates, 3) for name, t in times.items()},
    }


def table(rows: list[dict[str, Any]]) -> str:
    """As the docs show it: means and standard deviations, the best of a row in bold."""
    measured = [row for row in rows if "accuracy" in row]
    names = list(dict.fromkeys(row["method"] for row in measured))
    lines = []
    for data, labels in dict.fromkeys((row["data"], row["labels"]) for row in measured):
        here = {row["method"]: row["accuracy"] for row in measured if (row["data"], row["labels"]) == (data, labels)}
        best = max(fmean(here[name]) for name in names)
        cells = []
        for name in names:
            text = f"{100 * fmean(here[name]):.1f} ± {100 * stdev(here[name]):.1f}"
            cells.append(f"**{text}**" if fmean(here[name]) == best else text)
        wins = sum(ours > theirs for ours, theirs in zip(here["advdrop"], here["MLP"], strict=True))
        losses = sum(ours < theirs for ours, theirs in zip(here["advdrop"], here["MLP"], strict=True))
        lines.append([data, str(labels), *cells, f"{wins} to {losses}"])
    return text_table(["data", "labels", *names, "splits won and lost against MLP"], lines) + "\n"


def cost_table(rows: list[dict[str, Any]]) -> str:
    """As the docs show it."""
    lines = [
        [
            str(row["batch_size"]),
            *(f"{row['milliseconds'][name]:.2f}" for name in ("advdrop", "MLP")),
            f"{row['cost']:.2f}x",
        ]
        for row in rows
        if "cost" in row
    ]
    return text_table(["rows per update", "advdrop, ms", "MLPClassifier, ms", "ratio"], lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the record")
    arguments = parser.parse_args()
    rows = [row for name in DATASETS for few in (True, False) for row in measure(name, few, arguments.splits)]
    rows += [cost(size) for size in (50, 100, 200)]
    print(table(rows))
    print(cost_table(rows))
    if arguments.json:
        record(arguments.json, rows, "python benchmarks/tabular.py --json results/tabular.json")


if __name__ == "__main__":
    main()
