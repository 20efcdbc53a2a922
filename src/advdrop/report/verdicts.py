"""What held, what did not, and what is not known yet: the suite's comparisons, sorted by what the records show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advdrop.report.collect import Comparison, Results

LEVEL = 0.05


HEADINGS = ("What held", "What was the other way round", "What is not known yet")


@dataclass(frozen=True)
class Verdicts:
    """Sentences about pairs of rows, the first of which is said to have the lower error.

    Args:
        held: the first one is lower, p < 0.05 after Holm's correction.
        reversed: it is higher, likewise.
        unknown: neither is shown, or one of them was not run.
    """

    held: Sequence[str]
    reversed: Sequence[str]
    unknown: Sequence[str]

    @property
    def named(self) -> list[tuple[str, Sequence[str]]]:
        """The sentences under their headings; one with none is left out."""
        found = zip(HEADINGS, (self.held, self.reversed, self.unknown), strict=True)
        return [(heading, sentences) for heading, sentences in found if sentences]


def verdicts(results: Results) -> Verdicts:
    """Sort the comparisons of a table."""
    held: list[str] = []
    turned: list[str] = []
    unknown: list[str] = []
    for column in results.columns:
        found = {(c.one, c.other): c for c in results.comparisons if c.column == column}
        for pair in results.suite.compare:
            comparison = found.get(pair)
            if comparison is None:
                unknown.append(f"{_pair(results, column, *pair)}: not run")
            elif comparison.holm_p is None or comparison.holm_p >= LEVEL:
                unknown.append(f"{_pair(results, column, *pair)}: {_numbers(comparison)}")
            else:
                lower = comparison.found.difference.mean < 0
                (held if lower else turned).append(f"{_pair(results, column, *pair)}: {_numbers(comparison)}")
    return Verdicts(held, turned, unknown)


def _pair(results: Results, column: str, one: str, other: str) -> str:
    rows = results.suite.rows
    return f"{rows[one].name} below {rows[other].name}, {results.suite.columns[column].name}"


def _numbers(comparison: Comparison) -> str:
    found = comparison.found
    if found.difference.margin is None:
        return f"difference {found.difference.mean:+.2f} in a single run"
    text = f"difference {found.difference.mean:+.2f} ± {found.difference.margin:.2f}, n = {found.n}"
    return text if comparison.holm_p is None else f"{text}, p = {comparison.holm_p:.3f}"
