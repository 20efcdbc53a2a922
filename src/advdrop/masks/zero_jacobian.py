"""Notice a mask search whose Jacobian is zero, so that its flips are arbitrary."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from advdrop import checks
from advdrop.masks.jacobian import Masks


class ZeroWatch:
    """Warn once about a Jacobian of zeros: look at the first ten searches, then at every hundredth."""

    def __init__(self) -> None:
        self.searches, self.warned = 0, False

    def __call__(self, jacobian: Masks, agrees: Callable[[], bool] | None) -> None:
        """Look at the Jacobian of one more search; ``agrees`` is that of its problem."""
        self.searches += 1
        looks = self.searches <= 10 or self.searches % 100 == 0
        if not self.warned and looks and all(checks.due("zero jacobian", slope) for slope in jacobian):
            self.warned = _warn_if_zero(jacobian, agrees)


def _warn_if_zero(jacobian: Masks, agrees: Callable[[], bool] | None) -> bool:
    """Warn and return True if the Jacobian of every unit of every example is zero up to rounding."""
    if not all(rounding(slope) for slope in jacobian):
        return False
    if agrees is not None and not agrees():  # only small: the network has small weights
        return False
    warnings.warn(
        "the mask search found an all-zero Jacobian: the clean and the perturbed pass agree at ε0 = 1, where the "
        "divergence has its minimum, so the flips are arbitrary. This happens if the layer's p is 0, or the model is "
        "in evaluation mode, and nothing else differs between the two passes. Use noise='independent' with dropout, "
        "noise or augmentation below the layer, give the layer p > 0, or use search=Probe(). It also happens if all "
        "predictions are certain, as on very easy data; then nothing is wrong.",
        stacklevel=2,
    )
    return True


def rounding(slope: Tensor) -> bool:
    """Return True if a slope of D is not larger than the rounding errors of a softmax, which is float32 at least."""
    eps = torch.finfo(torch.promote_types(slope.dtype, torch.float32)).eps
    return slope.numel() == 0 or bool(slope.abs().amax() <= 2 * eps)
