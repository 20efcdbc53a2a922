"""The results of a table: its cells, the comparisons of its rows, and their order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from advdrop.lab.records.record import Record, RecordError
from advdrop.lab.report.costs import at_cost, on_one_machine, spent, training_cost, update_costs
from advdrop.lab.report.deviations import Deviation, deviations
from advdrop.lab.report.statistics import (
    Agreement,
    Difference,
    Paired,
    Summary,
    agreement,
    gap,
    holm,
    paired,
    shared_seeds,
)
from advdrop.lab.suites.suite import Reported, Suite

if TYPE_CHECKING:
    from advdrop.lab.report.answer import Answer

LOOSE = "(runs)"
"""The key of a table of runs that belong to no suite. No file of a suite can have this name."""
Place = tuple[str, str]
"""A row and a column."""


@dataclass(frozen=True)
class Entry:
    """A cell of a table: the paper's number, and our runs by seed."""

    reported: Reported | None
    records: tuple[Record, ...]
    repeats: int  # the number of runs behind the paper's number
    costs: Mapping[bool, float] | None = None  # of an update, see update_costs; None without a comparable time
    equal_cost: float | None = None  # the mean error at the cost of the cheapest method's training

    @property
    def errors(self) -> dict[int, float]:
        """The test error of each seed, in percent."""
        return {record.seed: record.test_error_percent for record in self.records}

    @property
    def summary(self) -> Summary | None:
        """Mean and standard deviation of the test errors."""
        return Summary.of(list(self.errors.values())) if self.records else None

    @property
    def gap(self) -> Difference | None:
        """Our mean minus the paper's."""
        if self.summary is None or self.reported is None:
            return None
        return gap(self.summary, self.reported.mean, self.reported.std, self.repeats)

    @property
    def milliseconds(self) -> float | None:
        """The time of an update with all terms, see :func:`update_costs`."""
        return None if self.costs is None else self.costs[True]

    def cost_until(self, update: float) -> float:
        """Return the milliseconds that the training had cost after an update of the curves, mean over seeds."""
        assert self.costs is not None
        return fmean(spent(record, self.costs)[update] for record in self.records)


class Comparison(NamedTuple):
    """Two rows of a column, seed by seed; ``holm_p`` is corrected for all comparisons of the column."""

    column: str
    one: str
    other: str
    found: Paired
    holm_p: float | None


class Order(NamedTuple):
    """The rows of a column from the lowest error to the highest, in the paper and here, and how far both agree."""

    column: str
    paper: Sequence[str]
    here: Sequence[str]
    agreement: Agreement
    own: Agreement | None  # of the rows that the paper does not quote, if it quotes some


@dataclass(frozen=True)
class Results:
    """The records of a suite that were run with one protocol and one preset."""

    suite: Suite
    protocol: str
    preset: str
    entries: Mapping[Place, Entry]
    deviations: Sequence[Deviation] = ()  # from the paper's protocol and preset
    answer: Answer | None = None  # whether the unlabeled images helped, if that was computed

    @property
    def name(self) -> str:
        """For example ``table1-short-paper``."""
        return f"{self.suite.key}-{self.protocol}-{self.preset}"

    @property
    def records(self) -> list[Record]:
        """All records in the order of the table."""
        return [record for entry in self.entries.values() for record in entry.records]

    def of_row(self, row: str) -> list[Record]:
        """Return the records of a row."""
        return [record for (key, _), entry in self.entries.items() if key == row for record in entry.records]

    @property
    def columns(self) -> list[str]:
        """The columns in which something was run; all of them if nothing was. Tables show the others too."""
        run = [key for key in self.suite.columns if any(c == key and e.records for (_, c), e in self.entries.items())]
        return run or list(self.suite.columns)

    @property
    def measured(self) -> list[str]:
        """The rows that were run, in their order."""
        return [row for row in self.suite.trained if self.of_row(row)]

    @property
    def comparisons(self) -> list[Comparison]:
        """The suite's comparisons of rows that were both run."""
        made = []
        for column in self.columns:
            tried = [
                (one, other, paired(self.entries[one, column].errors, self.entries[other, column].errors))
                for one, other in self.suite.compare
            ]
            pairs = [(one, other, found) for one, other, found in tried if found is not None]
            corrected = holm([found.t_p for *_, found in pairs])
            made += [Comparison(column, *pair, p) for pair, p in zip(pairs, corrected, strict=True)]
        return made

    @property
    def only_order(self) -> bool:
        """Whether only the order of the rows is compared with the paper's."""
        return self.suite.protocol(self.protocol).only_order

    @property
    def orders(self) -> list[Order]:
        """The order of the rows of each column that have a number of the paper and a run, by shared seeds."""
        found = []
        for column in self.columns:
            printed = self.suite.columns[column].like or column
            numbers = {row: about.paper[printed] for row, about in self.suite.rows.items() if printed in about.paper}
            errors = {row: ran for row in numbers if (ran := self.entries[row, column].errors)}
            seeds = shared_seeds(errors.values()) if errors else set()
            paper = {row: numbers[row].mean for row in errors}
            here = {row: fmean(ran[seed] for seed in seeds & ran.keys()) for row, ran in errors.items()}
            if agreed := agreement([*paper.values()], [*here.values()]):
                theirs, ours = (sorted(errors, key=errors.__getitem__) for errors in (paper, here))
                own = [row for row in paper if not self.suite.rows[row].quoted]
                among = agreement([paper[row] for row in own], [here[row] for row in own])
                found.append(Order(column, theirs, ours, agreed, among if len(own) < len(paper) else None))
        return found

    def best(self, column: str) -> list[str]:
        """Return the rows with the lowest mean of a column, to the two digits that are shown."""
        found = {row: self.entries[row, column].summary for row in self.suite.trained}
        means = {row: round(summary.mean, 2) for row, summary in found.items() if summary is not None}
        lowest = [row for row, mean in means.items() if mean == min(means.values())]
        return lowest if len(lowest) < len(means) else []

    def has_paper(self, column: str) -> bool:
        """Return True if the paper has numbers for a column."""
        return any(row.paper.get(column) for row in self.suite.rows.values())


def table_of(suite: Suite, protocol: str, preset: str, placed: Sequence[tuple[Place, Record]]) -> Results:
    """Make a table with a cell for each row and column, whether it was run or not. Copies of a run count once."""
    suite.protocol(protocol)
    found: dict[Place, list[Record]] = defaultdict(list)
    for place, record in sorted(placed, key=lambda one: one[1].seed):
        copies = [other for other in found[place] if other.seed == record.seed]
        if not copies:
            found[place].append(record)
        elif not copies[0].same(record):
            raise RecordError(f"the record {record.name} is there twice, with different errors; leave one of them out")
    entries = {}
    for column in suite.columns:
        ran = {row: tuple(found.get((row, column), ())) for row in suite.rows}
        timed = dict(zip(ran, on_one_machine(ran.values()), strict=True))
        costs = {row: update_costs(runs) for row, runs in timed.items() if runs}
        budget = min((training_cost(ran[row], each) for row, each in costs.items()), default=0.0)
        for row, about in suite.rows.items():
            cost = costs.get(row)
            equal = None if cost is None else at_cost(ran[row], cost, budget)
            entries[row, column] = Entry(about.paper.get(column), ran[row], suite.repeats, cost, equal)
    return Results(suite, protocol, preset, entries, deviations(suite, [record for _, record in placed]))
