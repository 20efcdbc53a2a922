"""The audits of several networks as a table and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from advdrop.lab.report.charts import COLORS, Figure, Line, chart

if TYPE_CHECKING:  # reports are made without torch
    from advdrop.analysis.audit import Audit
    from advdrop.analysis.ranking import Ranking

RANKED = (
    "Accuracy in percent: without the worst units that were found (the true worst case may be lower), and with random "
    "faults. The most sensitive layer is first. Another path, such as a skip connection, leads around a bypassed "
    "layer: what it loses is still there on that path."
)


def head(audits: Sequence[Audit]) -> list[str]:
    """Return the head of the table."""
    return ["units lost", *(f"{audit.name}: {kind}" for audit in audits for kind in ("worst", "random"))]


def rows(audits: Sequence[Audit]) -> list[list[str]]:
    """Return the rows of the table: accuracies in percent for each number of lost units."""
    budgets = sorted({budget for audit in audits for budget in audit.budgets})
    return [[str(budget), *(cell for audit in audits for cell in _cells(audit, budget))] for budget in budgets]


def _cells(audit: Audit, budget: int) -> list[str]:
    if budget not in audit.budgets:
        return ["", ""]
    place = list(audit.budgets).index(budget)
    worst, certain = audit.worst[place], audit.certain[place]
    both = f"{worst:.1f}" if worst == certain else f"{certain:.1f} to {worst:.1f}"
    return [both, f"{audit.random[place]:.1f}"]


def figure(audits: Sequence[Audit]) -> Figure:
    """Draw the accuracy against the number of lost units: the worst units that were found and, dashed, random ones."""
    lines = []
    for number, audit in enumerate(audits, start=1):
        x, style = [float(budget) for budget in audit.budgets], number % len(COLORS)
        lines.append(Line(f"{audit.name}, the worst units", x, audit.worst, style=style, dots=True))
        lines.append(Line(f"{audit.name}, random units", x, audit.random, style=style, dashed=True))
    note = "Dashed: random units."
    if not all(audit.exact for audit in audits):
        note += " The worst units are those that were found; the true worst case may be lower."
    return chart(lines, "Accuracy when units are lost", "units lost", "accuracy, %", note=note)


def ranking_table(ranking: Ranking) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the table of a ranking."""
    rows = []
    for each in ranking.layers:
        layer = each.layer
        worst = [f"{accuracy:.1f}" for accuracy in each.audit.worst]
        bypassed = "yes" if layer.bypassed else "no"
        rows.append([layer.name, layer.kind, f"{layer.units} {layer.granularity}s", bypassed, *worst])
    budgets = ranking.layers[0].audit.budgets
    return ["layer", "kind", "units", "bypassed", *(f"{budget} lost" for budget in budgets)], rows


def fault_table(ranking: Ranking) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the table of other faults: one row for each layer and fault."""
    rows: dict[tuple[str, str], list[str]] = {}
    for each in ranking.layers:
        for one in each.faults:
            rows.setdefault((each.layer.name, one.fault), []).append(f"{one.accuracy:.1f}")
    budgets = ranking.layers[0].audit.budgets[1:]
    return ["layer", "fault", *map(str, budgets)], [[*names, *cells] for names, cells in rows.items()]


def ranking_figure(ranking: Ranking) -> Figure:
    """Draw the accuracy of the most sensitive layers against the number of lost units."""
    lines = [
        Line(
            each.layer.name, [float(budget) for budget in each.audit.budgets], each.audit.worst, style=style, dots=True
        )
        for style, each in enumerate(ranking.layers[: len(COLORS) - 1], start=1)
    ]
    note = f"The {len(lines)} most sensitive of {len(ranking.layers)} layers. The true worst case may be lower."
    return chart(lines, f"{ranking.name}: accuracy without the worst units", "units lost", "accuracy, %", note=note)
