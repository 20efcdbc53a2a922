"""Adversarial training (AT): the prediction should not change under the worst small step of the input."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor

from advdrop import checks
from advdrop.choices import Ball, Noise
from advdrop.divergences import cross_entropy
from advdrop.masks import gradient
from advdrop.objectives.base import Term

if TYPE_CHECKING:
    from advdrop.step.batch import Rows
    from advdrop.step.passes import Passes, Repeated


@final
@dataclass
class AT(Term):
    """Adversarial training, D[y, f(x + r)] (Eq. 2).

    r = ε·sign(g) (L∞, the fast gradient sign) or r = ε·g/‖g‖₂ (L2), with g = ∂CE/∂x. The gradient is taken through the
    clean pass, which the cross-entropy term needs as well.

    Args:
        epsilon: the radius of the ball.
        norm: ``"linf"`` or ``"l2"``.
        noise: the dropout and noise of the pass at x + r: ``"independent"`` of the clean pass, or ``"shared"``.

    References: Goodfellow et al., "Explaining and Harnessing Adversarial Examples", ICLR 2015; Miyato et al. for L2.
    """

    epsilon: float = 0.1
    norm: Ball = "linf"
    noise: Noise = "independent"
    rows: Rows = field(default="labeled", init=False, repr=False)
    input_gradient: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.choice("norm", self.norm, ("linf", "l2"))
        checks.choice("noise", self.noise, ("independent", "shared"))

    @property
    def repeated(self) -> Repeated:
        """With shared noise, that of the whole pass."""
        return "all" if self.noise == "shared" else "nothing"

    def per_example(self, passes: Passes) -> Tensor:
        """Return the cross-entropy at x + r, ``(B,)``."""
        if not torch.is_grad_enabled():
            raise RuntimeError("AT needs the gradient of the loss; do not call it under torch.no_grad()")
        x, y = passes.perturbable(self.rows), passes.batch.labels()
        loss = cross_entropy(y, passes.clean(self.rows).logits)
        slope = input_gradient(loss.sum(), x, retain_graph=True)
        original = passes.batch.inputs(self.rows)
        direction = (slope.sign() if self.norm == "linf" else unit(slope)).to(x.dtype)
        return cross_entropy(y, passes.perturbed(original + self.epsilon * direction, self.rows, self.noise))


def input_gradient(total: Tensor, x: Tensor, retain_graph: bool = False) -> Tensor:
    """Return ∂total/∂x, or raise an error if the network does not pass a gradient to its input."""
    try:
        return gradient(total, (x,), retain_graph=retain_graph)[0]
    except RuntimeError as error:
        if not re.search("not have been used in the graph|does not require grad", str(error)):
            raise
        raise RuntimeError(
            "AT and VAT need the gradient of the output with respect to the input, and this network has none: a "
            "part of it detaches its input or runs under torch.no_grad(); give the step the features of that part "
            "as its input"
        ) from error


def unit(direction: Tensor) -> Tensor:
    """Scale each example to L2 norm 1; an example of zeros stays zero.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    tiny = torch.finfo(direction.dtype).tiny
    flat = direction.flatten(1)
    # The largest entry is divided out first, so that squares of tiny gradients do not vanish.
    flat = flat / flat.abs().amax(1, keepdim=True).clamp_min(tiny)
    length: Tensor = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    return (flat / length.clamp_min(tiny)).view_as(direction)
