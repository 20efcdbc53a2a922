"""What the numbers say, in words: beside the paper, method against method, and what held, did not, or is not known."""

from __future__ import annotations

from advdrop.lab.report.collect import Comparison, Results
from advdrop.lab.report.statistics import LEVEL, p_value

HELD, REVERSED, UNKNOWN = "What held", "What was the other way round", "What is not known yet"


def gaps(results: Results) -> list[str]:
    """Return each of our numbers beside the paper's, in words."""
    return [
        f"{results.suite.rows[row].name}, {results.suite.columns[column].name}: {entry.gap.words('the paper')}"
        for (row, column), entry in results.entries.items()
        if entry.gap is not None
    ]


def sentences(results: Results) -> list[str]:
    """Return each comparison in words, with the difference that is too small to be seen."""
    said = []
    for comparison in results.comparisons:
        found, names = comparison.found, results.suite.rows
        column = results.suite.columns[comparison.column].name
        text = f"{column}: {names[comparison.one].name} is {found.difference.words(names[comparison.other].name)}"
        if found.detectable is not None and not found.difference.seen:
            text += f"; with {found.n} seeds a difference below {found.detectable:.2f} cannot be seen"
        said.append(text)
    return said


def answer(results: Results) -> list[str]:
    """Return three sentences: the first comparison, the number of verdicts, and the distance to the paper."""
    said = verdicts(results)
    held, turned, unknown = (len(said.get(heading, ())) for heading in (HELD, REVERSED, UNKNOWN))
    which = "; ".join(line.split(":")[0] for line in said.get(HELD, ()))
    known = [entry.gap for entry in results.entries.values() if entry.gap is not None]
    higher = sum(gap.seen and gap.mean > 0 for gap in known)
    length = [
        f", after {c.here} updates instead of {c.paper}" for c in results.deviations if c.key == "training.updates"
    ]
    return [
        *(f"{line}." for line in sentences(results)[:1]),
        f"Of {held + turned + unknown} comparisons, {held} held ({which or 'none'}), {turned} turned out the "
        f"other way round, and {unknown} are not known yet.",
        f"Of our {len(known)} errors that the paper also has, {higher} are higher than the paper's by more than their "
        f"95 % interval{''.join(length)}.",
    ]


def verdicts(results: Results) -> dict[str, list[str]]:
    """Sort the pairs of rows that the suite compares, the first of which is said to have the lower error.

    A pair held if the first is lower with p < 0.05 after Holm's correction, and is the other way round if it is higher.
    A heading without a pair is left out.
    """
    found = {(c.column, c.one, c.other): c for c in results.comparisons}
    said: dict[str, list[str]] = {HELD: [], REVERSED: [], UNKNOWN: []}
    for column in results.columns:
        for one, other in results.suite.compare:
            comparison = found.get((column, one, other))
            names = [results.suite.rows[row].name for row in (one, other)]
            pair = f"{' below '.join(names)}, {results.suite.columns[column].name}"
            said[_judged(comparison)].append(f"{pair}: {_numbers(comparison) if comparison else 'not run'}")
    return {heading: lines for heading, lines in said.items() if lines}


def _judged(comparison: Comparison | None) -> str:
    if comparison is None or comparison.holm_p is None or comparison.holm_p >= LEVEL:
        return UNKNOWN
    return HELD if comparison.found.difference.mean < 0 else REVERSED


def _numbers(comparison: Comparison) -> str:
    difference = comparison.found.difference
    if difference.margin is None:
        return f"difference {difference.mean:+.2f} {difference.many}"
    numbers = f"difference {difference.mean:+.2f} ± {difference.margin:.2f}, n = {comparison.found.n}"
    return numbers if comparison.holm_p is None else f"{numbers}, p: {p_value(comparison.holm_p)}"
