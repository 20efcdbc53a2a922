"""What the numbers say, in words: beside the paper, method against method, and what held, did not, or is not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advdrop.lab.report.collect import Comparison, Results

LEVEL = 0.05
HEADINGS = ("What held", "What was the other way round", "What is not known yet")


def gaps(results: Results) -> list[str]:
    """Each of our numbers beside the paper's, in words."""
    return [
        f"{results.suite.rows[row].name}, {results.suite.columns[column].name}: {entry.gap.words('the paper')}"
        for (row, column), entry in results.entries.items()
        if entry.gap is not None
    ]


def sentences(results: Results) -> list[str]:
    """Each comparison in words, with what could not be seen."""
    said = []
    for comparison in results.comparisons:
        found, names = comparison.found, results.suite.rows
        column = results.suite.columns[comparison.column].name
        text = f"{column}: {names[comparison.one].name} is {found.difference.words(names[comparison.other].name)}"
        if found.n > 1 and found.detectable is not None and not found.difference.seen:
            text += f"; with {found.n} seeds a difference below {found.detectable:.2f} cannot be seen"
        said.append(text)
    return said


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
        return f"difference {found.difference.mean:+.2f} {found.difference.many}"
    text = f"difference {found.difference.mean:+.2f} ± {found.difference.margin:.2f}, n = {found.n}"
    return text if comparison.holm_p is None else f"{text}, p: {p_value(comparison.holm_p)}"


def p_value(value: float | None) -> str:
    """A p-value.

    >>> p_value(0.0312), p_value(0.00001), p_value(None)
    ('0.031', '< 0.001', '–')
    """
    if value is None:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
