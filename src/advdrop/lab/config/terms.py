"""The methods by name: the options of each with their defaults, and its objective.

To add a method, write a class here and name it in ``Terms``. Imports no torch until an objective is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

import advdrop
from advdrop.choices import Ball, BudgetOf, Noise, Order, Per, Ties
from advdrop.lab.config.section import BelowOne, Count, NotNegative, Positive, Section

if TYPE_CHECKING:
    from torch import Tensor, nn

    from advdrop.objectives import Objective


MOST_STEPS = 1000
"""No update makes more passes of one kind: they would take hours."""
ModuleName = Annotated[str, Field(coerce_numbers_to_str=True)]  # modules of an nn.Sequential have numbers


@dataclass(frozen=True)
class Setup:
    """What a term may depend on: the network, the training data, and how examples become inputs of the network."""

    network: nn.Module
    classes: int
    examples: int  # their number in the training data
    shape: tuple[int, ...]  # of one example
    pixels: bool  # whether the stored examples are bytes
    to_input: Callable[[Tensor], Tensor]


class Method(Section):
    """A term that is added to the cross-entropy."""

    semi_supervised: ClassVar[bool] = True
    adversarial_dropout: ClassVar[bool] = False  # whether it is the paper's method
    own_loss: ClassVar[bool] = False  # whether it contains the loss of the labels, so that none is added
    own_statistics: ClassVar[bool] = False  # whether it updates the running statistics of batch norm by itself
    several_rows: ClassVar[bool] = False  # whether it normalizes or averages over the rows of a pass
    recipe: ClassVar[Mapping[str, Any]] = {}  # settings that the method needs, over those of the data set
    of_images: ClassVar[Mapping[str, Any]] = {}  # the same, if the examples are images
    term: ClassVar[str]  # the name of its class in the library

    weight: NotNegative = Field(1.0, description="λmax")
    ramped: bool = Field(False, description="whether the weight is ramped up")

    def build(self, setup: Setup) -> Objective:
        """Return the term without its weight."""
        del setup
        term: Objective = getattr(advdrop, self.term)(**self._arguments())
        return term

    def _arguments(self) -> dict[str, Any]:
        return self.model_dump(exclude={"weight", "ramped"})


class At(Method):
    """Adversarial training: keep the label under the worst small change of the input."""

    semi_supervised = False
    term = "AT"

    epsilon: Positive = Field(0.1, description="radius of the ball")
    norm: Ball = Field("linf", description="norm of the ball")
    noise: Noise = Field("independent", description="noise of the pass, or that of the clean pass (shared)")
    at: ModuleName | None = Field(None, description="module whose output is changed instead of the input")
    per: Per = Field("sequence", description="what has the L2 norm epsilon, if the output is a sequence")


class Vat(Method):
    """Virtual adversarial training: keep the output under the worst small change of the input."""

    term = "VAT"

    epsilon: Positive = Field(2.0, description="length of the perturbation")
    xi: Positive = Field(1e-2, description="step of the finite difference")
    iterations: Count = Field(1, le=MOST_STEPS, description="power iterations")
    noise: Noise = Field("independent", description="noise of the passes, or that of the clean pass (shared)")
    at: ModuleName | None = Field(None, description="module whose output is changed instead of the input")
    per: Per = Field("sequence", description="what has the norm epsilon, if the output is a sequence")


class Pi(Method):
    """The Π model: make two noisy passes agree."""

    term = "PiModel"

    weight: NotNegative = Field(25.0, description="λmax")
    ramped: bool = Field(True, description="whether the weight is ramped up")


class Temporal(Pi):
    """Temporal ensembling: make the output agree with the average of earlier outputs."""

    momentum: BelowOne = Field(0.6, description="α of the ensemble")

    def build(self, setup: Setup) -> Objective:
        """Return temporal ensembling, with an average for every training example."""
        return advdrop.TemporalEnsembling(setup.examples, setup.classes, self.momentum)


class MeanTeacher(Pi):
    """Mean teacher: make the output agree with that of the average of earlier weights."""

    term = "MeanTeacher"

    decay: BelowOne = Field(0.999, description="α of the average in the long run")


class RDrop(Method):
    """R-Drop: make two noisy passes of labeled images agree, with the loss of both in place of the cross-entropy."""

    semi_supervised = False
    own_loss = True
    term = "RDrop"

    alpha: NotNegative = Field(1.0, description="weight of the symmetric KL divergence")


class Fraternal(Method):
    """Fraternal dropout: as R-Drop, with the squared difference before the softmax."""

    semi_supervised = False
    own_loss = True
    term = "FraternalDropout"

    kappa: NotNegative = Field(0.15, description="weight of the squared difference")


class Sajjadi(Method):
    """Transformation stability and mutual exclusivity (Sajjadi et al.), computed on the same passes."""

    term = "TransformationStability"

    passes: Count = Field(4, ge=2, le=MOST_STEPS, description="passes, each on a view of its own")
    mutual_exclusivity: NotNegative = Field(0.1, description="weight of mutual exclusivity, which is added")

    def _arguments(self) -> dict[str, Any]:
        return {"passes": self.passes, "exclusivity": self.mutual_exclusivity}


class Entropy(Method):
    """Entropy minimization: make predictions on unlabeled images confident."""

    term = "EntropyMinimization"


class AdversarialDropoutOptions(Method):
    """The options that SAdD and VAdD share. δ and the scale of masks are options of the network's layer."""

    adversarial_dropout = True

    ramped: bool = Field(True, description="whether the weight is ramped up")
    search: Literal["first-order", "iterated", "probe", "random"] = Field("first-order", description="mask search")
    steps: Count = Field(4, le=MOST_STEPS, description="Jacobians of the iterated search")
    order: Order = Field("largest", description="which gains are taken first; the paper prints 'smallest'")
    ties: Ties = Field("exact", description="what happens to equal gains; the released code drops them")
    budget: BudgetOf = Field("layer", description="one budget for each layer, or one shared by all")
    noise: Noise = Field("independent", description="noise of the adversarial pass, or that of the clean pass (shared)")

    @model_validator(mode="after")
    def _order_fits_search(self) -> AdversarialDropoutOptions:
        if self.search != "first-order" and (self.order, self.ties) != ("largest", "exact"):
            raise ValueError(
                f"order={self.order} and ties={self.ties} are for the first-order search, not for {self.search}; set "
                "order=largest and ties=exact with it"
            )
        return self

    def _arguments(self) -> dict[str, Any]:
        searches = {
            "first-order": advdrop.FirstOrder(order=self.order, ties=self.ties),
            "iterated": advdrop.Iterated(self.steps),
            "probe": advdrop.Probe(),
            "random": advdrop.RandomFlips(),
        }
        return {"search": searches[self.search], "noise": self.noise, "budget": self.budget}


class Sadd(AdversarialDropoutOptions):
    """Supervised adversarial dropout: keep the label under the worst mask."""

    semi_supervised = False
    term = "SAdD"

    noise: Noise = Field("shared", description="noise of the adversarial pass, or that of the clean pass (shared)")


class VirtualOptions(AdversarialDropoutOptions):
    """The options that all kinds of VAdD share."""

    term = "VAdD"

    target: Literal["clean", "steady"] = Field(
        "clean", description="what the output is compared with: the clean pass, or the output without any noise"
    )
    detach: bool = Field(False, description="whether the target is a constant in the loss")
    confidence: NotNegative = Field(0.0, description="power of the weight by the confidence of the target; 0: none")
    fresh: bool = Field(False, description="flips start from a new mask, not from that of the clean pass")

    def _arguments(self) -> dict[str, Any]:
        from advdrop.objectives import targets

        own = self.model_dump(include={"detach", "confidence", "fresh"})
        return super()._arguments() | own | {"target": getattr(targets, f"{self.target}_output")}


class VaddKl(VirtualOptions):
    """Virtual adversarial dropout with the KL divergence: keep the output under the worst mask."""

    reversed_search: bool = Field(False, description="search with KL(perturbed, clean)")

    def _arguments(self) -> dict[str, Any]:
        searched = advdrop.reverse_kl if self.reversed_search else None
        return super()._arguments() | {"divergence": advdrop.kl, "search_divergence": searched}


class VaddQe(VirtualOptions):
    """Virtual adversarial dropout with the quadratic error."""

    weight: NotNegative = Field(25.0, description="λmax")

    def _arguments(self) -> dict[str, Any]:
        return super()._arguments() | {"divergence": advdrop.qe}


class NoFlips(VaddQe):
    """vadd-qe without its flips: keep the output under another random mask. Shows what the flips add."""

    adversarial_dropout = False

    def _arguments(self) -> dict[str, Any]:
        return super()._arguments() | {"delta": 0.0}


class Gamma(Method):
    """The Γ model: predict the output without noise from the noisy output."""

    several_rows = True

    weight: NotNegative = Field(4.0, description="λmax")
    noise: NotNegative = Field(0.3, description="noise on the normalized output")

    def build(self, setup: Setup) -> Objective:
        """Return the denoising cost of the top layer."""
        return advdrop.Gamma(setup.classes, self.noise)


class Ladder(Method):
    """Ladder network: predict each layer without noise from the noisy layer and the layer above."""

    own_statistics = True
    several_rows = True
    recipe: ClassVar[Mapping[str, Any]] = {
        "data": {"overlap": True},
        "network": {"name": "ladder", "p": 0.0},
        # The clean pass of the ladder alone updates running statistics. So no companion may turn its cost off.
        "objective": {"updating": [], "blend": 0.0},
        "optimizer": {"learning_rate": 0.002, "ramp_down": 1 / 3, "beta1_end": 0.9},
        "training": {"labeled": 100, "unlabeled": 100},
    }
    # Its noise is for pixels from 0 to 1.
    of_images: ClassVar[Mapping[str, Any]] = {"data": {"standardize": False, "pad_crop": 0}}

    weights: tuple[NotNegative, ...] = Field(
        (1000.0, 10.0, 0.1), min_length=1, description="λ of each layer from the input on; the last is repeated"
    )

    def build(self, setup: Setup) -> Objective:
        """Return the denoising costs of all layers."""
        from advdrop.lab.models.ladder import DenoisingCost

        del setup
        return DenoisingCost(self.weights)


class Generative(Method):
    """The options of methods with a generator, which has an optimizer of its own."""

    several_rows = True

    latent: Count = Field(100, description="random numbers that an image is generated from")
    filters: Count = Field(64, description="filters of the generator's last hidden layer; twice as many below")
    generator_rate: Positive = Field(0.0003, description="maximum learning rate of the generator")
    generator_beta1: BelowOne = Field(0.5, description="β1 of the generator's Adam")

    def build(self, setup: Setup) -> Objective:
        """Return the term of the classifier with a generator for its inputs."""
        from advdrop.lab.models.generator import Generator

        generator = Generator(setup.shape, self.latent, self.filters, pixels=setup.pixels, to_input=setup.to_input)
        term: Objective = getattr(advdrop, self.term)(generator, self.latent)
        return term


class Catgan(Generative):
    """CatGAN: be certain about images, uncertain about generated ones, and use all classes equally."""

    term = "CatGAN"


class GanFm(Generative):
    """GAN with feature matching: generated images are one more class."""

    term = "FakeClass"


class Dsn(Method):
    """Deeply-supervised net: predict the classes from hidden layers, too."""

    semi_supervised = False

    places: tuple[str, ...] = Field((), description="modules with a head; by default all poolings, else all ReLUs")

    def build(self, setup: Setup) -> Objective:
        """Return the companion losses; their weight falls to 0 during the training."""
        import torch
        from torch import nn

        from advdrop.schedules import fade

        poolings: tuple[type[nn.Module], ...] = (nn.MaxPool2d, nn.AvgPool2d)
        activations: tuple[type[nn.Module], ...] = (nn.ReLU, nn.LeakyReLU)
        there = {type(module) for module in setup.network.modules()}
        found = [kind for kind in poolings if kind in there] or [kind for kind in activations if kind in there]
        if not self.places and not found:
            raise ValueError(
                "dsn has a head on each pooling or ReLU, and this network has no such module; name others, for example "
                "--set 'objective.terms.dsn.places=[norms.0]'"
            )
        x = torch.zeros(2, *setup.shape)  # only the shapes of the hidden layers matter
        return fade * advdrop.DeepSupervision.of(setup.network, x, setup.classes, self.places or tuple(found))


class Terms(Section):
    """The options of the chosen methods, by name. Each of them is added to the cross-entropy."""

    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "-"), serialize_by_alias=True)

    at: At | None = None
    vat: Vat | None = None
    pi: Pi | None = None
    temporal: Temporal | None = None
    sajjadi: Sajjadi | None = None
    sadd: Sadd | None = None
    vadd_kl: VaddKl | None = None
    vadd_qe: VaddQe | None = None
    no_flips: NoFlips | None = None
    entropy: Entropy | None = None
    mean_teacher: MeanTeacher | None = None
    r_drop: RDrop | None = None
    fraternal: Fraternal | None = None
    gamma: Gamma | None = None
    ladder: Ladder | None = None
    catgan: Catgan | None = None
    gan_fm: GanFm | None = None
    dsn: Dsn | None = None

    @model_serializer(mode="wrap")
    def _only_chosen(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None}

    def chosen(self) -> dict[str, Method]:
        """Return the methods that are part of the objective."""
        return {name.replace("_", "-"): options for name, options in self if options is not None}


METHODS: dict[str, type[Method]] = {
    str(field.alias): get_args(field.annotation)[0] for field in Terms.model_fields.values()
}
"""The class of each method, by its name on the command line."""
