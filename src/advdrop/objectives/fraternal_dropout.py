"""Fraternal dropout: two passes with different dropout should have the same outputs before the softmax."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from torch import Tensor

from advdrop import checks
from advdrop.divergences import mse
from advdrop.objectives.base import Term
from advdrop.objectives.cross_entropy import CrossEntropy
from advdrop.objectives.supervised import Supervised, checked

if TYPE_CHECKING:
    from advdrop.step.batch import Rows
    from advdrop.step.passes import Passes, View


@final
@dataclass
class FraternalDropout(Term):
    """Fraternal dropout, ½ (l(p₁, y) + l(p₂, y)) + κ/m · ‖p₁ − p₂‖₂².

    p₁ and p₂ are the m outputs before the softmax of two passes with independent noise and masks. The term contains the
    supervised loss of both passes, so it is used alone: ``Step(network, FraternalDropout())``, without
    ``CrossEntropy()``.

    Args:
        kappa: κ; 0.15 is the default of the authors' code for language models.
        loss: the supervised loss l, with its options.

    References: Zolna et al., "Fraternal Dropout", ICLR 2018.
    """

    kappa: float = 0.15
    loss: Supervised = field(default_factory=CrossEntropy)
    rows: Rows = field(default="labeled", init=False, repr=False)

    def __post_init__(self) -> None:
        checks.not_negative("kappa", self.kappa)
        checked(self.loss)

    @property
    def views(self) -> tuple[View, ...]:
        """Both passes."""
        return ("clean", "second")

    def per_example(self, passes: Passes) -> Tensor:
        """Return the value for each row, ``(B,)``."""
        first, second = passes.clean(self.rows).logits, passes.again(self.rows).logits
        loss = (self.loss.of(passes, first) + self.loss.of(passes, second)) / 2
        return loss + self.kappa * passes.compare(mse, first, second, self.rows)
