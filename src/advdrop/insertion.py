"""Put AdversarialDropout layers into a network that was written without them, and take them out again.

A layer is a forward hook: the network keeps its class, its attributes, its arguments and the keys of its
``state_dict``. In evaluation mode the hook does nothing, so an exported network does not contain the layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from advdrop import checks
from advdrop.choices import Granularity, Scale
from advdrop.eval_mode import eval_mode
from advdrop.masks import AdversarialDropout
from advdrop.masks.layer import supplied
from advdrop.outputs import Part, first_tensor, part_of, replaced
from advdrop.randomness import device_of, unnoticed

Model = TypeVar("Model", bound=nn.Module)

KEY: Any = "advdrop"
"""The key of the hook in its module. Torch uses numbers as keys and counts from the start in each process, so it could
give the number of an unpickled hook to another hook. A name is safe: a module has at most one inserted layer."""


class InsertedLayer:
    """A forward hook that applies an AdversarialDropout layer to the output of a module.

    Args:
        layer: the layer.
        part: the part of the output that goes through the layer.
        place: the name of the module.
    """

    def __init__(self, layer: AdversarialDropout, part: Part, place: str) -> None:
        self.layer, self.part, self.place = layer, part, place

    def __call__(self, module: nn.Module, given: Any, output: Any) -> Any:
        """Return the output with h ⊙ ε in the place of h, or None to leave it as it is."""
        del given
        if not module.training and not supplied():
            return None
        if self.layer.training != module.training:
            self.layer.training = module.training
        h = output if self.part is None else part_of(output, self.part)
        if self.part is not None and isinstance(output, Tensor):
            raise TypeError(f"the output of {self.place} is a tensor and has no parts; leave out part={self.part!r}")
        if not isinstance(h, Tensor):
            part = "" if self.part is None else f"part {self.part!r} of "
            raise TypeError(
                f"{part}the output of {self.place}, a {type(output).__name__}, is not a tensor; say which part has the "
                "units: advdrop.insert(..., part=...), a position in a tuple, a key or a name"
            )
        return self.layer(h) if self.part is None else replaced(output, self.part, self.layer(h))

    @property
    def __name__(self) -> str:
        """Raise an error: ``torch.jit.script`` reads this before it compiles a hook, and it cannot compile this one."""
        raise RuntimeError(
            "torch.jit.script cannot compile an inserted AdversarialDropout layer; call advdrop.remove(network) first, "
            "or use torch.jit.trace, torch.export or ONNX in evaluation mode, which leave the layer out"
        )


def insert(
    network: Model,
    after: str | Sequence[str],
    *,
    p: float = 0.5,
    delta: float = 0.05,
    scale: Scale = "inverted",
    granularity: Granularity = "unit",
    part: Part = None,
) -> Model:
    """Insert an AdversarialDropout layer after one or more modules of a network, in place.

    The network keeps its class, attributes, arguments and ``state_dict`` keys, so the same checkpoint fits the network
    with and without the layers. :func:`remove` takes the layers out.

    Args:
        network: any network.
        after: the dotted name of the module, or several; :func:`places` lists them. A module inside another one may be
            named as well. A module that runs twice in a pass gets a mask for each run.
        p: DROP probability of the sampled mask. With 0, and without other noise, the Jacobian of VAdD is zero; then
            use ``search=Probe()``.
        delta: δ, the share of the units that may be flipped.
        scale: see :class:`advdrop.AdversarialDropout`.
        granularity: masks of each ``"unit"``, ``"channel"`` (convolutions) or ``"feature"`` (sequences).
        part: which part of the module's output has the units, if the output is a tuple (0 for an LSTM) or a dict.

    Returns:
        The same network.

    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> insert(network, after="1", delta=0.25) is network
    True
    >>> list(network.state_dict())
    ['0.weight', '0.bias', '2.weight', '2.bias']
    >>> _ = remove(network)
    """
    several = isinstance(after, Iterable) and not isinstance(after, str | Mapping)
    names: list[Any] = list(after) if several else [after]
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"after must be the name of a module, or several names, got {after!r}; '0' is a name, 0 is not")
    if not names:
        raise ValueError("after must name a module; advdrop.places(network, x) lists them")
    chosen = [checks.module(network, name) for name in names]
    for name, module in zip(names, chosen, strict=True):
        if isinstance(module, AdversarialDropout) or inserted_layers(module, inside=False) or chosen.count(module) > 1:
            raise ValueError(f"there is an AdversarialDropout layer at {name!r} already")
    for name, module in zip(names, chosen, strict=True):
        layer = AdversarialDropout(p, delta, scale, granularity).train(module.training)
        module._forward_hooks[KEY] = InsertedLayer(layer, part, name)
    return network


def remove(network: Model) -> Model:
    """Take out all layers that :func:`insert` put into a network, in place, and return the network."""
    for module in network.modules():
        module._forward_hooks.pop(KEY, None)
    return network


def inserted_layers(network: nn.Module, inside: bool = True) -> list[AdversarialDropout]:
    """Return the layers that :func:`insert` put into a network, or only those directly after the module itself."""
    modules = network.modules() if inside else [network]
    hooks = [module._forward_hooks.get(KEY) for module in modules]
    return [hook.layer for hook in hooks if isinstance(hook, InsertedLayer)]


def adversarial_layers(network: nn.Module) -> list[AdversarialDropout]:
    """Return all AdversarialDropout layers of a network, its own and inserted ones, each once."""
    own = [module for module in network.modules() if isinstance(module, AdversarialDropout)]
    return own + inserted_layers(network)


@dataclass(frozen=True)
class Place:
    """A module after which a layer could be inserted.

    Args:
        name: for ``after``.
        kind: the class of the module.
        part: for ``part``, if the module does not return a tensor.
        shape: of its units, ``(*H)``: the first tensor it returns, without the batch dimension.
        calls: how often it runs in a pass.
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
        """Return a line of a list."""
        times = "" if self.calls == 1 else f", runs {self.calls} times"
        part = "" if self.part is None else f", part={self.part!r}"
        return f"{self.name}: {self.kind}, {self.units} units {self.shape}{part}{times}"


def places(network: nn.Module, *args: Any, **kwargs: Any) -> list[Place]:
    """List where a layer could be inserted: the modules that return floating-point units, in the order they run.

    Args:
        network: any network.
        args: what it is called with: a batch of at least one example.
        kwargs: keyword arguments of the call.

    >>> for place in places(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.zeros(1, 4)):
    ...     print(place)
    0: Linear, 8 units (8,)
    1: ReLU, 8 units (8,)
    2: Linear, 2 units (2,)
    """
    found: dict[str, Place] = {}
    with unnoticed(device_of(network)), eval_mode(network), ExitStack() as hooks, torch.no_grad():
        for name, module in network.named_modules():
            if name:
                hooks.enter_context(module.register_forward_hook(partial(_note, found, name)))
        network(*args, **kwargs)
    return list(found.values())


def _note(found: dict[str, Place], name: str, module: nn.Module, _: Any, output: Any) -> None:
    """Note what a module returned, if it has floating-point units."""
    part, units = first_tensor(output)
    if units is not None and units.is_floating_point() and units.dim() > 1:
        calls = 1 + (found[name].calls if name in found else 0)
        found[name] = Place(name, type(module).__name__, part, tuple(units.shape[1:]), calls)
