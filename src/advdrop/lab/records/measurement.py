"""Measurements: the numbers of one model of a study, as a sealed JSON file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from advdrop.lab.config.section import Count, Whole
from advdrop.lab.records.record import Sealed, is_measurement

LEVELS = 31  # a packed picture has the levels -31 to 31
TOLERANCES = {"linear-regression": (1e-8, 1e-4)}
"""How far the numbers and the series of one study may differ on another machine or with another version of its solver.

Its numbers are counts, rounding errors, and duality gaps that must stay below 1e-8. A gap of 1e-8 leaves a coefficient
of the standardized features uncertain by about 1e-4. Other studies must repeat exactly.
"""


class Measurement(Sealed):
    """The numbers of one model of a study."""

    columns: ClassVar[str] = "series"
    place: ClassVar[str] = "{study}/{dataset}/{row}-{seed}.json"

    format: Literal["advdrop measurement 1"] = "advdrop measurement 1"
    study: str
    dataset: str
    row: str
    seed: Whole
    settings: dict[str, Any]
    numbers: dict[str, float] = Field(description="for tables and claims")
    series: dict[str, list[float]] = Field(description="for charts")
    picture: str | None = Field(
        None, max_length=1 << 24, description="packed by advdrop.lab.studies.autoencoders.packed"
    )
    shape: tuple[Count, ...] = Field((), description="of a tile of the picture")
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
        """Return True if the other one has the same numbers and series, within the tolerances of the study."""
        of_numbers, of_series = TOLERANCES.get(self.study, (0.0, 0.0))
        mine, others = ({key: [value] for key, value in each.numbers.items()} for each in (self, other))
        return _close(mine, others, of_numbers) and _close(self.series, other.series, of_series)


def _close(one: Mapping[str, Sequence[float]], other: Mapping[str, Sequence[float]], tolerance: float) -> bool:
    if {key: len(values) for key, values in one.items()} != {key: len(values) for key, values in other.items()}:
        return False
    pairs = (pair for key in one for pair in zip(one[key], other[key], strict=True))
    return all(abs(first - second) <= tolerance for first, second in pairs)


def measurements(path: Path) -> list[Measurement]:
    """Return all measurements of a folder, or the one of a file."""
    files = [path] if path.is_file() else sorted(path.rglob("*.json"))
    return [Measurement.read(file) for file in files if is_measurement(file)]
