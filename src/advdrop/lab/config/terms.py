"""The methods by their names: for each its line of help, its options with their defaults, and its objective.

To add a method, write a class here and list it in ``METHODS``. Imports no torch until an objective is built.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    create_model,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from advdrop.choices import Ball, BudgetOf, Noise, Order, Ties

if TYPE_CHECKING:
    from advdrop.objectives import Objective


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):  # pydantic would take yes for 1
        raise PydanticCustomError("number", "Input should be a number")
    return value


Number = Annotated[float, BeforeValidator(_no_bool)]
Share = Annotated[Number, Field(ge=0.0, le=1.0)]
BelowOne = Annotated[Number, Field(ge=0.0, lt=1.0)]
Positive = Annotated[Number, Field(gt=0.0)]
NotNegative = Annotated[Number, Field(ge=0.0)]
Whole = Annotated[int, BeforeValidator(_no_bool), Field(ge=0)]
Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=1)]


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, and nothing changes once it is resolved."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSize(NamedTuple):
    """What the objective of a run depends on beside its options.

    Args:
        examples: the number of training examples.
        classes: C.
    """

    examples: int
    classes: int


class Method(Section):
    """A term that is added to the cross-entropy."""

    help: ClassVar[str]
    semi_supervised: ClassVar[bool] = True

    weight: NotNegative = Field(1.0, description="λmax")
    ramped: bool = Field(False, description="whether the weight is ramped up")

    @abstractmethod
    def objective(self, size: DataSize) -> Objective:
        """Return the term without its weight."""


class At(Method):
    """Options of AT."""

    help = "adversarial training: labels are kept under the worst small step of the input"
    semi_supervised = False

    epsilon: Positive = Field(0.1, description="radius of the ball")
    norm: Ball = Field("linf", description="norm of the ball")
    noise: Noise = Field("independent", description="noise of the pass")

    def objective(self, size: DataSize) -> Objective:
        """Return AT."""
        from advdrop.objectives import AT

        return AT(self.epsilon, self.norm, self.noise)


class Vat(Method):
    """Options of VAT."""

    help = "virtual adversarial training: the output is kept under it, so unlabeled images count"

    epsilon: Positive = Field(2.0, description="length of the perturbation")
    xi: Positive = Field(1e-2, description="step of the finite difference")
    iterations: Count = Field(1, description="power iterations")
    noise: Noise = Field("independent", description="noise of the passes")

    def objective(self, size: DataSize) -> Objective:
        """Return VAT."""
        from advdrop.objectives import VAT

        return VAT(self.epsilon, self.xi, self.iterations, noise=self.noise)


class Pi(Method):
    """Options of the Π model."""

    help = "the Π model: two noisy passes agree"

    weight: NotNegative = Field(25.0, description="λmax")
    ramped: bool = Field(True, description="whether the weight is ramped up")

    def objective(self, size: DataSize) -> Objective:
        """Return the Π model."""
        from advdrop.objectives import PiModel

        return PiModel()


class Temporal(Method):
    """Options of temporal ensembling; its weight is that of the Π model, because both add the same divergence."""

    help = "temporal ensembling: the output agrees with the average of earlier outputs"

    weight: NotNegative = Field(25.0, description="λmax")
    ramped: bool = Field(True, description="whether the weight is ramped up")
    momentum: BelowOne = Field(0.6, description="α of the ensemble")

    def objective(self, size: DataSize) -> Objective:
        """Return temporal ensembling for every training example."""
        from advdrop.objectives import TemporalEnsembling

        return TemporalEnsembling(size.examples, size.classes, self.momentum)


class Sajjadi(Method):
    """Options of the two terms of Sajjadi et al."""

    help = "transformation stability and mutual exclusivity (Sajjadi et al.)"

    passes: Count = Field(4, ge=2, description="passes of transformation stability")
    mutual_exclusivity: NotNegative = Field(0.1, description="weight of mutual exclusivity beside it")

    def objective(self, size: DataSize) -> Objective:
        """Return both terms."""
        from advdrop.objectives import MutualExclusivity, TransformationStability

        return TransformationStability(self.passes) + self.mutual_exclusivity * MutualExclusivity()


class Entropy(Method):
    """Options of entropy minimization."""

    help = "entropy minimization: confident predictions on unlabeled images"

    def objective(self, size: DataSize) -> Objective:
        """Return entropy minimization."""
        from advdrop.objectives import EntropyMinimization

        return EntropyMinimization()


class AdversarialDropoutOptions(Method):
    """What SAdD and VAdD have in common. δ and the scale of masks are options of the network's layer."""

    ramped: bool = Field(True, description="whether the weight is ramped up")
    search: Literal["first-order", "iterated", "probe", "random"] = Field("first-order", description="mask search")
    steps: Count = Field(4, description="Jacobians of the iterated search")
    order: Order = Field("largest", description="gains taken first; the paper prints 'smallest'")
    ties: Ties = Field("exact", description="what happens to equal gains; the released code drops them")
    budget: BudgetOf = Field("layer", description="one budget for each layer, or one shared by all")
    noise: Noise = Field("independent", description="noise of the adversarial pass")

    @model_validator(mode="after")
    def _order_fits_search(self) -> AdversarialDropoutOptions:
        if self.search != "first-order" and (self.order, self.ties) != ("largest", "exact"):
            raise ValueError(
                f"order={self.order} and ties={self.ties} are for the first-order search, not for {self.search}; set "
                "order=largest and ties=exact with it"
            )
        return self

    def _options(self) -> dict[str, Any]:
        from advdrop.masks import FirstOrder, Iterated, Probe, RandomFlips

        searches = {"iterated": Iterated(self.steps), "probe": Probe(), "random": RandomFlips()}
        search = searches.get(self.search, FirstOrder(order=self.order, ties=self.ties))
        return {"search": search, "noise": self.noise, "budget": self.budget}


class Sadd(AdversarialDropoutOptions):
    """Options of SAdD."""

    help = "supervised adversarial dropout: labels are kept under the worst mask"
    semi_supervised = False

    noise: Noise = Field("shared", description="noise of the adversarial pass")

    def objective(self, size: DataSize) -> Objective:
        """Return SAdD."""
        from advdrop.objectives import SAdD

        return SAdD(**self._options())


class VirtualOptions(AdversarialDropoutOptions):
    """What both kinds of VAdD have in common."""

    target: Literal["clean", "steady"] = Field(
        "clean", description="what the output is compared with: the clean pass, or the output without any noise"
    )
    detach: bool = Field(False, description="whether the target is a constant in the loss")
    confidence: NotNegative = Field(0.0, description="power of the weight by the confidence of the target; 0: none")
    fresh: bool = Field(False, description="flips start from a new mask, not from that of the clean pass")

    def _options(self) -> dict[str, Any]:
        from advdrop.objectives.targets import clean_output, steady_output

        target = steady_output if self.target == "steady" else clean_output
        own = {"target": target, "detach": self.detach, "confidence": self.confidence, "fresh": self.fresh}
        return {**super()._options(), **own}


class VaddKl(VirtualOptions):
    """Options of VAdD with the KL divergence."""

    help = "virtual adversarial dropout with the KL divergence: the output is kept under the worst mask"

    reversed_search: bool = Field(False, description="search with KL(perturbed, clean)")

    def objective(self, size: DataSize) -> Objective:
        """Return VAdD."""
        from advdrop.divergences import kl, reverse_kl
        from advdrop.objectives import VAdD

        searched = reverse_kl if self.reversed_search else None
        return VAdD(divergence=kl, search_divergence=searched, **self._options())


class VaddQe(VirtualOptions):
    """Options of VAdD with the quadratic error."""

    help = "virtual adversarial dropout with the quadratic error"

    weight: NotNegative = Field(25.0, description="λmax")

    def objective(self, size: DataSize) -> Objective:
        """Return VAdD."""
        from advdrop.divergences import qe
        from advdrop.objectives import VAdD

        return VAdD(divergence=qe, **self._options())


class NoFlips(VaddKl):
    """Options of VAdD without flips."""

    help = "vadd-kl without its flips: the output is kept under another random mask; shows what the flips add"

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "delta": 0.0}


METHODS: dict[str, type[Method]] = {
    "at": At,
    "vat": Vat,
    "pi": Pi,
    "temporal": Temporal,
    "sajjadi": Sajjadi,
    "sadd": Sadd,
    "vadd-kl": VaddKl,
    "vadd-qe": VaddQe,
    "no-flips": NoFlips,
    "entropy": Entropy,
}
"""Each method by its name on the command line; all of them are added to the cross-entropy."""

HELP = {"dropout": "the cross-entropy alone, on a network with dropout"} | {n: m.help for n, m in METHODS.items()}


class _Terms(Section):
    @model_serializer(mode="wrap")
    def _only_chosen(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None}

    def chosen(self) -> dict[str, Method]:
        """Return the methods that are part of the objective."""
        given = {name: getattr(self, _field(name)) for name in METHODS}
        return {name: options for name, options in given.items() if options is not None}


def _field(name: str) -> str:
    return name.replace("-", "_")


Terms = create_model(
    "Terms",
    __base__=_Terms,
    __module__=__name__,
    __doc__="The options of each chosen method, by its name.",
    **{_field(name): (method | None, Field(None, alias=name)) for name, method in METHODS.items()},  # type: ignore[call-overload]
)
Terms.model_config["serialize_by_alias"] = True
Terms.model_rebuild(force=True)
