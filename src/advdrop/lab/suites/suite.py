"""A suite: a table of the paper, its cells, the numbers printed there and how long each protocol trains.

Imports no torch, except to resolve a configuration.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from advdrop.lab.choices import Labels, PresetName
from advdrop.lab.config.config import (
    ConfigError,
    RunConfig,
    listed,
    merged,
    parse_method,
    read_yaml,
    unknown_name,
)
from advdrop.lab.config.terms import Count, Section

FOLDER = Path(__file__).parent / "paper"
Values = Mapping[str, Any]
MACHINE = ("engine.accelerator", "engine.devices", "engine.nodes", "engine.accumulate", "engine.memory_format")
HABITS = ("engine.checkpoint_seconds", "engine.tensorboard")
"""What a run may choose for itself: where it computes, and what it writes down meanwhile."""


class Reported(NamedTuple):
    """A number as the paper prints it.

    Args:
        mean: test error in percent.
        std: its standard deviation over the repetitions; None where none is given.
        bold: whether it is printed in bold.
    """

    mean: float
    std: float | None
    bold: bool

    @classmethod
    def of(cls, text: str) -> Reported:
        """Read it as the suites write it.

        >>> Reported.of("**0.99 ± 0.07**")
        Reported(mean=0.99, std=0.07, bold=True)
        >>> Reported.of("12.36")
        Reported(mean=12.36, std=None, bold=False)
        """
        found = re.fullmatch(r"(\*\*)?(\d+\.\d+)(?: ± (\d+\.\d+))?(\*\*)?", text)
        if found is None or (found[1] is None) != (found[4] is None):
            raise ValueError(f"{text!r} is not a number such as 12.36, 0.99 ± 0.07 or **0.99 ± 0.07**")
        return cls(float(found[2]), float(found[3]) if found[3] else None, found[1] is not None)

    def __str__(self) -> str:
        """Without the stars."""
        return f"{self.mean:.2f}" + ("" if self.std is None else f" ± {self.std:.2f}")


class Column(Section):
    """What a row is measured on."""

    name: str
    dataset: str
    labels: Labels


def _reported(values: Any) -> Any:
    return {key: Reported.of(str(text)) for key, text in values.items()} if isinstance(values, dict) else values


class Row(Section):
    """A method, or a number that is quoted from elsewhere."""

    name: str
    method: str | None = None
    preset: PresetName | None = Field(None, description="instead of the one that is asked for")
    settings: dict[str, Any] = Field({}, description="over the recipe and the protocol")
    quoted: str | None = Field(None, description="the work that the paper took the number from")
    paper: Annotated[dict[str, Reported], BeforeValidator(_reported)] = Field({}, description="for each column")

    @field_validator("method")
    @classmethod
    def _known(cls, method: str | None) -> str | None:
        return None if method is None else "+".join(parse_method(method))


class Protocol(Section):
    """How long, how often, and in what else it differs from the recipe."""

    about: str
    seeds: Count
    settings: dict[str, Any] = Field({}, description="over the recipe")
    columns: dict[str, dict[str, Any]] = Field({}, description="over the settings, for one column each")


@dataclass(frozen=True)
class Key:
    """The place of a run in a suite."""

    column: str
    row: str
    seed: int

    def __str__(self) -> str:
        """For example ``1000 vadd-kl seed 0``."""
        return f"{self.column} {self.row} seed {self.seed}"


class Suite(Section):
    """A file of ``suites/paper``, or one of the user's own."""

    key: str
    title: str
    about: str
    source: str
    repeats: Count = Field(description="runs behind each of the paper's numbers")
    columns: dict[str, Column]
    rows: dict[str, Row]
    compare: tuple[tuple[str, str], ...] = Field((), description="pairs of rows that are compared seed by seed")
    protocols: dict[str, Protocol]

    @model_validator(mode="after")
    def _fits_together(self) -> Suite:
        for key, row in self.rows.items():
            if unknown := set(row.paper) - set(self.columns):
                raise ValueError(f"rows.{key}.paper has column {unknown_name(min(unknown), self.columns)}")
            if row.method is None and row.quoted is None:
                raise ValueError(f"rows.{key} has neither a method nor a source that it is quoted from")
        for key, protocol in self.protocols.items():
            if unknown := set(protocol.columns) - set(self.columns):
                raise ValueError(f"protocols.{key}.columns has {unknown_name(min(unknown), self.columns)}")
        for name in (name for pair in self.compare for name in pair):
            if name not in self.rows:
                raise ValueError(f"compare has row {unknown_name(name, self.rows)}")
        names = [*self.columns, *self.rows, *self.protocols]
        if bad := [name for name in names if not re.fullmatch(r"[\w.+-]+", name)]:
            raise ValueError(f"{bad[0]!r} cannot be part of a file's name; use letters, digits and . + -")
        return self

    @classmethod
    def load(cls, name: str) -> Suite:
        """The suite of this name, or in this YAML file."""
        path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
        if not path.is_file():
            raise ConfigError(f"suite {unknown_name(name, suites())}; a file of your own ends in .yaml")
        values = read_yaml(path, "suite")
        try:
            return cls.model_validate({"key": path.stem, **values})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise ConfigError(f"{path}: {place} {first['msg'].removeprefix('Value error, ')}".strip()) from None

    @property
    def trained(self) -> list[str]:
        """The rows that can be run, in their order."""
        return [key for key, row in self.rows.items() if row.method is not None]

    def protocol(self, name: str) -> Protocol:
        """One of the protocols."""
        if name not in self.protocols:
            raise ConfigError(f"protocol {unknown_name(name, self.protocols)}")
        return self.protocols[name]

    def cells(
        self, protocol: str, only: Collection[str] = (), columns: Collection[str] = (), seeds: int | None = None
    ) -> Iterator[Key]:
        """The runs in the order in which they are made: whole tables, one seed after the other.

        Args:
            protocol: its name.
            only: rows by their keys, or by a method that is no row's key; all that can be run if none is given.
            columns: likewise.
            seeds: the number of seeds, if another than the protocol's.
        """
        methods = {name for name in only if name not in self.rows}
        rows = [key for key in self.trained if not only or key in only or self.rows[key].method in methods]
        known = {*self.trained, *(self.rows[key].method for key in self.trained)}
        if unknown := [name for name in only if name not in known]:
            raise ConfigError(f"--only has {unknown_name(unknown[0], self.trained)}")
        if unknown := [name for name in columns if name not in self.columns]:
            raise ConfigError(f"--columns has {unknown_name(unknown[0], self.columns)}")
        for seed in range(self.protocol(protocol).seeds if seeds is None else seeds):
            for column in columns or self.columns:
                for row in rows:
                    yield Key(column, row, seed)

    def preset(self, row: str, preset: PresetName) -> PresetName:
        """The preset of a row when this one is asked for."""
        return self.rows[row].preset or preset

    def config(
        self,
        key: Key,
        protocol: str,
        preset: PresetName,
        *,
        shape: Sequence[int],
        examples: int,
        data_dir: Path | None = None,
        engine: Values | None = None,
    ) -> RunConfig:
        """The whole configuration of a run.

        Args:
            key: the run.
            protocol: its name.
            preset: the bundle of choices that the paper leaves open.
            shape: of one example.
            examples: the number of training examples.
            data_dir: where the files are.
            engine: the machine.
        """
        from advdrop.lab.config.recipes import resolve  # imports torch

        column, row, length = self.columns[key.column], self.rows[key.row], self.protocol(protocol)
        if row.method is None:
            raise ConfigError(f"{row.name} is quoted from {row.quoted}; there is nothing to run")
        return resolve(
            column.dataset,
            shape=shape,
            examples=examples,
            labels=column.labels,
            method=row.method,
            preset=self.preset(key.row, preset),
            seed=key.seed,
            data_dir=data_dir,
            settings=merged(
                length.settings, length.columns.get(key.column, {}), row.settings, {"engine": engine or {}}
            ),
        )


def suites() -> list[str]:
    """The names of the suites that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def differences(one: RunConfig, other: RunConfig) -> list[str]:
    """The keys in which two runs differ, without those that a machine may choose for itself."""
    return [key for key in one.differences(other) if key not in MACHINE + HABITS]


def fingerprint(config: RunConfig) -> str:
    """Eight digits that are equal for runs without differences.

    Args:
        config: the run; its precision must not be ``auto``.
    """
    values = config.model_dump(mode="json", exclude={"data_dir", "engine"})
    text = yaml.safe_dump([values, config.engine.precision, config.engine.clip])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def described(suite: Suite) -> str:
    """One line for a list of suites."""
    return f"{suite.key}: {suite.title}; rows {listed(suite.trained)}; columns {listed(suite.columns)}"
