"""R-Drop: two passes with different dropout should have the same output, and both the right one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from torch import Tensor

from advdrop import checks
from advdrop.divergences import Divergence, kl
from advdrop.objectives.base import Term
from advdrop.objectives.cross_entropy import CrossEntropy
from advdrop.objectives.supervised import Supervised, checked

if TYPE_CHECKING:
    from advdrop.step.batch import Rows
    from advdrop.step.passes import Passes, View


@final
@dataclass
class RDrop(Term):
    """R-Drop, −log P₁(y|x) − log P₂(y|x) + α/2 · (KL(P₁ ‖ P₂) + KL(P₂ ‖ P₁)) (Eq. 4).

    P₁ and P₂ are the outputs of two passes with independent noise and masks. The term contains the supervised loss of
    both passes, so it is used alone: ``Step(network, RDrop(alpha=5.0))``, without ``CrossEntropy()``.

    Args:
        alpha: α; 1 to 5 in the original. With the mean of the two losses, as in the authors' usage example, it would be
            half as large.
        loss: the supervised loss, with its options.
        divergence: KL; :func:`bernoulli_kl` for multi-label outputs.

    References: Liang et al., "R-Drop: Regularized Dropout for Neural Networks", NeurIPS 2021.

    >>> RDrop(alpha=5.0).name
    'rdrop'
    """

    alpha: float = 1.0
    loss: Supervised = field(default_factory=CrossEntropy)
    divergence: Divergence = kl
    rows: Rows = field(default="labeled", init=False, repr=False)

    def __post_init__(self) -> None:
        checks.not_negative("alpha", self.alpha)
        checked(self.loss)
        checks.function("divergence", self.divergence)

    @property
    def views(self) -> tuple[View, ...]:
        """Both passes."""
        return ("clean", "second")

    def per_example(self, passes: Passes) -> Tensor:
        """Return the value for each row, ``(B,)``."""
        first, second = passes.clean(self.rows).logits, passes.again(self.rows).logits
        loss = self.loss.of(passes, first) + self.loss.of(passes, second)
        one, other = (passes.compare(self.divergence, *pair, self.rows) for pair in ((first, second), (second, first)))
        return loss + self.alpha / 2 * (one + other)
