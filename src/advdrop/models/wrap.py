"""Adversarial dropout in a network that knows nothing of it, and out of it again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, fx, nn

from advdrop.masks import AdversarialDropout
from advdrop.modes import evaluating
from advdrop.vocabulary import Granularity, Scale
from advdrop.words import did_you_mean

Part = int | str | None
"""Where in what a module returns the units are: a place in a tuple, a key of a dictionary; None if it is a tensor."""

Logits = Callable[[Any], Tensor] | int | str | None
"""How to get the logits from what a network returns: a function, or what is said of :data:`Part`."""


@final
class Dropped(nn.Module):
    """A module with an AdversarialDropout layer behind it. Its state dictionary is that of the module alone.

    Args:
        module: what it was.
        layer: what comes behind.
        part: which part of what the module returns goes through the layer.
    """

    def __init__(self, module: nn.Module, layer: AdversarialDropout, part: Part = None) -> None:
        super().__init__()
        self.module = module
        self.layer = layer
        self.part = part
        self.register_state_dict_post_hook(_without_prefix)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_with_prefix)  # type: ignore[no-untyped-call]

    def forward(self, *given: Any, **named: Any) -> Any:
        """layer(module(x))."""
        output = self.module(*given, **named)
        if self.part is None:
            return self.layer(output)
        return _replaced(output, self.part, self.layer(output[self.part]))


def _replaced(output: Any, part: int | str, value: Tensor) -> Any:
    """What a module returned, with another part."""
    if isinstance(part, int):
        return (*output[:part], value, *output[part + 1 :])
    changed = copy.copy(output)
    changed[part] = value
    return changed


fx.wrap("_replaced")  # it is called and not followed: nobody knows the length of a traced tuple


def _without_prefix(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    del module, metadata
    for key in [key for key in state if key.startswith(f"{prefix}module.")]:
        state[prefix + key.removeprefix(f"{prefix}module.")] = state.pop(key)


def _with_prefix(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    del module
    for key in [key for key in state if key.startswith(prefix)]:
        state[f"{prefix}module.{key.removeprefix(prefix)}"] = state.pop(key)


@final
class Wrapped(nn.Module):
    """A network with layers put into it; its output is logits.

    Made by :func:`wrap`. ``unwrap`` takes the layers out.
    """

    def __init__(self, model: nn.Module, places: Sequence[str], logits: Logits = None) -> None:
        super().__init__()
        self.model = model
        self.places = tuple(places)
        self.logits = logits

    def forward(self, x: Any) -> Tensor:
        """The logits ``(B, C)`` of the network."""
        output = self.model(x)  # one argument, and no more, so that torch.fx can follow it
        if self.logits is None:
            return output  # type: ignore[no-any-return]
        return self.logits(output) if callable(self.logits) else output[self.logits]

    def unwrap(self) -> nn.Module:
        """The network as it was, with what it has learnt."""
        for name in self.places:
            parent, _, last = name.rpartition(".")
            holder = self.model.get_submodule(parent)
            dropped = getattr(holder, last)
            if isinstance(dropped, Dropped):
                setattr(holder, last, dropped.module)
        self.places = ()
        return self.model


def wrap(
    model: nn.Module,
    after: str | Sequence[str],
    *,
    p: float = 0.5,
    delta: float = 0.05,
    scale: Scale = "inverted",
    granularity: Granularity = "unit",
    part: Part = None,
    logits: Logits = None,
) -> Wrapped:
    """Put an AdversarialDropout layer behind a module of any network, without touching its code.

    The network itself is changed, and shares its parameters with what is returned; ``.unwrap()`` takes the layer out
    again. Checkpoints fit before, meanwhile and after.

    Args:
        model: any network.
        after: the dotted name of the module, or several; :func:`places` lists them.
        p: the DROP probability of the sampled mask. With 0, and no other noise between the passes, VAdD has nothing to
            search with.
        delta: δ, the share of the units that may be flipped.
        scale: see :class:`advdrop.AdversarialDropout`.
        granularity: masks of each ``"unit"``, ``"channel"`` (convolutions) or ``"feature"`` (sequences).
        part: which part of what the module returns is meant, if that is a tuple (0 for the output of an LSTM) or a
            dictionary.
        logits: how to get the logits from what the network returns, if that is not a tensor: a key, a place or a
            function.

    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> wrapped = wrap(network, after="1", delta=0.25)
    >>> wrapped(torch.zeros(3, 4)).shape
    torch.Size([3, 2])
    >>> wrapped.unwrap()[1]
    ReLU()
    """
    names = [after] if isinstance(after, str) else list(after)
    modules = dict(model.named_modules(remove_duplicate=False))
    if not names:
        raise ValueError("after must name a module; advdrop.places(model, x) lists them")
    for name in names:
        if not name or name not in modules:
            known = [known for known in modules if known]
            meant = did_you_mean(name, known)
            raise ValueError(f"there is no module {name!r}{meant}; advdrop.places(model, x) lists those there are")
        if isinstance(modules[name], Dropped | AdversarialDropout):
            raise ValueError(f"there is an AdversarialDropout layer at {name!r} already")
    for name in names:
        parent, _, last = name.rpartition(".")
        layer = AdversarialDropout(p, delta, scale, granularity).train(model.training)
        setattr(model.get_submodule(parent), last, Dropped(modules[name], layer, part).train(modules[name].training))
    return Wrapped(model, names, logits).train(model.training)


@dataclass(frozen=True)
class Place:
    """A module that a layer could be put behind.

    Args:
        name: for ``after``.
        kind: its class.
        part: for ``part``, if it does not return a tensor.
        shape: of its units, ``(*H)``; the first tensor it returns, without the batch.
        calls: how often it runs in a pass; a layer needs one that runs once.
    """

    name: str
    kind: str
    part: Part
    shape: tuple[int, ...]
    calls: int

    @property
    def units(self) -> int:
        """H, the number of units."""
        return int(torch.Size(self.shape).numel())

    def __str__(self) -> str:
        """A line of a list."""
        times = "" if self.calls == 1 else f", runs {self.calls} times"
        part = "" if self.part is None else f", part={self.part!r}"
        return f"{self.name}: {self.kind}, {self.units} units {self.shape}{part}{times}"


def places(model: nn.Module, *given: Any, **named: Any) -> list[Place]:
    """Where a layer could be put: the modules that return floating-point units, in the order in which they run.

    Args:
        model: any network.
        given: what it is called with: a batch, of one example at least.
        named: likewise.

    >>> for place in places(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.zeros(1, 4)):
    ...     print(place)
    0: Linear, 8 units (8,)
    1: ReLU, 8 units (8,)
    2: Linear, 2 units (2,)
    """
    found: dict[str, Place] = {}
    with evaluating(model), _watched(model, found), torch.no_grad():
        model(*given, **named)
    return list(found.values())


@contextmanager
def _watched(model: nn.Module, found: dict[str, Place]) -> Iterator[None]:
    """Inside the block each module notes what it returns."""

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def note(module: nn.Module, given: Any, output: Any) -> None:
            del given
            part, units = _first_tensor(output)
            if units is not None and units.is_floating_point() and units.dim() > 1:
                calls = 1 + (found[name].calls if name in found else 0)
                found[name] = Place(name, type(module).__name__, part, tuple(units.shape[1:]), calls)

        return note

    hooks = [module.register_forward_hook(watch(name)) for name, module in model.named_modules() if name]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _first_tensor(output: Any) -> tuple[Part, Tensor | None]:
    if isinstance(output, Tensor):
        return None, output
    items = (
        output.items() if hasattr(output, "items") else enumerate(output) if isinstance(output, tuple | list) else ()
    )
    return next(((key, value) for key, value in items if isinstance(value, Tensor)), (None, None))
