"""From a finished run directory to its record."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from advdrop.lab.engine.rundir import Row, RunDirectory
from advdrop.lab.records.record import ERROR, Record
from advdrop.lab.suites.suite import Key

KEPT = {"update": "update", "test/error_percent": ERROR, "train/loss": "train_loss", "seconds": "seconds"}
"""The columns of ``metrics.csv`` that a record keeps, and what they are called there; those of the search come too."""


@dataclass(frozen=True)
class Place:
    """Where a run belongs: the suite, how it was run, and the key there."""

    suite: str
    protocol: str
    preset: str
    key: Key


def record_of(run: RunDirectory, place: Place | None = None) -> Record:
    """The record of a finished run, and of its place in a suite if it has one."""
    result, config = run.result, run.config
    where = {"preset": result["preset"]}
    if place is not None:
        where = {"suite": place.suite, "protocol": place.protocol, "preset": place.preset}
        where |= {"column": place.key.column, "row": place.key.row}
    taken = (
        "method",
        "labels",
        "seed",
        "updates",
        ERROR,
        "milliseconds_per_update",
        "seconds",
        "parameters",
        "dataset_checksum",
        "versions",
        "commit",
        "machine",
        "finished",
        "shape",
        "examples",
        "test_images",
    )
    return Record(
        **where,
        **{name: result[name] for name in taken},
        dataset=config.dataset,
        earlier=result.get("earlier", []),
        curve=curve_of(run.metrics(), result[ERROR]),
        config=config.model_dump(mode="json", exclude={"data_dir"}),
        split_checksum=split_checksum(run),
    ).sealed()


def curve_of(rows: list[Row], last: float) -> dict[str, list[float | None]]:
    """What is kept of the metrics: a list for each.

    Args:
        rows: of ``metrics.csv``.
        last: the test error of the result, which has all its digits.
    """
    searched = sorted({name for row in rows for name in row if name.startswith("search/")})
    names = KEPT | {name: name.replace("/", "_") for name in searched}
    curve = {called: [_short(row.get(name)) for row in rows] for name, called in names.items()}
    curve[ERROR][-1] = last
    return curve


def split_checksum(run: RunDirectory) -> str:
    """The SHA-256 of the labeled, the unlabeled and the validation rows."""
    split = run.split
    digest = hashlib.sha256()
    for rows in (split.labeled, split.unlabeled, split.validation):
        digest.update(f"{len(rows)}:".encode() + rows.numpy().tobytes())
    return digest.hexdigest()


def _short(value: Any) -> float | None:
    return None if value is None else float(f"{value:.6g}")
