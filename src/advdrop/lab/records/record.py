"""Records: one small JSON file for each finished run, written once and never changed."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from advdrop.lab.choices import Labels
from advdrop.lab.config.section import Count, Section, Whole
from advdrop.lab.config.values import first_error
from advdrop.lab.files import read_json, write_text

if TYPE_CHECKING:  # imports torch
    from advdrop.lab.engine.rundir import Row, RunDirectory

FORMAT = "advdrop record 1"
MEASUREMENT = "advdrop measurement 1"
ERROR = "test_error_percent"
KEPT = {"update": "update", "test/error_percent": ERROR, "train/loss": "train_loss", "seconds": "seconds"}
"""The columns of ``metrics.csv`` that a record keeps, and their names there."""
SOME = ("search/", "companion/trust")
"""The beginnings of those that it keeps if the run has them: all of the mask search, and what a companion decides."""


class RecordError(ValueError):
    """A record that contradicts itself. The message names the file and what is wrong with it."""


class Sealed(Section):
    """A file with a digest of its content. A file that was edited by hand no longer has the right digest."""

    digest: str = ""
    columns: ClassVar[str]  # the field with lists of numbers, each of which becomes a line of the file
    place: ClassVar[str]  # the file in a ledger, with the names of fields in braces

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file. One that contradicts itself is an error."""
        try:
            values = read_json(path)
        except ValueError as error:
            raise RecordError(str(error)) from None
        try:
            found = cls.model_validate(values)
            complaint = next(found.complaints(), None)
        except ValidationError as error:
            raise RecordError(f"{path} is not a record: {first_error(error)}") from None
        except ValueError as error:  # half of a surrogate pair
            raise RecordError(f"{path} is not a record: {error}") from None
        if complaint:
            raise RecordError(f"{path}: {complaint}")
        return found

    def same(self, other: Self) -> bool:
        """Return True if the other one has the same numbers."""
        raise NotImplementedError

    def sealed(self) -> Self:
        """Return a copy with its digest."""
        return self.model_copy(update={"digest": self.computed_digest()})

    def computed_digest(self) -> str:
        """Return the digest of everything but the digest."""
        values = self.model_dump(mode="json", exclude={"digest"})
        return hashlib.sha256(json.dumps(values, sort_keys=True, ensure_ascii=False).encode()).hexdigest()

    def complaints(self) -> Iterator[str]:
        """Yield the contradictions in it."""
        if self.digest != self.computed_digest():
            yield "its digest is not that of its content: it was changed after the run"

    def dump(self) -> str:
        """Return the text of its file."""
        values = self.model_dump(mode="json")
        columns = values.pop(self.columns)
        text = json.dumps(values, indent=1, ensure_ascii=False)
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(column)}" for key, column in columns.items())
        return f'{text[:-2]},\n "{self.columns}": {{\n{lines}\n }}\n}}\n'


class Record(Sealed):
    """A finished run."""

    columns: ClassVar[str] = "curve"
    place: ClassVar[str] = "{suite}/{protocol}-{preset}/{column}/{row}-{seed}.json"

    format: Literal["advdrop record 1"] = "advdrop record 1"
    suite: str | None = Field(None, description="None for a run that belongs to no suite")
    protocol: str | None = None
    column: str | None = None
    row: str | None = None
    preset: str = Field(description="the preset that was asked for; a row of a suite may have its own")
    method: str
    dataset: str
    labels: Labels
    seed: Whole
    updates: Count
    test_error_percent: float = Field(ge=0, le=100)
    milliseconds_per_update: float = Field(gt=0)
    seconds: float = Field(ge=0)
    parameters: Whole
    curve: dict[str, list[float | None]] = Field(description="for each metric, a value for each epoch or None")
    config: dict[str, Any] = Field(description="the whole configuration without the folder of the data")
    shape: tuple[Count, ...]
    examples: Count
    half_labeled: bool = Field(False, description="whether all labels are used and other examples have none")
    test_images: Count
    dataset_checksum: str
    split_checksum: str
    versions: dict[str, str]
    commit: str | None
    machine: dict[str, Any]
    earlier: list[dict[str, Any]] = Field([], description="where the parts before the last one were computed")
    finished: str
    samples: str | None = Field(
        None,
        max_length=100_000,
        pattern="^[A-Za-z0-9+/]+=*$",
        description="a PNG file of generated pictures, as base64",
    )

    @model_serializer(mode="wrap")
    def _without_nothing(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        # Only methods with a generator have samples, and only data of the user's own are partly labeled.
        rare = {"samples": None, "half_labeled": False}
        return {key: value for key, value in values.items() if key not in rare or value != rare[key]}

    @property
    def name(self) -> str:
        """For example ``table1 short paper 1000 vadd-kl seed 0``."""
        place = [self.suite, self.protocol, self.preset, self.column, self.row]
        parts = place if self.suite else [self.dataset, self.labels, self.method]
        return f"{' '.join(map(str, parts))} seed {self.seed}"

    def same(self, other: Record) -> bool:
        """Return True if the other run had the same errors at every evaluation."""
        return self.curve[ERROR] == other.curve[ERROR]

    def complaints(self) -> Iterator[str]:
        """Yield the contradictions in it."""
        yield from super().complaints()
        for key in ("method", "dataset", "labels", "seed"):
            if self.config.get(key) != getattr(self, key):
                yield f"{key} is {getattr(self, key)!r}, and {self.config.get(key)!r} in its configuration"
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
            yield f"{self.test_error_percent} % of {self.test_images} examples is not a whole number of examples"


def record_of(run: RunDirectory, **place: str) -> Record:
    """Make the record of a finished run. A place in a suite has the names suite, protocol, preset, column and row."""
    values = {name: run.result[name] for name in Record.model_fields if name in run.result} | place
    values["dataset"] = run.config.dataset
    values["curve"] = curve_of(run.metrics(), run.result[ERROR])
    if run.samples.is_file():
        values["samples"] = base64.b64encode(run.read(run.samples)).decode()
    values["half_labeled"] = run.config.labels == "all" and len(run.split.unlabeled) > 0
    values["config"] = run.config.model_dump(mode="json", exclude={"data_dir"})
    try:
        return Record(**values, split_checksum=split_checksum(run)).sealed()
    except ValidationError as error:
        raise RecordError(
            f"{run.path / 'result.json'}: {first_error(error)}; train the run again with --force"
        ) from None


def curve_of(rows: list[Row], last: float) -> dict[str, list[float | None]]:
    """Return six digits of each metric that is kept, and all digits of the last test error."""
    some = sorted({name for row in rows for name in row if name.startswith(SOME)})
    names = KEPT | {name: name.replace("/", "_") for name in some}
    curve: dict[str, list[float | None]] = {
        called: [float(f"{row[name]:.6g}") if row.get(name) is not None else None for row in rows]
        for name, called in names.items()
    }
    curve[ERROR][-1] = last
    return curve


def split_checksum(run: RunDirectory) -> str:
    """Return the SHA-256 of the labeled, the unlabeled and the validation rows."""
    digest = hashlib.sha256()
    for rows in (run.split.labeled, run.split.unlabeled, run.split.validation):
        digest.update(f"{len(rows)}:".encode() + rows.numpy().tobytes())
    return digest.hexdigest()


def is_record(path: Path) -> bool:
    """Return True if a JSON file is a record of a run, or a damaged file. Other files may be in the same folder."""
    return _format(path) not in (None, MEASUREMENT)


def is_measurement(path: Path) -> bool:
    """Return True if a JSON file is a measurement of a study."""
    return _format(path) == MEASUREMENT


def _format(path: Path) -> str | None:
    """Return the format of a JSON file, or None if it is of another kind. A damaged file counts as a record."""
    try:
        values = read_json(path)
    except ValueError:
        return FORMAT
    known = isinstance(values, dict) and ("digest" in values or values.get("format") in (FORMAT, MEASUREMENT))
    return str(values.get("format")) if known else None


@dataclass(frozen=True)
class Ledger:
    """A folder of records and measurements."""

    folder: Path

    def path(self, found: Sealed) -> Path:
        """Return the file of a record or a measurement, written or not."""
        return self.folder / found.place.format(**dict(found))

    def add(self, found: Sealed) -> Literal["added", "repeated", "other"]:
        """Write a file, unless there is one: then say whether it has the same numbers (``repeated``) or ``other``."""
        path = self.path(found)
        if path.exists():
            return "repeated" if type(found).read(path).same(found) else "other"
        write_text(path, found.sealed().dump(), parents=True)
        return "added"

    def records(self) -> Iterator[Record]:
        """Yield the records of runs in the order of their files. One that contradicts itself is an error."""
        for path in sorted(self.folder.glob("*/*/*/*.json")):
            if is_record(path):
                yield Record.read(path)
