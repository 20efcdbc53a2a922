"""The audit of a network, as numbers, a table and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from advdrop.report.svg import Figure, Line, chart


@dataclass(frozen=True)
class Audit:
    """How fragile a network is to losing units of one layer.

    Args:
        name: what to call it.
        units: H, the units of the layer.
        images: the examples that were looked at.
        budgets: numbers of units that may be lost; 0 first.
        worst: the accuracy in percent when the worst units that were found are lost, for each budget. The true worst
            case is not above it.
        certain: the share in percent that is certainly right whatever is lost, for each budget. The true worst case is
            not below it. Equal to ``worst`` where the audit is exact.
        random: the accuracy in percent when random units are lost, the mean over draws.
        exact: whether the smallest numbers of units are exact and no bounds.
        fewest: for each example, the smallest number of lost units that was found to change its prediction; 0 if it is
            wrong already, None if none was found within the largest budget.
        at_least: for each example, a number of lost units below which its prediction certainly stays.
        leaned_on: the units that are lost most often where a prediction changes, and for what share of the examples in
            percent, the most frequent first.
        hanging: examples that hang on one unit: the example, and the unit.
    """

    name: str
    units: int
    images: int
    budgets: Sequence[int]
    worst: Sequence[float]
    certain: Sequence[float]
    random: Sequence[float]
    exact: bool
    fewest: Sequence[int | None]
    at_least: Sequence[int]
    leaned_on: Sequence[tuple[int, float]]
    hanging: Sequence[tuple[int, int]]

    @property
    def median(self) -> int | None:
        """The number of units whose loss changes the prediction of half of the examples that are right."""
        right = sorted(float("inf") if few is None else few for few in self.fewest if few != 0)
        middle = right[(len(right) - 1) // 2] if right else float("inf")
        return None if middle == float("inf") else int(middle)

    def json(self) -> dict[str, Any]:
        """All of it, for a file."""
        return asdict(self) | {"median": self.median}


def head(audits: Sequence[Audit]) -> list[str]:
    """The names of the columns of the table."""
    return ["units lost", *(f"{audit.name}: {kind}" for audit in audits for kind in ("worst", "random"))]


def rows(audits: Sequence[Audit]) -> list[list[str]]:
    """Accuracies in percent against the number of lost units, the networks side by side."""
    budgets = sorted({budget for audit in audits for budget in audit.budgets})
    return [[str(budget), *(cell for audit in audits for cell in _cells(audit, budget))] for budget in budgets]


def _cells(audit: Audit, budget: int) -> list[str]:
    if budget not in audit.budgets:
        return ["", ""]
    place = list(audit.budgets).index(budget)
    worst, certain = audit.worst[place], audit.certain[place]
    both = f"{worst:.1f}" if worst == certain else f"{certain:.1f} to {worst:.1f}"
    return [both, f"{audit.random[place]:.1f}"]


def words(audit: Audit) -> list[str]:
    """What there is to say of one network."""
    found = sum(few is not None and few > 0 for few in audit.fewest)
    kind = "exact" if audit.exact else "bounds: the smallest numbers that were found"
    half = (
        f"half of the right predictions change with {audit.median} lost units"
        if audit.median is not None
        else f"more than half of the right predictions withstand the loss of {audit.budgets[-1]} units"
    )
    lines = [
        f"{audit.name}: {audit.units} units, {audit.images} examples, {audit.worst[0]:.1f} % right ({kind})",
        f"{half}; {found} change within {audit.budgets[-1]}",
    ]
    if audit.leaned_on:
        leaned = ", ".join(f"{unit} ({share:.1f} %)" for unit, share in audit.leaned_on[:5])
        lines.append(f"units it leans on most: {leaned}")
    if audit.hanging:
        hanging = ", ".join(f"{example} (unit {unit})" for example, unit in audit.hanging[:5])
        more = f" and {len(audit.hanging) - 5} more" if len(audit.hanging) > 5 else ""
        lines.append(f"examples that hang on one unit: {hanging}{more}")
    else:
        lines.append("no example hangs on one unit")
    return lines


def figure(audits: Sequence[Audit]) -> Figure:
    """Accuracy against the number of lost units: the worst ones that were found, and random ones, dashed."""
    lines = []
    for number, audit in enumerate(audits):
        x, style = [float(budget) for budget in audit.budgets], (number + 1) % 10
        lines.append(Line(f"{audit.name}, the worst units", x, audit.worst, style=style, dots=True))
        lines.append(Line(f"{audit.name}, random units", x, audit.random, style=style, dashed=True))
    title = "Accuracy when units are lost"
    drawn = chart(lines, title, "units lost", "accuracy, %")
    legend = [(line.name, line.style) for line in lines if not line.dashed]
    note = "Dashed: random units."
    if not all(audit.exact for audit in audits):
        note += " The worst units are those that were found; the true worst case may be lower."
    return Figure(title, drawn, legend, note)
