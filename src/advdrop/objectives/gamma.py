"""The Γ model: the output without noise should be predictable from the noisy output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, nn

from advdrop import checks
from advdrop.divergences import full_precision
from advdrop.objectives.base import Term

if TYPE_CHECKING:
    from advdrop.step.batch import Rows
    from advdrop.step.passes import Passes


@final
@dataclass(eq=False)
class Gamma(Term):
    """The Γ model, 1/C ‖z − ẑ_BN‖²: the denoising cost of the top layer of a ladder network, for any network.

    z is the output of a pass without noise, normalized over the batch; μ and σ are the statistics of that batch. z̃ is
    the normalized output of the noisy pass plus N(0, noise²). It is denoised by ẑ = g(z̃, u), where u is the normalized
    softmax of the noisy output and g is the :class:`Combinator`, and ẑ_BN = (ẑ − μ) / σ. Gradients flow through both
    passes. The normalization keeps the two from agreeing on a constant.

    Args:
        classes: C.
        noise: the standard deviation of the noise on the normalized output; 0.3 in the original.

    References: Rasmus et al., "Semi-Supervised Learning with Ladder Networks", NIPS 2015, section 4.2.

    Deviations: the noise below the top layer is the network's own (dropout, noise on the input); in the original it is
    N(0, noise²) at every layer. The cross-entropy is that of the network's own output; in the original it also has the
    noise and a batch norm of the top layer.
    """

    classes: int
    noise: float = 0.3
    rows: Rows = "unlabeled"
    combinator: Combinator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        checks.not_negative("noise", self.noise)
        self.combinator = Combinator(checks.count("classes", self.classes))

    @property
    def trained(self) -> nn.Module:
        """The combinator."""
        return self.combinator

    def per_example(self, passes: Passes) -> Tensor:
        """Return the denoising cost of each row, ``(B,)``."""
        if (outputs := checks.no_places("Gamma", passes.clean(self.rows).logits).shape[1]) != self.classes:
            raise ValueError(f"Gamma has classes={self.classes}, but the network has {outputs} outputs")
        noisy, clean = (full_precision(x) for x in (passes.clean(self.rows).logits, passes.without_noise(self.rows)))
        z, mean, std = normalized(clean)
        noise = torch.empty_like(noisy).normal_(generator=passes.generator)
        corrupted = normalized(noisy)[0] + self.noise * noise
        denoised = self.combinator(corrupted, normalized(noisy.softmax(1))[0])
        return denoising_cost(z, (denoised - mean) / std)


class Combinator(nn.Module):
    """g(z̃, u) = (z̃ − μ(u)) v(u) + μ(u), with ten parameters for each unit.

    μ(u) = a₁ sigmoid(a₂u + a₃) + a₄u + a₅ and v(u) = a₆ sigmoid(a₇u + a₈) + a₉u + a₁₀. It starts as g(z̃, u) = z̃.

    Shape: two ``(B, units)`` to the same.

    References: Rasmus et al. (2015), formula 2.
    """

    def __init__(self, units: int) -> None:
        super().__init__()
        start = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0])
        self.a = nn.Parameter(start[:, None].repeat(1, units))

    def forward(self, corrupted: Tensor, above: Tensor) -> Tensor:
        """Return the denoised units."""
        a1, a2, a3, a4, a5, a6, a7, a8, a9, a10 = self.a
        mean = a1 * (a2 * above + a3).sigmoid() + a4 * above + a5
        share = a6 * (a7 * above + a8).sigmoid() + a9 * above + a10
        denoised: Tensor = (corrupted - mean) * share + mean
        return denoised


def normalized(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return x normalized over the rows, ``(B, units)``, and the mean and standard deviation of each unit.

    >>> normalized(torch.tensor([[1.0], [3.0]]))[0]
    tensor([[-1.0000],
            [ 1.0000]])
    """
    mean = x.mean(0)
    std = (x.var(0, correction=0) + 1e-5).sqrt()
    return (x - mean) / std, mean, std


def denoising_cost(clean: Tensor, denoised: Tensor) -> Tensor:
    """Return 1/m ‖z − ẑ‖² for each row of m units, ``(B, m) -> (B,)``."""
    return (clean - denoised).square().mean(1)
