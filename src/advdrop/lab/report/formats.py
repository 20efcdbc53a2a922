"""The same results as Markdown, CSV, JSON and LaTeX."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from advdrop.lab.records.record import Record
from advdrop.lab.report.collect import Comparison, Entry, Results
from advdrop.lab.report.html import page
from advdrop.lab.report.studies import Study
from advdrop.lab.report.text_table import table
from advdrop.lab.report.verdicts import gaps, p_value, sentences, verdicts

COLUMNS = (
    "suite",
    "protocol",
    "preset",
    "column",
    "row",
    "method",
    "dataset",
    "labels",
    "seed",
    "updates",
    "test_error_percent",
    "milliseconds_per_update",
    "commit",
    "digest",
)


def markdown(results: Sequence[Results], studies: Sequence[Study] = ()) -> str:
    """Tables, differences in words, comparisons, what differs from the paper, and the commands."""
    parts = [part for found in results for part in _markdown(found)]
    return "\n\n".join([*parts, *(part for study in studies for part in _study(study))]) + "\n"


def _study(study: Study) -> list[str]:
    parts = [f"## {_plain(study.title)}", _plain(study.about), table(study.head, study.rows)]
    parts += [_plain(note) for note in study.notes]
    if study.claims:
        rows = [[_plain(claim.text), claim.verdict, _plain(claim.numbers)] for claim in study.claims]
        parts += ["### The paper's claims", table(["claim", "here", "numbers"], rows)]
    return [*parts, "### Run it again", "```\n" + "\n".join(study.commands) + "\n```"]


def _markdown(results: Results) -> list[str]:
    suite, protocol = results.suite, results.suite.protocols[results.protocol]
    parts = [f"## {_plain(suite.title)}", _plain(suite.about)]
    parts.append(f"Protocol `{results.protocol}`: {_plain(protocol.about)}.")
    parts.append(main_table(results))
    if gaps(results):
        parts += ["### Beside the paper", "\n".join(f"- {_plain(line)}." for line in gaps(results))]
    for heading, lines in verdicts(results).named:
        parts += [f"### {heading}", "\n".join(f"- {_plain(line)}." for line in lines)]
    if results.comparisons:
        notes = [f"- {_plain(line)}." for line in sentences(results)]
        parts += ["### Method against method, seed by seed", comparison_table(results), "\n".join(notes)]
    parts += ["### At equal cost", cost_table(results)]
    if results.deviations:
        rows = [[f"`{key}`", _plain(here), _plain(there)] for key, here, there in results.deviations]
        parts += ["### What differs from the paper", table(["choice", "here", "paper"], rows)]
    commands = [results.command(row) for row in results.measured]
    parts += ["### Run it again", "```\n" + "\n".join(commands) + "\n```"]
    return [part for part in parts if part]


def main_table(results: Results) -> str:
    """The paper's numbers and ours."""
    suite, head = results.suite, ["Method"]
    for column in suite.columns:
        name = _plain(suite.columns[column].name)
        head += [f"{name}: paper", "here", "n"] if results.has_paper(column) else [f"{name}: here", "n"]
    rows = []
    for key, row in suite.rows.items():
        cells = [_plain(row.name) + (" (quoted)" if row.quoted else "")]
        for column in suite.columns:
            entry = results.entries[key, column]
            if results.has_paper(column):
                cells.append(_bold(str(entry.reported or "–"), bool(entry.reported and entry.reported.bold)))
            cells += [ours(entry, row.method is not None), str(len(entry.records) or "")]
        rows.append(cells)
    return table(head, rows)


def ours(entry: Entry, trained: bool) -> str:
    """Our number, or that it was not run."""
    return str(entry.summary) if entry.summary else ("not run" if trained else "")


def comparison_table(results: Results) -> str:
    """Paired comparisons."""
    head = ["comparison", "difference", "n", "t: p", "Holm", "Wilcoxon", "d", "visible from"]
    rows = []
    for comparison in results.comparisons:
        found, margin = comparison.found, comparison.found.difference.margin
        rows.append(
            [
                _plain(_versus(results, comparison)),
                f"{found.difference.mean:+.2f}" + ("" if margin is None else f" ± {margin:.2f}"),
                str(found.n),
                p_value(found.t_p),
                p_value(comparison.holm_p),
                p_value(found.wilcoxon_p),
                "–" if found.effect is None else f"{found.effect:+.1f}",
                "–" if found.detectable is None else f"{found.detectable:.2f}",
            ]
        )
    return table(head, rows)


def cost_table(results: Results) -> str:
    """Error at equal updates and at equal cost."""
    head = ["method"]
    for column in results.columns:
        head += [f"{_plain(results.suite.columns[column].name)}: ms an update", "at equal updates", "at equal cost"]
    rows = []
    for row in results.measured:
        costs = [_costs(results.entries[row, column]) for column in results.columns]
        rows.append([_plain(results.suite.rows[row].name), *(cell for cells in costs for cell in cells)])
    return table(head, rows)


def _costs(entry: Entry) -> list[str]:
    if entry.summary is None:
        return ["", "", ""]
    equal = "–" if entry.equal_cost is None else f"{entry.equal_cost:.2f}"
    return [f"{entry.milliseconds:.0f}", f"{entry.summary.mean:.2f}", equal]


def as_csv(results: Sequence[Results], studies: Sequence[Study] = ()) -> str:
    """A line for each record; the measurements of studies have other columns, and are left out."""
    del studies
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for record in _records(results):
        writer.writerow([getattr(record, name) for name in COLUMNS])
    return text.getvalue()


def as_json(results: Sequence[Results], studies: Sequence[Study] = ()) -> str:
    """The tables and the comparisons as numbers, the claims, and the records that they are made of."""
    found = []
    for one in results:
        cells = [
            {
                "row": row,
                "column": column,
                "paper": entry.reported._asdict() if entry.reported else None,
                "here": entry.summary._asdict() if entry.summary else None,
                "gap": entry.gap._asdict() if entry.gap else None,
                "equal_cost": entry.equal_cost,
                "records": [record.digest for record in entry.records],
            }
            for (row, column), entry in one.entries.items()
        ]
        compared = [
            {"column": c.column, "one": c.one, "other": c.other, "holm_p": c.holm_p, **_numbers(c)}
            for c in one.comparisons
        ]
        found.append(
            {
                "suite": one.suite.key,
                "protocol": one.protocol,
                "preset": one.preset,
                "cells": cells,
                "comparisons": compared,
                "deviations": [choice._asdict() for choice in one.deviations],
            }
        )
    records = [record.model_dump(mode="json") for record in _records(results)]
    judged = [{"title": study.title, "claims": [asdict(claim) for claim in study.claims]} for study in studies]
    measured = [each.model_dump(mode="json", exclude={"picture"}) for study in studies for each in study.measurements]
    values = {"results": found, "studies": judged, "records": records, "measurements": measured}
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def _numbers(comparison: Comparison) -> dict[str, Any]:
    found = comparison.found
    return {
        "n": found.n,
        "difference": found.difference.mean,
        "margin": found.difference.margin,
        "t_p": found.t_p,
        "wilcoxon_p": found.wilcoxon_p,
        "effect": found.effect,
        "detectable": found.detectable,
    }


def latex(results: Sequence[Results], studies: Sequence[Study] = ()) -> str:
    """A tabular for each table, bold as in the paper, ours bold where the mean is the lowest; one for each study."""
    return "\n".join([*(_latex(found) for found in results), *(_latex_study(study) for study in studies)])


def _latex_study(study: Study) -> str:
    lines = [f"% {' '.join(study.title.split())}", f"\\begin{{tabular}}{{l{'r' * (len(study.head) - 1)}}}", r"\hline"]
    rows = [" & ".join(_strong(escaped(cell), False) for cell in row) + r" \\" for row in (study.head, *study.rows)]
    return "\n".join([*lines, rows[0], r"\hline", *rows[1:], r"\hline", r"\end{tabular}", ""])


def _latex(results: Results) -> str:
    suite, columns = results.suite, list(results.suite.columns)
    head, layout = ["Method"], "l"
    for column in columns:
        name = escaped(suite.columns[column].name)
        head += [f"{name}, paper", "here"] if results.has_paper(column) else [f"{name}, here"]
        layout += "rr" if results.has_paper(column) else "r"
    lines = [
        f"% {' '.join(suite.title.split())}, protocol {results.protocol}",
        f"\\begin{{tabular}}{{{layout}}}",
        "\\hline",
    ]
    lines += [" & ".join(head) + r" \\", r"\hline"]
    for key, row in suite.rows.items():
        cells = [escaped(row.name)]
        for column in columns:
            entry = results.entries[key, column]
            if results.has_paper(column):
                cells.append(_strong(str(entry.reported or "--"), bool(entry.reported and entry.reported.bold)))
            cells.append(_strong(ours(entry, row.method is not None), key in results.best(column)))
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}", ""])


LATEX = {letter: f"\\{letter}" for letter in "&%_#${}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "Π": r"$\Pi$",
    "δ": r"$\delta$",
    "λ": r"$\lambda$",
    "‖": r"$\|$",
    "₁": r"$_1$",
    "₂": r"$_2$",
}


def escaped(text: str) -> str:
    r"""A text for LaTeX.

    >>> escaped("Π model, 5 %")
    '$\\Pi$ model, 5 \\%'
    """
    return "".join(LATEX.get(letter, letter) for letter in " ".join(text.split()))


def _plain(text: str) -> str:
    """A text for Markdown: one line, no markup of HTML, and no end of a cell."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", r"\|")


def _strong(text: str, bold: bool) -> str:
    shown = text.replace("±", r"$\pm$")
    return rf"\textbf{{{shown}}}" if bold else shown


def _bold(text: str, bold: bool) -> str:
    return f"**{text}**" if bold else text


def _versus(results: Results, comparison: Comparison) -> str:
    names = results.suite.rows
    where = f", {results.suite.columns[comparison.column].name}" if len(results.columns) > 1 else ""
    return f"{names[comparison.one].name} – {names[comparison.other].name}{where}"


def _records(results: Sequence[Results]) -> list[Record]:
    return [record for found in results for record in found.records]


FORMATS: dict[str, Callable[[Sequence[Results], Sequence[Study]], str]] = {
    "html": page,
    "markdown": markdown,
    "csv": as_csv,
    "json": as_json,
    "latex": latex,
}
