"""Adversarial training (AT): the prediction should not change under the worst small step of the input."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, nn

from advdrop import checks
from advdrop.choices import Ball, Noise, Per
from advdrop.masks import gradient
from advdrop.objectives.base import Term
from advdrop.objectives.cross_entropy import CrossEntropy
from advdrop.objectives.supervised import Supervised, checked

if TYPE_CHECKING:
    from advdrop.step.batch import Rows
    from advdrop.step.passes import Passes, Repeated


@final
@dataclass
class AT(Term):
    """Adversarial training, D[y, f(x + r)] (Eq. 2).

    r = ε·sign(g) (L∞, the fast gradient sign) or r = ε·g/‖g‖₂ (L2), with g = ∂D/∂x. The gradient is taken through the
    clean pass, which the supervised loss needs as well.

    With ``at``, r is added to the output h of a module instead of to the input: the embedding of tokens, which are
    integers and cannot be moved. The gradient ∂D/∂h then takes a pass of its own, with the noise of the clean pass.

    Args:
        epsilon: the radius of the ball.
        norm: ``"linf"`` or ``"l2"``.
        noise: the dropout and noise of the pass at x + r: ``"independent"`` of the clean pass, or ``"shared"``.
        at: the dotted name of a module that runs once in a pass; :func:`advdrop.places` lists them. None: the input.
        per: what has the L2 norm ε in h ``(B, T, F)``: r of the whole ``"sequence"`` or r of each ``"token"``. Padded
            tokens are not moved if the step knows the mask, see :class:`Step`.
        loss: D[y, ·], the supervised loss with its options; :class:`BinaryCrossEntropy` for multi-label outputs,
            :class:`SquaredError` for values.

    References: Goodfellow et al., "Explaining and Harnessing Adversarial Examples", ICLR 2015; Miyato et al. for L2.
    """

    epsilon: float = 0.1
    norm: Ball = "linf"
    noise: Noise = "independent"
    at: str | None = None
    per: Per = "sequence"
    loss: Supervised = field(default_factory=CrossEntropy)
    rows: Rows = field(default="labeled", init=False, repr=False)

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checked(self.loss)
        checks.choice("norm", self.norm, ("linf", "l2"))
        checks.choice("noise", self.noise, ("independent", "shared"))
        checks.choice("per", self.per, ("sequence", "token"))

    @property
    def repeated(self) -> Repeated:
        """With shared noise, and for the gradient at a module, that of the whole pass."""
        return "all" if self.noise == "shared" or self.at is not None else "nothing"

    @property
    def input_gradient(self) -> bool:
        """Whether the input is moved, and not the output of a module."""
        return self.at is None

    def attach(self, model: nn.Module) -> None:
        """Check that the network has the module."""
        if self.at is not None:
            checks.module(model, self.at)

    def per_example(self, passes: Passes) -> Tensor:
        """Return the loss at x + r, ``(B,)``."""
        if not torch.is_grad_enabled():
            raise RuntimeError("AT needs the gradient of the loss; do not call it under torch.no_grad()")
        if self.at is not None:
            return self._at_module(passes, self.at)
        x = passes.perturbable(self.rows)
        slope = input_gradient(self.loss.of(passes, passes.clean(self.rows).logits).sum(), x, retain_graph=True)
        original = passes.batch.inputs(self.rows)
        moved = original + self.epsilon * self._direction(passes, slope, x)
        return self.loss.of(passes, passes.perturbed(moved, self.rows, self.noise))

    def _at_module(self, passes: Passes, at: str) -> Tensor:
        step = torch.empty(0)

        def unmoved(h: Tensor) -> Tensor:
            nonlocal step
            step = torch.zeros_like(h).requires_grad_()
            return h.detach() + step

        with passes.unnoticed():
            slope = input_gradient(
                self.loss.of(passes, passes.perturbed_at(at, unmoved, self.rows, "shared")).sum(), step
            )

        def moved(h: Tensor) -> Tensor:
            return h + self.epsilon * self._direction(passes, slope, h)

        return self.loss.of(passes, passes.perturbed_at(at, moved, self.rows, self.noise))

    def _direction(self, passes: Passes, slope: Tensor, h: Tensor) -> Tensor:
        if self.norm == "linf":
            return without_padding(slope.sign(), passes.token_mask(self.rows, h)).to(h.dtype)
        return unit_step(slope, self.per, passes.token_mask(self.rows, h)).to(h.dtype)


def unit_step(direction: Tensor, per: Per, mask: Tensor | None) -> Tensor:
    """Scale the direction of each example, or of each token, to L2 norm 1; padded tokens get 0.

    >>> unit_step(torch.ones(1, 2, 4), "token", torch.tensor([[1, 0]]))
    tensor([[[0.5000, 0.5000, 0.5000, 0.5000],
             [0.0000, 0.0000, 0.0000, 0.0000]]])
    """
    direction = without_padding(direction, mask)
    if per == "sequence":
        return unit(direction)
    if direction.dim() < 3:
        raise ValueError(f"per='token' needs an output (B, T, F), got {tuple(direction.shape)}; use per='sequence'")
    return unit(direction.flatten(0, 1)).view_as(direction)


def without_padding(direction: Tensor, mask: Tensor | None) -> Tensor:
    """Return ``(B, T, ...)`` with 0 where the mask ``(B, T)`` is 0."""
    if mask is None:
        return direction
    return torch.where((mask != 0).view(*mask.shape, *[1] * (direction.dim() - 2)), direction, 0.0)


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
            "as its input, or name a module above it with at="
        ) from error


def unit(direction: Tensor) -> Tensor:
    """Scale each example to L2 norm 1; an example of zeros stays zero.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    tiny = torch.finfo(direction.dtype).tiny
    flat = direction.reshape(len(direction), -1)  # the inputs may be one number for each example, (B,)
    # The largest entry is divided out first, so that squares of tiny gradients do not vanish.
    flat = flat / flat.abs().amax(1, keepdim=True).clamp_min(tiny)
    length: Tensor = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    return (flat / length.clamp_min(tiny)).view_as(direction)
