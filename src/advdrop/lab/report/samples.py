"""Pictures that the generators of a table's methods made, one sheet for each row: that of its first seed."""

from __future__ import annotations

from html import escape

from advdrop.lab.report.charts import Figure
from advdrop.lab.report.results import Results

NOTE = "Random samples, not chosen: the first 32 that the generator makes of fixed random numbers, in 64 colors."


def sample_figures(results: Results) -> list[Figure]:
    """Return a figure for each cell whose first record has samples."""
    found = []
    for (row, column), entry in results.entries.items():
        if entry.records and (picture := entry.records[0].samples):
            suite = results.suite
            title = f"Generated pictures: {suite.rows[row].name}, {suite.columns[column].name}"
            found.append(Figure(title, sheet(title, picture), f"{title}, seed {entry.records[0].seed}. {NOTE}"))
    return found


def sheet(title: str, picture: str) -> str:
    """Return the base64 of a PNG file as a drawing: eight pictures in a row, four rows."""
    image = f'<image width="320" height="160" href="data:image/png;base64,{escape(picture)}"/>'
    name = escape(title)
    return f'<svg viewBox="0 0 320 160" role="img" aria-label="{name}"><title>{name}</title>{image}</svg>'
