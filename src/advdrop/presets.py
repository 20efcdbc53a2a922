"""Sets of the choices that the paper leaves open.

``PAPER`` follows the text, with its evident mistakes corrected. ``AUTHORS`` follows the authors' released code.
``ROBUST`` makes the choices of the paper; under that name ``advdrop train`` has a recipe for data that nothing was
tuned on::

    preset = AUTHORS
    layer = preset.layer(p=0.0, delta=0.05)
    objective = preset.complete(CrossEntropy() + Ramp(1.0, over=80 / 300) * preset.vadd(kl))
    step = Step(model, objective, updating=preset.updating)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from advdrop.choices import Order, PassName, Scale, Ties
from advdrop.divergences import Divergence, kl, reverse_kl
from advdrop.masks import AdversarialDropout, FirstOrder
from advdrop.objectives import EntropyMinimization, Objective, SAdD, VAdD
from advdrop.step.batch_norm import UPDATING


@dataclass(frozen=True)
class Preset:
    """The open choices of the method.

    Args:
        name: its name in the record of a run.
        order: the order in which gains are taken (see ``flip_mask``).
        ties: what happens to equal gains (see ``flip_mask``).
        scale: the scale of a flipped mask (see ``scale_mask``).
        reversed_search: whether VAdD with KL searches with KL(perturbed ‖ clean) instead of KL(clean ‖ perturbed).
        entropy: the constant weight of entropy minimization in every semi-supervised method.
        updating: the passes that update running batch-norm statistics.
    """

    name: str
    order: Order
    ties: Ties
    scale: Scale
    reversed_search: bool
    entropy: float
    updating: frozenset[PassName] = UPDATING

    def layer(self, p: float, delta: float, **options: Any) -> AdversarialDropout:
        """Return an AdversarialDropout layer with this preset's scale."""
        return AdversarialDropout(p, delta, scale=self.scale, **options)

    def sadd(self, **options: Any) -> SAdD:
        """Return SAdD with this preset's search."""
        return SAdD(**{"search": self.search(), **options})

    def vadd(self, divergence: Divergence = kl, **options: Any) -> VAdD:
        """Return VAdD with this preset's search and search direction."""
        direction = reverse_kl if self.reversed_search and divergence is kl else None
        return VAdD(divergence=divergence, **{"search": self.search(), "search_divergence": direction, **options})

    def search(self) -> FirstOrder:
        """Return the first-order search with this preset's order and ties."""
        return FirstOrder(order=self.order, ties=self.ties)

    def complete(self, objective: Objective) -> Objective:
        """Return a semi-supervised objective with the entropy term of this preset, if it has one."""
        return objective + self.entropy * EntropyMinimization() if self.entropy else objective


PAPER = Preset("paper", order="largest", ties="exact", scale="inverted", reversed_search=False, entropy=0.0)
AUTHORS = Preset("authors", order="largest", ties="dropped", scale="renormalized", reversed_search=True, entropy=1.0)
ROBUST = replace(PAPER, name="robust")

PRESETS = {preset.name: preset for preset in (PAPER, AUTHORS, ROBUST)}
