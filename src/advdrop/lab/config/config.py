"""The configuration of a run: one model that holds every choice by name. Imports no torch."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from advdrop.choices import PassName
from advdrop.lab.choices import Color, MemoryFormat, Padding, Precision, PresetName, Scaling
from advdrop.lab.config.networks import NETWORKS, AnyNetwork, Network
from advdrop.lab.config.section import BelowOne, Count, NotNegative, Positive, Section, Seed, Share, Whole
from advdrop.lab.config.terms import METHODS, Generative, Terms
from advdrop.lab.config.values import ConfigError, check_known, listed, read_yaml
from advdrop.suggest import did_you_mean

LARGEST = 1024
"""The most pixels of a side that pictures are resized to. More is a typing mistake."""


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
            return f"labels must be a number of examples or 'all', got {given}"
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
