"""Nested values of a configuration as people write them: YAML files, ``KEY=VALUE`` texts, and how layers are merged."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from advdrop.lab.config.terms import METHODS
from advdrop.lab.files import read_small
from advdrop.suggest import did_you_mean


class ConfigError(ValueError):
    """A configuration that is not valid. The message is one line that names the key, the value and the way out."""


class _Loader(yaml.SafeLoader):
    """Reads no aliases: a few lines of them can stand for more than fits into memory, or for themselves.

    A key that is there twice is an error; yaml forgets the first one.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias (*name); write the values out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        there: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in there:
                place = f"line {key.start_mark.line + 1}"
                raise yaml.YAMLError(f"it has the key {reprlib.repr(key.value)} twice in a section, again in {place}")
            there.add(str(key.value))
        return super().construct_mapping(node, deep)


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


def check_known(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise a ConfigError about the first name that is not known, with a suggestion."""
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(f"{what} {reprlib.repr(name)}, which is unknown{hint}; there are {listed(known)}")


def listed(names: Iterable[str]) -> str:
    """Return names in their order, or ``none``."""
    return ", ".join(names) or "none"


def first_error(error: ValidationError) -> str:
    """Return the first complaint of pydantic in one line: the key and its message."""
    first = error.errors(include_url=False)[0]
    key, message = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    given = reprlib.repr(first["input"])
    if first["loc"][-1:] == ("[key]",):  # YAML reads no and on as False and True
        section = ".".join(map(str, first["loc"][:-2]))
        return f"{section} has the key {given}, which is not a text; put it in quotes"
    if first["loc"][-2:-1] == ("labels",):  # pydantic adds the kind of labels
        return f"{key.rpartition('.')[0]} must be a number of examples or 'all', got {given}"
    return " ".join(f"{key} {message}".split())
