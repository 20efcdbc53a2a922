"""GAN with feature matching: generated inputs are one more class, and the generator matches the mean features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from advdrop.divergences import full_precision
from advdrop.hidden import Place
from advdrop.masks import AdversarialDropout
from advdrop.objectives.base import Objective
from advdrop.objectives.catgan import Discriminating, Generative

if TYPE_CHECKING:
    from advdrop.step.passes import Passes


@final
@dataclass(eq=False)
class FakeClass(Discriminating):
    """A class for generated inputs, −½ log D(x) − ½ log(1 − D(G(z))), D = Z / (Z + 1), Z = Σ_k exp f_k.

    The network has K outputs; that of the class "generated" is fixed to 0. With it D is the probability of all other
    classes, and the cross-entropy of the K outputs is that of the classes given that the input is real. Its
    :attr:`opponent` trains the generator by feature matching.

    Args:
        features: the module whose outputs the generator matches, by its name or by its class; by default
            the AdversarialDropout layer.

    References: Salimans et al., "Improved Techniques for Training GANs", NIPS 2016, section 5; the factor ½ is that of
    their released code.
    """

    features: Place = AdversarialDropout

    def per_example(self, passes: Passes) -> Tensor:
        """Return the value for each row, ``(B,)``."""
        real = evidence(passes.clean(self.rows).logits)
        fake = evidence(self.of_generated(passes, self.generated(passes)))
        return 0.5 * (F.softplus(real) - real + F.softplus(fake))

    @property
    def opponent(self) -> Objective:
        """The objective of the generator."""
        return FeatureMatching(self.generator, self.latent, self.rows, self.features)


@final
@dataclass(eq=False)
class FeatureMatching(Generative):
    """The generator's side: 1/H ‖mean h(x) − mean h(G(z))‖², h being H hidden units of the classifier.

    References: as for :class:`FakeClass`, section 3.1; the mean over the units instead of their sum is that of the
    released code.
    """

    features: Place = AdversarialDropout

    @property
    def hidden(self) -> tuple[Place, ...]:
        """The module of the features."""
        return (self.features,)

    @property
    def trained(self) -> nn.Module:
        """The generator."""
        return self.generator

    def per_example(self, passes: Passes) -> Tensor:
        """Return the value of the batch for each row, ``(B,)``."""
        real = _mean(passes.hidden(self.rows, self.hidden)).detach()
        with passes.watching(self.hidden) as hidden:
            self.of_generated(passes, self.generated(passes))
        return (real - _mean(hidden)).square().mean().expand(passes.batch.count(self.rows) or 1)


def _mean(hidden: dict[str, Tensor]) -> Tensor:
    """Return the mean of each hidden unit over the batch, ``(H,)``."""
    return torch.cat([full_precision(h).flatten(1).mean(0) for h in hidden.values()])


def evidence(logits: Tensor) -> Tensor:
    """Return log Z = log Σ_k exp f_k, ``(B, K) -> (B,)``: the logit of "not generated"."""
    return full_precision(logits).logsumexp(1)
