"""What differs from the paper: the configuration of a record beside the one that its suite has in its place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from advdrop.lab.config.config import RunConfig
from advdrop.lab.config.values import ConfigError
from advdrop.lab.records.record import Record, RecordError
from advdrop.lab.suites.suite import Key, Suite, differences


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


def config_in(record: Record) -> RunConfig:
    """Return the configuration of a record."""
    try:
        return RunConfig.of({**record.config, "data_dir": None})
    except ConfigError as error:
        raise RecordError(f"the record {record.name} has an invalid configuration: {error}") from None


def config_of(suite: Suite, record: Record, protocol: str, preset: Any) -> RunConfig:
    """Return the configuration that a suite has in the place of a record."""
    key = Key(str(record.column), str(record.row), record.seed)
    facts = {"shape": record.shape, "examples": record.examples, "half_labeled": record.half_labeled}
    return suite.config(key, protocol, preset, **facts, pictures=config_in(record).data.size is not None)


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


def deviations(suite: Suite, records: Iterable[Record]) -> list[Deviation]:
    """Return every choice that differs from the paper's, in the order of the keys, with its rows in their order."""
    rows: dict[Choice, set[str]] = defaultdict(set)
    for record in records:
        for choice in choices(record, suite):
            if choice.here != choice.paper and choice.key != "preset" and not choice.key.startswith("engine."):
                rows[choice].add(str(record.row))
    return [Deviation(*choice, tuple(row for row in suite.rows if row in rows[choice])) for choice in sorted(rows)]


def flat(config: RunConfig) -> dict[str, Any]:
    """Return all keys with their values: ``{"training.updates": 40}``."""

    def pairs(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for key, value in values.items():
            flat |= pairs(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
        return flat

    return pairs(config.model_dump(mode="json", exclude={"data_dir"}), "")
