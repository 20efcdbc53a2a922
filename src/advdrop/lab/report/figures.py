"""The figures of a table: ours beside the paper, error over updates and over cost, and what the mask search did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev

from advdrop.lab.records.record import ERROR
from advdrop.lab.report.charts import COLORS, Figure, Line, chart, drawing, legend, plain
from advdrop.lab.report.collect import Entry, Results

SIDES = ("the paper", "here")


def figures(results: Results) -> list[Figure]:
    """Return all figures of a table. A chart with nothing in it is left out."""
    found = []
    for column in results.columns:
        about = results.suite.columns[column].name
        if results.has_paper(column):
            found.append(overview(results, column))
        errors = curves(results, column, ERROR)
        costs = [
            (row, replace(line, x=[x * results.entries[row, column].milliseconds / 60_000 for x in line.x]))
            for row, line in errors
        ]
        note = "Minutes of training on the machine of the record."
        found += _figure(f"Test error, {about}", "updates", "test error %", errors)
        title = f"Test error against training cost, {about}"
        found += _figure(title, "minutes of training", "test error %", costs, note)
        for key, label in (("flips", "flipped units"), ("budget_share", "share of the budget")):
            title = f"{label.capitalize()} over time, {about}"
            found += _figure(title, "updates", label, curves(results, column, key))
    return found


def overview(results: Results, column: str) -> Figure:
    """Draw the mean and the standard deviation of each row, the paper's and ours."""
    suite, about = results.suite, results.suite.columns[column].name
    shown = [row for row in suite.rows if _pair(results.entries[row, column]) != (None, None)]
    title = f"Test error in the paper and here, {about}, protocol {results.protocol}"
    with drawing(title, 60 + 24 * len(shown), SIDES) as (drawn, save):
        axes = drawn.subplots()
        for side, name in enumerate(SIDES):
            points = [(place, _pair(results.entries[row, column])[side]) for place, row in enumerate(shown)]
            known = [(place + 0.12 * (2 * side - 1), number) for place, number in points if number is not None]
            axes.errorbar(
                [mean for _, (mean, _) in known],
                [place for place, _ in known],
                xerr=[std or 0.0 for _, (_, std) in known],
                fmt="so"[side],
                color=COLORS[2 * side],
                label=name,
            )
        axes.set(xlabel="test error %", ylim=(len(shown) - 0.5, -0.5), yticks=range(len(shown)))
        axes.set_xlim(left=0)
        axes.set_yticklabels([plain(suite.rows[row].name, 28) for row in shown], fontsize=11)
        axes.grid(axis="x")
        legend(drawn, SIDES)
        said = "; ".join(_said(suite.rows[row].name, results.entries[row, column]) for row in shown)
        note = f"Mean and standard deviation. {suite.protocols[results.protocol].about.capitalize()}."
        return Figure(title, save(f"{title}. {said}."), note)


def _pair(entry: Entry) -> tuple[tuple[float, float | None] | None, tuple[float, float | None] | None]:
    """Return mean and standard deviation in the paper and here."""
    return entry.reported and entry.reported[:2], entry.summary and entry.summary[:2]


def _said(name: str, entry: Entry) -> str:
    return f"{name}: paper {entry.reported or 'none'}, here {entry.summary.text() if entry.summary else 'not run'}"


def curves(results: Results, column: str, key: str) -> list[tuple[str, Line]]:
    """Return a line for each row that measured something: the mean over seeds, and a band of a standard deviation."""
    lines = []
    for place, row in enumerate(results.suite.trained):
        points = _points(results.entries[row, column], key)
        if points:
            means = [fmean(values) for _, values in points]
            spread = [stdev(values) if len(values) > 1 else 0.0 for _, values in points]
            low, high = (
                [mean + side * by for mean, by in zip(means, spread, strict=True)] if any(spread) else []
                for side in (-1, 1)
            )
            x, name = [update for update, _ in points], results.suite.rows[row].name
            lines.append((row, Line(name, x, means, low, high, place % len(COLORS))))
    return lines


def _points(entry: Entry, key: str) -> list[tuple[float, list[float]]]:
    """Return the updates at which all seeds measured something, and the values."""
    tables = []
    for record in entry.records:
        name = next((name for name in record.curve if name == key or name.endswith(f"_{key}")), None)
        pairs = zip(record.curve["update"], record.curve[name] if name else (), strict=False)
        tables.append({update: value for update, value in pairs if update is not None and value is not None})
    shared = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
    return [(update, [table[update] for table in tables]) for update in shared]


def _figure(title: str, x: str, y: str, lines: Sequence[tuple[str, Line]], note: str = "") -> list[Figure]:
    """Return a chart, or nothing if there are no lines. Errors have a logarithmic axis unless one of them is zero."""
    if not lines:
        return []
    drawn = [line for _, line in lines]
    log = "error" in y and all(value > 0 for line in drawn for value in line.y)
    bands = "Bands: one standard deviation over seeds." if any(line.low for line in drawn) else ""
    return [chart(drawn, title, x, y, log=log, note=" ".join(part for part in (note, bands) if part))]
