"""Figures 2 and 3: the features and the activations of autoencoders, and what the paper says of them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil, sqrt
from statistics import fmean

from advdrop.lab.records.measurement import LEVELS, Measurement
from advdrop.lab.report.charts import DIVERGING, WIDTH, Figure, Line, chart, corner, drawing, show, tiled, unpacked
from advdrop.lab.report.statistics import Summary
from advdrop.lab.report.study import Study, lower

NAMES = {
    "none": "no dropout",
    "dropout": "dropout",
    "adversarial": "adversarial dropout",
    "virtual": "adversarial dropout, own output as target",
}
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
"""Reconstruction errors count as similar if the largest is at most this many times the smallest."""


def study(dataset: str, found: Sequence[Measurement]) -> Study:
    """Make the section of one data set."""
    rows = {row: [each for each in found if each.row == row] for row in NAMES}
    rows = {row: measured for row, measured in rows.items() if measured}
    settings = found[0].settings
    about = (
        f"Autoencoders with one hidden layer of {settings['hidden']} ReLU units, trained on {dataset} for "
        f"{settings['updates']:,} updates of {settings['batch']} images, measured on 1,000 test images. A unit is dead "
        "if it is zero on all of them."
    )
    seeds = max(map(len, rows.values()))
    columns, where = ("", "") if dataset == "mnist5k" else (f" --columns {shlex.quote(dataset)}", " --data-dir DATA")
    return Study(
        title=f"Figures 2 and 3: features and sparsity of autoencoders, {dataset}",
        about=about,
        head=["model", *(title for _, title, _ in NUMBERS), "seeds"],
        rows=[
            [NAMES[row], *(summary(runs, key).text(digits) for key, _, digits in NUMBERS), str(len(runs))]
            for row, runs in rows.items()
        ],
        notes=[premise(rows)],
        claims=lower(rows, claims()),
        figures=[*features(rows), *histograms(rows)],
        commands=[f"advdrop reproduce {name}{columns} --seeds {seeds}{where}" for name in ("figure2", "figure3")],
        measurements=[each for measured in rows.values() for each in measured],
    )


def summary(measured: Sequence[Measurement], key: str) -> Summary:
    """Summarize a number over seeds."""
    return Summary.of([each.numbers[key] for each in measured])


def claims() -> list[tuple[str, str, str, str]]:
    """Return the paper's three claims, for both readings of the target, against the models that it compares with."""
    found = []
    for row in ("adversarial", "virtual"):
        found.append((f"Fewer dead units with {NAMES[row]} than with dropout", "dead_units", row, "dropout"))
        for other in ("dropout", "none"):
            than = f"with {NAMES[row]} than with {NAMES[other]}"
            found.append((f"Fewer highly activated units {than}", "high_percent", row, other))
            found.append((f"Lower mean activation {than}", "mean_activation", row, other))
    return found


def premise(rows: Mapping[str, Sequence[Measurement]]) -> str:
    """Say whether the models reconstruct equally well, which the paper's comparison requires."""
    errors = {row: summary(measured, "reconstruction_error").mean for row, measured in rows.items()}
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
    """Draw Figure 2: one square for each model, of the first seed, if it has its picture."""
    shown = [(row, measured[0]) for row, measured in rows.items() if measured[0].picture]
    scale = max((each.numbers["feature_scale"] for _, each in shown), default=1.0)
    found = []
    for row, each in shown:
        dead = int(each.numbers["dead_units"])
        title = f"Figure 2: {NAMES[row]}, {dead} dead"
        note = (
            "What the hidden units look for: the weights from the image to each of them, those with the largest mean "
            "activation first. Blue is negative, orange positive, white zero, on one scale "
            f"(±{scale:.2g}) for all models. A cross marks a dead unit. Seed {each.seed}."
        )
        steps = unpacked(str(each.picture), each.numbers["feature_scale"] / scale)
        found.append(Figure(title, square(title, steps, each.shape, dead), note))
    return found


def square(title: str, steps: Sequence[int], shape: Sequence[int], dead: int) -> str:
    """Draw the features of a model as tiles, and cross out the last ones, which are dead."""
    tall, wide = shape[-2:]
    pixels, count = tiled(steps, tall, wide), len(steps) // (tall * wide)
    with drawing(title, WIDTH * len(pixels) / len(pixels[0])) as (drawn, save):
        axes = drawn.subplots()
        show(axes, pixels, DIVERGING, -LEVELS, LEVELS)
        for tile in range(count - dead, count):
            top, left = corner(tile, tall, wide, ceil(sqrt(count)))
            ends = [left - 0.5, left + wide - 0.5]
            for heights in ([top - 0.5, top + tall - 0.5], [top + tall - 0.5, top - 0.5]):
                axes.plot(ends, heights, color="#000000", alpha=0.5, linewidth=0.8)
        return save(title)


def histograms(rows: Mapping[str, Sequence[Measurement]]) -> list[Figure]:
    """Draw Figure 3: all activations, and the mean activation of each unit. A logarithmic axis has no zeros."""
    found = []
    for key, name, what in (("activations", "activation", "activations"), ("means", "mean activation", "units")):
        lines, zeros = [], []
        for row, measured in rows.items():
            shares = [100 * fmean(column) for column in zip(*(each.series[key] for each in measured), strict=True)]
            x = [edge for pair in pairwise(measured[0].series["edges"]) for edge in pair]
            y = [share for share in shares for _ in range(2)]
            lines.append(Line(NAMES[row], x, y, style=list(NAMES).index(row)))
            zeros.append(f"{NAMES[row]} {100 - sum(shares):.1f} %")
        title = "Figure 3: activations" if key == "activations" else "Figure 3: mean activation of each unit"
        note = f"Means over seeds. Exactly zero, and so not shown: {', '.join(zeros)}."
        found.append(chart(lines, title, f"log10 of the {name}", f"share of all {what}, %", note=note))
    return found
