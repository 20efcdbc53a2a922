"""Measurements: what one model of a study came to, as a sealed JSON file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from advdrop.lab.files import write_text
from advdrop.lab.records.record import Sealed, is_measurement, read_sealed

LEVELS = 31
"""A packed picture has the levels −31 to 31."""


class Measurement(Sealed):
    """What one model of a study came to.

    ``numbers`` are what tables and claims are made of, ``series`` what is drawn; a picture is packed by
    ``advdrop.lab.studies.features.packed`` and has ``shape``.
    """

    columns: ClassVar[str] = "series"

    format: Literal["advdrop measurement 1"] = "advdrop measurement 1"
    study: str
    dataset: str
    row: str
    seed: int
    settings: dict[str, Any]
    numbers: dict[str, float]
    series: dict[str, list[float]]
    picture: str | None = None
    shape: tuple[int, ...] = ()
    dataset_checksum: str
    versions: dict[str, str]
    commit: str | None
    machine: dict[str, Any]
    seconds: float = Field(ge=0)
    finished: str

    @property
    def name(self) -> str:
        """For example ``autoencoder mnist dropout seed 0``."""
        return f"{self.study} {self.dataset} {self.row} seed {self.seed}"

    def same(self, other: Measurement) -> bool:
        """Whether another one found the same."""
        return (self.numbers, self.series) == (other.numbers, other.series)


def read_measurement(path: Path) -> Measurement:
    """Read one; if it was edited it is refused."""
    return read_sealed(path, Measurement)


def measurements(path: Path) -> list[Measurement]:
    """All of a folder, or that of a file."""
    files = [path] if path.is_file() else sorted(path.rglob("*.json"))
    return [read_measurement(file) for file in files if is_measurement(file)]


def place(folder: Path, found: Measurement) -> Path:
    """Where a measurement is in a ledger: ``STUDY/DATASET/ROW-SEED.json``."""
    return folder / found.study / found.dataset / f"{found.row}-{found.seed}.json"


def add(folder: Path, found: Measurement) -> Literal["added", "repeated", "other"]:
    """Write it into a ledger, unless there is one; say whether that has the same numbers."""
    path = place(folder, found)
    if path.exists():
        return "repeated" if read_measurement(path).same(found) else "other"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, found.sealed().dump())
    return "added"
