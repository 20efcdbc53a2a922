"""The supervised loss l(y, f(x, εs)) of formula 6."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from torch import Tensor

from advdrop.divergences import cross_entropy
from advdrop.objectives.base import Term

if TYPE_CHECKING:
    from advdrop.step.batch import Rows
    from advdrop.step.passes import Passes


@final
@dataclass
class CrossEntropy(Term):
    """Cross-entropy of the labeled rows, −log f(x, εs)_y."""

    rows: Rows = field(default="labeled", init=False, repr=False)

    def per_example(self, passes: Passes) -> Tensor:
        """Return −log f(x, εs)_y, ``(B,)``."""
        return cross_entropy(passes.batch.labels(), passes.clean(self.rows).logits)
