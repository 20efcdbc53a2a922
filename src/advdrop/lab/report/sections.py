"""A table of results as sections without a format: tables, sentences, verdicts and commands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from advdrop.lab.records.record import Record
from advdrop.lab.report.answer import Answer
from advdrop.lab.report.commands import run_again
from advdrop.lab.report.deviations import choices
from advdrop.lab.report.results import LOOSE, Entry, Results
from advdrop.lab.report.statistics import Agreement, judged, numbers, p_text, p_value, signed

HELD, REVERSED, UNKNOWN = "What held", "What was the other way around", "What is not known yet"
LOWER, HIGHER, UNDECIDED = "Shown to be lower", "Shown to be higher", "What these seeds do not decide"
SEEDS = "n is the number of seeds; each seed in brackets leads to its record."
OWN = "Each seed in brackets leads to its record."
VERSUS = (
    "Differences with 95 % intervals. The p-values are those of the paired t-test, of the same after Holm's correction "
    "for all rows of a column, and of Wilcoxon's signed-rank test. d is the mean difference in standard deviations. "
    "The last column has the smallest difference that this number of seeds shows with a probability of 80 %."
)
COST = (
    "One update of a method can cost as much as several of another. “At equal cost” is the error when the training had "
    "cost as much as the whole training of the cheapest row. The schedules of the other rows had not ended by then. "
    "The time of an update is that of the fastest stretch between two evaluations in the runs of a row: other programs "
    "on the machine can only make a run slower. Stretches in which a method could not yet use unlabeled images do not "
    "count there. Nor do runs on other machines than the one on which most methods were run."
)
TAU = "Kendall's τ is 1 for the same order and -1 for the reverse."
MATRIX = 12
"""The number of classes up to which a confusion matrix is drawn. With more, the most frequent mistakes are listed."""
LISTED = 10


class Cell(NamedTuple):
    """A text and how it is shown.

    It is ``bold`` as in the paper, the ``best`` of a column, ``code``, or ``soft`` if it is no result. HTML shows the
    links of a cell that is ``listed`` after its text.
    """

    text: str
    kind: Literal["", "bold", "best", "code", "soft", "listed"] = ""
    links: Sequence[tuple[str, Record]] = ()  # HTML shows these links to records instead of the text
    hint: str = ""  # what HTML shows when the pointer is on the cell


@dataclass(frozen=True)
class Table:
    """The names of the columns, and the rows; the first cell of a row is its name."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]

    @property
    def cells(self) -> list[list[Cell]]:
        """The rows without the head."""
        return [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in self.rows]

    @property
    def without_dashes(self) -> Table:
        """The table without columns that are all dashes and empty cells; without rows if only names are left."""
        kept = [
            place
            for place in range(len(self.head))
            if place == 0 or any(row[place].text not in ("–", "") for row in self.cells)
        ]
        rows = [[row[place] for place in kept] for row in self.rows] if len(kept) > 1 else []
        return replace(self, head=[self.head[place] for place in kept], rows=rows)


class Section(NamedTuple):
    """A part of a report; the first one has no heading."""

    heading: str
    table: Table | None = None
    lines: Sequence[str] = ()
    commands: Sequence[str] = ()
    note: str = ""  # how to read the table
    folded: bool = True  # whether the page shows it only when the reader opens the statistics


def sections(results: Results) -> list[Section]:
    """Return the parts of a table of results; a part that would be empty is left out."""
    printed = ""
    if any(results.has_paper(column) for column in results.columns):
        printed = f"Bold as in the paper ({results.suite.source}; {results.suite.repeats} runs a number). "
    costs = cost_table(results)
    verdict = [Section("Beside the paper", lines=gaps(results), folded=False)]
    if results.only_order:
        heading = "The order of the rows, beside the paper"
        verdict = [Section(heading, order_table(results), orders(results), note=TAU, folded=False)]
    verdict += [Section(heading, lines=lines, folded=False) for heading, lines in verdicts(results).items()]
    marked = "Marked: the lowest mean here. " if any(map(results.best, results.columns)) else ""
    note = f"{printed}{marked}{SEEDS}"
    if results.suite.key == LOOSE:  # no paper, and so no claims to judge
        verdict, note = [], f"{marked}{OWN}"
    compared = comparison_table(results).without_dashes
    found = [
        Section("", error_table(results), note=note, folded=False),
        *verdict,
        Section("Method against method, seed by seed", compared, note=VERSUS),
        Section("At equal cost", costs, note=COST),
        Section("What was not run, and why", lines=reasons(results)),
        Section("What differs from the paper", deviation_table(results)),
        Section("Run it again", commands=run_again(results)),
    ]
    return [part for part in found if part.lines or part.commands or (part.table and part.table.rows)]


def in_words(results: Results) -> list[str]:
    """Return sentences: the first comparison, the number of verdicts, and the distance to the paper."""
    if not results.comparisons:
        return []
    column, one, other, found, p = results.comparisons[0]
    names, where, chance = results.suite.rows, results.suite.columns[column].name, judged(found, p) == "unknown"
    difference = found.difference.words(f"that of {names[other].name}", chance)
    first = f"With {where}, the test error of {names[one].name} is {difference}"
    if found.detectable is not None and chance:
        first += f": {_missed(found.n, found.detectable)}"
    said = verdicts(results)
    held, turned, unknown = (said.get(heading, []) for heading in headings(results).values())
    words = [
        f"{first}.",
        f"Of {len(held) + len(turned) + len(unknown)} comparisons, {len(held)} held{_which(held)}, {len(turned)} "
        f"turned out the other way around{_which(turned)}, and {len(unknown)} are undecided.",
    ]
    known = [entry.gap for entry in results.entries.values() if entry.gap is not None]
    if results.only_order:
        words += [f"{line}." for line in orders(results)]
    elif known:
        higher, lower = (sum(gap.seen and side * gap.mean > 0 for gap in known) for side in (1, -1))
        lengths = [each for each in results.deviations if each.key == "training.updates"]
        after = [f", after {int(length.here):,} updates instead of {int(length.paper):,}" for length in lengths]
        words.append(
            f"Of {len(known)} errors that have a number of the paper, {higher} are higher here and {lower} lower by "
            f"more than their 95 % interval{''.join(after)}."
        )
    return words


def _missed(seeds: int, difference: float) -> str:
    """Return what the power of a comparison means."""
    return f"{seeds} seeds would miss a true difference of {difference:.2f} one time in five"


def _which(lines: Sequence[str]) -> str:
    """Return the pairs of some verdicts in brackets."""
    return f" ({'; '.join(line.rpartition(': ')[0] for line in lines)})" if lines else ""  # a name may have a colon


def confusions(answer: Answer) -> Table:
    """Return the most frequent mistakes of the method, for data with more classes than a matrix can show."""
    counts = [
        (count, row, column)
        for row, counts in enumerate(answer.confusion)
        for column, count in enumerate(counts)
        if row != column and count
    ]
    listed = sorted(counts, key=lambda found: (-found[0], *found[1:]))[:LISTED]
    rows = [[answer.classes[row], answer.classes[column], f"{count:,}"] for count, row, column in listed]
    return Table(["true class", f"{answer.method} predicts", "test examples"], rows)


def reasons(results: Results) -> list[str]:
    """Return why a row or a column has no run."""
    suite = results.suite
    rows = {row.name: row.why for key, row in suite.rows.items() if row.why and not results.of_row(key)}
    names = {key: each.name for group in (suite.rows, suite.columns) for key, each in group.items()}
    without = suite.protocol(results.protocol).without.items()
    run = {
        key
        for (row, column), entry in results.entries.items()
        if entry.records
        for key in (row, column, f"{column}/{row}")
    }
    left_out = {key: why for key, why in without if key not in run}
    grouped: dict[str, list[str]] = defaultdict(list)  # the names for each reason
    for name, why in (rows | {_named(key, names): why for key, why in left_out.items()}).items():
        grouped[why].append(name)
    return [f"{'; '.join(named)}: {why}" for why, named in grouped.items()]


def _named(key: str, names: Mapping[str, str]) -> str:
    """Return the name of a row, of a column, or of a cell."""
    return ", ".join(names[part] for part in reversed(key.split("/")))


def gaps(results: Results) -> list[str]:
    """Return each of our numbers compared with the paper's, in words."""
    return [
        f"{results.suite.rows[row].name}, {results.suite.columns[column].name}: {entry.gap.words('the paper')}"
        for (row, column), entry in results.entries.items()
        if entry.gap is not None
    ]


def orders(results: Results) -> list[str]:
    """Return how far the order of the rows of each column is that of the paper, in words."""
    said = []
    for column, *_, all_rows, own in results.orders:
        about = results.suite.columns[column]
        beside = f" (the paper: {results.suite.columns[about.like].name})" if about.like else ""
        text = f"{about.name}{beside}: {_agreeing(all_rows)}"
        if own is not None:
            text += f"; among the rows that the paper does not quote, {_agreeing(own)}"
        said.append(text)
    return said


def _agreeing(found: Agreement) -> str:
    """Return how far two orders agree, in words."""
    same, pairs, tau, p = found
    return f"{same} of {pairs} pairs of rows have the paper's order (Kendall's τ = {tau:.2f}, {p_text(p)})"


def order_table(results: Results) -> Table:
    """Return the rows from the lowest error to the highest, in the paper and here."""
    found, names = results.orders, results.suite.rows
    head = ["place"]
    for order in found:
        head += [f"{results.suite.columns[order.column].name}: paper", "here"]
    rows = []
    for place in range(max((len(order.paper) for order in found), default=0)):
        sides = [side for order in found for side in (order.paper, order.here)]
        rows.append([str(place + 1), *(names[side[place]].name if place < len(side) else "" for side in sides)])
    return Table(head, rows)


def sentences(results: Results) -> list[str]:
    """Return each comparison in words. What may be chance is what the verdicts call unknown."""
    said = []
    for comparison in results.comparisons:
        found, names = comparison.found, results.suite.rows
        column, chance = results.suite.columns[comparison.column].name, judged(found, comparison.holm_p) == "unknown"
        text = f"{column}: {names[comparison.one].name} is "
        text += found.difference.words(names[comparison.other].name, chance)
        if found.detectable is not None and chance:
            text += f"; {_missed(found.n, found.detectable)}"
        said.append(text)
    return said


def headings(results: Results) -> dict[str, str]:
    """Return the heading of each judgment. For variants of ours there is no claim that one is better."""
    ours = results.suite.source == "ours"
    names = (LOWER, HIGHER, UNDECIDED) if ours else (HELD, REVERSED, UNKNOWN)
    return dict(zip(("lower", "higher", "unknown"), names, strict=True))


def verdicts(results: Results) -> dict[str, list[str]]:
    """Sort the pairs of rows that the suite compares, the first of which is said to have the lower error.

    A pair held if the first is lower with p < 0.05 after Holm's correction, and is the other way around if it is
    higher. A heading without a pair is left out, and so is a pair that the protocol leaves out.
    """
    named, without = headings(results), results.suite.protocol(results.protocol).without
    found = {(c.column, c.one, c.other): (c.found, c.holm_p) for c in results.comparisons}
    said: dict[str, list[str]] = {heading: [] for heading in named.values()}
    between = "against" if results.suite.source == "ours" else "below"
    for column in results.columns:
        for one, other in results.suite.compare:
            pair = f"{results.suite.rows[one].name} {between} {results.suite.rows[other].name}"
            where = f"{pair}, {results.suite.columns[column].name}"
            if compared := found.get((column, one, other)):
                said[named[judged(*compared)]].append(f"{where}: {numbers(*compared)}")
            elif not {one, other, column, f"{column}/{one}", f"{column}/{other}"} & without.keys():
                said[named["unknown"]].append(f"{where}: not run")
    return {heading: lines for heading, lines in said.items() if lines}


def error_table(results: Results) -> Table:
    """Return the paper's numbers and ours; for runs of no suite, our errors and the time of an update."""
    suite, head = results.suite, ["Method"]
    if suite.key == LOOSE:
        rows = []
        for key, row in suite.rows.items():
            entry = results.entries[key, "runs"]
            ours = _ours(entry, True, key in results.best("runs"))
            rows.append([Cell(row.name), *ours, Cell(_number(entry.milliseconds, 0))])
        return Table(["Method", "test error %", "seeds", "ms per update"], rows)
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
    text, seeds = entry.summary.text(), [(str(record.seed), record) for record in entry.records]
    ours = Cell(text, "best" if best else "", links=[(text, entry.records[0])])
    return [ours, Cell(str(len(seeds)), "listed", links=seeds)]


def comparison_table(results: Results) -> Table:
    """Return the paired comparisons."""
    rows = []
    for column, one, other, found, holm_p in results.comparisons:
        where = f", {results.suite.columns[column].name}" if len(results.columns) > 1 else ""
        mean, margin, _ = found.difference
        rows.append(
            [
                f"{results.suite.rows[one].name} – {results.suite.rows[other].name}{where}",
                signed(mean) + ("" if margin is None else f" ± {margin:.2f}"),
                str(found.n),
                *map(p_value, (found.t_p, holm_p, found.wilcoxon_p)),
                "–" if found.effect is None else f"{found.effect:+.1f}",
                "–" if found.detectable is None else f"{found.detectable:.2f}",
            ]
        )
    return Table(["comparison", "difference", "n", "t: p", "Holm", "Wilcoxon", "d", "visible from"], rows)


def cost_table(results: Results) -> Table:
    """Return the errors at equal updates and at equal cost; no rows if no other error is known at equal cost.

    There are none for variants of one method either: what they cost differs less than the machine's speed.
    """
    if len({results.suite.rows[row].method for row in results.measured}) < 2:
        return Table(["method"], [])
    if not any(entry.equal_cost not in (None, _mean(entry)) for entry in results.entries.values()):
        return Table(["method"], [])
    head = ["method"]
    for column in results.columns:
        head += [f"{results.suite.columns[column].name}: ms per update", "at equal updates", "at equal cost"]
    rows = []
    for row in results.measured:
        cells = [results.suite.rows[row].name]
        for entry in (results.entries[row, column] for column in results.columns):
            if entry.summary is None:
                cells += ["", "", ""]
            else:
                cells += [_number(entry.milliseconds, 0), f"{entry.summary.mean:.2f}", _number(entry.equal_cost, 2)]
        rows.append(cells)
    return Table(head, rows)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _mean(entry: Entry) -> float | None:
    return entry.summary.mean if entry.summary else None


def deviation_table(results: Results) -> Table:
    """Return the choices that are not the paper's, and which rows have them."""
    rows: list[list[str | Cell]] = []
    for key, here, there, where in results.deviations:
        every = len(where) == len(results.measured)
        named = "all" if every else "; ".join(results.suite.rows[row].name for row in where)
        rows.append([Cell(key, "code"), here, there, named])
    return Table(["choice", "here", "paper", "rows"], rows)


def configuration_table(results: Results, row: str) -> Table:
    """Return every choice of a row's first run, with the paper's where it differs."""
    rows: list[list[str | Cell]] = []
    for key, here, there in choices(results.of_row(row)[0], results.suite):
        differs = here != there
        rows.append([Cell(key, "code"), Cell(here, "best" if differs else ""), there if differs else ""])
    return Table(["choice", "here", "paper"], rows)
