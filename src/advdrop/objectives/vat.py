"""Virtual adversarial training (VAT): the output should not change under the worst small step of the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from advdrop import checks
from advdrop.choices import Noise
from advdrop.divergences import Divergence, kl
from advdrop.objectives.adversarial_training import input_gradient, unit
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

    Args:
        epsilon: ‖r‖₂. The paper's code: 8.0 on CIFAR-10, 3.5 on SVHN; nothing is given for MNIST.
        xi: the step of the finite difference. The original's 1e-6 is too small for float32: after rounding, most pixels
            of a standardized image do not change.
        iterations: power iterations, one forward and one backward pass each.
        divergence: D.
        noise: the dropout and noise of the passes at x + r: ``"independent"`` of the clean pass, as in the released
            code, or ``"shared"``. With shared noise D has its minimum at r = 0, so the direction of r depends on the
            curvature alone.

    References: Miyato et al., "Virtual Adversarial Training", 2017.
    """

    epsilon: float = 2.0
    xi: float = 1e-2
    iterations: int = 1
    divergence: Divergence = kl
    noise: Noise = "independent"
    rows: Rows = "unlabeled"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.function("divergence", self.divergence)
        checks.positive("xi", self.xi)
        checks.count("iterations", self.iterations)
        checks.choice("noise", self.noise, ("independent", "shared"))

    @property
    def repeated(self) -> Repeated:
        """With shared noise, that of the whole pass."""
        return "all" if self.noise == "shared" else "nothing"

    def per_example(self, passes: Passes) -> Tensor:
        """Return D[f(x), f(x + r)], ``(B,)``."""
        target = passes.clean(self.rows).logits.detach()
        x = passes.perturbable(self.rows)
        direction = torch.empty_like(x).normal_(generator=passes.generator)
        for _ in range(self.iterations):
            with passes.unnoticed(), torch.enable_grad():
                step = (self.xi * unit(direction)).to(x.dtype).requires_grad_()
                reached = self.divergence(target, passes.perturbed(x.detach() + step, self.rows, self.noise))
                direction = input_gradient(reached.sum(), step)
        step = (self.epsilon * unit(direction)).to(x.dtype)
        return self.divergence(target, passes.perturbed(x + step, self.rows, self.noise))
