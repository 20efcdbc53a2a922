"""A suite: a table of the paper with its cells, the numbers printed there, and the length of each protocol."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from advdrop.lab.choices import MOST_SEEDS, Labels, PresetName
from advdrop.lab.config.config import MethodName, RunConfig, parse_method
from advdrop.lab.config.section import Count, Section
from advdrop.lab.config.terms import METHODS
from advdrop.lab.config.values import ConfigError, check_known, expanded, first_error, listed, merged, read_yaml

FOLDER = Path(__file__).parent / "paper"
MACHINE = ("engine.accelerator", "engine.devices", "engine.nodes", "engine.accumulate", "engine.memory_format")
HABITS = ("engine.checkpoint_seconds", "engine.tensorboard")
"""Settings that do not count as differences between runs: where a run computes, and what it writes while it trains."""

OPTIONAL = (
    ("", "unlabeled"),
    ("", "start"),
    ("data", "size"),
    ("data", "color"),
    ("network", "earlier"),
    ("network", "units"),
    ("training", "earlier"),
)
"""Keys that older records do not have. Without a value they do not change the fingerprint."""
Settings = Annotated[dict[str, Any], AfterValidator(expanded)]
"""Nested values, as in a ``--config`` file: ``vat`` is short for ``objective.terms.vat``."""


class Reported(NamedTuple):
    """A test error in percent as the paper prints it; some have no standard deviation."""

    mean: float
    std: float | None
    bold: bool

    @classmethod
    def of(cls, text: object) -> Reported:
        """Read a number of a suite.

        >>> Reported.of("**0.99 ± 0.07**")
        Reported(mean=0.99, std=0.07, bold=True)
        """
        found = re.fullmatch(r"(\*\*)?(\d+\.\d+)(?: ± (\d+\.\d+))?(\*\*)?", str(text))
        if found is None or (found[1] is None) != (found[4] is None):
            raise ValueError(f"{text!r} is not a number such as 12.36, 0.99 ± 0.07 or **0.99 ± 0.07**")
        return cls(float(found[2]), float(found[3]) if found[3] else None, found[1] is not None)

    def __str__(self) -> str:
        """Return for example ``0.99 ± 0.07``."""
        return f"{self.mean:.2f}" + ("" if self.std is None else f" ± {self.std:.2f}")


class Part(Section):
    """A part of a suite. YAML reads a name such as 1000 as a number."""

    model_config = ConfigDict(coerce_numbers_to_str=True)


class Column(Part):
    """A data set and a number of labels."""

    name: str
    dataset: str
    labels: Labels
    like: str | None = Field(None, description="the column whose order of rows in the paper its own is compared with")


class Row(Part):
    """A method, or a number that the paper quotes."""

    name: str
    method: MethodName | None = None
    preset: PresetName | None = Field(None, description="instead of the one that is asked for")
    settings: Settings = Field({}, description="over the recipe and the protocol")
    quoted: str | None = Field(None, description="the work that the paper took the number from")
    paper: dict[str, Annotated[Reported, BeforeValidator(Reported.of)]] = Field({}, description="for each column")
    why: str = Field("", description="why the row has no method of its own")


class Protocol(Part):
    """The number of seeds, and the settings that differ from the recipe, such as the length of the training."""

    about: str
    seeds: int = Field(ge=1, le=MOST_SEEDS)
    settings: Settings = Field({}, description="over the recipe")
    columns: dict[str, Settings] = Field({}, description="over the settings, for one column each")
    rows: dict[str, Settings] = Field({}, description="over the settings of the row, for one row each")
    without: dict[str, str] = Field(
        {}, description="rows, columns and cells (column/row) that it leaves out unless asked for, and why"
    )
    only_order: bool = Field(False, description="whether only the order of the rows is compared with the paper's")


class Curve(Part):
    """Rows that differ in one setting, for a chart of the test error against it."""

    title: str
    values: dict[str, str] = Field(min_length=2, description="the value of the setting in each row, in order")


class Key(NamedTuple):
    """The place of a run in a suite."""

    column: str
    row: str
    seed: int

    def __str__(self) -> str:
        """For example ``1000 vadd-kl seed 0``."""
        return f"{self.column} {self.row} seed {self.seed}"


class Suite(Part):
    """A file of ``suites/paper``, or one of the user's own."""

    key: str
    title: str
    about: str
    source: str
    repeats: Count = Field(description="runs behind each of the paper's numbers")
    columns: dict[str, Column]
    rows: dict[str, Row]
    compare: tuple[tuple[str, str], ...] = Field((), description="pairs of rows that are compared seed by seed")
    curves: tuple[Curve, ...] = Field((), description="charts of the error against one setting")
    protocols: dict[str, Protocol]

    @model_validator(mode="after")
    def _fits_together(self) -> Suite:
        for part, there in (("columns", self.columns), ("protocols", self.protocols)):
            if not there:
                raise ValueError(f"{part} has nothing, so there is nothing to run")
        if not self.trained:
            raise ValueError("rows has no row with a method, so there is nothing to run")
        for pair in self.compare:
            self._check_trained("compare", pair)
            if pair[0] == pair[1]:
                raise ValueError(f"compare has row {pair[0]!r} twice in a pair; name two rows")
            if sum({*pair} == {*other} for other in self.compare) > 1:  # Holm's correction would count it twice
                raise ValueError(f"compare has rows {pair[0]} and {pair[1]} twice; name each pair once")
        for curve in self.curves:
            self._check_trained("curves", curve.values)
        cells = [f"{column}/{row}" for column in self.columns for row in self.rows]
        for key, protocol in self.protocols.items():
            check_known(f"protocols.{key}.columns has", protocol.columns, self.columns)
            check_known(f"protocols.{key}.rows has", protocol.rows, self.rows)
            check_known(f"protocols.{key}.without has", protocol.without, [*self.rows, *self.columns, *cells])
        for key, column in self.columns.items():
            check_known(f"columns.{key}.like has column", [column.like] if column.like else [], self.columns)
        for key, row in self.rows.items():
            check_known(f"rows.{key}.paper has column", row.paper, self.columns)
            if row.method is None and row.quoted is None:
                raise ValueError(f"rows.{key} has neither a method nor a source that it is quoted from")
        for kind, each in (("columns", self.columns), ("rows", self.rows)):
            shown = Counter(part.name for part in each.values())
            if double := [name for name, count in shown.items() if count > 1]:
                raise ValueError(f"{kind} has the name {double[0]!r} twice; a reader could not tell them apart")
        names = [*self.columns, *self.rows, *self.protocols]
        if bad := [name for name in names if not re.fullmatch(r"\w[\w.+-]*", name)]:
            raise ValueError(f"{bad[0]!r} cannot be part of a file's name; use letters and digits, then . + -")
        return self

    def _check_trained(self, key: str, rows: Collection[str]) -> None:
        """Raise an error if a part of the suite names a row that is unknown, or that can never be run."""
        check_known(f"{key} has row", rows, self.rows)
        if quoted := [row for row in rows if row not in self.trained]:
            raise ValueError(
                f"{key} has row {quoted[0]!r}, which has no method and is never run; there are {listed(self.trained)}"
            )

    @classmethod
    def load(cls, name: str) -> Suite:
        """Return the suite of this name, or in this YAML file."""
        path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
        if not path.is_file():
            check_known("suite", [name], suites())
        values = read_yaml(path, "suite")
        try:
            suite = cls.model_validate({"key": path.stem, **values})
        except ValidationError as error:
            raise ConfigError(f"{path}: {first_error(error)}") from None
        if not re.fullmatch(r"\w[^/\\]*", suite.key):
            raise ConfigError(
                f"{path}: key {suite.key!r} cannot be the name of the folder of the records; begin it with a letter or "
                "a digit, and use no slash"
            )
        return suite

    @property
    def summary(self) -> str:
        """One line for a list of suites."""
        names = {"rows": self.trained, "columns": self.columns, "protocols": self.protocols}
        return "; ".join([f"{self.key}: {self.title}", *(f"{kind} {', '.join(each)}" for kind, each in names.items())])

    @property
    def trained(self) -> list[str]:
        """The rows that can be run, in their order."""
        return [key for key, row in self.rows.items() if row.method is not None]

    def protocol(self, name: str) -> Protocol:
        """Return a protocol by its name."""
        check_known("protocol", [name], self.protocols)
        return self.protocols[name]

    def cells(
        self, protocol: str, only: Collection[str] = (), columns: Collection[str] = (), seeds: int | None = None
    ) -> Iterator[Key]:
        """Yield the runs in the order in which they are made: a whole table, then that of the next seed.

        ``only`` has keys of rows, or methods that are no row's key; without it, all rows are yielded that can be run
        and that the protocol does not leave out. It is the same with ``columns``. A cell that the protocol leaves out
        is yielded if both its row and its column are asked for.
        """
        left_out = self.protocol(protocol).without
        methods = {name for name in only if name not in self.rows}
        chosen = only or [key for key in self.trained if key not in left_out]
        rows = [key for key in self.trained if key in chosen or self.rows[key].method in methods]
        known = dict.fromkeys([*self.trained, *(str(self.rows[key].method) for key in self.trained)])
        check_known("--only has", only, known)
        check_known("--columns has", columns, self.columns)
        for seed in range(self.protocol(protocol).seeds if seeds is None else seeds):
            for column in columns or [key for key in self.columns if key not in left_out]:
                for row in rows:
                    if f"{column}/{row}" not in left_out or (only and columns):
                        yield Key(column, row, seed)

    def settings(self, key: Key, protocol: str) -> dict[str, Any]:
        """Return the settings of a run that are not the recipe's."""
        row, length = self.rows[key.row], self.protocol(protocol)
        of_column, of_row = length.columns.get(key.column, {}), length.rows.get(key.row, {})
        shared = length.settings
        if len({_network(each) for each in self.rows.values() if each.method}) > 1 and _network(row):
            shared = {key: value for key, value in shared.items() if key != "network"}  # they are for another network
        return merged(shared, of_column, row.settings, of_row)

    def config(self, key: Key, protocol: str, preset: PresetName, **data: Any) -> RunConfig:
        """Return the whole configuration of a run; ``data`` are ``recipes.facts`` and the data_dir."""
        from advdrop.lab.config.recipes import resolve  # imports torch

        column, row = self.columns[key.column], self.rows[key.row]
        if row.method is None:
            raise ConfigError(f"{row.name} is quoted from {row.quoted}; there is nothing to run")
        settings = self.settings(key, protocol)
        try:
            return resolve(
                column.dataset,
                labels=column.labels,
                method=row.method,
                preset=row.preset or preset,
                seed=key.seed,
                settings=settings,
                **data,
            )
        except ConfigError as error:
            raise ConfigError(f"row {key.row}: {error}") from None


def _network(row: Row) -> str | None:
    """Return the network that a row or its method asks for; None: that of the data set."""
    methods = [METHODS[term] for term in parse_method(row.method or "dropout") if term != "dropout"]
    network = merged(*(method.recipe for method in methods), row.settings).get("network")
    return network.get("name") if isinstance(network, Mapping) else None


def suites() -> list[str]:
    """Return the names of the suites that are part of the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def differences(one: RunConfig, other: RunConfig) -> list[str]:
    """Return the keys in which two runs differ, without those of the machine."""
    return [key for key in one.differences(other) if key not in MACHINE + HABITS]


def fingerprint(config: RunConfig) -> str:
    """Return eight digits that are equal for runs without differences. The precision must not be ``auto``."""
    values = config.model_dump(mode="json", exclude={"data_dir", "engine"})
    for section, key in OPTIONAL:
        place = values[section] if section else values
        if not place.get(key):
            place.pop(key, None)
    text = yaml.safe_dump([values, config.engine.precision, config.engine.clip])
    return hashlib.sha256(text.encode()).hexdigest()[:8]
