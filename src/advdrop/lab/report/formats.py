"""Whole reports as Markdown, CSV, JSON and LaTeX."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from advdrop.lab.records.record import Record
from advdrop.lab.report import tables
from advdrop.lab.report.collect import Entry, Results
from advdrop.lab.report.html import page
from advdrop.lab.report.sections import Section, error_table, sections, study_sections
from advdrop.lab.report.studies import Study
from advdrop.lab.report.tables import Table, plain

COLUMNS = [
    *("suite", "protocol", "preset", "column", "row", "method", "dataset", "labels", "seed", "updates"),
    *("test_error_percent", "milliseconds_per_update", "commit", "digest"),
]
"""The fields of a record in CSV."""


def main_table(results: Results) -> str:
    """Return the paper's numbers and ours in Markdown."""
    return tables.markdown(error_table(results))


def markdown(results: Sequence[Results], studies: Sequence[Study] = ()) -> str:
    """Return everything but the figures and the records."""
    parts = []
    for found in results:
        about = found.suite.protocols[found.protocol].about
        parts += [f"## {plain(found.suite.title)}", plain(found.suite.about)]
        parts += [f"Protocol `{found.protocol}`: {plain(about)}.", *map(_section, sections(found))]
    for study in studies:
        first, *others = map(_section, study_sections(study))
        parts += [f"## {plain(study.title)}", plain(study.about), first, *map(plain, study.notes), *others]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(section: Section) -> str:
    parts = [f"### {section.heading}" if section.heading else ""]
    parts += [tables.markdown(section.table)] if section.table else []
    parts += ["\n".join(f"- {plain(line)}." for line in section.lines)]
    parts += ["```\n" + "\n".join(section.commands) + "\n```"] if section.commands else []
    return "\n\n".join(part for part in parts if part)


def as_csv(results: Sequence[Results], studies: Sequence[Study] = ()) -> str:
    """Return a line for each record. The measurements of studies have other columns, and are left out."""
    del studies
    fields = [[getattr(record, name) for name in COLUMNS] for record in _records(results)]
    rows = [["" if value is None else str(value) for value in row] for row in fields]
    return tables.comma_separated(Table(COLUMNS, rows))


def latex(results: Sequence[Results], studies: Sequence[Study] = ()) -> str:
    """Return a tabular for each table of results and for each study."""
    made = [(f"{found.suite.title}, protocol {found.protocol}", error_table(found)) for found in results]
    made += [(study.title, Table(study.head, study.rows)) for study in studies]
    return "\n".join(f"% {' '.join(title.split())}\n{tables.latex(table)}\n" for title, table in made)


def as_json(results: Sequence[Results], studies: Sequence[Study] = ()) -> str:
    """Return the tables and the comparisons as numbers, the claims, and the records that they are made of."""
    values = {
        "results": [_numbers(found) for found in results],
        "studies": [
            {
                "title": study.title,
                "table": tables.by_name(Table(study.head, study.rows)),
                "claims": [asdict(claim) for claim in study.claims],
            }
            for study in studies
        ],
        "records": [record.model_dump(mode="json") for record in _records(results)],
        "measurements": [
            each.model_dump(mode="json", exclude={"picture"}) for study in studies for each in study.measurements
        ],
    }
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def _numbers(results: Results) -> dict[str, Any]:
    return {
        "suite": results.suite.key,
        "protocol": results.protocol,
        "preset": results.preset,
        "cells": [{"row": row, "column": column, **_cell(entry)} for (row, column), entry in results.entries.items()],
        "comparisons": [
            {"column": c.column, "one": c.one, "other": c.other, "holm_p": c.holm_p}
            | asdict(c.found)
            | {"difference": c.found.difference.mean, "margin": c.found.difference.margin}
            for c in results.comparisons
        ],
        "deviations": [choice._asdict() for choice in results.deviations],
    }


def _cell(entry: Entry) -> dict[str, Any]:
    return {
        "paper": entry.reported._asdict() if entry.reported else None,
        "here": entry.summary._asdict() if entry.summary else None,
        "gap": entry.gap._asdict() if entry.gap else None,
        "equal_cost": entry.equal_cost,
        "records": [record.digest for record in entry.records],
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
