"""Figures 2 and 3: the features and the activations of autoencoders, and what the paper says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from advdrop.lab.records.measurement import Measurement
from advdrop.lab.report.pictures import Tiles, square, unpacked
from advdrop.lab.report.statistics import Summary
from advdrop.lab.report.studies import Study, grouped, lower, spread
from advdrop.lab.report.svg import Figure, Line, chart

NAMES = {
    "none": "no dropout",
    "dropout": "dropout",
    "adversarial": "adversarial dropout",
    "virtual": "adversarial dropout, own output as target",
}
STYLES = {"none": 0, "dropout": 1, "adversarial": 2, "virtual": 3}
NUMBERS = (
    ("reconstruction_error", "reconstruction error", 4),
    ("dead_units", "dead units", 1),
    ("mean_activation", "mean activation", 3),
    ("high_percent", "above 1, %", 2),
    ("active_percent", "above 0, %", 1),
    ("hoyer", "Hoyer", 3),
    ("treves_rolls", "Treves-Rolls", 3),
)
SIMILAR = 1.1
"""Reconstruction errors are similar if the largest is at most so many times the smallest."""


def study(dataset: str, found: Sequence[Measurement]) -> Study:
    """The section of one data set."""
    rows = {row: measured for row, measured in grouped(found).items() if row in NAMES}
    rows = {row: rows[row] for row in NAMES if row in rows}
    seeds = max(map(len, rows.values()))
    settings = next(iter(rows.values()))[0].settings
    hidden, updates = settings["hidden"], settings["updates"]
    about = (
        f"Autoencoders with one hidden layer of {hidden} ReLU units, trained on {dataset} for {updates:,} updates of "
        f"{settings['batch']} images, measured on 1,000 test images. A unit is dead if it is zero on all of them."
    )
    columns = f" --columns {dataset}" if dataset != "mnist5k" else ""
    where = "" if dataset == "mnist5k" else " --data-dir DATA"
    return Study(
        title=f"Figures 2 and 3: features and sparsity of autoencoders, {dataset}",
        about=about,
        head=["model", *(title for _, title, _ in NUMBERS), "seeds"],
        rows=[
            [
                NAMES[row],
                *(spread([each.numbers[key] for each in measured], digits) for key, _, digits in NUMBERS),
                str(len(measured)),
            ]
            for row, measured in rows.items()
        ],
        notes=[premise(rows)],
        claims=lower(rows, claims()),
        figures=[*features(rows), *histograms(rows)],
        commands=[f"advdrop reproduce {name}{columns} --seeds {seeds}{where}" for name in ("figure2", "figure3")],
        measurements=[each for measured in rows.values() for each in measured],
    )


def claims() -> list[tuple[str, str, str, str]]:
    """The paper's three claims, for either reading of the target, against the models that it compares with."""
    found = []
    for row in ("adversarial", "virtual"):
        found.append((f"Fewer dead units with {NAMES[row]} than with dropout", "dead_units", row, "dropout"))
        for other in ("dropout", "none"):
            than = f"with {NAMES[row]} than with {NAMES[other]}"
            found.append((f"Fewer highly activated units {than}", "high_percent", row, other))
            found.append((f"Lower mean activation {than}", "mean_activation", row, other))
    return found


def premise(rows: Mapping[str, Sequence[Measurement]]) -> str:
    """Whether the models reconstruct equally well, which the comparison presupposes."""
    errors = {
        row: Summary.of([each.numbers["reconstruction_error"] for each in measured]).mean
        for row, measured in rows.items()
    }
    if len(errors) < 2:
        return "There is one model only, so there is nothing to compare."
    low, high = min(errors, key=lambda row: errors[row]), max(errors, key=lambda row: errors[row])
    ratio = errors[high] / errors[low]
    if ratio <= SIMILAR:
        return f"The reconstruction errors are similar: the largest is {ratio:.2f} times the smallest."
    compared = dict.fromkeys((one, other) for _, _, one, other in claims() if one in errors and other in errors)
    pairs = ", ".join(f"{NAMES[a]} {errors[a] / errors[b]:.2f} times that of {NAMES[b]}" for a, b in compared)
    return (
        "The comparison is void as the paper makes it: it presupposes similar reconstruction errors, and that of "
        f"{NAMES[high]} is {ratio:.1f} times that of {NAMES[low]}. What is sparser here also keeps less of the image. "
        f"The pairs that the claims compare: {pairs}."
    )


def features(rows: Mapping[str, Sequence[Measurement]]) -> list[Figure]:
    """Figure 2, one square for each model, of the first seed that kept its picture."""
    shown = [(row, each) for row, measured in rows.items() for each in measured[:1] if each.picture]
    scale = max((each.numbers["feature_scale"] for _, each in shown), default=1.0)
    found = []
    for row, each in shown:
        dead = int(each.numbers["dead_units"])
        pixels = unpacked(str(each.picture), each.numbers["feature_scale"] / scale)
        title = f"Figure 2: {NAMES[row]}, {dead} dead"
        note = (
            "What the hidden units look for: the weights from the image to each of them, those with the largest mean "
            "activation first. Blue is negative, orange positive, white zero, on one scale "
            f"(±{scale:.2g}) for all models. A cross marks a dead "
            f"unit. Seed {each.seed}."
        )
        found.append(Figure(title, square(Tiles(title, pixels, each.shape, dead)), [], note))
    return found


def histograms(rows: Mapping[str, Sequence[Measurement]]) -> list[Figure]:
    """Figure 3: all activations, and the mean activation of each unit; zeros cannot be on a logarithmic axis."""
    found = []
    for key, title, what in (
        ("activations", "Figure 3: activations", "activations"),
        ("means", "Figure 3: mean activation of each unit", "units"),
    ):
        lines, zeros = [], []
        for row, measured in rows.items():
            edges = measured[0].series["edges"]
            shares = [
                100 * sum(column) / len(measured) for column in zip(*(m.series[key] for m in measured), strict=True)
            ]
            x = [edge for pair in pairwise(edges) for edge in pair]
            y = [share for share in shares for _ in range(2)]
            lines.append(Line(NAMES[row], x, y, style=STYLES[row]))
            zeros.append(f"{NAMES[row]} {100 - sum(shares):.1f} %")
        axis = f"log10 of the {'activation' if key == 'activations' else 'mean activation'}"
        note = f"Means over seeds. Exactly zero, and so not shown: {', '.join(zeros)}."
        drawn = chart(lines, title, axis, f"share of all {what}, %")
        found.append(Figure(title, drawn, [(line.name, line.style) for line in lines], note))
    return found
