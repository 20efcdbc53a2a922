"""The verdict of a table: each comparison seed by seed, as a figure and in words, and how many seeds it would need."""

from __future__ import annotations

from statistics import fmean, stdev

from advdrop.lab.report.charts import COLORS, Figure, drawing, plain
from advdrop.lab.report.results import Comparison, Results
from advdrop.lab.report.statistics import detectable, numbers

SMALL = 0.05
"""A difference of errors, in points, that would still matter."""
MOST = 1000
"""No more seeds than these are asked for."""
FEWEST = 3
"""The spread of fewer seeds says nothing about how many are needed."""
ACROSS = 3
"""The number of pairs side by side in the figure."""
LOWER, HIGHER, EQUAL = COLORS[1], COLORS[2], COLORS[0]


def seeds_needed(std: float, difference: float = SMALL) -> int | None:
    """Return how many seeds show a difference with a probability of 80 %; None if it is more than 1,000.

    Args:
        std: the standard deviation of the difference between two methods over seeds.
        difference: the true difference.

    >>> seeds_needed(0.05), seeds_needed(0.1), seeds_needed(10.0)
    (10, 34, None)
    """
    return next((n for n in range(2, MOST + 1) if detectable(std, n) <= difference), None)


def verdict_lines(results: Results, column: str) -> list[str]:
    """Return a line for each comparison of a column: the difference, its interval, Holm's p, and the seeds it needs."""
    said = []
    for comparison in _of(results, column):
        one, other = (results.suite.rows[row].name for row in (comparison.one, comparison.other))
        text = f"{one} against {other}: {numbers(comparison.found, comparison.holm_p)}"
        differences = [mine - its for its, mine in _errors(results, comparison).values()]
        if comparison.found.n >= FEWEST and comparison.found.t_p is not None:  # equal differences are chance
            needed = seeds_needed(stdev(differences))
            many = f"{needed} seeds" if needed else f"more than {MOST:,} seeds"
            text += f"; to show a difference of {SMALL} takes {many}"
        said.append(text)
    return said


def seed_lines(results: Results, column: str) -> Figure | None:
    """Draw each seed as a line from the error of one method to that of another; None if no pair has several seeds.

    A line that falls is a seed with which the method on the right has the lower error. The thick line is the mean.
    """
    shown = [comparison for comparison in _of(results, column) if comparison.found.n > 1]
    if not shown:
        return None
    title = f"Seed by seed, {results.suite.columns[column].name}, protocol {results.protocol}"
    rows = -(-len(shown) // ACROSS)
    with drawing(title, 170 * rows) as (figure, save):
        grid = figure.subplots(rows, ACROSS, squeeze=False).flat
        for axes, comparison in zip(grid, shown, strict=False):
            pairs = list(_errors(results, comparison).values())
            for pair in pairs:
                color = LOWER if pair[1] < pair[0] else HIGHER if pair[1] > pair[0] else EQUAL
                axes.plot((0, 1), pair, color=color, linewidth=1.2, marker="o", markersize=4)
            means = [fmean(values) for values in zip(*pairs, strict=True)]
            axes.plot((0, 1), means, color=EQUAL, linewidth=4, alpha=0.4)
            names = [plain(results.suite.rows[row].name, 30).replace(" (", "\n(") for row in _sides(comparison)]
            axes.set(xticks=(0, 1), xlim=(-0.4, 1.4))
            axes.set_xticklabels(names, fontsize=8)
            axes.tick_params(axis="y", labelsize=9)
            axes.grid(axis="y")
        for axes in list(figure.axes)[len(shown) :]:
            axes.set_axis_off()
        note = (
            "Test error in percent. Each thin line is a seed: blue if the method on the right has the lower error, "
            "orange if it has the higher one. The thick line is the mean. Each panel has its own scale."
        )
        return Figure(title, save(f"{title}. {'; '.join(verdict_lines(results, column))}."), note)


def _of(results: Results, column: str) -> list[Comparison]:
    return [comparison for comparison in results.comparisons if comparison.column == column]


def _sides(comparison: Comparison) -> tuple[str, str]:
    """Return the rows from left to right: the rival first."""
    return comparison.other, comparison.one


def _errors(results: Results, comparison: Comparison) -> dict[int, tuple[float, float]]:
    """Return the errors of both rows for each seed that both have, from left to right."""
    left, right = (results.entries[row, comparison.column].errors for row in _sides(comparison))
    return {seed: (left[seed], right[seed]) for seed in sorted(left.keys() & right.keys())}
