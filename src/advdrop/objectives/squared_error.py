"""The supervised loss of regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from torch import Tensor

from advdrop.divergences import mse
from advdrop.objectives.supervised import Supervised

if TYPE_CHECKING:
    from advdrop.step.passes import Passes


@final
@dataclass
class SquaredError(Supervised):
    """Squared error of the labeled rows, the mean over the outputs of (y − f(x, εs))².

    The outputs are values, and no softmax is applied. The labels have the shape of the output; for one output, ``(B,)``
    is enough. Outputs whose label is the ``ignore_index`` of the step are left out. Compare outputs with
    ``divergence=advdrop.mse``.

    >>> from advdrop import VAdD, mse
    >>> objective = SquaredError() + VAdD(divergence=mse)
    """

    def of(self, passes: Passes, logits: Tensor) -> Tensor:
        """Return the loss at these outputs, ``(B,)``."""
        return passes.compare.values(mse, logits)
