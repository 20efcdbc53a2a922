"""A table of results, or a study, as sections that every format can show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from advdrop.lab.report.collect import Comparison, Entry, Results, choices
from advdrop.lab.report.statistics import p_value
from advdrop.lab.report.studies import Study
from advdrop.lab.report.tables import Cell, Table
from advdrop.lab.report.verdicts import gaps, sentences, verdicts


class Section(NamedTuple):
    """A part of a report; the first one has no heading."""

    heading: str
    table: Table | None = None
    lines: Sequence[str] = ()
    commands: Sequence[str] = ()
    note: str = ""  # how to read the table


SEEDS = "n is the number of seeds; each seed in brackets leads to its record."
VERSUS = (
    "Differences with 95 % intervals. The p-values are those of the paired t-test, of the same after Holm's correction "
    "for all rows of a column, and of Wilcoxon's signed-rank test. d is the mean difference in standard deviations. "
    "The last column has the smallest difference that so many seeds show with a probability of 80 %."
)
COST = (
    "An update of one method costs several of another. “At equal cost” is the error when the training had cost as much "
    "as the whole training of the cheapest row. The schedules of the other rows had not ended by then."
)


def sections(results: Results) -> list[Section]:
    """Return the parts of a table of results; a part that would be empty is left out."""
    printed = ""
    if any(results.has_paper(column) for column in results.columns):
        printed = f"Bold as in the paper ({results.suite.source}; {results.suite.repeats} runs a number). "
    different: list[list[str | Cell]] = [[Cell(key, "code"), here, there] for key, here, there in results.deviations]
    found = [
        Section("", error_table(results), note=f"{printed}Marked: the lowest mean here. {SEEDS}"),
        Section("Beside the paper", lines=gaps(results)),
        *(Section(heading, lines=lines) for heading, lines in verdicts(results).items()),
        Section("Method against method, seed by seed", comparison_table(results), sentences(results), note=VERSUS),
        Section("At equal cost", cost_table(results), note=COST),
        Section("What differs from the paper", Table(["choice", "here", "paper"], different)),
        Section("Run it again", commands=[results.command(row) for row in results.measured]),
    ]
    return [part for part in found if part.lines or part.commands or (part.table and part.table.rows)]


def study_sections(study: Study) -> list[Section]:
    """Return the parts of a study."""
    claims = [[claim.text, claim.verdict, claim.numbers] for claim in study.claims]
    found = [
        Section("", Table(study.head, study.rows)),
        Section("The paper's claims", Table(["claim", "here", "numbers"], claims)),
        Section("Run it again", commands=study.commands),
    ]
    return [part for part in found if part.commands or (part.table and part.table.rows)]


def error_table(results: Results) -> Table:
    """Return the paper's numbers and ours."""
    suite, head = results.suite, ["Method"]
    for column, about in suite.columns.items():
        head += [f"{about.name}: paper", "here", "n"] if results.has_paper(column) else [f"{about.name}: here", "n"]
    rows = []
    for key, row in suite.rows.items():
        cells = [Cell(f"{row.name} (quoted)", "soft", hint=row.quoted) if row.quoted else Cell(row.name)]
        for column in suite.columns:
            entry = results.entries[key, column]
            if results.has_paper(column):
                bold = entry.reported is not None and entry.reported.bold
                cells.append(Cell(str(entry.reported or "–"), "bold" if bold else ""))
            cells += _ours(entry, row.method is not None, key in results.best(column))
        rows.append(cells)
    return Table(head, rows)


def _ours(entry: Entry, trained: bool, best: bool) -> list[Cell]:
    """Return our number, or that it was not run, and the number of seeds."""
    if entry.summary is None:
        return [Cell("not run" if trained else "", "soft"), Cell("")]
    text = entry.summary.text()
    seeds = [(str(record.seed), record) for record in entry.records]
    return [
        Cell(text, "best" if best else "", links=[(text, entry.records[0])]),
        Cell(str(len(seeds)), "listed", links=seeds),
    ]


def comparison_table(results: Results) -> Table:
    """Return the paired comparisons."""
    head = ["comparison", "difference", "n", "t: p", "Holm", "Wilcoxon", "d", "visible from"]
    return Table(head, [_compared(results, comparison) for comparison in results.comparisons])


def _compared(results: Results, comparison: Comparison) -> list[str]:
    found, names = comparison.found, results.suite.rows
    where = f", {results.suite.columns[comparison.column].name}" if len(results.columns) > 1 else ""
    margin = found.difference.margin
    return [
        f"{names[comparison.one].name} – {names[comparison.other].name}{where}",
        f"{found.difference.mean:+.2f}" + ("" if margin is None else f" ± {margin:.2f}"),
        str(found.n),
        *map(p_value, (found.t_p, comparison.holm_p, found.wilcoxon_p)),
        "–" if found.effect is None else f"{found.effect:+.1f}",
        "–" if found.detectable is None else f"{found.detectable:.2f}",
    ]


def cost_table(results: Results) -> Table:
    """Return the errors at equal updates and at equal cost."""
    head = ["method"]
    for column in results.columns:
        head += [f"{results.suite.columns[column].name}: ms an update", "at equal updates", "at equal cost"]
    rows = []
    for row in results.measured:
        costs = [_costs(results.entries[row, column]) for column in results.columns]
        rows.append([results.suite.rows[row].name, *(cell for cells in costs for cell in cells)])
    return Table(head, rows)


def _costs(entry: Entry) -> list[str]:
    if entry.summary is None:
        return ["", "", ""]
    equal = "–" if entry.equal_cost is None else f"{entry.equal_cost:.2f}"
    return [f"{entry.milliseconds:.0f}", f"{entry.summary.mean:.2f}", equal]


def configuration_table(results: Results, row: str) -> Table:
    """Return every choice of a row's first run, with the paper's where it differs."""
    rows: list[list[str | Cell]] = []
    for key, here, there in choices(results.of_row(row)[0], results.suite):
        differs = here != there
        rows.append([Cell(key, "code"), Cell(here, "best" if differs else ""), there if differs else ""])
    return Table(["choice", "here", "paper"], rows)
