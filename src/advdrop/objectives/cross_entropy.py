"""The supervised loss l(y, f(x, εs)) of formula 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import torch
import torch.nn.functional as F
from torch import Tensor

from advdrop import checks
from advdrop.divergences import Given, cross_entropy, full_precision
from advdrop.objectives.supervised import Supervised

if TYPE_CHECKING:
    from advdrop.step.passes import Passes


@final
@dataclass
class CrossEntropy(Supervised):
    """Cross-entropy of the labeled rows, −log f(x, εs)_y.

    The labels are integers ``(B,)`` or probabilities ``(B, C)`` (soft labels): −Σ_c y_c log f(x, εs)_c. An output with
    places, ``(B, C, *D)``, has labels ``(B, *D)``; the loss of an example is the mean over its labeled places. A step
    leaves out the places of its ``ignore_index`` and of its ``mask``.

    Args:
        weight: a factor for each class, such as ``[1.0, 5.0]`` if the second class is rare.
        label_smoothing: the share of the label that is spread over all classes, in [0, 1].

    Deviations: torch divides a weighted loss by the sum of the weights of the batch. Here it is the mean over the
    examples, so that the loss of a batch is the mean of the losses of its parts.

    >>> CrossEntropy(weight=[1.0, 5.0]).weight
    (1.0, 5.0)
    """

    weight: Sequence[float] | Tensor | None = None
    label_smoothing: float = 0.0
    _factors: Tensor | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        checks.fraction("label_smoothing", self.label_smoothing)
        if self.weight is not None:
            ordered = hasattr(self.weight, "__getitem__") and not isinstance(self.weight, Mapping | str)
            if not ordered or getattr(self.weight, "ndim", 1) != 1:
                raise TypeError(f"weight must have one number for each class, in their order, got {self.weight!r}")
            self.weight = tuple(float(checks.not_negative("weight", float(factor))) for factor in self.weight)
            self._factors = torch.tensor(self.weight)

    def of(self, passes: Passes, logits: Tensor) -> Tensor:
        """Return −log f_y at these logits, ``(B,)``."""
        return passes.compare.classes(self._loss, logits)

    def _loss(self, target: Tensor, logits: Tensor, *, given: Given = "probabilities") -> Tensor:
        if self._factors is None and self.label_smoothing == 0.0:
            return cross_entropy(target, logits, given=given)
        logits = full_precision(logits)
        if target.is_floating_point():
            target = target.to(logits.dtype)
        else:
            checks.labels(target, logits.shape[1])
            target = target.long()
        if self._factors is not None:
            if len(self._factors) != logits.shape[1]:
                raise ValueError(f"got {len(self._factors)} class weights for {logits.shape[1]} outputs: {self.weight}")
            self._factors = self._factors.to(logits)
        return F.cross_entropy(logits, target, self._factors, reduction="none", label_smoothing=self.label_smoothing)
