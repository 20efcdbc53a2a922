"""The page: one file, nothing loaded from anywhere, every text escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import advdrop
from advdrop.report.collect import Results
from advdrop.report.figures import figures
from advdrop.report.records import Record
from advdrop.report.verdicts import verdicts

TEMPLATE = Path(__file__).with_name("page.html")


def page(results: Sequence[Results], title: str = "Adversarial dropout: results") -> str:
    """The whole page."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        title=title,
        results=results,
        count=sum(len(table.records) for table in results),
        version=advdrop.__version__,
        anchor=anchor,
        any_gap=any_gap,
        any_paper=any_paper,
        best=best,
        details=details,
        drawn=figures,
        has_paper=has_paper,
        measured=measured,
        p=p_value,
        verdicts=verdicts,
    )


def anchor(record: Record) -> str:
    """The name of the place of a record in the page."""
    return re.sub(r"[^\w.+-]+", "-", f"record-{record.name}-{record.digest[:8]}")


def best(results: Results, column: str) -> list[str]:
    """The rows with the lowest mean of a column, to the two digits that are shown."""
    means = {
        row: round(entry.summary.mean, 2)
        for (row, place), entry in results.entries.items()
        if place == column and entry.summary is not None
    }
    return [row for row, mean in means.items() if mean == min(means.values())] if len(means) > 1 else []


def has_paper(results: Results, column: str) -> bool:
    """Whether the paper has numbers for a column."""
    return any(entry.reported for (_, place), entry in results.entries.items() if place == column)


def any_paper(results: Results) -> bool:
    """Whether the paper has numbers for the table."""
    return any(has_paper(results, column) for column in results.columns)


def any_gap(results: Results) -> bool:
    """Whether there is a number of ours beside one of the paper's."""
    return any(entry.gap for entry in results.entries.values())


def measured(results: Results, row: str) -> bool:
    """Whether a row was run."""
    return any(entry.records for (name, _), entry in results.entries.items() if name == row)


def details(record: Record) -> str:
    """A record as its file has it."""
    return record.dump() if record.digest else json.dumps(record.model_dump(mode="json"), indent=1)


def p_value(value: float | None) -> str:
    """A p-value.

    >>> p_value(0.0312), p_value(0.00001), p_value(None)
    ('0.031', '< 0.001', '–')
    """
    if value is None:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
