"""The ledger: one small JSON file for each finished run, written once and never again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from advdrop.lab.choices import Labels
from advdrop.lab.files import read_json, write_text

FORMAT = "advdrop record 1"
MEASUREMENT = "advdrop measurement 1"
ERROR = "test_error_percent"
Kind = TypeVar("Kind", bound="Sealed")


class RecordError(ValueError):
    """A record that is not what it says it is: the message names the file and what is wrong with it."""


class Sealed(BaseModel):
    """What is written once. The digest is of everything else: a file that was edited by hand no longer has it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    digest: str = ""
    columns: ClassVar[str]
    """The field that has lists of numbers, each of which becomes a line of the file."""

    def sealed(self) -> Self:
        """The same with its digest."""
        return self.model_copy(update={"digest": self.computed_digest()})

    def computed_digest(self) -> str:
        """The digest of all but the digest."""
        values = self.model_dump(mode="json", exclude={"digest"})
        return hashlib.sha256(json.dumps(values, sort_keys=True, ensure_ascii=False).encode()).hexdigest()

    def complaints(self) -> Iterator[str]:
        """What in it contradicts itself."""
        if self.digest != self.computed_digest():
            yield "its digest is not that of its content: it was changed after the run"

    def dump(self) -> str:
        """The text of its file."""
        values = self.model_dump(mode="json")
        columns = values.pop(self.columns)
        text = json.dumps(values, indent=1, ensure_ascii=False)
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(column)}" for key, column in columns.items())
        return f'{text[:-2]},\n "{self.columns}": {{\n{lines}\n }}\n}}\n'


class Record(Sealed):
    """A finished run.

    ``curve`` has a list for each metric, with an entry for each epoch (None where it was not measured); ``config`` is
    the whole configuration but for the folder of the data.
    """

    columns: ClassVar[str] = "curve"

    format: Literal["advdrop record 1"] = "advdrop record 1"
    suite: str | None = Field(None, description="None for a run that belongs to no suite")
    protocol: str | None = None
    column: str | None = None
    row: str | None = None
    preset: str = Field(
        description="the one asked for; a row of a suite may have its own, which its configuration tells"
    )
    method: str
    dataset: str
    labels: Labels
    seed: int
    updates: int
    test_error_percent: float = Field(ge=0, le=100)
    milliseconds_per_update: float = Field(gt=0)
    seconds: float = Field(ge=0)
    parameters: int
    curve: dict[str, list[float | None]]
    config: dict[str, Any]
    shape: tuple[int, ...]
    examples: int
    test_images: int = Field(gt=0)
    dataset_checksum: str
    split_checksum: str
    versions: dict[str, str]
    commit: str | None
    machine: dict[str, Any]
    earlier: list[dict[str, Any]] = Field([], description="where the parts before the last one were computed")
    finished: str

    @property
    def name(self) -> str:
        """What to call it, for example ``table1 short paper 1000 vadd-kl seed 0``."""
        place = [self.suite, self.protocol, self.preset, self.column, self.row]
        loose = [self.dataset, str(self.labels), self.method]
        return " ".join([*(str(part) for part in (place if self.suite else loose)), f"seed {self.seed}"])

    def complaints(self) -> Iterator[str]:
        """What in it contradicts itself."""
        yield from super().complaints()
        given = {
            "method": self.method,
            "dataset": self.dataset,
            "labels": self.labels,
            "seed": self.seed,
        }
        for key, value in given.items():
            if self.config.get(key) != value:
                yield f"{key} is {value!r}, and {self.config.get(key)!r} in its configuration"
        updates, errors = self.curve.get("update") or [None], self.curve.get(ERROR) or [None]
        training = self.config.get("training")
        configured = training.get("updates") if isinstance(training, dict) else None
        if not self.updates == configured == updates[-1]:
            yield f"{self.updates} updates, {configured} in its configuration, {updates[-1]} in its curve"
        if len({len(column) for column in self.curve.values()}) > 1:
            yield "the lists of its curve are not equally long"
        if errors[-1] != self.test_error_percent:
            yield f"the test error is {self.test_error_percent}, and {errors[-1]} at the end of its curve"
        wrong = self.test_error_percent / 100 * self.test_images
        if abs(wrong - round(wrong)) > 1e-4:
            yield f"{self.test_error_percent} % of {self.test_images} images is no whole number of images"


def read_record(path: Path) -> Record:
    """Read a record; one that contradicts itself is refused."""
    return read_sealed(path, Record)


def read_sealed(path: Path, kind: type[Kind]) -> Kind:
    """Read a file of this kind; one that contradicts itself is refused."""
    try:
        values = read_json(path)
    except ValueError as error:
        raise RecordError(str(error)) from None
    try:
        record = kind.model_validate(values)
        complaint = next(record.complaints(), None)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        words = [".".join(str(part) for part in first["loc"]), first["msg"]]
        raise RecordError(f"{path} is not a record: {' '.join(' '.join(words).split())}") from None
    except ValueError as error:  # half a letter
        raise RecordError(f"{path} is not a record: {error}") from None
    if complaint:
        raise RecordError(f"{path}: {complaint}")
    return record


def is_record(path: Path) -> bool:
    """Whether a JSON file is meant to be a record, be it damaged; other files may lie beside them."""
    try:
        values = read_json(path)
    except ValueError:
        return True
    return isinstance(values, dict) and (values.get("format") == FORMAT or "digest" in values) and not _measured(values)


def is_measurement(path: Path) -> bool:
    """Whether a JSON file is a measurement of a study (:mod:`advdrop.lab.records.measurement`)."""
    try:
        return _measured(read_json(path))
    except ValueError:
        return False


def _measured(values: Any) -> bool:
    return isinstance(values, dict) and values.get("format") == MEASUREMENT


@dataclass(frozen=True)
class Ledger:
    """A folder of records: ``SUITE/PROTOCOL-PRESET/COLUMN/ROW-SEED.json``."""

    folder: Path

    def path(self, record: Record) -> Path:
        """Where a record of a suite is, or will be."""
        protocol = f"{record.protocol}-{record.preset}"
        return self.folder / str(record.suite) / protocol / str(record.column) / f"{record.row}-{record.seed}.json"

    def add(self, record: Record) -> Literal["added", "repeated", "other"]:
        """Write a record of a suite, unless there is one of that run.

        Returns:
            ``added``; ``repeated`` if there is one with the same errors all along, ``other`` if they differ.
        """
        path = self.path(record)
        if path.exists():
            before = read_record(path)
            return "repeated" if before.curve[ERROR] == record.curve[ERROR] else "other"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, record.sealed().dump())
        return "added"

    def records(self) -> Iterator[Record]:
        """All of them, in the order of their names; one that contradicts itself is an error."""
        for path in sorted(self.folder.glob("*/*/*/*.json")):
            if is_record(path):
                yield read_record(path)
