"""Whole reports: the page, Markdown, CSV, JSON and LaTeX."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import advdrop
from advdrop.lab.records.measurement import Measurement
from advdrop.lab.records.record import Record
from advdrop.lab.report import tables
from advdrop.lab.report.answer import answer_in_words, counts, question
from advdrop.lab.report.charts import STYLE, Figure
from advdrop.lab.report.commands import more_seeds
from advdrop.lab.report.figures import confusion_figure, figures, overviews
from advdrop.lab.report.results import LOOSE, Results
from advdrop.lab.report.sections import (
    MATRIX,
    Table,
    configuration_table,
    confusions,
    error_table,
    in_words,
    sections,
)
from advdrop.lab.report.studies import Study, study_sections
from advdrop.lab.report.tables import plain
from advdrop.lab.report.text_table import visible
from advdrop.lab.report.verdict import seed_lines

COLUMNS = [
    *("suite", "protocol", "preset", "column", "row", "method", "dataset", "labels", "seed", "updates"),
    *("test_error_percent", "milliseconds_per_update", "commit", "digest"),
]
"""The fields of a record in CSV."""
MARKER = '<meta name="generator" content="advdrop">'
"""A line of every page that this program wrote. A page without it is not replaced."""


def page(results: Sequence[Results], studies: Sequence[Study] = (), title: str | None = None) -> str:
    """Return one HTML file that loads nothing, with every text escaped: the tables, then the studies.

    The title of a page with one table is the question that the table answers.
    """
    alone = len(results) == 1 and not studies
    return _rendered(
        "page.html",
        autoescape=True,
        title=title or (question(results[0]) if alone else "Adversarial dropout: results"),
        alone=alone,
        results=results,
        studies=studies,
        marker=MARKER,
        style=STYLE.read_text(encoding="utf-8"),
        count=sum(len(table.records) for table in results) + sum(len(study.measurements) for study in studies),
        version=advdrop.__version__,
        anchor=anchor,
        details=details,
        question=question,
        answered=answered,
        counts=counts,
        loose=LOOSE,
        one_seed=one_seed,
        seeds=seeds,
        more_seeds=more_seeds,
        confusion=confusion_figure,
        confusions=confusions,
        matrix=MATRIX,
        configuration=configuration_table,
        overviews=overviews,
        figures=figures,
    )


def answered(results: Results) -> list[str]:
    """Return the sentences above a table."""
    if results.suite.key != LOOSE:
        return in_words(results)[:1]
    return [text for text in [answer_in_words(results)] if text]


def seeds(results: Results) -> list[Figure]:
    """Return a figure for each column in which rows are compared with several seeds."""
    drawn = [seed_lines(results, column) for column in results.columns]
    return [figure for figure in drawn if figure]


def one_seed(results: Results) -> bool:
    """Return True if a row has a single seed."""
    return any(len(entry.records) == 1 for entry in results.entries.values())


def markdown(results: Sequence[Results], studies: Sequence[Study] = ()) -> str:
    """Return everything but the figures and the records."""
    text = _rendered(
        "page.md",
        autoescape=False,
        results=results,
        studies=studies,
        plain=plain,
        table=tables.markdown,
        answer_in_words=answer_in_words,
        loose=LOOSE,
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _rendered(template: str, *, autoescape: bool, **values: Any) -> str:
    from jinja2 import Environment, StrictUndefined

    options: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(autoescape=autoescape, finalize=_shown, **options)
    text = Path(__file__).with_name(template).read_text(encoding="utf-8")
    return environment.from_string(text).render(sections=sections, study_sections=study_sections, **values)


def _shown(value: Any) -> Any:
    """Return what is visible of a text; the markup of a template stays as it is."""
    return visible(value) if type(value) is str else value


def anchor(record: Record | Measurement) -> str:
    """Return the id of a record in the page."""
    return re.sub(r"[^\w.+-]+", "-", f"record-{record.name}-{record.digest[:8]}")


def details(record: Record | Measurement) -> str:
    """Return a record as in its file, without the pixels of a picture."""
    if isinstance(record, Measurement) and record.picture:
        record = record.model_copy(update={"picture": f"({len(record.picture)} characters)"})
    if isinstance(record, Record) and record.samples:
        record = record.model_copy(update={"samples": f"({len(record.samples)} characters)"})
    return record.dump()


def main_table(results: Results) -> str:
    """Return the paper's numbers and ours in Markdown."""
    return tables.markdown(error_table(results))


def as_csv(results: Sequence[Results], _: Sequence[Study] = ()) -> str:
    """Return a line for each record. The measurements of studies have other columns, and are left out."""
    fields = [[getattr(record, name) for name in COLUMNS] for record in _records(results)]
    rows = [["" if value is None else str(value) for value in row] for row in fields]
    return tables.comma_separated(Table(COLUMNS, rows))


def latex(results: Sequence[Results], studies: Sequence[Study] = ()) -> str:
    """Return a tabular for each table of results and for each study."""
    made = [(f"{found.suite.title}, protocol {found.protocol}", error_table(found)) for found in results]
    made += [(study.title, Table(study.head, study.rows)) for study in studies]
    return "\n".join(f"% {tables.escaped(title)}\n{tables.latex(table)}\n" for title, table in made)


def as_json(results: Sequence[Results], studies: Sequence[Study] = ()) -> str:
    """Return the tables and the comparisons as numbers, the claims, and the records that they are made of."""
    values = {
        "results": [_numbers(found) for found in results],
        "studies": [
            {
                "title": study.title,
                "table": [dict(zip(study.head, row, strict=True)) for row in study.rows],
                "claims": [asdict(claim) for claim in study.claims],
            }
            for study in studies
        ],
        "records": [record.model_dump(mode="json") for record in _records(results)],
        "measurements": [
            each.model_dump(mode="json", exclude={"picture"}) for study in studies for each in study.measurements
        ],
    }
    return json.dumps(values, indent=1).replace("<", r"\u003c") + "\n"


def _numbers(results: Results) -> dict[str, Any]:
    cells = []
    for (row, column), entry in results.entries.items():
        shown = {"paper": entry.reported, "here": entry.summary, "gap": entry.gap}
        known = {name: value._asdict() if value else None for name, value in shown.items()}
        digests = [record.digest for record in entry.records]
        cells.append({"row": row, "column": column, **known, "equal_cost": entry.equal_cost, "records": digests})
    compared = []
    for column, one, other, found, holm_p in results.comparisons:
        difference = {"difference": found.difference.mean, "margin": found.difference.margin}
        compared.append({"column": column, "one": one, "other": other, "holm_p": holm_p, **asdict(found), **difference})
    return {
        "suite": results.suite.key,
        "protocol": results.protocol,
        "preset": results.preset,
        "cells": cells,
        "comparisons": compared,
        "deviations": [each._asdict() for each in results.deviations],
    }


def _records(results: Sequence[Results]) -> list[Record]:
    return [record for found in results for record in found.records]


FORMATS: dict[str, Callable[[Sequence[Results], Sequence[Study]], str]] = {
    "html": page,
    "markdown": markdown,
    "csv": as_csv,
    "json": as_json,
    "latex": latex,
}
