"""The supervised loss of multi-label networks, whose outputs are independent yes-or-no answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch.nn.functional as F
from torch import Tensor

from advdrop import checks
from advdrop.divergences import Given
from advdrop.objectives.supervised import Supervised

if TYPE_CHECKING:
    from advdrop.step.passes import Passes


@final
@dataclass
class BinaryCrossEntropy(Supervised):
    """Binary cross-entropy, −1/C Σ_c y_c log o_c + (1 − y_c) log(1 − o_c), with o = sigmoid of the logits.

    The labels have the shape of the output, ``(B, C)``, with values in [0, 1]. It is the mean over the C outputs, as in
    ``torch.nn.BCEWithLogitsLoss``, and over the places of ``(B, C, *D)``. Outputs whose label is the ``ignore_index``
    of the step are left out. Compare outputs with ``divergence=advdrop.bernoulli_kl``.

    >>> from advdrop import Step, VAdD, bernoulli_kl
    >>> objective = BinaryCrossEntropy() + VAdD(divergence=bernoulli_kl)
    """

    def of(self, passes: Passes, logits: Tensor) -> Tensor:
        """Return the loss at these logits, ``(B,)``."""
        return passes.compare.values(_loss, logits)


def _loss(target: Tensor, logits: Tensor, *, given: Given = "logits") -> Tensor:
    del given
    checks.unit_interval("multi-label targets", target)
    return F.binary_cross_entropy_with_logits(logits.to(target.dtype), target, reduction="none").mean(1)
