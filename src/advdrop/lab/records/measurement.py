"""Measurements: the numbers of one model of a study, as a sealed JSON file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from advdrop.lab.records.record import Sealed, is_measurement

LEVELS = 31  # a packed picture has the levels -31 to 31


class Measurement(Sealed):
    """The numbers of one model of a study."""

    columns: ClassVar[str] = "series"
    place: ClassVar[str] = "{study}/{dataset}/{row}-{seed}.json"

    format: Literal["advdrop measurement 1"] = "advdrop measurement 1"
    study: str
    dataset: str
    row: str
    seed: int
    settings: dict[str, Any]
    numbers: dict[str, float] = Field(description="for tables and claims")
    series: dict[str, list[float]] = Field(description="for charts")
    picture: str | None = Field(None, description="packed by advdrop.lab.studies.features.packed")
    shape: tuple[int, ...] = Field((), description="of a tile of the picture")
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
        """Return True if the other one has the same numbers and series."""
        return (self.numbers, self.series) == (other.numbers, other.series)


read_measurement = Measurement.read


def measurements(path: Path) -> list[Measurement]:
    """Return all measurements of a folder, or the one of a file."""
    files = [path] if path.is_file() else sorted(path.rglob("*.json"))
    return [Measurement.read(file) for file in files if is_measurement(file)]
