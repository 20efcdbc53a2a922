"""CatGAN: be certain about images and uncertain about what a generator makes, and use all classes equally."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, nn

from advdrop import checks
from advdrop.divergences import cross_entropy, full_precision
from advdrop.objectives.base import Objective, Term

if TYPE_CHECKING:
    from advdrop.step.batch import Rows
    from advdrop.step.passes import Passes


@dataclass(eq=False)
class Generative(Term):
    """What terms with a generator share: x̂ = G(z), z ~ N(0, 1), as many as there are unlabeled rows.

    Args:
        generator: G, a module that maps ``(B, latent)`` to inputs of the network.
        latent: the length of z.
    """

    generator: nn.Module
    latent: int = 100
    rows: Rows = "unlabeled"

    def __post_init__(self) -> None:
        checks.count("latent", self.latent)
        if not isinstance(self.generator, nn.Module):
            raise TypeError(f"generator must be a module, got {self.generator!r}")

    def generated(self, passes: Passes) -> Tensor:
        """Return G(z), as many rows as the passes have and of their type."""
        x, source = passes.perturbable(self.rows), passes.generator
        z = torch.empty(len(x), self.latent, device=source.device).normal_(generator=source)
        made: Tensor = self.generator(z.to(next(self.generator.parameters(), z)))
        return made.to(x)

    def of_generated(self, passes: Passes, made: Tensor) -> Tensor:
        """Return the logits of generated inputs, with noise and masks of their own, ``(B, C)``."""
        return checks.no_places(type(self).__name__, passes.perturbed(made, self.rows, "independent"))


@dataclass(eq=False)
class Discriminating(Generative):
    """A term of the classifier, which takes the generator as it is. A checkpoint of the term holds the generator."""

    def generated(self, passes: Passes) -> Tensor:
        """Return G(z) as a constant."""
        with torch.no_grad():
            return super().generated(passes)

    def term_state(self) -> dict[str, Tensor]:
        """Return the state of the generator."""
        return dict(self.generator.state_dict())

    def load_term_state(self, state: dict[str, Tensor]) -> None:
        """Load the state of the generator."""
        self.generator.load_state_dict(state)


@final
@dataclass(eq=False)
class CatGAN(Discriminating):
    """CatGAN, H[f(x)] − H[mean f(x)] − H[f(G(z))]; H is the entropy and the mean is that of the batch.

    The classifier is certain about each image, uses all classes equally, and is uncertain about generated images. Its
    :attr:`opponent` trains the generator.

    References: Springenberg, "Unsupervised and Semi-supervised Learning with Categorical Generative Adversarial
    Networks", ICLR 2016, formulas 7 and 9.
    """

    def per_example(self, passes: Passes) -> Tensor:
        """Return the value for each row, ``(B,)``."""
        real = passes.clean(self.rows).logits
        fake = self.of_generated(passes, self.generated(passes))
        return cross_entropy(real, real) - marginal_entropy(real) - cross_entropy(fake, fake)

    @property
    def opponent(self) -> Objective:
        """The objective of the generator."""
        return CategoricalGenerator(self.generator, self.latent, self.rows)


@final
@dataclass(eq=False)
class CategoricalGenerator(Generative):
    """The generator of CatGAN, H[f(G(z))] − H[mean f(G(z))]: each image is clearly of a class, and all classes occur.

    References: as for :class:`CatGAN`, formula 8.
    """

    @property
    def trained(self) -> nn.Module:
        """The generator."""
        return self.generator

    def per_example(self, passes: Passes) -> Tensor:
        """Return the value for each generated row, ``(B,)``."""
        fake = self.of_generated(passes, self.generated(passes))
        return cross_entropy(fake, fake) - marginal_entropy(fake)


def marginal_entropy(logits: Tensor) -> Tensor:
    """Return the entropy of the mean prediction of a batch, ``(B, C) -> ()``.

    >>> marginal_entropy(torch.tensor([[9.0, -9.0], [-9.0, 9.0]]))  # log 2
    tensor(0.6931)
    """
    log_p = full_precision(logits).log_softmax(1)
    log_mean = log_p.logsumexp(0) - math.log(len(logits))
    return -(log_mean.exp() * log_mean).sum()
