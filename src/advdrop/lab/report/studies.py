"""The figures and the theorem of the paper as sections of the page, made from measurements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from advdrop.lab.records.measurement import Measurement
from advdrop.lab.records.record import RecordError
from advdrop.lab.report import autoencoder_study, theory_study
from advdrop.lab.report.study import Study

MAKERS = {"autoencoder": autoencoder_study.study, "linear-regression": theory_study.study}


def studies_of(found: Iterable[Measurement]) -> list[Study]:
    """Make a section for each study, data set and settings. Copies of a measurement count once."""
    groups: dict[tuple[str, str], list[list[Measurement]]] = defaultdict(list)
    for measurement in found:
        kind = measurement.study
        if kind not in MAKERS:
            raise RecordError(f"there are measurements of a study {kind!r}, which is unknown; there are {list(MAKERS)}")
        _put(groups[kind, measurement.dataset], measurement)
    made = []
    for (kind, dataset), parts in sorted(groups.items()):
        for part, name in zip(parts, _names(parts), strict=True):
            study = MAKERS[kind](dataset, sorted(part, key=lambda one: one.seed))
            made.append(replace(study, title=f"{study.title}{name}"))
    return made


def _put(parts: list[list[Measurement]], new: Measurement) -> None:
    """Add a measurement to the part with its setup, unless a copy is there. Other numbers start another part."""
    for part in parts:
        if _setup(part[0]) == _setup(new):
            there = [old for old in part if (old.row, old.seed) == (new.row, new.seed)]
            if not there:
                part.append(new)
            if not there or there[0].same(new):
                return
    parts.append([new])


def _setup(measurement: Measurement) -> dict[str, Any]:
    """Return what the measurements of a section share. Rows differ in p and target; the theorem has one measurement."""
    own = {"seed": measurement.seed} if measurement.study == "linear-regression" else {}
    return own | {key: value for key, value in measurement.settings.items() if key not in ("p", "target")}


def _names(parts: Sequence[Sequence[Measurement]]) -> list[str]:
    """Name the parts of a study by what differs in their setup, or else by when they were finished."""
    if len(parts) == 1:
        return [""]
    setups = [_setup(part[0]) for part in parts]
    keys = sorted({key for setup in setups for key in setup if any(setup[key] != other.get(key) for other in setups)})
    names = [", ".join(f"{key} {setup.get(key)}" for key in keys) for setup in setups]
    finished = [f"finished {part[0].finished}" for part in parts]
    return [f" ({name})" for name in (names if len(set(names)) == len(parts) else finished)]
