"""The Π model: two noisy passes should agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from torch import Tensor

from advdrop import checks
from advdrop.divergences import Divergence, qe
from advdrop.objectives.base import Term

if TYPE_CHECKING:
    from advdrop.step.batch import Rows
    from advdrop.step.passes import Passes, View


@final
@dataclass
class PiModel(Term):
    """The Π model, D[f(x, ε¹), f(x, ε²)] (Eq. 1): two passes with independent noise, masks and augmentation.

    Gradients flow through both passes.

    Args:
        divergence: D; Laine and Aila, and the paper, use the quadratic error.

    References: Laine and Aila, "Temporal Ensembling for Semi-Supervised Learning", ICLR 2017.
    """

    divergence: Divergence = qe
    rows: Rows = "unlabeled"

    def __post_init__(self) -> None:
        checks.function("divergence", self.divergence)

    @property
    def views(self) -> tuple[View, ...]:
        """Both passes."""
        return ("clean", "second")

    def per_example(self, passes: Passes) -> Tensor:
        """Return D of the two passes, ``(B,)``."""
        clean, second = passes.clean(self.rows).logits, passes.again(self.rows).logits
        return passes.compare(self.divergence, clean, second, self.rows)
