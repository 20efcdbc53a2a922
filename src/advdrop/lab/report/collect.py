"""From records to results: each table with its cells, its comparisons and what differs from the paper."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from advdrop.lab.config.config import ConfigError, RunConfig
from advdrop.lab.records.record import ERROR, Record, RecordError, is_measurement, is_record, read_record, record_of
from advdrop.lab.report.statistics import Difference, Paired, Summary, at_cost, gap, holm, paired
from advdrop.lab.suites.suite import HABITS, MACHINE, Column, Key, Protocol, Reported, Row, Suite, differences, suites

LOOSE = "(runs)"
"""The key of a table of runs that belong to no suite. No file of a suite can have this name."""
ORDER = ("table1", "ablation", "sensitivity", "table2", "table-d1", "table-d2")
"""The order of the suites in a report."""
Place = tuple[str, str]
"""A row and a column."""


@dataclass(frozen=True)
class Entry:
    """A cell of a table: the paper's number, and our runs by seed."""

    reported: Reported | None
    records: tuple[Record, ...]
    repeats: int  # the number of runs behind the paper's number
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
    def milliseconds(self) -> float:
        """The mean time of an update."""
        return fmean(record.milliseconds_per_update for record in self.records)


@dataclass(frozen=True)
class Comparison:
    """Two rows of a column, seed by seed; ``holm_p`` is corrected for all comparisons of the column."""

    column: str
    one: str
    other: str
    found: Paired
    holm_p: float | None


class Choice(NamedTuple):
    """A key of the configuration, its value here and the paper's."""

    key: str
    here: str
    paper: str


@dataclass(frozen=True)
class Results:
    """The records of a suite that were run with one protocol and one preset."""

    suite: Suite
    protocol: str
    preset: str
    entries: Mapping[Place, Entry]
    deviations: Sequence[Choice] = ()  # from the paper's protocol and preset

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

    def best(self, column: str) -> list[str]:
        """Return the rows with the lowest mean of a column, to the two digits that are shown."""
        found = {row: self.entries[row, column].summary for row in self.suite.trained}
        means = {row: round(summary.mean, 2) for row, summary in found.items() if summary is not None}
        return [row for row, mean in means.items() if mean == min(means.values())] if len(means) > 1 else []

    def has_paper(self, column: str) -> bool:
        """Return True if the paper has numbers for a column."""
        return any(row.paper.get(column) for row in self.suite.rows.values())

    def command(self, row: str) -> str:
        """Return the command that runs a row again."""
        records = self.of_row(row)
        if self.suite.key == LOOSE:
            first, seeds = records[0], 1 + max(record.seed for record in records)
            words = f"--labels {first.labels} --updates {first.updates} --seeds {seeds} (and its --set options)"
            return f"advdrop compare --methods {first.method} --dataset {shlex.quote(first.dataset)} {words}"
        runs = [len(entry.records) for (key, _), entry in self.entries.items() if key == row]
        seeds = max(runs) or self.suite.protocols[self.protocol].seeds
        preset = "" if self.preset == "paper" else f" --preset {self.preset}"
        words = f"advdrop reproduce {self.suite.key} --protocol {self.protocol}{preset}"
        return f"{words} --only {row} --seeds {seeds} --data-dir DATA"


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
        return [] if is_measurement(path) else [read_record(path)]
    records = [read_record(file) for file in sorted(path.rglob("*.json")) if is_record(file)]
    runs = sorted(file.parent for file in path.rglob("result.json") if (file.parent / "config.yaml").is_file())
    if runs:
        from advdrop.lab.engine.rundir import RunDirectory  # imports torch

        records += [record_of(RunDirectory.open(run)) for run in runs]
    return records


def results_of(records: Iterable[Record], own: Mapping[str, Suite] | None = None) -> list[Results]:
    """Group records into tables; ``own`` has the suites that are not part of the package."""
    own = own or {}
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    loose: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.suite is None:
            loose[record.dataset, str(record.labels)].append(record)
        else:
            groups[record.suite, str(record.protocol), record.preset].append(record)
    if unknown := [name for name, *_ in groups if name not in [*suites(), *own]]:
        raise RecordError(
            f"there are records of the suite {unknown[0]!r}, which is unknown; name its YAML file as well"
        )
    tables = []
    for name, protocol, preset in sorted(groups, key=lambda group: (_rank(group[0]), *group)):
        suite, found = own.get(name) or Suite.load(name), groups[name, protocol, preset]
        for record in found:
            check(record, suite)
        placed = [((str(record.row), str(record.column)), record) for record in found]
        tables.append(table_of(suite, protocol, preset, placed))
    return tables + [table for found in loose.values() for table in _loose(found)]


def _rank(suite: str) -> int:
    return ORDER.index(suite) if suite in ORDER else len(ORDER)


def check(record: Record, suite: Suite) -> None:
    """Raise an error that names the keys that differ if a record is not of a run that its suite would make."""
    for kind, key, known in (("column", record.column, suite.columns), ("row", record.row, suite.rows)):
        if key not in known:
            raise RecordError(f"the record {record.name} has a {kind} that {suite.key} does not have")
    try:
        expected = config_of(suite, record, str(record.protocol), record.preset)
    except ConfigError as error:
        raise RecordError(f"the record {record.name} is of a run that {suite.key} does not have: {error}") from None
    if different := differences(expected, _config(record)):
        raise RecordError(f"the record {record.name} is of a run with another {', '.join(different)} than the suite's")


def config_of(suite: Suite, record: Record, protocol: str, preset: Any) -> RunConfig:
    """Return the configuration that a suite has in the place of a record."""
    key = Key(str(record.column), str(record.row), record.seed)
    return suite.config(key, protocol, preset, shape=record.shape, examples=record.examples)


def _config(record: Record) -> RunConfig:
    try:
        return RunConfig.of({**record.config, "data_dir": None})
    except ConfigError as error:
        raise RecordError(f"the record {record.name} has an invalid configuration: {error}") from None


def table_of(suite: Suite, protocol: str, preset: str, placed: Sequence[tuple[Place, Record]]) -> Results:
    """Make a table with a cell for each row and column, whether it was run or not."""
    suite.protocol(protocol)
    found: dict[Place, list[Record]] = defaultdict(list)
    for place, record in sorted(placed, key=lambda one: one[1].seed):
        if any(record.seed == other.seed for other in found[place]):
            raise RecordError(f"the record {record.name} is there twice")
        found[place].append(record)
    entries = {}
    for column in suite.columns:
        budget = min((_cost(runs) for (_, key), runs in found.items() if key == column), default=0.0)
        for row, about in suite.rows.items():
            runs = tuple(found.get((row, column), ()))
            entries[row, column] = Entry(about.paper.get(column), runs, suite.repeats, _at_cost(runs, budget))
    different = {choice for _, record in placed for choice in choices(record, suite) if choice.here != choice.paper}
    shown = sorted(choice for choice in different if choice.key != "preset" and not choice.key.startswith("engine."))
    return Results(suite, protocol, preset, entries, shown)


def _cost(records: Sequence[Record]) -> float:
    """Return the mean cost of a training, in milliseconds."""
    return fmean(record.updates * record.milliseconds_per_update for record in records)


def _at_cost(records: Sequence[Record], budget: float) -> float | None:
    """Return the mean error at this cost. The clock of one run is noisy, so all seeds have one cost of an update."""
    if not records:
        return None
    each = fmean(record.milliseconds_per_update for record in records)
    found = [at_cost(record.curve["update"], record.curve[ERROR], each, budget * 1.0001) for record in records]
    known = [error for error in found if error is not None]
    return fmean(known) if len(known) == len(records) else None


def choices(record: Record, suite: Suite) -> list[Choice]:
    """Return every choice of a run beside the paper's, if the suite has the paper's protocol.

    The paper's run has the paper's length and preset, and none of the settings of a row that is ours.
    """
    here = _config(record)
    values = _flat(here)
    if "paper" not in suite.protocols:
        return [Choice(key, value, value) for key, value in values.items()]
    row = suite.rows[str(record.row)]
    printed = row if row.quoted else row.model_copy(update={"settings": {}, "preset": None})
    paper = suite.model_copy(update={"rows": {**suite.rows, str(record.row): printed}})
    there = config_of(paper, record, "paper", "paper")
    different = differences(here, there)
    others = {key: _flat(there).get(key, "") for key in different if key in values or key in _flat(there)}
    return [Choice(key, values.get(key, ""), {**values, **others}[key]) for key in {**values, **others}]


def _flat(config: RunConfig) -> dict[str, str]:
    """Return all keys with their values as text: ``{"training.updates": "40"}``."""

    def pairs(values: Mapping[str, Any], prefix: str) -> dict[str, str]:
        flat: dict[str, str] = {}
        for key, value in values.items():
            flat |= pairs(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": str(value)}
        return flat

    return pairs(config.model_dump(mode="json", exclude={"data_dir"}), "")


def _loose(records: Sequence[Record]) -> list[Results]:
    """Make tables of runs of one data set that belong to no suite: one for each length, with a row for each method."""
    lengths = sorted({record.updates for record in records})
    return [_loose_table([r for r in records if r.updates == length], len(lengths) > 1) for length in lengths]


def _loose_table(records: Sequence[Record], several: bool) -> Results:
    first, labels = records[0], _labels(records)
    title = f"{Path(first.dataset).stem}, {first.labels} labels" + (f", {first.updates:,} updates" if several else "")
    keys = [re.sub(r"[^\w.+-]+", "-", label) for label in labels]
    methods = {key: record.method for key, record in zip(keys, records, strict=True)}
    rivals = [key for rival in ("pi", "vat", "dropout") for key, method in methods.items() if method == rival]
    suite = Suite(
        key=LOOSE,
        title=title,
        about="",
        source="ours",
        repeats=1,
        columns={"runs": Column(name=title, dataset=first.dataset, labels=first.labels)},
        rows={key: Row(name=label, method=methods[key]) for key, label in zip(keys, labels, strict=True)},
        compare=tuple((one, other) for one, method in methods.items() if "add" in method for other in rivals),
        protocols={"own": Protocol(about=f"{first.updates} updates", seeds=1)},
    )
    return table_of(suite, "own", first.preset, [((key, "runs"), r) for key, r in zip(keys, records, strict=True)])


def _labels(records: Sequence[Record]) -> list[str]:
    """Name runs by their method, its preset if it has several, and what else differs between runs of one preset."""
    configs = [_flat(_config(record)) for record in records]
    labels = []
    for mine in configs:
        method = [each for each in configs if each["method"] == mine["method"]]
        alike = [each for each in method if each["preset"] == mine["preset"]]
        keys = [key for key in mine if key != "seed" and any(each.get(key) != mine[key] for each in alike)]
        keys = [key for key in keys if key not in MACHINE + HABITS]
        shown = [f"{key}={mine[key]}" for key in (["preset"] if len(alike) < len(method) else []) + keys]
        labels.append(", ".join([mine["method"], *shown]))
    return labels
