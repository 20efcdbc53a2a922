"""Copies of Python objects around a pass: of its inputs, and of the attributes of its modules."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from operator import is_
from types import FunctionType, MethodType, ModuleType, NoneType
from typing import Any, Literal

import torch
from torch import Tensor, nn


def own(value: Any, copies: dict[int, Any]) -> Any:
    """Return a copy of an argument and of all that is in it, with the same tensors and networks.

    A pass may change it, such as a graph whose features a ``forward`` replaces (``data.x = ...``), or a cache that it
    appends to. The next pass gets what the first got.

    Args:
        value: the argument.
        copies: those that were made before, by the ids of their originals.

    >>> given = [1, {"a": 2}]
    >>> made = own(given, {})
    >>> made == given, made[1] is given[1]
    (True, False)
    """
    if isinstance(value, _SHARED) or hasattr(type(value), "__del__"):  # two copies would free what they hold twice
        return value
    if isinstance(value, tuple):
        items = [own(item, copies) for item in value]
        if all(map(is_, items, value)):
            return value
        return value._make(items) if hasattr(value, "_make") else tuple(items)
    if not isinstance(value, list | dict | deque) and not hasattr(value, "__dict__") and not _slots(value):
        return value
    if id(value) in copies:
        return copies[id(value)]
    try:
        made = copy.copy(value)
    except Exception:  # a class may refuse in any way
        return value
    copies[id(value)] = made
    if made is not value:
        _replace_all(made, copies)
    return made


_SHARED = (Tensor, nn.Module, MethodType)
"""What all passes get as it is."""


def _replace_all(made: Any, copies: dict[int, Any]) -> None:
    """Replace what is in a list, a dictionary or an object with copies."""
    if isinstance(made, dict | list | deque):
        for key, item in list(made.items() if isinstance(made, dict) else enumerate(made)):
            if (new := own(item, copies)) is not item:
                made[key] = new
    for name, item in [*getattr(made, "__dict__", {}).items(), *_slots(made)]:
        if (new := own(item, copies)) is not item:
            object.__setattr__(made, name, new)  # also of a frozen dataclass


def _slots(value: Any) -> list[tuple[str, Any]]:
    """Return the attributes of an object that its class keeps in slots."""
    names = (getattr(kind, "__slots__", ()) for kind in type(value).__mro__)
    found = {name for slots in names for name in ([slots] if isinstance(slots, str) else slots)}
    return [(name, getattr(value, name)) for name in found - {"__dict__", "__weakref__"} if hasattr(value, name)]


_LEAVES: frozenset[type] = frozenset({int, float, complex, bool, str, bytes, NoneType, Tensor, nn.Parameter})
"""Types of values that hold nothing to save. Changes of tensors are undone elsewhere."""

_DEPTH = 2
"""Attributes of objects, and of objects in these, are saved. Further ones belong to others, such as a trainer."""


class Attributes:
    """A copy of the attributes of modules, to undo the changes of a pass that has to start again.

    Args:
        modules: the modules. Their lists, dicts, sets and deques are copied, too, also those inside of each other, the
            attributes of their objects, and the states of their generators.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._empty: list[Any] = []
        self._full: list[tuple[Any, Any]] = []
        self._others: list[Callable[[], object]] = []
        self._known: set[int] = set()
        for module in modules:
            self._save(vars(module), _DEPTH)

    def restore(self) -> None:
        """Set the attributes to what they were."""
        for now in self._empty:
            now.clear()
        for now, saved in self._full:
            now.clear()
            if isinstance(now, dict):
                for key, item in saved.items():
                    now[key] = item
            else:
                now.update(saved) if isinstance(now, set) else now.extend(saved)
        for restore in self._others:
            restore()

    def _save(self, container: Any, depth: int) -> None:
        """Save what is in a list, a dict, a set or a deque."""
        if id(container) in self._known:
            return
        self._known.add(id(container))
        saved = dict(container) if isinstance(container, dict) else list(container)
        self._full.append((container, saved))
        self._save_all(saved.values() if isinstance(saved, dict) else saved, depth)

    def _save_all(self, items: Iterable[Any], depth: int) -> None:
        """Save what is in each of these values. Objects count only up to a depth."""
        if _LEAVES.issuperset(map(type, items)):
            return
        for item in items:
            kind: Any = type(item)
            role = _role(kind)
            if role == "container":
                if item:
                    self._save(item, depth)
                else:
                    self._empty.append(item)
            elif role == "tuple":
                self._save_all(item, depth)
            elif role == "object":
                self._save_object(item, depth)

    def _save_object(self, item: Any, depth: int) -> None:
        if (restore := _restoring(item)) is not None:
            self._others.append(restore)
        elif depth:
            self._others += [partial(object.__setattr__, item, *slot) for slot in _slots(item)]
            if hasattr(item, "__dict__"):
                self._save(vars(item), depth - 1)


@lru_cache(4096)
def _role(kind: Any) -> Literal["container", "tuple", "object", "leaf"]:
    """Return what a value of a type can hold. Modules are leaves here: each is saved by itself."""
    if issubclass(kind, list | dict | set | deque):
        return "container"
    if issubclass(kind, tuple):
        return "tuple"
    return "leaf" if issubclass(kind, (*_LEAVES, nn.Module, type, FunctionType, MethodType, ModuleType)) else "object"


def _restoring(value: Any) -> Callable[[], object] | None:
    """Return a function that sets a generator of torch, Python or numpy to its present state; None for other values."""
    if isinstance(value, torch.Generator) or type(value).__name__ == "RandomState":
        return partial(value.set_state, value.get_state())
    if isinstance(value, random.Random):
        return partial(value.setstate, value.getstate())
    if hasattr(value, "bit_generator"):
        return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    return None
