"""The figures of studies: features, histograms of activations, and the paths of coefficients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log10
from statistics import fmean
from typing import Any

from advdrop.lab.records.measurement import LEVELS, Measurement
from advdrop.lab.report.charts import COLORS, DIVERGING, WIDTH, Figure, Line, chart, drawing, show, tiled, unpacked

Series = Mapping[str, Sequence[float]]
Rows = Mapping[str, Sequence[Measurement]]


def feature_figures(rows: Rows, names: Mapping[str, str], note: str) -> list[Figure]:
    """Draw Figure 2: one square for each model, of the first seed, if it has its picture."""
    shown = [(row, measured[0]) for row, measured in rows.items() if measured[0].picture]
    scale = max((each.numbers["feature_scale"] for _, each in shown), default=1.0)
    found = []
    for row, each in shown:
        dead = int(each.numbers["dead_units"])
        title = f"Figure 2: {names[row]}, {dead} dead"
        steps = unpacked(str(each.picture), each.numbers["feature_scale"] / scale)
        square = feature_square(title, steps, each.shape, dead)
        found.append(Figure(title, square, note.format(scale=scale, seed=each.seed)))
    return found


def feature_square(title: str, steps: Any, shape: Sequence[int], dead: int) -> str:
    """Draw the features of a model as tiles, and cross out the last ones, which are dead."""
    tall, wide = shape[-2:]
    units = len(steps) // (tall * wide)
    pixels, number = (
        tiled(steps, tall, wide),
        tiled([unit for unit in range(units) for _ in range(tall * wide)], tall, wide),
    )
    with drawing(title, WIDTH * len(pixels) / len(pixels[0])) as (drawn, save):
        axes = drawn.subplots()
        show(axes, pixels, DIVERGING, -LEVELS, LEVELS)
        for unit in range(max(units - dead, 0), units):
            y, x = (number == unit).nonzero()
            top, bottom, left, right = y.min() - 0.5, y.max() + 0.5, x.min() - 0.5, x.max() + 0.5
            for heights in ([top, bottom], [bottom, top]):
                axes.plot([left, right], heights, color="#000000", alpha=0.5, linewidth=0.8)
        return save(title)


def histogram_figures(rows: Rows, names: Mapping[str, str]) -> list[Figure]:
    """Draw Figure 3: all activations, and the mean activation of each unit. A logarithmic axis has no zeros."""
    found = []
    for key, title, name, what in (
        ("activations", "Figure 3: activations", "activation", "activations"),
        ("means", "Figure 3: mean activation of each unit", "mean activation", "units"),
    ):
        lines, zeros = [], []
        for row, measured in rows.items():
            shares = [100 * fmean(column) for column in zip(*(each.series[key] for each in measured), strict=True)]
            x = [edge for pair in pairwise(measured[0].series["edges"]) for edge in pair]
            y = [share for share in shares for _ in range(2)]
            lines.append(Line(names[row], x, y, style=list(names).index(row)))
            zeros.append(f"{names[row]} {100 - sum(shares):.1f} %")
        note = f"Means over seeds. Exactly zero, and so not shown: {', '.join(zeros)}."
        found.append(chart(lines, title, f"log10 of the {name}", f"share of all {what}, %", note=note))
    return found


def path_figures(series: Series, methods: Mapping[str, Sequence[str]]) -> list[Figure]:
    """Draw the coefficients against the parameter of each method, on one scale."""
    paths = {
        method: {key: values for key, values in series.items() if key.startswith(f"{method}/")} for method in methods
    }
    parameters = {method: path.pop(f"{method}/parameter") for method, path in paths.items()}
    everything = [value for path in paths.values() for values in path.values() for value in values]
    found = []
    for method, (title, axis) in methods.items():
        logs, at = axis.startswith("log10"), parameters[method]
        order = sorted((i for i, value in enumerate(at) if value > 0 or not logs), key=lambda i: at[i])
        x = [log10(at[i]) if logs else at[i] for i in order]
        lines = [
            Line(key.partition("/")[2], x, [values[i] for i in order], style=style % len(COLORS), dots=not logs)
            for style, (key, values) in enumerate(paths[method].items())
        ]
        within = (min(everything), max(everything))
        found.append(chart(lines, f"Coefficients, {title}", axis, "coefficient", within=within))
    return found


def linearized_figure(series: Series) -> Figure:
    """Draw how often the first-order mask is not the worst one."""
    k, missed, reached = (series[f"linearized/{key}"] for key in ("k", "missed_percent", "reached_percent"))
    lines = [
        Line("examples whose worst mask is another one", k, missed, style=2),
        Line("loss under the linearized masks, of that under the worst", k, reached, style=1),
    ]
    title, axis = "Algorithm 1 beside the exact maximum", "k, inputs that may be dropped"
    return chart(lines, title, axis, "%", note="At the least-squares solution.")
