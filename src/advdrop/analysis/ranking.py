"""The layers of a network in the order of how much the predictions depend on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from advdrop.analysis.faults import FaultResult
from advdrop.analysis.layers import Layer

if TYPE_CHECKING:
    from advdrop.analysis.audit import Audit


@dataclass(frozen=True)
class LayerAudit:
    """The audit of one layer.

    Args:
        layer: the layer.
        audit: what happens when its units are lost.
        faults: what happens with other faults.
    """

    layer: Layer
    audit: Audit
    faults: Sequence[FaultResult]

    @property
    def mean_worst(self) -> float:
        """The accuracy in percent without the worst units, averaged over the budgets; layers are ranked by it."""
        lost = self.audit.worst[1:] or self.audit.worst
        return sum(lost) / len(lost)

    def row(self) -> dict[str, Any]:
        """Return the values of a table: one column for each budget and kind of loss, and for each fault."""
        audit, layer = self.audit, self.layer
        row = {
            "layer": layer.name,
            "kind": layer.kind,
            "units": layer.units,
            "granularity": layer.granularity,
            "bypassed": layer.bypassed,
            "mean_worst": self.mean_worst,
        }
        for budget, worst, random in zip(audit.budgets, audit.worst, audit.random, strict=True):
            row |= {f"worst_{budget}": worst, f"random_{budget}": random}
        return row | {f"{result.fault}, {result.count}": result.accuracy for result in self.faults}


@dataclass(frozen=True)
class Ranking:
    """The audits of several layers of a network, the layer that predictions depend on most first.

    Args:
        name: the name of the network.
        layers: the audits.
    """

    name: str
    layers: Sequence[LayerAudit]

    def rows(self) -> list[dict[str, Any]]:
        """Return one dict of values for each layer, for a table: ``pandas.DataFrame(ranking.rows())``."""
        return [each.row() for each in self.layers]

    @property
    def summary(self) -> str:
        """The ranking as text: a line for each layer."""
        lines = [f"{self.name}: accuracy in percent without the worst units, the most sensitive layer first"]
        for each in self.layers:
            audit, layer = each.audit, each.layer
            worst = ", ".join(f"{k}: {value:.1f}" for k, value in zip(audit.budgets, audit.worst, strict=True))
            bypassed = " (bypassed: another path leads around it)" if layer.bypassed else ""
            unit = {"unit": "units", "channel": "channels", "feature": "features"}[layer.granularity]
            lines.append(f"{layer.name}: {layer.kind}, {layer.units} {unit}; {worst}{bypassed}")
        return "\n".join(lines)

    def json(self) -> dict[str, Any]:
        """Return all values, for a JSON file."""
        return {
            "name": self.name,
            "layers": [
                {
                    "layer": asdict(each.layer) | {"units": each.layer.units},
                    "mean_worst": each.mean_worst,
                    "audit": each.audit.json(),
                    "faults": [asdict(result) for result in each.faults],
                }
                for each in self.layers
            ],
        }
