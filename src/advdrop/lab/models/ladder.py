"""The fully connected ladder network and its denoising costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, final

import torch
from torch import Tensor, nn

from advdrop import checks
from advdrop.masks import AdversarialDropout
from advdrop.objectives.base import Term
from advdrop.objectives.gamma import Combinator, denoising_cost, normalized
from advdrop.step.batch_norm import frozen_statistics

if TYPE_CHECKING:
    from advdrop.step.batch import Rows
    from advdrop.step.passes import Passes


class Encoded(NamedTuple):
    """A pass of the encoder: z of each layer from the input on, what it was before the norm, and the output."""

    z: list[Tensor]
    before: list[Tensor]
    logits: Tensor


class LadderNetwork(nn.Module):
    """Dense layers with batch norm and noise at every layer, and a decoder that takes the noise out again.

    Encoder: z⁽⁰⁾ = x + noise, z⁽ˡ⁾ = BN(W⁽ˡ⁾ h⁽ˡ⁻¹⁾) + noise, h⁽ˡ⁾ = ReLU(z⁽ˡ⁾ + β⁽ˡ⁾), and γ(z + β) at the top.
    The clean pass has no noise and no dropout.
    Decoder: u⁽ᴸ⁾ = BN(softmax(h̃⁽ᴸ⁾)), u⁽ˡ⁾ = BN(V⁽ˡ⁺¹⁾ ẑ⁽ˡ⁺¹⁾), ẑ⁽ˡ⁾ = g(z̃⁽ˡ⁾, u⁽ˡ⁾) with the
    :class:`~advdrop.objectives.gamma.Combinator` g.
    In training the network returns the noisy output, in evaluation the clean one.

    Args:
        layer: the AdversarialDropout layer, on the last hidden units; by default p = 0, as the original has none.
        shape: one example's shape; it is flattened.
        classes: C.
        hidden: the units of each hidden layer.
        noise: the standard deviation of the noise.

    Shape: ``(B, *shape) -> (B, C)``.

    References: Rasmus et al. (2015), Semi-Supervised Learning with Ladder Networks, Algorithm 1 and section 4.1.

    Deviations: the running statistics are exponential averages with torch's momentum. Labeled and unlabeled rows are
    normalized by their own statistics, as in the released code.
    """

    def __init__(
        self,
        layer: AdversarialDropout | None,
        shape: tuple[int, ...],
        classes: int,
        hidden: Sequence[int],
        noise: float,
    ) -> None:
        super().__init__()
        if not hidden:
            raise ValueError(f"hidden must name at least one hidden layer, such as (128,), got {hidden!r}")
        self.noise = checks.not_negative("noise", noise)
        sizes = [math.prod(shape), *hidden, classes]
        self.layer = layer or AdversarialDropout(p=0.0, delta=0.05)
        self.up = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(sizes))
        self.down = nn.ModuleList(nn.Linear(b, a, bias=False) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(nn.BatchNorm1d(units, affine=False) for units in sizes[1:])
        self.beta = nn.ParameterList(nn.Parameter(torch.zeros(units)) for units in sizes[1:])
        self.gamma = nn.Parameter(torch.ones(classes))
        self.combinators = nn.ModuleList(Combinator(units) for units in sizes)
        for dense in (*self.up, *self.down):
            assert isinstance(dense, nn.Linear)
            nn.init.normal_(dense.weight, std=dense.in_features**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return the noisy output in training, and the clean one in evaluation."""
        return self.encode(x, self.noise if self.training else 0.0).logits

    def encode(self, x: Tensor, noise: float, *, dropout: bool = True) -> Encoded:
        """Run the encoder with noise of this standard deviation, and with or without the AdversarialDropout layer."""
        h = _noisy(x.flatten(1), noise)
        found = Encoded([h], [], h)
        for number, (up, norm, beta) in enumerate(zip(self.up, self.norms, self.beta, strict=True), start=1):
            below = self.layer(h) if dropout and number == len(self.up) else h
            found.before.append(up(below))
            z = _noisy(norm(found.before[-1]), noise)
            h = self.gamma * (z + beta) if number == len(self.up) else (z + beta).relu()
            found.z.append(z)
        return found._replace(logits=h)

    def denoising_costs(self, x: Tensor, lowest: int = 0) -> list[Tensor]:
        """Return 1/m ‖z⁽ˡ⁾ − (ẑ⁽ˡ⁾ − μ⁽ˡ⁾)/σ⁽ˡ⁾‖² of each row, ``(B,)``, from the top layer down to ``lowest``.

        The clean pass updates the running statistics.
        """
        with frozen_statistics(self):
            noisy = self.encode(x, self.noise)
        clean = self.encode(x, 0.0, dropout=False)
        above, costs = noisy.logits.softmax(1), []
        for number in range(len(self.up), lowest - 1, -1):
            denoised = estimate = self.combinators[number](noisy.z[number], normalized(above)[0])
            if number:  # the input itself is not normalized
                _, mean, std = normalized(clean.before[number - 1])
                denoised, above = (estimate - mean) / std, self.down[number - 1](estimate)
            costs.append(denoising_cost(clean.z[number], denoised))
        return costs


def ladder(
    layer: AdversarialDropout | None = None,
    shape: tuple[int, ...] = (1, 28, 28),
    classes: int = 10,
    *,
    hidden: Sequence[int] = (1000, 500, 250, 250, 250),
    noise: float = 0.3,
) -> LadderNetwork:
    """Return the fully connected ladder network, see :class:`LadderNetwork`."""
    return LadderNetwork(layer, shape, classes, hidden, noise)


@final
@dataclass
class DenoisingCost(Term):
    """The unsupervised cost of a ladder network, Σ_l λ_l 1/m_l ‖z⁽ˡ⁾ − ẑ_BN⁽ˡ⁾‖².

    Args:
        weights: λ of each layer from the input on; the last one is that of all layers above. The original has 1000, 10
            and 0.1 for MNIST.

    References: as for :class:`LadderNetwork`, formula 4.
    """

    weights: tuple[float, ...] = (1000.0, 10.0, 0.1)
    rows: Rows = "unlabeled"

    def per_example(self, passes: Passes) -> Tensor:
        """Return the cost of each row, ``(B,)``."""
        network = ladder_in(passes.network.model)
        weights = [*self.weights, *[self.weights[-1]] * len(network.up)][: len(network.up) + 1]
        lowest = next((number for number, weight in enumerate(weights) if weight), len(network.up))
        costs = network.denoising_costs(passes.perturbable(self.rows), lowest)
        used = reversed(weights[lowest:])
        return torch.stack([weight * cost for weight, cost in zip(used, costs, strict=True)]).sum(0)


def ladder_in(network: nn.Module) -> LadderNetwork:
    """Return the network as the ladder network that it must be."""
    if not isinstance(network, LadderNetwork):
        raise TypeError(
            f"the ladder's denoising costs need the network ladder, got {type(network).__name__}; set "
            "network.name=ladder, or use the method gamma, which takes any network"
        )
    return network


def _noisy(x: Tensor, noise: float) -> Tensor:
    return x + noise * torch.randn_like(x) if noise else x
