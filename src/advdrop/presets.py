"""Two bundles of the choices that the paper leaves open.

``PAPER`` is the text with its evident slips repaired; ``AUTHORS`` is what the authors' released code does::

    preset = AUTHORS
    layer = preset.layer(p=0.0, delta=0.05)
    objective = preset.complete(CrossEntropy() + Ramp(1.0, over=80 / 300) * preset.vadd(kl))
    loss = objective(model, batch, progress=t, moving=preset.moving)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from advdrop.divergences import Divergence, kl, reverse_kl
from advdrop.masks import AdversarialDropout, FirstOrder
from advdrop.objectives import EntropyMinimisation, Objective, SAdD, VAdD
from advdrop.statistics import MOVING
from advdrop.vocabulary import Order, PassName, Scale, Ties


@dataclass(frozen=True)
class Preset:
    """The open choices of the method.

    Args:
        name: what to call it in a record.
        order: the order in which gains are taken (see ``flip_mask``).
        ties: what happens to equal gains (see ``flip_mask``).
        scale: the scale of a flipped mask (see ``scale_mask``).
        search_reversed: whether VAdD with KL searches with KL(perturbed ‖ clean) instead of KL(clean ‖ perturbed).
        entropy: the weight, never ramped, of entropy minimisation in every semi-supervised method.
        moving: the passes that move running batch-norm statistics.
    """

    name: str
    order: Order
    ties: Ties
    scale: Scale
    search_reversed: bool
    entropy: float
    moving: frozenset[PassName] = MOVING

    def layer(self, p: float, delta: float, **options: Any) -> AdversarialDropout:
        """An AdversarialDropout layer with this preset's scale."""
        return AdversarialDropout(p, delta, scale=self.scale, **options)

    def sadd(self, **options: Any) -> SAdD:
        """SAdD with this preset's search."""
        return SAdD(**{"search": self.search(), **options})

    def vadd(self, divergence: Divergence = kl, **options: Any) -> VAdD:
        """VAdD with this preset's search and search direction."""
        direction = reverse_kl if self.search_reversed and divergence is kl else None
        return VAdD(divergence=divergence, **{"search": self.search(), "search_divergence": direction, **options})

    def search(self) -> FirstOrder:
        """The first-order search with this preset's order and ties."""
        return FirstOrder(order=self.order, ties=self.ties)

    def complete(self, objective: Objective) -> Objective:
        """A semi-supervised objective with what this preset adds to every one of them."""
        return objective + self.entropy * EntropyMinimisation() if self.entropy else objective


PAPER = Preset("paper", order="largest", ties="exact", scale="inverted", search_reversed=False, entropy=0.0)
AUTHORS = Preset("authors", order="largest", ties="dropped", scale="renormalised", search_reversed=True, entropy=1.0)

PRESETS = {preset.name: preset for preset in (PAPER, AUTHORS)}
