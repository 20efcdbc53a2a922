"""Entropy minimization: confident predictions on unlabeled rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from torch import Tensor

from advdrop.divergences import cross_entropy
from advdrop.objectives.base import Term

if TYPE_CHECKING:
    from advdrop.step.batch import Rows
    from advdrop.step.passes import Passes


@final
@dataclass
class EntropyMinimization(Term):
    """Entropy of the clean output, −Σ_c f_c log f_c.

    The authors' code adds it with weight 1 to every semi-supervised method.

    References: Grandvalet and Bengio, "Semi-supervised Learning by Entropy Minimization", NIPS 2004.
    """

    rows: Rows = "unlabeled"

    def per_example(self, passes: Passes) -> Tensor:
        """Return the entropy of each row, ``(B,)``."""
        logits = passes.clean(self.rows).logits
        return passes.compare(cross_entropy, logits, logits, self.rows)
