"""From files to tables: find records, check that they are of their suite, and group them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from advdrop.lab.config.values import ConfigError
from advdrop.lab.records.record import Record, RecordError, is_measurement, is_record, record_of
from advdrop.lab.report.deviations import config_in, config_of
from advdrop.lab.report.loose import loose_table
from advdrop.lab.report.results import Results, table_of
from advdrop.lab.suites.suite import Suite, differences, suites

ORDER = ("table1", "ablation", "sensitivity", "table2", "table-d1", "table-d2", "ladder")
"""The order of the suites in a report. Suites of the user's own come last."""


def collect(paths: Iterable[Path]) -> list[Results]:
    """Return the results of records, run directories, folders of either, and the YAML files of suites of your own."""
    files: list[Path] = []
    places: list[Path] = []
    for path in paths:
        (files if path.suffix in (".yaml", ".yml") else places).append(path)
    own: dict[str, Suite] = {}
    for file in files:
        suite = Suite.load(str(file))
        if own.setdefault(suite.key, suite) != suite:  # a record names only the key
            raise RecordError(f"{' and '.join(map(str, files))}: two different suites have the key {suite.key!r}")
    return results_of((record for place in places for record in read(place)), own)


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
        tables.append(loose_table(loose[key], len(lengths) > 1, len(contents) > 1))
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
