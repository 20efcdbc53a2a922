"""What every study has: a table, the paper's claims, figures, and the commands that make it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from advdrop.lab.records.measurement import Measurement
from advdrop.lab.report.charts import Figure
from advdrop.lab.report.sections import Section
from advdrop.lab.report.statistics import holm, judged, numbers, paired
from advdrop.lab.report.tables import Table

VERDICTS = {"lower": "holds", "higher": "the other way round", "unknown": "not known"}


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, whether it holds here, and the numbers behind the verdict."""

    text: str
    verdict: str  # one of VERDICTS, or "does not hold"
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


def study_sections(study: Study) -> list[Section]:
    """Return the parts of a study."""
    claims = [[claim.text, claim.verdict, claim.numbers] for claim in study.claims]
    found = [Section("", Table(study.head, study.rows))]
    found += [Section("The paper's claims", Table(["claim", "here", "numbers"], claims))] if claims else []
    return [*found, Section("Run it again", commands=study.commands)]


def lower(rows: Mapping[str, Sequence[Measurement]], claims: Iterable[tuple[str, str, str, str]]) -> list[Claim]:
    """Judge claims of the form "this number of one row is below that of another", seed by seed.

    A claim is its text, the number, the row that should have less of it, and the other row.
    """
    found = []
    for text, number, one, other in claims:
        values = [{each.seed: each.numbers[number] for each in rows.get(row, ())} for row in (one, other)]
        if (pair := paired(*values)) is not None:
            found.append((text, pair))
    corrected = holm([pair.t_p for _, pair in found])
    return [
        Claim(text, VERDICTS[judged(pair, p)], numbers(pair, p, ".3g", ".2g"))
        for (text, pair), p in zip(found, corrected, strict=True)
    ]
