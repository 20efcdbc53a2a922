"""What is not a table of test errors: the figures and the theorem of the paper, from measurements in the ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from advdrop.lab.records.measurement import Measurement
from advdrop.lab.records.record import RecordError
from advdrop.lab.report.statistics import Summary, holm, paired
from advdrop.lab.report.svg import Figure
from advdrop.lab.report.verdicts import LEVEL, p_value


@dataclass(frozen=True)
class Claim:
    """Something that the paper says, and what came of it here.

    Args:
        text: the claim.
        verdict: ``holds``, ``the other way round`` or ``not known``.
        numbers: the difference that it rests on.
    """

    text: str
    verdict: str
    numbers: str

    def __str__(self) -> str:
        """A line of a list."""
        return f"{self.text}: {self.verdict} ({self.numbers})"


@dataclass(frozen=True)
class Study:
    """A section of the page.

    Args:
        title: what it is.
        about: how it was done.
        head: the names of the columns of its table.
        rows: the table.
        notes: what has to be known to read it.
        claims: the paper's, judged.
        figures: the pictures.
        commands: what makes it.
        measurements: what all of it is made of.
    """

    title: str
    about: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    claims: Sequence[Claim]
    figures: Sequence[Figure]
    commands: Sequence[str]
    measurements: Sequence[Measurement] = field(repr=False)


def grouped(found: Iterable[Measurement]) -> Mapping[str, list[Measurement]]:
    """By row, the seeds in their order; one that is there twice is an error."""
    rows: dict[str, list[Measurement]] = defaultdict(list)
    for measurement in sorted(found, key=lambda one: one.seed):
        same = rows[measurement.row]
        if same and same[-1].seed == measurement.seed:
            raise RecordError(f"the measurement {measurement.name} is there twice")
        same.append(measurement)
    return rows


def lower(rows: Mapping[str, Sequence[Measurement]], claims: Iterable[tuple[str, str, str, str]]) -> list[Claim]:
    """Judge claims of the form "this number of one row is below that of another", seed by seed.

    Args:
        rows: the measurements.
        claims: text, number, the row that should have less of it, and the other row. Holm's correction is for all.
    """
    claims = [claim for claim in claims if claim[2] in rows and claim[3] in rows]
    found = []
    for _, number, one, other in claims:
        values = [{each.seed: each.numbers[number] for each in rows[row]} for row in (one, other)]
        found.append(paired(*values))
    corrected = holm([pair.t_p if pair else None for pair in found])
    return [
        _claim(text, pair.difference.mean, pair.difference.margin, pair.n, p)
        for (text, *_), pair, p in zip(claims, found, corrected, strict=True)
        if pair is not None
    ]


def _claim(text: str, difference: float, margin: float | None, n: int, p: float | None) -> Claim:
    numbers = f"difference {difference:+.3g}" + (f" ± {margin:.2g}" if margin is not None else "") + f", n = {n}"
    if p is not None:
        numbers += f", p: {p_value(p)}"
    if p is None or p >= LEVEL:
        return Claim(text, "not known", numbers)
    return Claim(text, "holds" if difference < 0 else "the other way round", numbers)


def spread(values: Sequence[float], digits: int) -> str:
    """Mean ± standard deviation.

    >>> spread([1.0, 2.0, 3.0], 1)
    '2.0 ± 1.0'
    """
    summary = Summary.of(values)
    return f"{summary.mean:.{digits}f}" + ("" if summary.std is None else f" ± {summary.std:.{digits}f}")


def studies_of(found: Iterable[Measurement]) -> list[Study]:
    """The sections that measurements make."""
    groups: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    for measurement in found:
        groups[measurement.study, measurement.dataset].append(measurement)
    return list(_studies(groups))


def _studies(groups: Mapping[tuple[str, str], list[Measurement]]) -> Iterator[Study]:
    from advdrop.lab.report import autoencoder_study, theory_study  # they are made of the above

    makers = {"autoencoder": autoencoder_study.study, "linear-regression": theory_study.study}
    for (kind, dataset), found in sorted(groups.items()):
        if kind not in makers:
            raise RecordError(f"there are measurements of a study {kind!r}, which is unknown; there are {list(makers)}")
        yield makers[kind](dataset, found)
