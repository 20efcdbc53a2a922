"""The layers of a network that an audit can rank, and whether their units are on the only path to the output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from advdrop.choices import Granularity
from advdrop.insertion import KEY, insert, places
from advdrop.masks import AdversarialDropout, mask_shape
from advdrop.outputs import Part, part_of, replaced
from advdrop.randomness import device_of, unnoticed
from advdrop.step.inputs import Inputs, arguments, call, tensors

Chosen = Literal["all"] | Sequence[str]
Memory = tuple[int, int, int]


@dataclass(frozen=True)
class Layer:
    """A module whose output has units.

    Args:
        name: of the module.
        kind: its class.
        part: which part of its output has the units.
        shape: of the units, without the batch dimension.
        granularity: what counts as one unit: a channel of a convolution, a feature of a sequence, or a single unit.
        bypassed: whether another path, such as a skip connection, leads around the module to the output. What is lost
            here is then still there on the other path. To lose units of a residual stream, take the module that
            returns the sum: mostly the block.
    """

    name: str
    kind: str
    part: Part
    shape: tuple[int, ...]
    granularity: Granularity
    bypassed: bool

    @property
    def units(self) -> int:
        """H, the number of units."""
        return int(torch.Size(mask_shape((1, *self.shape), self.granularity)[1:]).numel())


def layers_of(
    model: nn.Module, x: Inputs, layers: Chosen = "all", *, logits: Callable[[Any], Tensor], channels: bool = True
) -> list[Layer]:
    """Return the layers of a network in the order in which they run.

    ``"all"`` is every module, also a block of modules, that returns a tensor of floats with the batch first, except:
    modules that run several times in a pass (each time is another place), modules that return the tensor of a module
    before them or the inputs (a dropout in evaluation mode, a flattening, and blocks that end with a module that is
    listed), and those that return the logits.

    Args:
        model: a network, in evaluation mode and without parameters that require gradients.
        x: inputs of a few rows.
        layers: ``"all"``, or the names of modules.
        logits: finds the logits in what the model returns.
        channels: whether a channel or a feature of a sequence is one unit; if not, every number is.
    """
    args, kwargs = arguments(x)
    known = {place.name: place for place in places(model, *args, **kwargs)}
    if layers == "all":
        names = _distinct(model, x, [name for name, place in known.items() if place.calls == 1], known, logits)
    else:
        names = [layers] if isinstance(layers, str) else list(layers)
        for name in names:
            with inserted(model, name):  # a wrong name is an error that lists the right ones
                pass
        if missing := [name for name in names if name not in known]:
            raise ValueError(f"{missing[0]!r} does not return units in a pass; there are {', '.join(known)}")
    if not names:
        raise ValueError(f"{type(model).__name__} has no layer that an audit could rank")
    found = []
    for name in names:
        place = known[name]
        size = len(place.shape)
        granularity: Granularity = "unit" if not channels or size == 1 else "feature" if size == 2 else "channel"
        bypassed = is_bypassed(model, x, name, place.part, logits)
        found.append(Layer(name, place.kind, place.part, place.shape, granularity, bypassed))
    return found


def _distinct(
    model: nn.Module, x: Inputs, names: Sequence[str], known: dict[str, Any], logits: Callable[[Any], Tensor]
) -> list[str]:
    """Return the names of modules that return a tensor of their own, with the batch first, and not the logits."""
    returned: dict[str, tuple[Tensor, Memory]] = {}
    x = tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, x)
    rows, before = len(next(tensors(x))), [*map(_memory, tensors(x))]
    modules = dict(model.named_modules())

    def note(name: str, _: nn.Module, given: Any, output: Any) -> None:
        del given
        part = known[name].part
        h = output if part is None else part_of(output, part)
        returned[name] = h, _memory(h)  # the tensor is kept, so that its memory is not used again

    with ExitStack() as hooks, unnoticed(device_of(model)), torch.no_grad():
        for name in names:
            hooks.enter_context(modules[name].register_forward_hook(partial(note, name)))
        output = logits(call(model, x))
    seen, found = {_memory(output), *before}, []
    for name in names:
        h, memory = returned[name]
        if len(h) != rows or memory in seen or isinstance(modules[name], AdversarialDropout):
            continue
        seen.add(memory)
        found.append(name)
    return found


def _memory(tensor: Tensor) -> Memory:
    """Return what identifies the values of a tensor: a view has the same, a change in place gives another version."""
    return tensor.data_ptr(), tensor.numel(), tensor._version


def is_bypassed(model: nn.Module, x: Inputs, name: str, part: Part, logits: Callable[[Any], Tensor]) -> bool:
    """Return True if the logits depend on the inputs on a path around a module.

    The output of the module is cut off from the gradients. If the logits still have one with respect to the inputs,
    there is another path. For inputs that are not floats, it is that with respect to the embeddings.
    """
    module = dict(model.named_modules())[name]

    def cut(_: nn.Module, given: Any, output: Any) -> Any:
        del given
        if part is None:
            return output.detach()
        return replaced(output, part, part_of(output, part).detach())

    def source(_: nn.Module, given: Any, output: Any) -> Any:
        made = isinstance(output, Tensor) and output.is_floating_point()
        integers = bool(list(tensors(given))) and not any(tensor.is_floating_point() for tensor in tensors(given))
        return followed(output) if made and integers else None

    def followed(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return value.detach().requires_grad_().clone()  # a module may change a copy in place

    with ExitStack() as hooks, unnoticed(device_of(model)), torch.enable_grad():
        for each in model.modules():
            if each is not model:
                hooks.enter_context(each.register_forward_hook(source))
        hooks.enter_context(module.register_forward_hook(cut))
        return logits(call(model, tree_map(followed, x))).requires_grad


@contextmanager
def inserted(model: nn.Module, name: str, **options: Any) -> Iterator[AdversarialDropout]:
    """Insert an AdversarialDropout layer after a module inside the block; one that is there is put back afterwards."""
    module = dict(model.named_modules(remove_duplicate=False)).get(name)
    hooks: dict[Any, Any] = {} if module is None else module._forward_hooks
    before = hooks.pop(KEY, None)
    try:
        insert(model, name, **options)
        yield hooks[KEY].layer
    finally:
        hooks.pop(KEY, None)
        if before is not None:
            hooks[KEY] = before
