"""Adversarial training (AT): the label should survive the worst small step of the input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from torch import Tensor

from advdrop import checks
from advdrop.batch import Rows
from advdrop.divergences import cross_entropy
from advdrop.objectives.base import Term
from advdrop.objectives.passes import Passes, Replayed
from advdrop.vocabulary import Ball, Noise


@final
@dataclass
class AT(Term):
    """D[y, f(x + r)] with r = ε·sign(g) (L∞, the fast gradient sign) or r = ε·g/‖g‖₂ (L2), g = ∂CE/∂x (Eq. 2).

    The gradient is taken through the clean pass that the cross-entropy term made anyway.

    Args:
        epsilon: the radius of the ball.
        norm: ``"linf"`` or ``"l2"``.
        noise: the dropout and noise of the pass at x + r: ``"independent"`` of the clean pass, or ``"shared"``.

    References: Goodfellow et al., "Explaining and Harnessing Adversarial Examples", ICLR 2015; Miyato et al. for L2.
    """

    epsilon: float = 0.1
    norm: Ball = "linf"
    noise: Noise = "independent"
    rows: Rows = field(default="labelled", init=False, repr=False)
    input_gradient: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.choice("norm", self.norm, ("linf", "l2"))
        checks.choice("noise", self.noise, ("independent", "shared"))

    @property
    def replayed(self) -> Replayed:
        """With shared noise, that of the whole pass."""
        return "all" if self.noise == "shared" else "nothing"

    def per_example(self, passes: Passes) -> Tensor:
        """``(B,)``."""
        if not torch.is_grad_enabled():
            raise RuntimeError("AT needs the gradient of the loss; do not call it under torch.no_grad()")
        x, y = passes.perturbable(self.rows), passes.batch.labels()
        loss = cross_entropy(y, passes.clean(self.rows).logits)
        (slope,) = torch.autograd.grad(loss.sum(), x, retain_graph=True)
        direction = slope.sign() if self.norm == "linf" else unit(slope)
        return cross_entropy(y, passes.perturbed(x.detach() + self.epsilon * direction, self.rows, self.noise))


def unit(direction: Tensor) -> Tensor:
    """Each example scaled to L2 norm 1; an example of zeros stays zero.

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
