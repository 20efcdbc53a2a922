"""From records to results: each table with its cells, its comparisons and what differs from the paper."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from advdrop.lab.config.config import ConfigError, RunConfig
from advdrop.lab.records.record import ERROR, Record, RecordError, is_measurement, is_record, read_record
from advdrop.lab.report.statistics import Difference, Paired, Summary, at_cost, gap, holm, paired
from advdrop.lab.suites.suite import Column, Key, Protocol, Reported, Row, Suite, differences, suites

LOOSE = "(runs)"
"""The name of what belongs to no suite; no file of a suite is called that."""


@dataclass(frozen=True)
class Entry:
    """A cell of a table: the paper's number and ours.

    Args:
        reported: as printed in the paper, if it is.
        records: ours, by seed; none if it was not run.
        equal_cost: the mean error when the training had cost as much as the cheapest method's; None if unknown.
    """

    reported: Reported | None
    records: tuple[Record, ...]
    repeats: int
    equal_cost: float | None = None

    @property
    def errors(self) -> dict[int, float]:
        """Test error in percent of each seed."""
        return {record.seed: record.test_error_percent for record in self.records}

    @property
    def summary(self) -> Summary | None:
        """Of the test errors."""
        return Summary.of(list(self.errors.values())) if self.records else None

    @property
    def gap(self) -> Difference | None:
        """Ours minus the paper's."""
        if self.summary is None or self.reported is None:
            return None
        return gap(self.summary, self.reported.mean, self.reported.std, self.repeats)

    @property
    def milliseconds(self) -> float:
        """Of an update, on average."""
        return fmean(record.milliseconds_per_update for record in self.records)

    @property
    def minutes(self) -> float:
        """Of all updates of a run, on average."""
        return fmean(record.updates * record.milliseconds_per_update for record in self.records) / 60_000


@dataclass(frozen=True)
class Comparison:
    """Two rows of a column, seed by seed.

    Args:
        column: its key.
        one: a row.
        other: the row that it is compared with.
        found: what came out.
        holm_p: p of the t-test, corrected for all comparisons of the column.
    """

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

    @property
    def differs(self) -> bool:
        """Whether it is not as in the paper."""
        return self.here != self.paper


@dataclass(frozen=True)
class Results:
    """A suite as it was run.

    Args:
        suite: the table.
        protocol: how long.
        preset: which choices.
        entries: for each row and column.
        deviations: what differs from the paper's protocol and preset.
    """

    suite: Suite
    protocol: str
    preset: str
    entries: Mapping[tuple[str, str], Entry]
    deviations: Sequence[Choice] = ()

    @property
    def name(self) -> str:
        """For example ``table1-short-paper``."""
        return f"{self.suite.key}-{self.protocol}-{self.preset}"

    @property
    def records(self) -> list[Record]:
        """All of them, in the order of the table."""
        return [record for entry in self.entries.values() for record in entry.records]

    @property
    def columns(self) -> list[str]:
        """The columns in which something was run; all of them if nothing was. Tables show the others too."""
        run = [key for key in self.suite.columns if any(c == key and e.records for (_, c), e in self.entries.items())]
        return run or list(self.suite.columns)

    @property
    def comparisons(self) -> list[Comparison]:
        """The suite's comparisons, as far as both rows were run."""
        return [comparison for column in self.columns for comparison in self._compared(column)]

    def _compared(self, column: str) -> list[Comparison]:
        pairs = []
        for one, other in self.suite.compare:
            found = paired(self.entries[one, column].errors, self.entries[other, column].errors)
            if found is not None:
                pairs.append((one, other, found))
        corrected = holm([found.t_p for *_, found in pairs])
        return [Comparison(column, *pair, p) for pair, p in zip(pairs, corrected, strict=True)]

    @property
    def measured(self) -> list[str]:
        """The rows that were run, in their order."""
        return [row for row in self.suite.trained if any(self.entries[row, c].records for c in self.suite.columns)]

    def best(self, column: str) -> list[str]:
        """The rows with the lowest mean of a column, to the two digits that are shown."""
        found = {row: self.entries[row, column].summary for row in self.suite.trained}
        means = {row: round(summary.mean, 2) for row, summary in found.items() if summary is not None}
        return [row for row, mean in means.items() if mean == min(means.values())] if len(means) > 1 else []

    @property
    def reported(self) -> bool:
        """Whether the paper has numbers for one of the columns."""
        return any(self.has_paper(column) for column in self.columns)

    def has_paper(self, column: str) -> bool:
        """Whether the paper has numbers for a column."""
        return any(row.paper.get(column) for row in self.suite.rows.values())

    def configuration(self, row: str) -> list[Choice]:
        """Every choice of a row's first run; what a machine chooses for itself is no difference."""
        records = [record for (name, _), entry in self.entries.items() if name == row for record in entry.records]
        return choices(records[0], self.suite)

    def command(self, row: str) -> str:
        """What to type to run a row again."""
        if self.suite.key == LOOSE:
            return loose_command([record for record in self.records if record.method == row])
        seeds = max((len(entry.records) for (name, _), entry in self.entries.items() if name == row), default=0)
        seeds = seeds or self.suite.protocols[self.protocol].seeds
        preset = "" if self.preset == "paper" else f" --preset {self.preset}"
        words = f"advdrop reproduce {self.suite.key} --protocol {self.protocol}{preset}"
        return f"{words} --only {row} --seeds {seeds} --data-dir DATA"


def loose_command(records: Sequence[Record]) -> str:
    """What to type to run a method again that belongs to no suite."""
    first = records[0]
    words = ["advdrop", "compare", "--methods", first.method, "--dataset", first.dataset, "--labels", str(first.labels)]
    return shlex.join([*words, "--seeds", str(1 + max(record.seed for record in records))]) + " (and its --set options)"


def collect(paths: Iterable[Path]) -> list[Results]:
    """Everything that the records in these places say.

    Args:
        paths: records, folders of records, run directories, folders of run directories, and the YAML files of suites
            of your own that records belong to.
    """
    paths = list(paths)
    own = {suite.key: suite for path in paths if path.suffix in (".yaml", ".yml") for suite in [Suite.load(str(path))]}
    records = [record for path in paths if path.suffix not in (".yaml", ".yml") for record in read(path)]
    return results_of(records, own)


def read(path: Path) -> list[Record]:
    """The records in one place."""
    if not path.exists():
        raise RecordError(f"{path} does not exist")
    if path.is_file():
        return [] if is_measurement(path) else [read_record(path)]
    records = [read_record(file) for file in sorted(path.rglob("*.json")) if is_record(file)]
    runs = sorted(file.parent for file in path.rglob("result.json") if (file.parent / "config.yaml").is_file())
    if runs:
        from advdrop.lab.engine.rundir import RunDirectory
        from advdrop.lab.records.from_run import record_of  # imports torch

        records += [record_of(RunDirectory.open(run)) for run in runs]
    return records


def results_of(records: Iterable[Record], own: Mapping[str, Suite] | None = None) -> list[Results]:
    """Group records into tables.

    Args:
        records: in any order.
        own: suites that do not come with the package.
    """
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    loose: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.suite is None:
            _config(record)
            loose[record.dataset, str(record.labels)].append(record)
        else:
            groups[record.suite, str(record.protocol), record.preset].append(record)
    order = [*suites(), *(own or {})]
    if unknown := [name for name, *_ in groups if name not in order]:
        raise RecordError(
            f"there are records of the suite {unknown[0]!r}, which is unknown; name its YAML file as well"
        )
    tables = []
    for name, protocol, preset in sorted(groups, key=lambda group: (ORDER.get(group[0], len(ORDER)), *group)):
        suite = (own or {}).get(name) or Suite.load(name)
        found = groups[name, protocol, preset]
        for record in found:
            check(record, suite)
        tables.append(table_of(suite, protocol, preset, found))
    return tables + [_loose(dataset, labels, found) for (dataset, labels), found in loose.items()]


ORDER = {
    name: place for place, name in enumerate(("table1", "ablation", "sensitivity", "table2", "table-d1", "table-d2"))
}
"""The headline first."""


def check(record: Record, suite: Suite) -> None:
    """An error if a record is not of a run that its suite would make: it names the keys that differ."""
    for kind, key, known in (("column", record.column, suite.columns), ("row", record.row, suite.rows)):
        if key not in known:
            raise RecordError(f"the record {record.name} has a {kind} that {suite.key} does not have")
    try:
        expected = expected_config(record, suite)
    except ConfigError as error:
        raise RecordError(f"the record {record.name} is of a run that {suite.key} does not have: {error}") from None
    given = _config(record)
    if different := differences(expected, given):
        raise RecordError(f"the record {record.name} is of a run with another {', '.join(different)} than the suite's")


def _config(record: Record) -> RunConfig:
    try:
        return RunConfig.of({**record.config, "data_dir": None})
    except ConfigError as error:
        raise RecordError(f"the record {record.name} has a configuration that is none: {error}") from None


def expected_config(record: Record, suite: Suite) -> RunConfig:
    """What the suite makes of the record's place."""
    preset: Any = record.preset
    return suite.config(_key(record), str(record.protocol), preset, shape=record.shape, examples=record.examples)


def paper_config(record: Record, suite: Suite) -> RunConfig:
    """What the paper has in the record's place: its length, its choices, and nothing that a row of ours changes."""
    row = suite.rows[str(record.row)]
    printed = row if row.quoted else row.model_copy(update={"settings": {}, "preset": None})
    plain = suite.model_copy(update={"rows": {**suite.rows, str(record.row): printed}})
    return plain.config(_key(record), "paper", "paper", shape=record.shape, examples=record.examples)


def _key(record: Record) -> Key:
    return Key(str(record.column), str(record.row), record.seed)


def _place(record: Record) -> tuple[str, str]:
    return str(record.row), str(record.column)


def table_of(
    suite: Suite,
    protocol: str,
    preset: str,
    records: Sequence[Record],
    place: Callable[[Record], tuple[str, str]] = _place,
) -> Results:
    """A table with a cell for each row and column, whether it was run or not."""
    suite.protocol(protocol)
    found: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record.seed):
        same = found[place(record)]
        if any(record.seed == other.seed for other in same):
            raise RecordError(f"the record {record.name} is there twice")
        same.append(record)
    entries = {}
    for column in suite.columns:
        budget = _cheapest([records for (_, c), records in found.items() if c == column])
        for row, about in suite.rows.items():
            runs = tuple(found.get((row, column), ()))
            entries[row, column] = Entry(about.paper.get(column), runs, suite.repeats, _at_cost(runs, budget))
    return Results(suite, protocol, preset, entries, _deviations(suite, records))


def _cheapest(groups: Iterable[Sequence[Record]]) -> float:
    """The cost of the cheapest method's training, in milliseconds."""
    costs = [fmean(record.updates * record.milliseconds_per_update for record in group) for group in groups if group]
    return min(costs, default=0.0)


def _at_cost(records: Sequence[Record], budget: float) -> float | None:
    """The mean error at this cost. The clock of one run is noisy: each row has one cost an update."""
    if not records:
        return None
    each = fmean(record.milliseconds_per_update for record in records)
    found = [at_cost(record.curve["update"], record.curve[ERROR], each, budget * 1.0001) for record in records]
    known = [error for error in found if error is not None]
    return fmean(known) if len(known) == len(records) else None


def choices(record: Record, suite: Suite) -> list[Choice]:
    """Every choice of a run, beside the paper's if the suite has its protocol."""
    here = _config(record)
    values = _flat(here.model_dump(mode="json", exclude={"data_dir"}))
    if "paper" not in suite.protocols:
        return [Choice(key, value, value) for key, value in values.items()]
    there = paper_config(record, suite)
    others = _flat(there.model_dump(mode="json", exclude={"data_dir"}))
    different = differences(here, there)
    keys = list(dict.fromkeys([*values, *(key for key in others if key in different)]))
    return [
        Choice(key, values.get(key, ""), others.get(key, "") if key in different else values.get(key, ""))
        for key in keys
    ]


def _deviations(suite: Suite, records: Sequence[Record]) -> list[Choice]:
    """In what the runs differ from the paper; what several of them share comes once."""
    found = {choice for record in records for choice in choices(record, suite) if choice.differs}
    return sorted(choice for choice in found if choice.key != "preset" and not choice.key.startswith("engine."))


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": str(value)}
    return flat


def _loose(dataset: str, labels: str, records: Sequence[Record]) -> Results:
    """A table of runs that belong to no suite: a row for each method."""
    methods = list(dict.fromkeys(record.method for record in records))
    rivals = [method for method in ("pi", "vat", "dropout") if method in methods]
    name = f"{Path(dataset).stem}, {labels} labels"
    lengths = sorted({record.updates for record in records})
    suite = Suite(
        key=LOOSE,
        title=name,
        about="",
        source="ours",
        repeats=1,
        columns={"runs": Column(name=name, dataset=dataset, labels=records[0].labels)},
        rows={method: Row(name=method, method=method) for method in methods},
        compare=tuple((one, other) for one in methods if "add" in one for other in rivals),
        protocols={"own": Protocol(about=f"{', '.join(map(str, lengths))} updates", seeds=1)},
    )
    return table_of(suite, "own", records[0].preset, records, place=lambda record: (record.method, "runs"))
