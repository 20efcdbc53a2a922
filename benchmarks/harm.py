"""Do unlabeled rows help or hurt? The estimator beside labels alone and beside others; on images, the networks.

    python benchmarks/harm.py [--kind table] [--half choose] [--labels 10] [--splits 5] [--json results/harm.json]

Every split has 30 % of the rows for testing and some labels of each class for training (``harm_data.py``). All methods
see the same rows and the same standardized features; a method that cannot use unlabeled rows gets the labeled ones.
Images are trained by ``advdrop.lab`` as a user's own folder would be, with 1,600 of them unlabeled.
Nothing is tuned here: everything runs at its defaults. The data sets are divided in two halves. The defaults of
advdrop were chosen on the half "choose"; the half "look" was looked at once, afterward. What is in the record already
is not run again.
"""

from __future__ import annotations

import argparse
import textwrap
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median, stdev
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

import harm_data as data
from advdrop import AdversarialDropoutClassifier, PiModel, RandomFlips, VAdD, qe
from advdrop.lab.config.recipes import recipe
from advdrop.lab.data.examples import UNLABELED, DataSet, Examples
from advdrop.lab.engine.run import train
from advdrop.lab.report.text_table import table as text_table
from advdrop.objectives import Term
from advdrop.objectives.targets import clean_output
from measure import progress, record, rows_of

COMMAND = "python benchmarks/harm.py --json results/harm.json"
OURS = "advdrop"
BASELINE = "labels alone"


class Changed(AdversarialDropoutClassifier):
    """The estimator with another term for unlabeled rows, or with the full weight whatever its skill is.

    Args:
        term: what replaces the term.
        trusted: whether the weight is full.
        changes: other values of the term's own options.
        options: of the estimator.
    """

    def __init__(
        self, term: Term | None = None, trusted: bool = False, changes: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        super().__init__(measure_gain=False, **options)
        self.term, self.trusted, self.changes = term, trusted, changes

    def _consistency(self, members: int, groups: int) -> Term:
        term = super()._consistency(members, groups)
        assert isinstance(term, VAdD)
        return self.term or replace(term, **(self.changes or {}))

    def _trust(self) -> float:
        return 1.0 if self.trusted else super()._trust()


METHODS: dict[str, Callable[[int], Any]] = {
    OURS: lambda seed: AdversarialDropoutClassifier(measure_gain=False, random_state=seed),
    BASELINE: lambda seed: AdversarialDropoutClassifier(weight=0, random_state=seed),
    "no flips": lambda seed: AdversarialDropoutClassifier(delta=0, measure_gain=False, random_state=seed),
    "random flips": lambda seed: Changed(changes={"search": RandomFlips()}, random_state=seed),
    "Π model": lambda seed: Changed(PiModel(divergence=qe), weight=30, random_state=seed),
    "logistic regression": lambda seed: LogisticRegression(max_iter=1000, random_state=seed),
    "random forest": lambda seed: RandomForestClassifier(random_state=seed),
    "gradient boosting": lambda seed: HistGradientBoostingClassifier(random_state=seed),
    "MLP": lambda seed: MLPClassifier((128,), max_iter=500, random_state=seed),
    "self-training": lambda seed: SelfTrainingClassifier(MLPClassifier((128,), max_iter=500, random_state=seed)),
    "label spreading": lambda _: LabelSpreading(kernel="knn", n_neighbors=7),
}
ABLATION: dict[str, Callable[[int], Any]] = {
    "gradient through the target": lambda seed: Changed(changes={"detach": False}, random_state=seed),
    "own output as target": lambda seed: Changed(
        changes={"target": clean_output, "given": "logits"}, random_state=seed
    ),
    "no confidence weight": lambda seed: Changed(changes={"confidence": 0.0}, random_state=seed),
    "fresh mask": lambda seed: Changed(changes={"fresh": True}, random_state=seed),
    "full weight at any skill": lambda seed: Changed(trusted=True, random_state=seed),
    "no blend, full weight": lambda seed: Changed(blend=0.0, random_state=seed),
}
"""The estimator with one choice made otherwise; run with ``--ablation``."""
DOUBLED = "labeled rows without labels, too"
"""The estimator with all rows twice, once without their labels; run with ``--labels 0``. Without unlabeled rows, the
estimator itself learns from the labels alone."""
ALL = {**METHODS, **ABLATION, DOUBLED: METHODS[OURS]}
VARIANTS = ("no flips", "random flips", "Π model", *ABLATION, DOUBLED)
"""Variants of ours, which do not take part in the ranks."""
LABELED_ONLY = ("logistic regression", "random forest", "gradient boosting", "MLP")
IMAGE_METHODS = {OURS: "vadd-qe", BASELINE: "dropout", "no flips": "no-flips", "Π model": "pi"}
"""The methods for images, by their names in ``advdrop train``."""
UNLABELED_IMAGES, TEST_IMAGES = 1_600, 2_000


def measure(name: str, per_class: int, split: int, methods: list[str]) -> list[dict[str, Any]]:
    """The accuracy of each method on one split, in percent."""
    known = data.load(name)
    labeled, unlabeled, test = data.split(known.y, per_class or len(known.y), split, name)
    if per_class == 0:
        labeled, unlabeled = np.sort(np.concatenate([labeled, unlabeled])), unlabeled[:0]
    rows = np.concatenate([labeled, unlabeled])
    scaler = StandardScaler().fit(known.X[rows])
    x, x_test = scaler.transform(known.X[rows]), scaler.transform(known.X[test])
    y = np.concatenate([known.y[labeled], np.full(len(unlabeled), -1)])
    found = []
    for method in methods:
        alone = method in LABELED_ONLY
        fitted = (x[: len(labeled)], y[: len(labeled)]) if alone else (x, y)
        if method == DOUBLED:
            fitted = np.concatenate([x, x]), np.concatenate([y, np.full(len(y), -1)])
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as an optimizer that has not converged
            accuracy = ALL[method](split).fit(*fitted).score(x_test, known.y[test])
        seconds = time.perf_counter() - start
        found.append(row(name, per_class, split, method, 100 * float(accuracy), seconds))
    return found


def measure_images(name: str, per_class: int, split: int, methods: list[str]) -> list[dict[str, Any]]:
    """The accuracy of each method on one split of images, in percent."""
    x, y = data.image(name, data.cache() / "images")
    labeled, unlabeled, test = data.split(y, per_class, split, name)
    rng = np.random.default_rng(split)
    unlabeled, test = rng.permutation(unlabeled)[:UNLABELED_IMAGES], rng.permutation(test)[:TEST_IMAGES]
    known = np.concatenate([y[labeled], np.full(len(unlabeled), UNLABELED)])
    train_part = Examples(torch.as_tensor(x[np.concatenate([labeled, unlabeled])]), torch.as_tensor(known))
    test_part = Examples(torch.as_tensor(x[test]), torch.as_tensor(y[test]))
    images = DataSet(name, train_part, test_part, tuple(str(label) for label in np.unique(y)))
    found = []
    for method in methods:
        config = recipe(images, "own", method=IMAGE_METHODS[method], labels="all", preset="robust", seed=split)
        with TemporaryDirectory() as folder:
            start = time.perf_counter()
            result = train(config, Path(folder) / "run", data=images, progress=False)
            seconds = time.perf_counter() - start
        found.append(row(name, per_class, split, method, 100 - result["test_error_percent"], seconds))
    return found


def row(name: str, per_class: int, split: int, method: str, accuracy: float, seconds: float) -> dict[str, Any]:
    """A line of the record."""
    return {
        "data": name,
        "half": data.half(name),
        "labels": per_class or "all",
        "split": split,
        "method": method,
        "accuracy": round(accuracy, 3),
        "seconds": round(seconds, 2),
    }


Pairs = dict[tuple[str, int], dict[str, float]]


def pairs(rows: list[dict[str, Any]], half: str | None = None) -> Pairs:
    """The accuracies of all methods for each data set and split."""
    found: Pairs = {}
    for row in rows:
        if half in (None, row["half"]):
            found.setdefault((row["data"], row["split"]), {})[row["method"]] = row["accuracy"]
    return found


def ranks(found: Pairs, methods: list[str]) -> dict[str, float]:
    """The mean rank of each method over the data sets, by its mean accuracy; equal ones share their ranks."""
    means = by_data(found)
    placed: dict[str, list[float]] = {method: [] for method in methods}
    for accuracies in means.values():
        for method in methods:
            better = sum(accuracies[other] > accuracies[method] for other in methods)
            same = sum(accuracies[other] == accuracies[method] for other in methods)
            placed[method].append(better + (same + 1) / 2)
    return {method: fmean(values) for method, values in placed.items()}


def by_data(found: Pairs) -> dict[str, dict[str, float]]:
    """The mean accuracy on each data set of each method that was run on all of its splits."""
    means = {}
    for name in dict.fromkeys(name for name, _ in found):
        splits = [accuracies for (other, _), accuracies in found.items() if other == name]
        methods = [method for method in splits[0] if all(method in accuracies for accuracies in splits)]
        means[name] = {method: fmean(accuracies[method] for accuracies in splits) for method in methods}
    return means


def summary(rows: list[dict[str, Any]], half: str | None) -> str:
    """A line for each method: accuracy, rank, and what changes beside labels alone."""
    found = pairs(rows, half)
    methods = [method for method in ALL if all(method in accuracies for accuracies in found.values())]
    ranked = ranks(found, [method for method in methods if method not in VARIANTS])
    lines = []
    for method in methods:
        accuracy = fmean(accuracies[method] for accuracies in found.values())
        rank = f"{ranked[method]:.1f}" if method in ranked else ""
        if method == BASELINE:
            lines.append([method, f"{accuracy:.1f}", rank, "", "", "", ""])
            continue
        gains = np.array([accuracies[method] - accuracies[BASELINE] for accuracies in found.values()])
        error = gains.std(ddof=1) / len(gains) ** 0.5
        hurt = [f"{100 * (gains < -points).mean():.0f} %" for points in (2, 5)]
        gain = f"{gains.mean():+.2f} ± {2 * error:.2f}"
        lines.append([method, f"{accuracy:.1f}", rank, gain, *hurt, f"{gains.min():+.1f}"])
    head = ["method", "accuracy", "mean rank", "gain over labels alone", "hurt by > 2", "hurt by > 5", "worst"]
    return text_table(head, lines)


def few(rows: list[dict[str, Any]], half: str, kind: str = "table", labels: int | str = 10) -> str:
    """The summary of one half of the data sets of a kind, for the page."""
    names = data.names(kind)  # type: ignore[arg-type]
    return summary([row for row in rows if row["data"] in names and row["labels"] == labels], half) + "\n"


def ablation(rows: list[dict[str, Any]]) -> str:
    """The summary of those pairs for which all variants of the ablation were run."""
    tables = [row for row in rows if row["data"] in data.names("table") and row["labels"] == 10]
    whole = {pair for pair, found in pairs(tables).items() if set(ABLATION) <= set(found)}
    shown = (OURS, BASELINE, "no flips", "random flips", *ABLATION)
    return (
        summary([row for row in tables if (row["data"], row["split"]) in whole and row["method"] in shown], None) + "\n"
    )


def all_labels(rows: list[dict[str, Any]]) -> str:
    """What the term does on labeled rows, where there are no others: all tables, all labels."""
    tables = [row for row in rows if row["data"] in data.names("table") and row["labels"] == "all"]
    return summary([row for row in tables if row["method"] in (BASELINE, DOUBLED)], None) + "\n"


def by_labels(rows: list[dict[str, Any]]) -> str:
    """The texts: the mean accuracy of each method for each number of labels, of both classes together."""
    chosen = [row for row in rows if row["data"] in data.names("text")]
    numbers = sorted({row["labels"] for row in chosen})
    lines = []
    for method in dict.fromkeys(row["method"] for row in chosen):
        found = {
            n: [row["accuracy"] for row in chosen if (row["method"], row["labels"]) == (method, n)] for n in numbers
        }
        lines.append([method, *(f"{fmean(values):.1f}" for values in found.values())])
    return text_table(["method", *(f"{2 * number} labels" for number in numbers)], lines) + "\n"


def image_errors(rows: list[dict[str, Any]], methods: tuple[str, ...] = (BASELINE, "Π model", OURS)) -> str:
    """The images: the mean error of each method on each data set, in percent, over the splits that all were run on.

    The last column compares the last method with the first one, ± two standard errors over the splits.
    """
    chosen = pairs([row for row in rows if row["data"] in data.names("image")])
    whole = {pair: found for pair, found in chosen.items() if set(methods) <= set(found)}
    lines = []
    for name, accuracies in by_data(whole).items():
        errors = [f"{100 - accuracies[method]:.2f}" for method in methods]
        fewer = [found[methods[0]] - found[methods[-1]] for (other, _), found in whole.items() if other == name]
        margin = f" ± {2 * stdev(fewer) / len(fewer) ** 0.5:.2f}" if len(fewer) > 1 else ""
        lines.append([name, data.half(name), str(len(fewer)), *errors, f"{fmean(fewer):+.2f}{margin}"])
    return text_table(["data", "half", "splits", *methods, f"change from {methods[0]}"], sorted(lines)) + "\n"


def tables(rows: list[dict[str, Any]], labels: int = 10) -> list[tuple[str, float, float]]:
    """Each table with its accuracy with the labels alone and with the unlabeled rows, the largest loss first."""
    chosen = [row for row in rows if row["labels"] == labels and row["data"] in data.names("table")]
    found = [(name, means[BASELINE], means[OURS]) for name, means in by_data(pairs(chosen)).items()]
    return sorted(found, key=lambda each: each[2] - each[1])


def gains(rows: list[dict[str, Any]]) -> str:
    """The accuracies and the gain of each table."""
    head = ["data", "half", BASELINE, "with unlabeled rows", "gain"]
    lines = [
        [name, data.half(name), f"{alone:.1f}", f"{both:.1f}", f"{both - alone:+.1f}"]
        for name, alone, both in tables(rows)
    ]
    return text_table(head, lines) + "\n"


def in_a_line(rows: list[dict[str, Any]]) -> str:
    """The mean gain, and the tables where unlabeled rows did harm, on the half that the defaults were not chosen on."""
    found = [each for each in tables(rows) if data.half(each[0]) == "look"]
    gains = [both - alone for _, alone, both in found]
    hurt = [f"{name} ({both - alone:+.1f})" for name, alone, both in found if both - alone <= -0.5]
    text = (
        f"On {len(found)} tables that nothing was chosen on, with ten labels of each class, unlabeled rows change the "
        f"accuracy of the estimator by {fmean(gains):+.2f} points on average (median {median(gains):+.2f}). They cost "
        f"half a point or more on {', '.join(hurt)}."
    )
    return textwrap.fill(text, 120) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="the record; what it has is not run again")
    parser.add_argument("--kind", choices=get_args(data.Kind), default="table")
    parser.add_argument("--half", choices=get_args(data.Half), help="only this half")
    parser.add_argument("--data", nargs="+", metavar="NAME", help="only these data sets")
    parser.add_argument("--labels", type=int, nargs="+", default=[10], help="labels of each class; 0: all")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--methods", nargs="+", choices=[*METHODS, DOUBLED], help="only these")
    parser.add_argument("--ablation", action="store_true", help="the estimator with one choice made otherwise")
    options = parser.parse_args()
    images = options.kind == "image"
    usual = [OURS, BASELINE, "no flips", "random flips", *ABLATION] if options.ablation else [*METHODS]
    if images or options.labels == [0]:
        usual = [*IMAGE_METHODS] if images else [BASELINE, DOUBLED]
    methods = options.methods or usual
    names = options.data or [name for name in data.names(options.kind) if options.half in (None, data.half(name))]
    rows = rows_of(options.json) if options.json and options.json.exists() else []
    for labels in options.labels:
        for split in range(options.splits):
            for name in names:
                here = (name, labels or "all", split)
                known = {row["method"] for row in rows if (row["data"], row["labels"], row["split"]) == here}
                missing = [method for method in methods if method not in known]
                progress(f"{name}, {labels or 'all'} labels a class, split {split + 1} of {options.splits}")
                if missing:
                    rows += (measure_images if images else measure)(name, labels, split, missing)
                    if options.json:
                        record(options.json, rows, COMMAND, quiet=True)
    progress("")
    for labels in options.labels:
        chosen = [row for row in rows if row["data"] in names and row["labels"] == (labels or "all")]
        for half in get_args(data.Half):
            if any(row["half"] == half for row in chosen):
                print(f"\n{labels or 'all'} labels of each class, the half to {half}\n")
                print(summary(chosen, half))


if __name__ == "__main__":
    main()
