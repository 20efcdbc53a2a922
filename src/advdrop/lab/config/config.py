"""The configuration of a run: one model that holds every choice by name. Imports no torch."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from advdrop.choices import Granularity, PassName, Scale
from advdrop.lab.choices import BlockNorm, Color, MemoryFormat, Norm, Padding, Precision, PresetName, Scaling
from advdrop.lab.config.terms import (
    METHODS,
    BelowOne,
    Count,
    Generative,
    NotNegative,
    Number,
    Positive,
    Section,
    Seed,
    Share,
    Terms,
    Whole,
)
from advdrop.lab.files import read_small
from advdrop.suggest import did_you_mean

LARGEST = 1024
"""The most pixels of a side that pictures are resized to. More is a typing mistake."""


class ConfigError(ValueError):
    """A configuration that is not valid. The message is one line that names the key, the value and the way out."""


def _parse_size(size: Any) -> Any:
    """Return the size of images as a pair of height and width, or None for auto."""
    if size is None or size == "auto":
        return None
    sides = [size, size] if isinstance(size, int | str) else size
    with suppress(TypeError, ValueError):
        height, width = (int(side) for side in sides)
        if min(height, width) >= 1 and max(height, width) <= LARGEST:
            return height, width
    raise ValueError(
        f"size must be auto, or a number of pixels from 1 to {LARGEST} such as 64, got {reprlib.repr(size)}"
    )


def _parse_color(color: Any) -> Any:
    return {"auto": None, "grey": "gray"}.get(color, color) if isinstance(color, str) else color


class Data(Section):
    """How stored images become batches."""

    size: Annotated[tuple[int, int] | None, BeforeValidator(_parse_size)] = Field(
        None, description="height and width that pictures are resized to; auto and null: chosen when they are read"
    )
    color: Annotated[Color | None, BeforeValidator(_parse_color)] = Field(
        None, description="rgb or gray, for pictures; auto and null: chosen when they are read"
    )
    scaling: Scaling = Field("unit", description="unit: x/255; centered: (x - 127.5)/255; none")
    standardize: bool = Field(False, description="mean 0 and variance 1 of each channel, fitted on training images")
    zca: bool = Field(False, description="ZCA whitening, fitted on training images")
    zca_regularizer: Positive = Field(1e-5, description="added to the eigenvalues, under the root")
    pad_crop: Whole = Field(0, description="pixels of random translation; 0 for none")
    padding: Padding = Field("reflect", description="what images are padded with")
    flip: bool = Field(False, description="mirror images at random")
    noise: NotNegative = Field(0.0, description="standard deviation of Gaussian noise on each view")
    overlap: bool = Field(True, description="the unlabeled stream has the labeled images too")
    validation: Whole = Field(0, description="training images held out, as many of each class")


class Network(Section):
    """The options that all networks share."""

    p: Share = Field(0.5, description="DROP probability of the adversarial dropout layer")
    delta: Share = Field(0.05, description="δ, the share of its units that may be flipped")
    scale: Scale = Field("inverted", description="scale of a flipped mask")
    granularity: Granularity = Field("unit", description="masks of single units or of whole channels")


class MnistCnn(Network):
    """The network of Table B.1, for MNIST."""

    name: Literal["mnist-cnn"] = "mnist-cnn"
    kernel: Count = Field(3, description="size of the kernels; the paper prints 1")
    dropout: Share = Field(0.5, description="DROP probability after the first two poolings")
    batch_norm: bool = Field(False, description="batch norm after each convolution; the paper has none")
    earlier: int = Field(0, ge=0, le=2, description="how many poolings earlier than in the paper the layer stands")


class ConvLarge(Network):
    """The network of Table B.2, for SVHN and CIFAR-10."""

    name: Literal["conv-large"] = "conv-large"
    norm: Norm = Field("batch", description="after each convolution")
    momentum: Share = Field(0.999, description="share that running statistics KEEP at each update")
    top_bn: bool = Field(False, description="batch norm on the logits")
    sigma: NotNegative = Field(0.15, description="Gaussian noise on the input, in training")
    width: Positive = Field(1.0, description="factor on all numbers of filters")
    dropout: Share = Field(0.5, description="DROP probability after the poolings")
    second_dropout: bool = Field(True, description="dropout after the second pooling too, which Table B.2 leaves out")


class ResNet18(Network):
    """ResNet-18 (He et al., 2016), for larger images."""

    name: Literal["resnet18"] = "resnet18"
    norm: BlockNorm = Field("batch", description="after each convolution")
    width: Positive = Field(1.0, description="factor on all numbers of filters")


class NetworkInNetwork(Network):
    """Network in Network (Lin et al., 2013)."""

    name: Literal["network-in-network"] = "network-in-network"
    dropout: Share = Field(0.5, description="DROP probability after the poolings")


class AllCnn(Network):
    """All-CNN (Springenberg et al., 2014)."""

    name: Literal["all-cnn"] = "all-cnn"
    input_dropout: Share = Field(0.2, description="DROP probability of the input")
    dropout: Share = Field(0.5, description="DROP probability after the strided convolutions")


class Highway(Network):
    """Highway network (Srivastava et al., 2015)."""

    name: Literal["highway"] = "highway"
    dropout: Share = Field(0.2, description="DROP probability of the input and after the poolings")
    gate_bias: Number = Field(-2.0, description="where the biases of the gates start")


class Mlp(Network):
    """Dense layers, for tables."""

    name: Literal["mlp"] = "mlp"
    hidden: tuple[Count, ...] = Field((256, 128), description="units of each hidden layer")
    dropout: Share = Field(0.0, description="DROP probability between hidden layers")


class Ladder(Network):
    """The fully connected ladder network (Rasmus et al., 2015)."""

    name: Literal["ladder"] = "ladder"
    p: Share = Field(0.0, description="DROP probability of the adversarial dropout layer")
    hidden: tuple[Count, ...] = Field((1000, 500, 250, 250, 250), description="units of each hidden layer")
    noise: NotNegative = Field(0.3, description="Gaussian noise on every layer, in training")


AnyNetwork = Annotated[
    MnistCnn | ConvLarge | ResNet18 | NetworkInNetwork | AllCnn | Highway | Mlp | Ladder, Field(discriminator="name")
]
NETWORKS = {kind.model_fields["name"].default: kind for kind in get_args(get_args(AnyNetwork)[0])}


class Objective(Section):
    """What is added to the cross-entropy."""

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


class Earlier(Section):
    """A part of the training that was done before it was extended."""

    until: Count = Field(description="its last update")
    updates: Count = Field(description="the length that the training should have had then")


class Training(Section):
    """The length of the training and the sizes of its batches. A batch is that of one update, over all devices."""

    updates: Count = Field(description="length of the training")
    epoch_updates: Count = Field(description="updates between two rows of metrics")
    labeled: Count = Field(description="labeled images of an update")
    unlabeled: Whole = Field(description="unlabeled images of an update; 0 for one stream")
    evaluate_every: Whole = Field(
        1, description="epochs between two measurements of the test error; 0: only at the end"
    )
    measure_every: Whole = Field(10, description="updates between measurements of the mask search; 0: never")
    earlier: tuple[Earlier, ...] = Field((), description="the parts before the training was extended")

    def progress(self, update: int) -> float:
        """Return the share of the training that is done before an update, for the schedules.

        Before an extension it is the share of the length of that time.

        >>> before = Earlier(until=100, updates=100)
        >>> extended = Training(updates=200, epoch_updates=10, labeled=8, unlabeled=8, earlier=(before,))
        >>> extended.progress(50), extended.progress(100), extended.progress(150)
        (0.5, 0.5, 0.75)
        """
        return update / next((part.updates for part in self.earlier if update < part.until), self.updates)


class Engine(Section):
    """The machine and how it computes."""

    accelerator: str = Field("auto", description="auto, cpu or gpu, or another name that Lightning knows")
    devices: Count = Field(1, description="processes on each machine")
    nodes: Count = Field(1, description="machines")
    precision: Annotated[Precision, BeforeValidator(str)] = Field(  # YAML reads 32 as a number
        "32", description="number format of the passes; auto: bf16 if this machine has instructions for it"
    )
    memory_format: MemoryFormat = Field("auto", description="memory layout of images; auto: the faster one")
    accumulate: Count = Field(1, description="parts that the batch of an update is split into, to save memory")
    clip: NotNegative = Field(0.0, description="largest norm of the gradient; 0 for no limit")
    checkpoint_seconds: NotNegative = Field(30.0, description="seconds between checkpoints; 0: at every update")
    tensorboard: bool = Field(False, description="also log for TensorBoard (pip install tensorboard)")


MethodName = Annotated[str, AfterValidator(lambda method: "+".join(parse_method(method)))]
"""Terms that are added to the cross-entropy, such as ``vadd-kl+vat``."""


class Start(Section):
    """The finished run whose weights a training starts with."""

    run: Path = Field(description="its directory")
    sha256: str = Field(description="the digest of its weights")


class RunConfig(Section):
    """The whole configuration, as ``config.yaml`` holds it."""

    dataset: str
    data_dir: Path | None = None
    unlabeled: Path | None = None
    start: Start | None = None
    labels: Count | Literal["all"]
    method: MethodName
    preset: PresetName
    seed: Seed
    data: Data
    network: AnyNetwork
    objective: Objective
    optimizer: Optimizer
    training: Training
    engine: Engine = Engine()

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        needed, given = {*parse_method(self.method)} - {"dropout"}, self.objective.terms.chosen().keys()
        if needed != given:
            raise ValueError(
                f"objective.terms has options of {listed(sorted(given))}, but the method {self.method} has the terms "
                f"{listed(sorted(needed))}; choose the method (--method) or remove the options"
            )
        if len(generative := [name for name in given if issubclass(METHODS[name], Generative)]) > 1:
            raise ValueError(
                f"the method {self.method} has {listed(generative)}, which have a generator each; use one of them"
            )
        parts = self.engine.devices * self.engine.nodes * self.engine.accumulate
        for stream in ("labeled", "unlabeled"):
            size = getattr(self.training, stream)
            if size % parts:
                raise ValueError(
                    f"training.{stream}={size} cannot be divided among {self.engine.nodes} nodes with "
                    f"{self.engine.devices} devices in {self.engine.accumulate} parts; use a multiple of {parts}"
                )
        return self

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> RunConfig:
        """Return the configuration of these nested values, or raise a one-line ConfigError."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(explain(error)) from None

    @classmethod
    def read(cls, path: Path) -> RunConfig:
        """Read ``config.yaml``."""
        try:
            return cls.of(read_yaml(path, "configuration"))
        except ConfigError as error:
            raise ConfigError(f"{path}: {str(error).removeprefix(f'{path} ')}") from None

    def dump(self) -> str:
        """Return the text of ``config.yaml``."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    def differences(self, other: RunConfig) -> list[str]:
        """Return the keys, such as ``network.delta``, in which the two differ.

        The folders of the data make no difference, nor does what one of them leaves to the machine. A term that one of
        them lacks is one key, such as ``objective.terms.vat``.
        """
        mine, others = (config.model_dump(mode="json", exclude={"data_dir"}) for config in (self, other))
        for key in ("precision", "memory_format"):
            if "auto" in (mine["engine"][key], others["engine"][key]):
                del mine["engine"][key], others["engine"][key]
        return sorted(_different(mine, others))


def _different(mine: Mapping[str, Any], others: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key in mine.keys() | others.keys():
        one, other = mine.get(key), others.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _different(one, other, f"{prefix}{key}.")
        elif one != other:
            yield f"{prefix}{key}"


class _Loader(yaml.SafeLoader):
    """Reads no aliases: a few lines of them can stand for more than fits into memory, or for themselves."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias (*name); write the values out")
        return super().compose_node(parent, index)


def parse_yaml(text: str | bytes, place: str) -> Any:
    """Return the value of a YAML text, or raise a ConfigError that begins with its place."""
    try:
        return yaml.load(text, _Loader)  # a safe one
    except RecursionError:
        raise ConfigError(f"{place} is nested too deeply; a configuration has at most four levels") from None
    except Exception as error:  # a date, a number or a tag that does not fit raises anything
        raise ConfigError(f"{place} is not YAML: {' '.join(str(error).split())}") from None


def read_yaml(path: Path, what: str) -> dict[str, Any]:
    """Return the values of a YAML file, or raise a one-line ConfigError that says what it should hold."""
    values = parse_yaml(read_small(path, 1 << 17), str(path))
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds no {what}")
    return values


def parse_method(method: str) -> tuple[str, ...]:
    """Return the terms of a method.

    >>> parse_method("VAdD-KL + VAT")
    ('vadd-kl', 'vat')
    """
    names = ("dropout", *METHODS)
    parts = tuple(part.strip().lower().replace("_", "-") for part in method.split("+"))
    check_known("method has", parts, names)
    for part in parts:
        if parts.count(part) > 1:
            raise ConfigError(f"method={method!r} has {part} twice; set its weight instead")
    if "dropout" in parts and len(parts) > 1:
        raise ConfigError(f"method={method!r}: dropout is the method without any term; leave it out of the sum")
    return parts


def overrides(settings: Iterable[str]) -> dict[str, Any]:
    """Return nested values from ``KEY=VALUE`` texts; a value is read as YAML.

    >>> overrides(["network.delta=0.01", "network.name=mlp", "vat.weight=2"])
    {'network': {'delta': 0.01, 'name': 'mlp'}, 'objective': {'terms': {'vat': {'weight': 2}}}}
    """
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set takes KEY=VALUE, such as network.delta=0.01; got {setting!r}")
        *sections, name = key.strip().split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise ConfigError(f"--set {setting}: {section} was given a value before")
        place[name] = parse_yaml(text, f"--set {key.strip()}: {reprlib.repr(text)}")
    return expanded(values)


def expanded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with each method in its place: ``vat`` is short for ``objective.terms.vat``."""
    short = {key: value for key, value in values.items() if key in METHODS}
    rest = {key: value for key, value in values.items() if key not in METHODS}
    return merged(rest, {"objective": {"terms": short}}) if short else rest


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values, in which later layers win over earlier ones.

    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
            result[key] = merged(result[key], value) if both else value
    return result


def first_error(error: ValidationError) -> str:
    """Return the first complaint of pydantic in one line: the key and its message."""
    first = error.errors(include_url=False)[0]
    key, message = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    return " ".join(f"{key} {message}".split())


def explain(error: ValidationError) -> str:
    """Return the first complaint about a configuration in one line, with the value and a way out."""
    first = error.errors(include_url=False)[0]
    loc = [str(part) for part in first["loc"]]
    place = loc[:1] + [part for part in loc[1:2] if part not in NETWORKS] + loc[2:]  # pydantic adds the kind of network
    key, given = ".".join(place), reprlib.repr(first["input"])
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    match first["type"]:
        case "extra_forbidden":
            return f"there is no option {key}{_nearest(loc)}; advdrop train --dry-run lists all"
        case "union_tag_invalid":
            name, hint = first["ctx"]["tag"], did_you_mean(first["ctx"]["tag"], NETWORKS)
            return f"{key}.name is {name!r}, which is unknown{hint}; there are {listed(NETWORKS)}"
        case "union_tag_not_found":
            return f"{key}.name is missing; there are {listed(NETWORKS)}"
        case "missing":
            return f"{key} is missing"
        case "model_type" | "model_attributes_type":
            return f"{key} should be a section of options, got {given}"
        case _ if loc[:1] == ["labels"]:
            return f"labels must be a number of images or 'all', got {given}"
        case "value_error":  # our own message, which names the key, except inside a term
            return f"{key}: {message}" if len(place) > 1 else message
    return f"{key} {message[:1].lower()}{message[1:]}, got {given}"


def _nearest(loc: Sequence[str]) -> str:
    """Return a suggestion for an unknown key: the same name in another section, else a similar one in its place."""
    fields = RunConfig.model_fields
    sections = {name: field.annotation for name, field in fields.items()} | {"network": Network}
    for name, section in sections.items():
        if loc[-1] in getattr(section, "model_fields", ()):
            return f" (did you mean {name}.{loc[-1]}?)"
    if len(loc) == 1:
        return did_you_mean(loc[0], [*fields, *METHODS])
    kind: Any = RunConfig
    for part in loc[:-1]:  # pydantic names the kind of a network and of a method
        kind = NETWORKS.get(part) or METHODS.get(part) or kind.model_fields[part].annotation
    return did_you_mean(loc[-1], [field.alias or name for name, field in kind.model_fields.items()])


def check_known(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise a ConfigError about the first name that is not known, with a suggestion."""
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(f"{what} {reprlib.repr(name)}, which is unknown{hint}; there are {listed(known)}")


def listed(names: Iterable[str]) -> str:
    """Return names in their order, or ``none``."""
    return ", ".join(names) or "none"
