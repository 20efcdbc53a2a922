"""Virtual adversarial training (VAT): the output should not change under the worst small step of the input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, nn

from advdrop import checks
from advdrop.choices import Noise, Per
from advdrop.divergences import Divergence, kl
from advdrop.objectives.adversarial_training import input_gradient, unit_step
from advdrop.objectives.base import Term

if TYPE_CHECKING:
    from advdrop.step.batch import Rows
    from advdrop.step.passes import Passes, Repeated


@final
@dataclass
class VAT(Term):
    """Virtual adversarial training, D[f(x), f(x + r)] with ‖r‖₂ = ε.

    The direction of r is that of the highest curvature of D, found by power iteration from a random start.

    The target f(x) is the clean output and gets no gradient.

    With ``at``, r is added to the output of a module instead of to the input: the embedding of tokens, which are
    integers and cannot be moved.

    Args:
        epsilon: ‖r‖₂. The paper's code: 8.0 on CIFAR-10, 3.5 on SVHN; nothing is given for MNIST.
        xi: the step of the finite difference. The original's 1e-6 is too small for float32: after rounding, most pixels
            of a standardized image do not change.
        iterations: power iterations, one forward and one backward pass each.
        divergence: D.
        noise: the dropout and noise of the passes at x + r: ``"independent"`` of the clean pass, as in the released
            code, or ``"shared"``. With shared noise D has its minimum at r = 0, so the direction of r depends on the
            curvature alone.
        at: the dotted name of a module that runs once in a pass; :func:`advdrop.places` lists them. None: the input.
        per: what has the norm ε (and ξ in the search) in an output ``(B, T, F)``: r of the whole ``"sequence"``, or r
            of each ``"token"``. Padded tokens are not moved if the step knows the mask, see :class:`Step`.

    References: Miyato et al., "Virtual Adversarial Training", 2017.
    """

    epsilon: float = 2.0
    xi: float = 1e-2
    iterations: int = 1
    divergence: Divergence = kl
    noise: Noise = "independent"
    at: str | None = None
    per: Per = "sequence"
    rows: Rows = "unlabeled"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.function("divergence", self.divergence)
        checks.positive("xi", self.xi)
        checks.count("iterations", self.iterations)
        checks.choice("noise", self.noise, ("independent", "shared"))
        checks.choice("per", self.per, ("sequence", "token"))

    @property
    def repeated(self) -> Repeated:
        """With shared noise, that of the whole pass."""
        return "all" if self.noise == "shared" else "nothing"

    def attach(self, model: nn.Module) -> None:
        """Check that the network has the module."""
        if self.at is not None:
            checks.module(model, self.at)

    def per_example(self, passes: Passes) -> Tensor:
        """Return D[f(x), f(x + r)], ``(B,)``."""
        target = passes.clean(self.rows).logits.detach()
        moved = _Moved(passes, self.rows, self.noise, self.at, self.per)
        for _ in range(self.iterations):
            with passes.unnoticed(), torch.enable_grad():
                logits = moved.logits(self.xi, search=True)
                reached = passes.compare(self.divergence, target, logits, self.rows)
                moved.direction = input_gradient(reached.sum(), moved.step)
        return passes.compare(self.divergence, target, moved.logits(self.epsilon, search=False), self.rows)


@dataclass
class _Moved:
    """The passes at x + r, or at h + r for the output h of a module, and the direction of r."""

    passes: Passes
    rows: Rows
    noise: Noise
    at: str | None
    per: Per
    direction: Tensor | None = None
    step: Tensor = field(default_factory=lambda: torch.empty(0))

    def logits(self, length: float, *, search: bool) -> Tensor:
        """Run a pass with an r of this length; in the search, r is what is differentiated."""
        if self.at is not None:
            return self.passes.perturbed_at(self.at, lambda h: self._change(h, length, search), self.rows, self.noise)
        x = self._change(self.passes.perturbable(self.rows), length, search)
        return self.passes.perturbed(x, self.rows, self.noise)

    def _change(self, h: Tensor, length: float, search: bool) -> Tensor:
        if self.direction is None:
            self.direction = torch.empty_like(h).normal_(generator=self.passes.generator)
        direction = unit_step(self.direction, self.per, self.passes.token_mask(self.rows, h))
        self.step = (length * direction).to(h.dtype).requires_grad_(search)
        return (h.detach() if search else h) + self.step
