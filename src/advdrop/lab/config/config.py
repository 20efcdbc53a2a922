"""The configuration of a run: every choice by its name, nothing implied. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from advdrop.choices import Granularity, PassName, Scale
from advdrop.lab.choices import Labels, MemoryFormat, Norm, Padding, Precision, PresetName, Scaling
from advdrop.lab.config.terms import (
    HELP,
    METHODS,
    BelowOne,
    Count,
    NotNegative,
    Number,
    Positive,
    Section,
    Share,
    Terms,
    Whole,
)
from advdrop.suggest import did_you_mean


class ConfigError(ValueError):
    """A configuration that makes no sense: one line that names the key, the value and the way out."""


class Data(Section):
    """From stored images to batches."""

    scaling: Scaling = Field("unit", description="unit: x/255; centered: (x - 127.5)/255; none")
    standardize: bool = Field(False, description="mean 0 and variance 1 of each channel, fitted on training images")
    zca: bool = Field(False, description="ZCA whitening, fitted on training images")
    zca_regularizer: Positive = Field(1e-5, description="added to the eigenvalues, under the root")
    pad_crop: Whole = Field(0, description="pixels of random translation; 0 for none")
    padding: Padding = Field("reflect", description="what is padded with")
    flip: bool = Field(False, description="mirror images at random")
    noise: NotNegative = Field(0.0, description="standard deviation of Gaussian noise on each view")
    overlap: bool = Field(True, description="the unlabeled stream has the labeled images too")
    validation: Whole = Field(0, description="training images held out, as many of each class")


class Network(Section):
    """What all networks have."""

    p: Share = Field(0.5, description="DROP probability of the adversarial dropout layer")
    delta: Share = Field(0.05, description="δ, the share of its units that may be flipped")
    scale: Scale = Field("inverted", description="scale of a flipped mask")
    granularity: Granularity = Field("unit", description="masks of single units or of whole channels")


class MnistCnn(Network):
    """Table B.1."""

    name: Literal["mnist-cnn"] = "mnist-cnn"
    kernel: Count = Field(3, description="size of the kernels; the paper prints 1")
    dropout: Share = Field(0.5, description="DROP probability after the first two poolings")
    batch_norm: bool = Field(False, description="batch norm after each convolution; the paper has none")


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
    """The cross-entropy and what is added to it."""

    terms: Terms = Field(description="the options of each term of the method")
    ramp: Share = Field(0.3, description="share of the training over which ramped weights rise")
    entropy: NotNegative = Field(0.0, description="weight of entropy minimization in every semi-supervised method")
    blend: BelowOne = Field(0.0, description="share of a labels-only companion network in the prediction; 0: none")
    updating: tuple[PassName, ...] = Field(description="passes that update running batch-norm statistics")


class Optimizer(Section):
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
    labeled: Count = Field(description="labeled images of an update")
    unlabeled: Whole = Field(description="unlabeled images of an update; 0 for one stream")
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
    preset: PresetName
    seed: Annotated[Whole, Field(lt=2**62)]
    data: Data
    network: AnyNetwork
    objective: Objective
    optimizer: Optimizer
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
        given = self.objective.terms.chosen()
        if other := [term for term in given if term not in terms]:
            raise ValueError(
                f"objective.terms has options of {listed(other)}, not part of the method {self.method}; "
                f"leave them out, or use the method {'+'.join(terms + other)}"
            )
        if missing := [term for term in terms if term not in given]:
            raise ValueError(
                f"objective.terms.{missing[0]} is missing, a part of the method {self.method}; {{}} takes its defaults"
            )
        parts = self.engine.devices * self.engine.nodes * self.engine.accumulate
        for stream in ("labeled", "unlabeled"):
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
        """The keys, such as ``network.delta``, in which the two differ.

        Where the data are makes no difference, nor does what one of them leaves to the machine. A term that one of
        them lacks is one key, such as ``objective.terms.vat``.
        """
        mine, others = dict(_flat(self)), dict(_flat(other))
        open_ = {
            key for key in ("engine.precision", "engine.memory_format") if repr("auto") in (mine[key], others[key])
        }
        different = {key for key, _ in mine.items() ^ others.items()} - {"data_dir"} - open_
        terms = (config.objective.terms.chosen().keys() for config in (self, other))
        whole = {f"objective.terms.{term}" for term in set.symmetric_difference(*map(set, terms))}
        sections = {key: key.rpartition(".")[0] for key in different}
        return sorted({section if section in whole else key for key, section in sections.items()})


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
        if term not in HELP:
            raise ConfigError(f"method has {unknown_name(term, HELP)}; add terms up with +, such as vadd-kl+vat")
        if terms.count(term) > 1:
            raise ConfigError(f"method={method!r} has {term} twice; set its weight instead")
    if "dropout" in terms and len(terms) > 1:
        raise ConfigError(f"method={method!r}: dropout is the method without any term; leave it out of the sum")
    return terms


def overrides(settings: Iterable[str]) -> dict[str, Any]:
    """Nested values from ``KEY=VALUE`` texts; a value is read as YAML.

    >>> overrides(["network.delta=0.01", "network.name=mlp", "vat.weight=2"])
    {'network': {'delta': 0.01, 'name': 'mlp'}, 'objective': {'terms': {'vat': {'weight': 2}}}}
    """
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set takes KEY=VALUE, such as network.delta=0.01; got {setting!r}")
        *sections, name = key.strip().split(".")
        if [*sections, name][0] in METHODS:  # vat.epsilon is short for objective.terms.vat.epsilon
            sections = ["objective", "terms", *sections]
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
        return f"there is no option {key}{_meant(loc)}; advdrop train --dry-run lists all"
    if first["type"] == "union_tag_invalid":
        return f"{key}.name is {unknown_name(str(first['ctx']['tag']), NETWORKS)}"
    if first["type"] == "union_tag_not_found":
        return f"{key}.name is missing; there are {listed(NETWORKS)}"
    if first["type"] == "missing":
        return f"{key} is missing"
    if place and place[-1] == "labels":
        return f"labels must be a number of images or 'all', got {given!r}"
    if first["type"] in ("model_type", "model_attributes_type"):
        return f"{key} should be a section of options, got {given!r}"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if first["type"] == "value_error":  # our own words, which name the key, except inside a term
        return f"{key}: {message}" if len(place) > 1 else message
    return f"{key} {message[:1].lower()}{message[1:]}, got {given!r}" if key else message


def unknown_name(name: str, known: Iterable[str]) -> str:
    """A complaint that helps.

    >>> unknown_name("vad-kl", ["vadd-kl", "vat"])
    "'vad-kl', which is unknown (did you mean vadd-kl?); there are vadd-kl, vat"
    """
    return f"{name!r}, which is unknown{did_you_mean(name, known)}; there are {listed(known)}"


def listed(names: Iterable[str]) -> str:
    """Names in their order, or ``none``."""
    return ", ".join(names) or "none"


def _meant(loc: list[str]) -> str:
    """Return a suggestion: a section that has an option of this name, else a similar name in the same place."""
    sections = {name: field.annotation for name, field in RunConfig.model_fields.items()} | {"network": Network}
    for name, section in sections.items():
        if loc[-1] in getattr(section, "model_fields", {}):
            return f" (did you mean {name}.{loc[-1]}?)"
    return did_you_mean(loc[-1], _siblings(loc))


def _siblings(loc: list[str]) -> list[str]:
    """Return the keys that are allowed where the last one of pydantic's ``loc`` was found."""
    if len(loc) == 1:
        return [*RunConfig.model_fields, *METHODS]  # vat.epsilon is short for objective.terms.vat.epsilon
    if loc[:2] == ["objective", "terms"]:
        return list(METHODS) if len(loc) == 3 else list(METHODS[loc[2]].model_fields)
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
