"""Parts of what a module returns: a tuple, a named tuple, a dict, a dataclass or another object."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from typing import Any

from torch import Tensor

Part = int | str | None
"""Where a tensor is in the output of a module: a position, a key or the name of a field; None if it is the output."""


def part_of(output: Any, part: int | str) -> Any:
    """Return the item at a position, under a key or in a field of this name; None if there is none.

    A tensor has no parts: its items are examples.

    >>> from types import SimpleNamespace
    >>> part_of((1, 2), 1), part_of({"a": 3}, "a"), part_of(SimpleNamespace(a=4), "a"), part_of((1, 2), "a")
    (2, 3, 4, None)
    """
    if isinstance(output, Tensor):
        return None
    try:
        return output[part]
    except (IndexError, KeyError, TypeError):
        return getattr(output, part, None) if isinstance(part, str) else None


def replaced(output: Any, part: int | str, value: Tensor) -> Any:
    """Return a copy of an output, with ``value`` as this part."""
    if isinstance(part, str) and hasattr(output, "_replace"):
        return output._replace(**{part: value})
    if isinstance(output, tuple | list):
        items = [*output]
        items[part] = value  # type: ignore[index]
        return type(output)._make(items) if hasattr(output, "_make") else type(output)(items)
    if isinstance(part, str) and dataclasses.is_dataclass(output) and not hasattr(output, "__setitem__"):
        return dataclasses.replace(output, **{part: value})  # type: ignore[type-var]
    changed = copy.copy(output)
    if hasattr(output, "__setitem__"):
        # A number may be a key; the outputs of Hugging Face models can be asked by a position, too.
        changed[list(output)[part] if isinstance(part, int) and part not in output else part] = value
    else:
        setattr(changed, str(part), value)
    return changed


def first_tensor(output: Any) -> tuple[Part, Tensor | None]:
    """Return the first tensor of an output and where it is, or None if there is none.

    >>> import torch
    >>> first_tensor(("a", torch.zeros(2)))
    (1, tensor([0., 0.]))
    """
    if isinstance(output, Tensor):
        return None, output
    if isinstance(output, tuple | list):
        items: Iterable[tuple[Any, Any]] = enumerate(output)
    else:
        items = output.items() if hasattr(output, "items") else getattr(output, "__dict__", {}).items()
    return next(((key, value) for key, value in items if isinstance(value, Tensor)), (None, None))
