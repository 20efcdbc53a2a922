"""From records to results: each table with its cells, its comparisons and what differs from the paper."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from advdrop.lab.config.config import RunConfig
from advdrop.lab.config.values import ConfigError
from advdrop.lab.records.record import Record, RecordError, is_measurement, is_record, record_of
from advdrop.lab.report.costs import at_cost, on_one_machine, spent, terms_of, training_cost, update_costs
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
from advdrop.lab.suites.suite import HABITS, MACHINE, Column, Key, Protocol, Reported, Row, Suite, differences, suites

if TYPE_CHECKING:
    from advdrop.lab.report.answer import Answer

LOOSE = "(runs)"
"""The key of a table of runs that belong to no suite. No file of a suite can have this name."""
ORDER = ("table1", "ablation", "sensitivity", "table2", "table-d1", "table-d2", "ladder")
"""The order of the suites in a report. Suites of the user's own come last."""
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


class Choice(NamedTuple):
    """A key of the configuration, its value here and the paper's."""

    key: str
    here: str
    paper: str


class Deviation(NamedTuple):
    """A choice that is not the paper's, and the rows that have it."""

    key: str
    here: str
    paper: str
    rows: tuple[str, ...]


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


def collect(paths: Iterable[Path]) -> list[Results]:
    """Return the results of records, run directories, folders of either, and the YAML files of suites of your own."""
    paths = list(paths)
    own = {suite.key: suite for path in paths if path.suffix in (".yaml", ".yml") for suite in [Suite.load(str(path))]}
    return results_of((record for path in paths if path.suffix not in (".yaml", ".yml") for record in read(path)), own)


def read(path: Path) -> list[Record]:
    """Return the records in one place."""
    if not path.exists():
        raise RecordError(f"{path} does not exist")
    if path.is_file():
        return [] if is_measurement(path) else [Record.read(path)]
    records = [Record.read(file) for file in sorted(path.rglob("*.json")) if is_record(file)]
    runs = sorted(file.parent for file in path.rglob("result.json") if (file.parent / "config.yaml").is_file())
    if runs:
        from advdrop.lab.engine.rundir import RunDirectory  # imports torch

        records += [record_of(RunDirectory.open(run)) for run in runs]
    return records


def results_of(records: Iterable[Record], own: Mapping[str, Suite] | None = None) -> list[Results]:
    """Group records into tables; ``own`` has the suites that are not part of the package."""
    known = {name: ORDER.index(name) for name in suites()} | dict.fromkeys(own or {}, len(ORDER))
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    loose: dict[tuple[str, str, int, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.suite is None:
            loose[record.dataset, str(record.labels), record.updates, record.dataset_checksum].append(record)
        elif record.suite in known:
            groups[record.suite, str(record.protocol), record.preset].append(record)
        else:
            unknown = f"there are records of the suite {record.suite!r}, which is unknown"
            raise RecordError(f"{unknown}; name its YAML file as well")
    tables = []
    for name, protocol, preset in sorted(groups, key=lambda group: (known[group[0]], *group)):
        suite, found = (own or {}).get(name) or Suite.load(name), groups[name, protocol, preset]
        for record in found:
            check(record, suite)
        refuse_different_data(found)
        placed = [((str(record.row), str(record.column)), record) for record in found]
        tables.append(table_of(suite, protocol, preset, placed))
    for key in sorted(loose):
        alike = [other for other in loose if (Path(other[0]).stem, other[1]) == (Path(key[0]).stem, key[1])]
        lengths, contents = ({other[place] for other in alike} for place in (2, 3))
        tables.append(_loose_table(loose[key], len(lengths) > 1, len(contents) > 1))
    return tables


def check(record: Record, suite: Suite) -> None:
    """Raise an error that names the keys that differ if a record is not of a run that its suite would make."""
    for kind, key, known in (("column", record.column, suite.columns), ("row", record.row, suite.rows)):
        if key not in known:
            raise RecordError(f"the record {record.name} has a {kind} that {suite.key} does not have")
    try:
        expected = config_of(suite, record, str(record.protocol), record.preset)
    except ConfigError as error:
        raise RecordError(f"the record {record.name} is of a run that {suite.key} does not have: {error}") from None
    if different := differences(expected, config_in(record)):
        raise RecordError(f"the record {record.name} is of a run with another {', '.join(different)} than the suite's")


def refuse_different_data(records: Iterable[Record]) -> None:
    """Raise an error if two records of a column are of different data, so that their errors cannot be compared."""
    first: dict[str | None, Record] = {}
    for record in records:
        other = first.setdefault(record.column, record)
        if other.dataset_checksum != record.dataset_checksum:
            raise RecordError(
                f"the records {other.name} and {record.name} are of different data, though both are called "
                f"{record.dataset}; leave one of them out"
            )


def config_of(suite: Suite, record: Record, protocol: str, preset: Any) -> RunConfig:
    """Return the configuration that a suite has in the place of a record."""
    key = Key(str(record.column), str(record.row), record.seed)
    facts = {"shape": record.shape, "examples": record.examples, "half_labeled": record.half_labeled}
    return suite.config(key, protocol, preset, **facts, pictures=config_in(record).data.size is not None)


def config_in(record: Record) -> RunConfig:
    """Return the configuration of a record."""
    try:
        return RunConfig.of({**record.config, "data_dir": None})
    except ConfigError as error:
        raise RecordError(f"the record {record.name} has an invalid configuration: {error}") from None


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
    return Results(suite, protocol, preset, entries, _deviations(suite, [record for _, record in placed]))


def _deviations(suite: Suite, records: Iterable[Record]) -> list[Deviation]:
    """Return every choice that differs from the paper's, in the order of the keys, with its rows in their order."""
    rows: dict[Choice, set[str]] = defaultdict(set)
    for record in records:
        for choice in choices(record, suite):
            if choice.here != choice.paper and choice.key != "preset" and not choice.key.startswith("engine."):
                rows[choice].add(str(record.row))
    return [Deviation(*choice, tuple(row for row in suite.rows if row in rows[choice])) for choice in sorted(rows)]


def choices(record: Record, suite: Suite) -> list[Choice]:
    """Return every choice of a run together with the paper's, if the suite has the paper's protocol.

    The paper's run has the paper's length and preset, and none of the settings of a row that is ours: one without a
    number of the paper.
    """
    here = config_in(record)
    values = flat(here)
    if "paper" not in suite.protocols:
        return [Choice(key, str(value), str(value)) for key, value in values.items()]
    row = suite.rows[str(record.row)]
    printed = row if row.paper else row.model_copy(update={"settings": {}, "preset": None})
    paper = suite.model_copy(update={"rows": {**suite.rows, str(record.row): printed}})
    there = config_of(paper, record, "paper", "paper")
    others = flat(there)
    changed = {key: others.get(key, "") for key in differences(here, there) if key in values or key in others}
    return [Choice(key, str(values.get(key, "")), str(value)) for key, value in {**values, **changed}.items()]


def flat(config: RunConfig) -> dict[str, Any]:
    """Return all keys with their values: ``{"training.updates": 40}``."""

    def pairs(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for key, value in values.items():
            flat |= pairs(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
        return flat

    return pairs(config.model_dump(mode="json", exclude={"data_dir"}), "")


def _loose_table(records: Sequence[Record], lengths: bool, contents: bool) -> Results:
    """Make a table of runs of one data set and one length that belong to no suite, with a row for each method.

    Args:
        records: the runs.
        lengths: whether there are runs of other lengths, so that the title says the length.
        contents: whether there are runs on other data of that name, so that the title has the start of their checksum.
    """
    first, labels = records[0], _labels(records)
    title = f"{Path(first.dataset).stem}, {first.labels} labels"
    title += f", {first.updates:,} updates" if lengths else ""
    title += f", data {first.dataset_checksum[:8]}" if contents else ""
    known: dict[str, str] = {}  # the key of each label
    for label in labels:
        key = re.sub(r"[^\w.+-]+", "-", label)  # other labels may have become the same
        known.setdefault(label, f"{key}-{len(known)}" if key in known.values() else key)
    keys = [known[label] for label in labels]
    methods = {key: record.method for key, record in zip(keys, records, strict=True)}
    rivals = [key for rival in ("pi", "vat", "dropout") for key, method in methods.items() if method == rival]
    ours = [key for key, method in methods.items() if any(term.adversarial_dropout for term in terms_of(method))]
    length = {"training": {"updates": first.updates}}
    suite = Suite(
        key=LOOSE,
        title=title,
        about="",
        source="ours",
        repeats=1,
        columns={"runs": Column(name=title, dataset=first.dataset, labels=first.labels)},
        rows={key: Row(name=label, method=methods[key]) for key, label in zip(keys, labels, strict=True)},
        compare=tuple((one, other) for one in ours for other in rivals),
        protocols={"own": Protocol(about=f"{first.updates} updates", seeds=1, settings=length)},
    )
    return table_of(suite, "own", first.preset, [((key, "runs"), r) for key, r in zip(keys, records, strict=True)])


def _labels(records: Sequence[Record]) -> list[str]:
    """Name runs by their method, its preset if it has several, and what else differs between runs of one preset.

    A run that was repeated with other errors, for example on another machine, is named by when it was finished.
    """
    configs = [flat(config_in(record)) for record in records]
    labels: list[str] = []
    for mine, record in zip(configs, records, strict=True):
        method = [each for each in configs if each["method"] == mine["method"]]
        alike = [each for each in method if each["preset"] == mine["preset"]]
        keys = [key for key in mine if key != "seed" and any(each.get(key) != mine[key] for each in alike)]
        keys = [key for key in keys if key not in MACHINE + HABITS]
        shown = [f"{key}={mine[key]}" for key in (["preset"] if len(alike) < len(method) else []) + keys]
        label = ", ".join([mine["method"], *shown])
        others = [r for r, name in zip(records, labels, strict=False) if name == label and r.seed == record.seed]
        labels.append(label if all(map(record.same, others)) else f"{label}, finished {record.finished}")
    return labels
