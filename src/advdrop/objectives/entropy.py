"""Entropy minimisation: the output should be sure of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from advdrop.batch import Rows
from advdrop.divergences import cross_entropy
from advdrop.objectives.base import Term
from advdrop.objectives.passes import Passes


@final
@dataclass
class EntropyMinimisation(Term):
    """−Σ_c f_c log f_c of the clean output. The authors' code adds it to every semi-supervised method, weight 1.

    References: Grandvalet and Bengio, "Semi-supervised Learning by Entropy Minimization", NIPS 2004.
    """

    rows: Rows = "unlabelled"

    def per_example(self, passes: Passes) -> Tensor:
        """``(B,)``."""
        logits = passes.clean(self.rows).logits
        return cross_entropy(logits, logits)
