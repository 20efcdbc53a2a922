"""What a network is called with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize

from advdrop.step.copies import own

Inputs = Any
"""What a network is called with: one tensor, a tuple of arguments, a dict of keyword arguments, or any other object."""

Weights = dict[str, Tensor]
"""Parameters and buffers by their names."""


def arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments of a call."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs if type(inputs) is tuple else (inputs,)), {}


def call(model: nn.Module, inputs: Inputs, weights: Weights | None = None) -> Any:
    """Call a network with its inputs; if given, with other weights than its own."""
    args, kwargs = own(arguments(inputs), {})
    if weights is None:
        return model(*args, **kwargs)
    # Under torch's parametrize.cached(), the network would get what was made of its own weights.
    cache, parametrize._cache = parametrize._cache, {}
    try:
        return functional_call(model, weights, args, kwargs)
    finally:
        parametrize._cache = cache


def tensors(inputs: Inputs) -> Iterator[Tensor]:
    """Yield the tensors among the inputs."""
    return (value for value in values(inputs) if isinstance(value, Tensor))


def values(inputs: Inputs) -> Iterator[Any]:
    """Yield the inputs one by one: the items of lists, tuples and mappings instead of these."""
    if isinstance(inputs, Mapping | tuple | list):
        for value in inputs.values() if isinstance(inputs, Mapping) else inputs:
            yield from values(value)
    else:
        yield inputs
