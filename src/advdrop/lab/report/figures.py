"""The curves of a table: error over updates and over cost, and what the mask search did."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from advdrop.lab.records.record import ERROR
from advdrop.lab.report.collect import Entry, Results
from advdrop.lab.report.svg import Figure, Line, chart


def figures(results: Results) -> list[Figure]:
    """All figures of a table; a chart with nothing in it is left out."""
    found = []
    for column in results.columns:
        about = results.suite.columns[column].name
        errors = curves(results, column, ERROR)
        found.append(_figure(f"Test error, {about}", "updates", "test error %", errors, log=True))
        spent = [_rescaled(line, results.entries[row, column].milliseconds / 60_000) for row, line in errors]
        costs = [(row, line) for (row, _), line in zip(errors, spent, strict=True)]
        title, note = f"Test error against training cost, {about}", "Minutes of training on the machine of the record."
        found.append(_figure(title, "minutes of training", "test error %", costs, log=True, note=note))
        for key, label in (("flips", "flipped units"), ("budget_share", "share of the budget")):
            title = f"{label.capitalize()} over time, {about}"
            found.append(_figure(title, "updates", label, curves(results, column, key)))
    return [figure for figure in found if figure is not None]


def curves(results: Results, column: str, key: str) -> list[tuple[str, Line]]:
    """A line for each row that measured something: the mean over seeds, and a band of a standard deviation."""
    lines = []
    for place, row in enumerate(results.suite.trained):
        entry = results.entries[row, column]
        points = _points(entry, key)
        if points:
            x = [update for update, _ in points]
            means = [fmean(values) for _, values in points]
            spread = [stdev(values) if len(values) > 1 else 0.0 for _, values in points]
            low = [mean - by for mean, by in zip(means, spread, strict=True)] if any(spread) else []
            high = [mean + by for mean, by in zip(means, spread, strict=True)] if any(spread) else []
            lines.append((row, Line(results.suite.rows[row].name, x, means, low, high, place % 10)))
    return lines


def _points(entry: Entry, key: str) -> list[tuple[float, list[float]]]:
    """Updates at which all seeds measured something, and what."""
    tables = []
    for record in entry.records:
        name = next((name for name in record.curve if name == key or name.endswith(f"_{key}")), None)
        pairs = zip(record.curve["update"], record.curve[name] if name else (), strict=False)
        tables.append({update: value for update, value in pairs if update is not None and value is not None})
    shared = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
    return [(update, [table[update] for table in tables]) for update in shared]


def _rescaled(line: Line, factor: float) -> Line:
    return Line(line.name, [x * factor for x in line.x], line.y, line.low, line.high, line.style)


def _figure(
    title: str, x: str, y: str, lines: Sequence[tuple[str, Line]], log: bool = False, note: str = ""
) -> Figure | None:
    if not lines:
        return None
    drawn = [line for _, line in lines]
    log = log and all(value > 0 for line in drawn for value in line.y)
    band = "Bands: one standard deviation over seeds." if any(line.low for line in drawn) else ""
    legend = [(line.name, line.style) for line in drawn]
    return Figure(title, chart(drawn, title, x, y, log), legend, " ".join(part for part in (note, band) if part))
