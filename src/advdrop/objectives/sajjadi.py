"""The two terms of Sajjadi et al.: transformation / stability and mutual exclusivity."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from advdrop import checks
from advdrop.divergences import Given, full_precision
from advdrop.objectives.base import Term

if TYPE_CHECKING:
    from advdrop.step.batch import Rows
    from advdrop.step.passes import Passes, View


@final
@dataclass
class TransformationStability(Term):
    """Transformation stability, l_TS = Σ_{j<k} ‖f^j(T^j x) − f^k(T^k x)‖₂² over all pairs of n passes.

    The passes have independent noise, masks and augmentation T.

    It sums squared differences of probabilities over the C classes. With 2 passes it is C times the quadratic error of
    the Π model. An update costs n passes forward and backward, where the Π model needs two.

    Args:
        passes: n, 4 or 5 in the original. Give a step ``second_view`` and n − 2 ``more_views``, each augmented
            independently. If there are fewer, the last passes run on the second view with new noise.
        exclusivity: λ of l_ME, see :class:`MutualExclusivity`, here summed over the n passes as in the original; there
            it is 0.1.

    References: Sajjadi et al., "Regularization With Stochastic Transformations and Perturbations for Deep
    Semi-Supervised Learning", NIPS 2016.
    """

    passes: int = 4
    exclusivity: float = 0.0
    rows: Rows = "unlabeled"

    def __post_init__(self) -> None:
        checks.count("passes", self.passes, least=2)
        checks.not_negative("exclusivity", self.exclusivity)

    @property
    def views(self) -> tuple[View, ...]:
        """All n passes."""
        further: View = "further"
        return ("clean", "second", *[further] * (self.passes - 2))

    def per_example(self, passes: Passes) -> Tensor:
        """Return the value for each row, ``(B,)``."""
        made = [passes.clean(self.rows), passes.again(self.rows)]
        logits = [each.logits for each in (*made, *(passes.further(self.rows) for _ in range(self.passes - 2)))]
        checks.several_outputs(logits[0])
        outputs = [full_precision(output).softmax(1) for output in logits]
        values = [passes.compare(_squared_distance, one, other, self.rows) for one, other in combinations(outputs, 2)]
        if self.exclusivity:
            exclusive = [passes.compare(_exclusivity, output, output, self.rows) for output in logits]
            values += [self.exclusivity * value for value in exclusive]
        return torch.stack(values).sum(0)


def _squared_distance(target: Tensor, logits: Tensor, *, given: Given = "logits") -> Tensor:
    del given
    return (target - logits).square().sum(1)


@final
@dataclass
class MutualExclusivity(Term):
    """Mutual exclusivity, l_ME = −Σ_k f_k Π_{l≠k} (1 − f_l).

    Its minimum, −1, is where one class has all the probability.

    References: as for :class:`TransformationStability`; l = 0.1·l_ME + 1·l_TS there.

    Deviations: it is computed on the clean pass alone; the original sums over its n passes, see ``exclusivity`` of
    :class:`TransformationStability`.
    """

    rows: Rows = "unlabeled"

    def per_example(self, passes: Passes) -> Tensor:
        """Return the value for each row, ``(B,)``."""
        logits = passes.clean(self.rows).logits
        return passes.compare(_exclusivity, logits, logits, self.rows)


def mutual_exclusivity(logits: Tensor) -> Tensor:
    """Return −Σ_k f_k Π_{l≠k} (1 − f_l) from logits, ``(B, C) -> (B,)``.

    >>> mutual_exclusivity(torch.tensor([[0.0, 0.0], [90.0, 0.0]]))
    tensor([-0.5000, -1.0000])
    """
    checks.several_outputs(logits)
    f = full_precision(logits).softmax(1)
    rest = torch.log1p(-f.clamp_max(1.0 - torch.finfo(f.dtype).eps))
    return -(f * (rest.sum(1, keepdim=True) - rest).exp()).sum(1)


def _exclusivity(target: Tensor, logits: Tensor, *, given: Given = "logits") -> Tensor:
    del target, given
    return mutual_exclusivity(logits)
