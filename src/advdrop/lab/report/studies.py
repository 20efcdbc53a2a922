"""The figures and the theorem of the paper as sections of the page, made from measurements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from advdrop.lab.records.measurement import Measurement
from advdrop.lab.records.record import RecordError
from advdrop.lab.report.charts import Figure
from advdrop.lab.report.statistics import LEVEL, holm, p_value, paired


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, whether it holds here, and the numbers behind the verdict."""

    text: str
    verdict: str  # "holds", "does not hold", "the other way round" or "not known"
    numbers: str

    def __str__(self) -> str:
        """Return a line of a list."""
        return f"{self.text}: {self.verdict} ({self.numbers})"


@dataclass(frozen=True)
class Study:
    """A section of the page: a table, notes to read it, the paper's claims, figures, and the commands that make it."""

    title: str
    about: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    claims: Sequence[Claim]
    figures: Sequence[Figure]
    commands: Sequence[str]
    measurements: Sequence[Measurement] = field(repr=False)


def lower(rows: Mapping[str, Sequence[Measurement]], claims: Iterable[tuple[str, str, str, str]]) -> list[Claim]:
    """Judge claims of the form "this number of one row is below that of another", seed by seed.

    A claim is its text, the number, the row that should have less of it, and the other row.
    """
    found = []
    for text, number, one, other in claims:
        values = [{each.seed: each.numbers[number] for each in rows.get(row, ())} for row in (one, other)]
        if (pair := paired(*values)) is not None:
            found.append((text, pair))
    judged = []
    for (text, pair), p in zip(found, holm([pair.t_p for _, pair in found]), strict=True):
        mean, margin, _ = pair.difference
        numbers = f"difference {mean:+.3g}" + ("" if margin is None else f" ± {margin:.2g}") + f", n = {pair.n}"
        if p is not None:
            numbers += f", p: {p_value(p)}"
        shown = "holds" if mean < 0 else "the other way round"
        judged.append(Claim(text, shown if p is not None and p < LEVEL else "not known", numbers))
    return judged


def studies_of(found: Iterable[Measurement]) -> list[Study]:
    """Make a section for each study, data set and settings. Copies of a measurement count once."""
    from advdrop.lab.report import autoencoder_study, theory_study  # these import this module

    makers = {"autoencoder": autoencoder_study.study, "linear-regression": theory_study.study}
    groups: dict[tuple[str, str], list[list[Measurement]]] = defaultdict(list)
    for measurement in found:
        kind = measurement.study
        if kind not in makers:
            raise RecordError(f"there are measurements of a study {kind!r}, which is unknown; there are {list(makers)}")
        _put(groups[kind, measurement.dataset], measurement)
    made = []
    for (kind, dataset), parts in sorted(groups.items()):
        for part, name in zip(parts, _names(parts), strict=True):
            study = makers[kind](dataset, sorted(part, key=lambda one: one.seed))
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
