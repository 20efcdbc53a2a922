"""The figures of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import nan
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from advdrop.lab.records.record import ERROR
from advdrop.lab.report.charts import (
    COLORS,
    WIDTH,
    Figure,
    Line,
    chart,
    drawing,
    plain,
)
from advdrop.lab.report.results import LOOSE, Entry, Results
from advdrop.lab.report.samples import sample_figures
from advdrop.lab.report.statistics import shared_seeds

if TYPE_CHECKING:
    from advdrop.lab.report.answer import Answer

SIDES = ("the paper", "here")
WIDE = 4.0
"""The ratio of the largest to the smallest error from which an axis is logarithmic."""


def figures(results: Results) -> list[Figure]:
    """Return the curves of a table. A chart with nothing in it, or whose lines are all flat, is left out."""
    found = []
    for column in results.columns:
        about = results.suite.columns[column].name
        errors = curves(results, column, ERROR)
        entries = {row: results.entries[row, column] for row in errors}
        costs = {
            row: replace(line, x=[entries[row].cost_until(x) / 60_000 for x in line.x])
            for row, line in errors.items()
            if entries[row].costs is not None
        }
        note = "Minutes of training on the machine of the record."
        charts = [(f"Test error, {about}", "updates", "test error %", errors, "")]
        if len(costs) > 1:  # else it is the same line again
            title = f"Test error against training cost, {about}"
            charts.append((title, "minutes of training", "test error %", costs, note))
        for key, label in (("flips", "flipped units"), ("budget_share", "share of the budget")):
            lines = curves(results, column, key)
            title = f"{label.capitalize()} over time, {about}"
            charts.append((title, "updates", label, lines if any(map(_varies, lines.values())) else {}, ""))
        found += [
            _with_bands(title, x, y, [*lines.values()], note)
            for title, x, y, lines, note in charts
            if any(len(line.x) > 1 for line in lines.values())
        ]
    return sensitivities(results) + found + sample_figures(results)


def _varies(line: Line) -> bool:
    """Return True if a line is more than a constant: its values differ by more than 2 % of the largest one."""
    return max(line.y) - min(line.y) > 0.02 * max(map(abs, line.y))


def _with_bands(title: str, x: str, y: str, lines: Sequence[Line], note: str) -> Figure:
    """Return a chart. Errors have a logarithmic axis if they differ much and none of them is zero."""
    values = [value for line in lines for value in line.y]
    log = "error" in y and min(values) > 0 and max(values) > WIDE * min(values)
    bands = "Bands: one standard deviation over seeds." if any(line.low for line in lines) else ""
    return chart(lines, title, x, y, log=log, note=f"{note} {bands}".strip())


def sensitivities(results: Results) -> list[Figure]:
    """Draw the test error against each setting that the suite names: the mean, and a thin line for each seed.

    The means are over the seeds that all settings have.
    """
    found = []
    for column in results.columns:
        for curve in results.suite.curves:
            known = {row: errors for row in curve.values if (errors := results.entries[row, column].errors)}
            if len(known) < 2:
                continue
            title = f"Test error against {curve.title}, {results.suite.columns[column].name}"
            places = range(len(known))
            seeds = shared_seeds(known.values())
            means = [fmean(errors[seed] for seed in seeds & errors.keys()) for errors in known.values()]
            labels = [curve.values[row] for row in known]
            with drawing(title, 230) as (drawn, save):
                axes = drawn.subplots()
                for seed in sorted(set().union(*known.values())):
                    line = [errors.get(seed, nan) for errors in known.values()]
                    axes.plot(places, line, marker="o", color=COLORS[2], alpha=0.5, linewidth=0.8, markersize=4)
                axes.plot(places, means, color=COLORS[1], marker="s")
                axes.set(xticks=places, ylabel="test error %")
                axes.set_xticklabels([plain(label, 14) for label in labels], fontsize=10)
                axes.grid(axis="y")
                said = "; ".join(f"{label}: {mean:.2f} %" for label, mean in zip(labels, means, strict=True))
                svg = save(f"{title}. {said}.")
            if all(seeds <= errors.keys() for errors in known.values()):
                over = f"the seeds that all settings have ({', '.join(map(str, sorted(seeds)))})"
            else:
                over = "different seeds"
            note = f"Each thin line is a seed. Squares are means over {over}. The axis does not begin at zero."
            found.append(Figure(title, svg, note))
    return found


def overviews(results: Results) -> list[Figure]:
    """Return the first chart of each column that was run."""
    return [overview(results, column) for column in results.columns if results.records]


def overview(results: Results, column: str) -> Figure:
    """Draw the mean and the standard deviation of each row, the paper's and ours, and a dot for each of our seeds.

    The paper's are left out if only the order of the rows is compared.
    """
    suite, about = results.suite, results.suite.columns[column].name
    entries = {row: results.entries[row, column] for row in suite.rows}
    paper = results.has_paper(column) and not results.only_order
    shown = [row for row, entry in entries.items() if entry.summary or (paper and entry.reported)]
    where = f" in the paper and here, {about}, protocol {results.protocol}" if paper else f", {about}"
    title = f"Test error{where}"
    from matplotlib.ticker import MaxNLocator

    with drawing(title, 60 + (30 if paper else 48) * len(shown), SIDES if paper else ()) as (drawn, save):
        axes = drawn.subplots()
        for side, name in enumerate(SIDES):
            if side == 0 and not paper:
                continue
            pairs = [
                (place, entries[row].summary if side else entries[row].reported) for place, row in enumerate(shown)
            ]
            move = 0.14 * (2 * side - 1) if paper else 0.0
            known = [(place + move, *number[:2]) for place, number in pairs if number is not None]
            places, means, spreads = zip(*known, strict=True) if known else ((), (), ())
            bars = [spread or 0.0 for spread in spreads]
            axes.errorbar(means, places, xerr=bars, fmt="so"[side], color=COLORS[2 * side], label=name)
        dots = [
            (error, place + (0.34 if paper else 0.28))
            for place, row in enumerate(shown)
            for error in entries[row].errors.values()
            if len(entries[row].records) > 1
        ]
        axes.plot(
            [x for x, _ in dots], [y for _, y in dots], "o", color=COLORS[2], markersize=3.5, alpha=0.6, label="_"
        )
        axes.set(xlabel="test error %", ylim=(len(shown) - 0.45, -0.55), yticks=range(len(shown)))
        axes.set_xlim(0, 1.04 * axes.get_xlim()[1])
        axes.xaxis.set_major_locator(MaxNLocator(7, prune="upper"))  # a number at the edge could be cut off
        axes.set_yticklabels([plain(suite.rows[row].name, 28) for row in shown], fontsize=12)
        axes.grid(axis="x")
        said = []
        for row in shown:
            here = entries[row].summary
            ours = here.text() if here else "not run"
            theirs = f"paper {entries[row].reported or 'none'}, here " if paper else ""
            said.append(f"{suite.rows[row].name}: {theirs}{ours}")
        several = "Mean and standard deviation; each small dot is a seed."
        # The page of a suite tells the length of the training above the chart.
        length = f" {suite.protocols[results.protocol].about}." if suite.key == LOOSE else ""
        note = f"{several if dots else 'One seed.'}{length}"
        return Figure(title, save(f"{title}. {'; '.join(said)}."), note)


def confusion_figure(answer: Answer) -> Figure:
    """Draw which classes the method confuses, as percentages of the test images of each class."""
    names = [plain(name, 14) for name in answer.classes]
    title = f"What {answer.method} predicts"
    from matplotlib.patches import Rectangle

    with drawing(title, 50 + WIDTH * 0.8) as (drawn, save):
        axes = drawn.subplots()
        said = []
        for row, counts in enumerate(answer.confusion):
            for column, count in enumerate(counts):
                share = count / max(sum(counts), 1)
                if not count:
                    continue
                color = COLORS[1 if row == column else 2]
                axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, color=color, alpha=0.6 * share**0.5, lw=0))
                text = f"{100 * share:.0f}" if share >= 0.005 else "<1"
                axes.text(column, row, text, ha="center", va="center", fontsize=11)
                said.append(f"{answer.classes[row]} as {answer.classes[column]} {100 * share:.0f} %")
        last, places = len(names) - 0.5, range(len(names))
        axes.set(xlim=(-0.5, last), ylim=(last, -0.5), xticks=places, yticks=places, ylabel="true class")
        axes.set_xlabel("predicted class")
        steep = max(map(len, names)) * len(names) > 30
        axes.set_xticklabels(names, fontsize=11, rotation=60 if steep else 0, ha="right" if steep else "center")
        axes.set_yticklabels(names, fontsize=11)
        seeds = f" over {answer.seeds} seeds" if answer.seeds > 1 else ""
        note = f"Percent of the test examples of each class{seeds}. Blue is right, orange is wrong."
        return Figure(title, save(f"{title}. {'; '.join(said)}."), note)


def curves(results: Results, column: str, key: str) -> dict[str, Line]:
    """Return a line for each row that measured something: the mean over seeds, and a band of a standard deviation."""
    lines = {}
    for place, row in enumerate(results.suite.trained):
        if points := _points(results.entries[row, column], key):
            means = [fmean(values) for values in points.values()]
            spread = [stdev(values) if len(values) > 1 else 0.0 for values in points.values()]
            low, high = (
                [mean + side * by for mean, by in zip(means, spread, strict=True)] if any(spread) else []
                for side in (-1, 1)
            )
            lines[row] = Line(results.suite.rows[row].name, list(points), means, low, high, place % len(COLORS))
    return lines


def _points(entry: Entry, key: str) -> dict[float, list[float]]:
    """Return the updates at which all seeds measured something, and the values."""
    tables = []
    for record in entry.records:
        name = next((name for name in record.curve if name == key or name.endswith(f"_{key}")), None)
        pairs = zip(record.curve["update"], record.curve[name] if name else (), strict=False)
        tables.append({update: value for update, value in pairs if update is not None and value is not None})
    shared = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
    return {update: [table[update] for table in tables] for update in shared}
