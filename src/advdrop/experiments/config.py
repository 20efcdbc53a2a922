"""The configuration of a run: every choice by its name, nothing implied. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from advdrop.vocabulary import (
    Ball,
    BudgetOf,
    Granularity,
    Labels,
    MemoryFormat,
    Noise,
    Norm,
    Order,
    Padding,
    PassName,
    Precision,
    Scale,
    Scaling,
    Ties,
)
from advdrop.words import did_you_mean

TERMS = {
    "dropout": "the cross-entropy alone, on a network with dropout",
    "at": "adversarial training: the label survives the worst small step of the input",
    "vat": "virtual adversarial training: the output survives it, so unlabelled images count",
    "pi": "the Π model: two noisy passes agree",
    "temporal": "temporal ensembling: the output agrees with the average of its own past",
    "sajjadi": "transformation stability and mutual exclusivity (Sajjadi et al.)",
    "sadd": "supervised adversarial dropout: the label survives the worst mask",
    "vadd-kl": "virtual adversarial dropout with the KL divergence: the output survives the worst mask",
    "vadd-qe": "virtual adversarial dropout with the quadratic error",
    "entropy": "entropy minimisation: the output is sure of itself",
}
"""The terms a method can be the sum of; all of them come on top of the cross-entropy."""


def _no_truth(value: Any) -> Any:
    if isinstance(value, bool):  # pydantic would take yes for 1
        raise PydanticCustomError("number", "Input should be a number")
    return value


Number = Annotated[float, BeforeValidator(_no_truth)]
Share = Annotated[Number, Field(ge=0.0, le=1.0)]
BelowOne = Annotated[Number, Field(ge=0.0, lt=1.0)]
Positive = Annotated[Number, Field(gt=0.0)]
NotNegative = Annotated[Number, Field(ge=0.0)]
Whole = Annotated[int, BeforeValidator(_no_truth), Field(ge=0)]
Count = Annotated[int, BeforeValidator(_no_truth), Field(ge=1)]


class ConfigError(ValueError):
    """A configuration that makes no sense: one line that names the key, the value and the way out."""


class Section(BaseModel):
    """A part of the configuration: no key is made up, nothing changes once it is resolved."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Data(Section):
    """From stored images to batches."""

    scaling: Scaling = Field("unit", description="unit: x/255; centred: (x - 127.5)/255; none")
    standardise: bool = Field(False, description="mean 0 and variance 1 of each channel, fitted on training images")
    zca: bool = Field(False, description="ZCA whitening, fitted on training images")
    zca_regulariser: Positive = Field(1e-5, description="added to the eigenvalues, under the root")
    pad_crop: Whole = Field(0, description="pixels of random translation; 0 for none")
    padding: Padding = Field("reflect", description="what is padded with")
    flip: bool = Field(False, description="mirror images at random")
    noise: NotNegative = Field(0.0, description="standard deviation of Gaussian noise on each view")
    overlap: bool = Field(True, description="the unlabelled stream has the labelled images too")
    validation: Whole = Field(0, description="training images held out, as many of each class")


class Network(Section):
    """What all networks have."""

    p: Share = Field(0.5, description="DROP probability of the adversarial dropout layer")
    granularity: Granularity = Field("unit", description="masks of single units or of whole channels")


class MnistCnn(Network):
    """Table B.1."""

    name: Literal["mnist-cnn"] = "mnist-cnn"
    kernel: Count = Field(3, description="size of the kernels; the paper prints 1")


class ConvLarge(Network):
    """Table B.2."""

    name: Literal["conv-large"] = "conv-large"
    norm: Norm = Field("batch", description="after each convolution")
    momentum: Share = Field(0.999, description="share that running statistics KEEP at each update")
    top_bn: bool = Field(False, description="batch norm on the logits")
    sigma: NotNegative = Field(0.15, description="Gaussian noise on the input, in training")
    width: Positive = Field(1.0, description="factor on all numbers of filters")
    dropout: Share = Field(0.5, description="DROP probability after the poolings")
    second_dropout: bool = Field(True, description="dropout after the second pooling too, which Table B.2 leaves out")


class NetworkInNetwork(Network):
    """Lin et al. (2013)."""

    name: Literal["network-in-network"] = "network-in-network"
    dropout: Share = Field(0.5, description="DROP probability after the poolings")


class AllCnn(Network):
    """Springenberg et al. (2014)."""

    name: Literal["all-cnn"] = "all-cnn"
    input_dropout: Share = Field(0.2, description="DROP probability of the input")
    dropout: Share = Field(0.5, description="DROP probability after the strided convolutions")


class Highway(Network):
    """Srivastava et al. (2015)."""

    name: Literal["highway"] = "highway"
    dropout: Share = Field(0.2, description="DROP probability of the input and after the poolings")
    gate_bias: Number = Field(-2.0, description="where the biases of the gates start")


class Mlp(Network):
    """Dense layers, for tables."""

    name: Literal["mlp"] = "mlp"
    hidden: tuple[Count, ...] = Field((256, 128), description="units of each hidden layer")
    dropout: Share = Field(0.0, description="DROP probability between hidden layers")


AnyNetwork = Annotated[MnistCnn | ConvLarge | NetworkInNetwork | AllCnn | Highway | Mlp, Field(discriminator="name")]
NETWORKS = {kind.model_fields["name"].default: kind for kind in get_args(get_args(AnyNetwork)[0])}


class Objective(Section):
    """The options of all terms; a term takes what it knows."""

    weights: dict[str, NotNegative] = Field(description="λmax of each term of the method")
    ramp: Share = Field(0.3, description="share of the training over which ramped weights rise")
    ramped: tuple[str, ...] = Field(
        ("sadd", "vadd-kl", "vadd-qe", "pi", "temporal"), description="terms whose weight is ramped"
    )
    entropy: NotNegative = Field(0.0, description="weight of entropy minimisation in every semi-supervised method")
    moving: tuple[PassName, ...] = Field(description="passes that move running batch-norm statistics")

    delta: Share = Field(0.05, description="δ, the share of units that may be flipped")
    search: Literal["first-order", "iterated", "probe", "random"] = Field("first-order", description="mask search")
    search_steps: Count = Field(4, description="Jacobians of the iterated search")
    order: Order = Field("largest", description="gains taken first; the paper prints 'smallest'")
    ties: Ties = Field("exact", description="what happens to equal gains; the released code drops them")
    scale: Scale = Field("inverted", description="scale of a flipped mask")
    search_reversed: bool = Field(False, description="VAdD with KL searches with KL(perturbed, clean)")
    budget: BudgetOf = Field("layer", description="one budget for each layer, or one shared by all")
    vadd_noise: Noise = Field("independent", description="noise of VAdD's adversarial pass")
    sadd_noise: Noise = Field("shared", description="noise of SAdD's adversarial pass")

    vat_epsilon: Positive = Field(2.0, description="length of VAT's perturbation")
    vat_xi: Positive = Field(1e-2, description="step of VAT's finite difference")
    vat_iterations: Count = Field(1, description="VAT's power iterations")
    vat_noise: Noise = Field("independent", description="noise of VAT's passes")
    at_epsilon: Positive = Field(0.1, description="radius of AT's ball")
    at_norm: Ball = Field("linf", description="AT's ball")
    at_noise: Noise = Field("independent", description="noise of AT's pass")
    temporal_momentum: BelowOne = Field(0.6, description="α of the ensemble")
    sajjadi_passes: Count = Field(4, ge=2, description="passes of transformation stability")
    mutual_exclusivity: NotNegative = Field(0.1, description="weight of mutual exclusivity within sajjadi")


class Optimiser(Section):
    """Adam and its schedules; shares are of the whole training."""

    learning_rate: Positive = Field(0.001, description="maximum learning rate")
    ramp_up: Share = Field(0.0, description="share over which the learning rate rises")
    ramp_down: Share = Field(0.0, description="last share, over which the learning rate and β1 fall")
    beta1: BelowOne = Field(0.9, description="β1 before the ramp-down")
    beta1_end: BelowOne = Field(0.5, description="β1 at the end of the ramp-down")
    beta2: BelowOne = Field(0.999, description="β2")
    epsilon: Positive = Field(1e-8, description="Adam's ε")


class Training(Section):
    """How long, and on how much at a time. Batch sizes are of one update, over all devices."""

    updates: Count = Field(description="length of the training")
    epoch_updates: Count = Field(description="updates that are called an epoch: a row of metrics, an evaluation")
    labelled: Count = Field(description="labelled images of an update")
    unlabelled: Whole = Field(description="unlabelled images of an update; 0 for one stream")
    evaluate_every: Whole = Field(1, description="epochs between looks at the test error; 0: only at the end")
    measure_every: Whole = Field(10, description="updates between measurements of the mask search; 0: never")


class Engine(Section):
    """The machine."""

    accelerator: str = Field("auto", description="auto, cpu, gpu: Lightning's names")
    devices: Count = Field(1, description="processes on this machine")
    nodes: Count = Field(1, description="machines")
    precision: Precision = Field("32", description="of the passes; auto: bf16 where this machine gains from it")
    memory_format: MemoryFormat = Field("auto", description="the order of an image's values; auto: the faster one")
    accumulate: Count = Field(1, description="parts in which an update's batch is worked through, to save memory")
    clip: NotNegative = Field(0.0, description="largest norm of the gradient; 0 for no limit")
    checkpoint_seconds: NotNegative = Field(30.0, description="seconds between checkpoints; 0: at every update")
    tensorboard: bool = Field(False, description="also log for TensorBoard (pip install tensorboard)")

    @field_validator("precision", mode="before")
    @classmethod
    def _as_text(cls, precision: Any) -> Any:
        return str(precision) if isinstance(precision, int) else precision  # YAML reads 32 as a number


class RunConfig(Section):
    """All of it, as ``config.yaml`` holds it."""

    dataset: str
    data_dir: Path | None = None
    labels: Labels
    method: str
    preset: Literal["paper", "authors"]
    seed: Annotated[Whole, Field(lt=2**62)]
    data: Data
    network: AnyNetwork
    objective: Objective
    optimiser: Optimiser
    training: Training
    engine: Engine = Engine()

    @field_validator("labels", mode="before")
    @classmethod
    def _some_labels(cls, labels: Any) -> Any:
        if isinstance(labels, bool) or (isinstance(labels, int) and labels < 1):
            raise ValueError("no number of images")
        return labels

    @field_validator("method")
    @classmethod
    def _known_terms(cls, method: str) -> str:
        return "+".join(parse_method(method))

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        terms = [term for term in parse_method(self.method) if term != "dropout"]
        if set(self.objective.weights) != set(terms):
            raise ValueError(
                f"objective.weights must have one weight for each term of {self.method}: {listed(terms)}; "
                f"got {listed(self.objective.weights)}"
            )
        if unknown := set(self.objective.ramped) - set(TERMS):
            raise ValueError(f"objective.ramped has {unknown_name(min(unknown), TERMS)}")
        own = (self.objective.order, self.objective.ties)
        if self.objective.search != "first-order" and own != ("largest", "exact"):
            raise ValueError(
                f"objective.order={own[0]} and ties={own[1]} are for the first-order search, not for "
                f"{self.objective.search}; set objective.order=largest and objective.ties=exact with it"
            )
        parts = self.engine.devices * self.engine.nodes * self.engine.accumulate
        for stream in ("labelled", "unlabelled"):
            size = getattr(self.training, stream)
            if size % parts:
                raise ValueError(
                    f"training.{stream}={size} cannot be dealt out to {self.engine.nodes} nodes with "
                    f"{self.engine.devices} devices in {self.engine.accumulate} parts; take a multiple of {parts}"
                )
        return self

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> RunConfig:
        """The configuration of these nested values, or a one-line ConfigError."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(explain(error)) from None

    @classmethod
    def read(cls, path: Path) -> RunConfig:
        """Read ``config.yaml``."""
        return cls.of(read_yaml(path, "configuration"))

    def dump(self) -> str:
        """The text of ``config.yaml``."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    def differences(self, other: RunConfig) -> list[str]:
        """The keys, such as ``objective.delta``, in which the two differ.

        Where the data are makes no difference, nor does what one of them leaves to the machine.
        """
        mine, others = dict(_flat(self)), dict(_flat(other))
        open_ = {
            key for key in ("engine.precision", "engine.memory_format") if repr("auto") in (mine[key], others[key])
        }
        return sorted({key for key, _ in mine.items() ^ others.items()} - {"data_dir"} - open_)


def read_yaml(path: Path, what: str) -> dict[str, Any]:
    """The values of a YAML file, or a one-line ConfigError that says what it does not hold."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds no {what}")
    return values


def parse_method(method: str) -> tuple[str, ...]:
    """The terms of a method.

    >>> parse_method("VAdD-KL + VAT")
    ('vadd-kl', 'vat')
    """
    terms = tuple(part.strip().lower().replace("_", "-") for part in method.split("+"))
    for term in terms:
        if term not in TERMS:
            raise ConfigError(f"method has {unknown_name(term, TERMS)}; add terms up with +, such as vadd-kl+vat")
        if terms.count(term) > 1:
            raise ConfigError(f"method={method!r} has {term} twice; set its weight instead")
    if "dropout" in terms and len(terms) > 1:
        raise ConfigError(f"method={method!r}: dropout is the method without any term; leave it out of the sum")
    return terms


def overrides(settings: Iterable[str]) -> dict[str, Any]:
    """Nested values from ``KEY=VALUE`` texts; a value is read as YAML.

    >>> overrides(["objective.delta=0.01", "network.name=mlp", "objective.weights.vat=2"])
    {'objective': {'delta': 0.01, 'weights': {'vat': 2}}, 'network': {'name': 'mlp'}}
    """
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set takes KEY=VALUE, such as objective.delta=0.01; got {setting!r}")
        *sections, name = key.strip().split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise ConfigError(f"--set {setting}: {section} was given a value before")
        try:
            place[name] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(f"--set {setting}: {text!r} is not a value") from None
    return values


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values, the later ones over the earlier ones.

    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
            result[key] = merged(result[key], value) if both else value
    return result


def explain(error: ValidationError) -> str:
    """The first complaint of pydantic in one line."""
    first = error.errors(include_url=False)[0]
    tags = {*NETWORKS, "int", "literal['all']"}  # pydantic puts the branches of a union into the path
    loc = [str(part) for part in first["loc"]]
    place = loc[:1] + [part for part in loc[1:2] if part not in tags] + loc[2:]
    key, given = ".".join(place), first["input"]
    if first["type"] == "extra_forbidden":
        return (
            f"there is no option {key}"
            + did_you_mean(place[-1], _siblings(loc))
            + "; advdrop train --dry-run lists all"
        )
    if first["type"] == "union_tag_invalid":
        return f"{key}.name is {unknown_name(str(first['ctx']['tag']), NETWORKS)}"
    if first["type"] == "union_tag_not_found":
        return f"{key}.name is missing; there are {listed(NETWORKS)}"
    if first["type"] == "missing":
        return f"{key} is missing"
    if place and place[-1] == "labels":
        return f"labels must be a number of images or 'all', got {given!r}"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{key} {message[:1].lower()}{message[1:]}, got {given!r}" if key and not _own(first) else message


def unknown_name(name: str, known: Iterable[str]) -> str:
    """A complaint that helps.

    >>> unknown_name("vad-kl", ["vadd-kl", "vat"])
    "'vad-kl', which is unknown (did you mean vadd-kl?); there are vadd-kl, vat"
    """
    return f"{name!r}, which is unknown{did_you_mean(name, known)}; there are {listed(known)}"


def listed(names: Iterable[str]) -> str:
    """Names in their order, or ``none``."""
    return ", ".join(names) or "none"


def _own(complaint: Mapping[str, Any]) -> bool:
    return bool(complaint["type"] == "value_error")


def _siblings(loc: list[str]) -> list[str]:
    """The keys that stand where the last one of pydantic's ``loc`` was looked for."""
    if len(loc) == 1:
        return list(RunConfig.model_fields)
    section = NETWORKS[loc[1]] if loc[0] == "network" else RunConfig.model_fields[loc[0]].annotation
    return list(section.model_fields) if section else []


def _flat(config: RunConfig) -> Iterable[tuple[str, str]]:
    def walk(prefix: str, value: Any) -> Iterable[tuple[str, str]]:
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from walk(f"{prefix}.{key}" if prefix else key, inner)
        else:
            yield prefix, repr(value)

    return walk("", config.model_dump(mode="json"))
