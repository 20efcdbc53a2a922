"""The decision table of "Which objective should I use?", with every figure from a record in results/."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import harm
import harm_data as data
import step
from advdrop.lab.report.collect import collect
from advdrop.lab.report.results import Results
from measure import rows_of

HEAD = ["what you have", "what to use", "what was measured"]


def table1(results: Path, protocol: str = "short") -> Results:
    """Return Table 1 of a protocol, by default that which was run most."""
    [found] = [each for each in collect([results / "table1"]) if each.protocol == protocol]
    return found


def errors(results: Results, column: str, rows: Sequence[str]) -> str:
    """Return for example ``Π model 2.24 ± 0.19 %, SAdD 2.65 ± 0.22 %``, over the seeds of the records."""
    said = []
    for row in rows:
        found = results.entries[row, column].summary
        assert found is not None, (row, column)
        said.append(f"{results.suite.rows[row].name} {found.text()} %")
    return ", ".join(said)


def decisions(results: Path) -> str:
    """Return the table, in Markdown."""
    table, longer, rows = table1(results), table1(results, "long"), rows_of(results / "harm.json")
    demo = json.loads((results / "demo.json").read_text(encoding="utf-8"))
    digits = {method: fmean(run["test_error_percent"] for run in runs) for method, runs in demo.items()}
    images = harm.by_data(harm.pairs([row for row in rows if row["data"] in data.names("image")]))
    splits = len({row["split"] for row in rows if row["data"] == "fashion-mnist"})
    fashion = {method: 100 - accuracy for method, accuracy in images["fashion-mnist"].items()}
    look = harm.pairs([r for r in rows if r["data"] in data.names("table") and r["labels"] == 10], "look")
    gains = [found[harm.OURS] - found[harm.BASELINE] for found in look.values()]
    texts = {
        method: fmean(
            row["accuracy"]
            for row in rows
            if row["data"] in data.names("text") and (row["method"], row["labels"]) == (method, 50)
        )
        for method in (harm.OURS, harm.BASELINE)
    }
    cost = {
        row["method"]: row["ratio_to_plain"]
        for row in rows_of(results / "step.json")
        if step.Case(row["network"], row["batch"], row["layout"]) == step.SHOWN[0]
    }
    flips = rows_of(results / "flips.json")
    worst = {
        method: fmean(row["divergence"]["worst flips, δ = 0.005"] for row in flips if row["method"] == method)
        for method in ("dropout", "pi", "vadd-kl")
    }
    lines = [
        [
            "images, few labels, many without",
            "`vadd-qe` or `pi`, and check the answer at the end",
            f"MNIST, 1,000 labels: {errors(longer, '1000', ('dropout', 'pi', 'vadd-qe'))}. Digits, 100 labels: "
            f"dropout {digits['dropout']:.1f} %, pi {digits['pi']:.1f} %, vadd-qe {digits['vadd-qe']:.1f} %. "
            f"Fashion-MNIST, 200 labels, {splits} split{'s' if splits > 1 else ''}: {fashion[harm.BASELINE]:.1f} % "
            f"with the labels alone, {fashion[harm.OURS]:.1f} % with VAdD",
        ],
        [
            "images, all with labels",
            "`at`, `sadd` or `dropout`; not VAdD",
            f"MNIST, all labels: {errors(table, 'all', ('dropout', 'at', 'sadd', 'pi', 'vadd-qe'))}",
        ],
        [
            "a table, few labels",
            "`AdversarialDropoutClassifier`",
            f"{len({name for name, _ in look})} tables that nothing was chosen on: {fmean(gains):+.2f} points of "
            "accuracy from the unlabeled rows, on average",
        ],
        [
            "texts as embeddings, few labels",
            "`AdversarialDropoutClassifier`",
            f"100 labels: accuracy {texts[harm.BASELINE]:.1f} % with the labels alone, {texts[harm.OURS]:.1f} % with "
            "unlabeled texts",
        ],
        [
            "a worst case over lost units that matters",
            "`vadd-kl` or `vadd-qe`",
            "how far the ten worst flips move the output (KL): "
            + ", ".join(f"{method} {value:.2f}" for method, value in worst.items()),
        ],
        [
            "little time for each step",
            'VAdD with `noise="shared"`',
            "a step, relative to plain dropout: "
            + ", ".join(f"{m} {cost[m]:.2f}x" for m in ("vadd shared", "vadd independent", "pi", "vat")),
        ],
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (HEAD, ["---"] * len(HEAD), *lines)) + "\n"
