"""The supervised loss l(y, f(x, εs)) of formula 6."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from advdrop.batch import Rows
from advdrop.divergences import cross_entropy
from advdrop.objectives.base import Term
from advdrop.objectives.passes import Passes


@final
@dataclass
class CrossEntropy(Term):
    """−log f(x, εs)_y, on the labelled rows."""

    rows: Rows = field(default="labelled", init=False, repr=False)

    def per_example(self, passes: Passes) -> Tensor:
        """``(B,)``."""
        return cross_entropy(passes.batch.labels(), passes.clean(self.rows).logits)
