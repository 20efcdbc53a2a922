"""f(x, ε) = upper(under(x) ⊙ ε): a network cut below its AdversarialDropout layers.

Everything below the layers does not depend on the mask, so its pass is made once and only the upper network runs
again for the search and for the adversarial mask. ``cut`` finds the place by itself.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from operator import getitem
from typing import Any, TypeGuard, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn

from advdrop.masks.layer import AdversarialDropout

Hidden = Any
"""What crosses the cut: h ``(B, *H)``, or a tuple with all values that the upper network needs."""


class Split(nn.Module):
    """A network in two parts; the AdversarialDropout layers, one or more, are in ``upper``.

    Args:
        under: f^under, from the input to h.
        upper: f^upper, from h to the logits, usually starting with the layer.

    >>> Split(nn.Linear(4, 8), nn.Sequential(AdversarialDropout(), nn.Linear(8, 2)))(Tensor(3, 4)).shape
    torch.Size([3, 2])
    """

    def __init__(self, under: nn.Module, upper: nn.Module) -> None:
        super().__init__()
        if contains_layer(under):
            raise ValueError(
                "the under network of a Split must not contain an AdversarialDropout layer: its output is computed "
                "once and shared by all masks; move the layer to the start of the upper network"
            )
        self.under = under
        self.upper = upper

    def forward(self, x: Tensor) -> Tensor:
        """upper(under(x))."""
        return cast(Tensor, self.upper(self.under(x)))


def adversarial_layers(model: nn.Module) -> tuple[AdversarialDropout, ...]:
    """The AdversarialDropout layers of a model, each once."""
    return tuple(module for module in model.modules() if isinstance(module, AdversarialDropout))


def contains_layer(model: nn.Module) -> bool:
    """Whether there is an AdversarialDropout layer in this module."""
    return any(isinstance(module, AdversarialDropout) for module in model.modules())


def cut(model: nn.Module, at: str | None = None) -> Split:
    """The model as a ``Split`` that shares its parameters.

    A ``Split`` is returned as it is; an ``nn.Sequential`` is cut between its children, at any depth; any other
    module is traced (``torch.fx``), and everything that does not depend on a mask goes into ``under``. Only the
    ``forward`` of modules that contain a layer is traced; the others are called as they are. Where that fails (say,
    a branch on the values of a tensor), ``under`` is the identity and ``upper`` the whole model: right, but slower,
    and said in a warning. The result is remembered until the model's modules, tensors, training modes or
    the attributes of what was traced change.

    Args:
        model: a network with or without AdversarialDropout layers.
        at: the dotted name of a module to cut before, if not before the first layer.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), AdversarialDropout(), nn.Linear(8, 2))
    >>> len(cut(net).under), len(cut(net).upper)
    (2, 2)
    """
    if isinstance(model, Split) and at is None:
        return model
    place = _named(model, at)
    # The parts hold on to the old modules and tensors, so their ids cannot be taken by new ones.
    structure = (
        at,
        *((id(module), module.training) for module in model.modules()),
        *(id(tensor) for tensor in (*model.parameters(), *model.buffers())),
    )
    attributes = tuple(_attributes(module) for module in _holders(model, place))
    known = _cuts.get(model)
    # Full passes are right whatever the attributes are.
    if known is None or known[0] != structure or (known[1] != attributes and known[2] is not None):
        parts = _cut(model, place)
        known = _cuts[model] = (structure, attributes, None if parts.upper is model else parts)
    return known[2] or Split(nn.Identity(), model)


# A model that could not be cut is remembered as None: a part that is the model itself would keep it alive.
_cuts: WeakKeyDictionary[nn.Module, tuple[object, object, Split | None]] = WeakKeyDictionary()


def _attributes(module: nn.Module) -> tuple[object, ...]:
    """What the forward pass of a module may read: a trace of it is good until one of these changes."""
    hooks = (*module._forward_hooks, *module._forward_pre_hooks)
    plain = ((k, v) for k, v in module.__dict__.items() if isinstance(v, bool | int | float | str))
    return (hooks, *plain, *(id(v) for v in module.__dict__.values()))


def _holders(module: nn.Module, place: nn.Module | None) -> list[nn.Module]:
    """The modules that are or contain an AdversarialDropout layer or the place to cut at."""
    inner = [holder for child in module.children() for holder in _holders(child, place)]
    return [module, *inner] if inner or module is place or isinstance(module, AdversarialDropout) else []


def _named(model: nn.Module, at: str | None) -> nn.Module | None:
    if at is None:
        return None
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if at not in modules or modules[at] is model:
        raise ValueError(f"cannot cut at {at!r}: the modules of this model are {', '.join(filter(None, modules))}")
    return modules[at]


def _cut(model: nn.Module, place: nn.Module | None) -> Split:
    if model is place or isinstance(model, AdversarialDropout) or not _holders(model, place):
        return Split(nn.Identity(), model)
    if model._forward_hooks or model._forward_pre_hooks:
        return _whole(model, "it has hooks, which a cut would leave out")
    if _is_plain_sequential(model):
        children = list(model)
        for i, child in enumerate(children):
            if _holders(child, place):
                inner = _cut(child, place)
                return Split(
                    nn.Sequential(*children[:i], *_parts(inner.under)),
                    nn.Sequential(*_parts(inner.upper), *children[i + 1 :]),
                )
    try:
        return _trace(model, place)
    except Exception as error:  # whatever stops the tracer, the full passes are right
        return _whole(model, f"the tracer said: {error}")


def _whole(model: nn.Module, reason: str) -> Split:
    warnings.warn(
        f"{type(model).__name__} could not be cut below its AdversarialDropout layer, so every pass runs the whole "
        f"network. Write it as Split(under, upper) or nn.Sequential to save them. The reason: {reason}",
        stacklevel=2,
    )
    return Split(nn.Identity(), model)


def _is_plain_sequential(module: nn.Module) -> TypeGuard[nn.Sequential]:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _parts(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, nn.Identity):
        return []
    return list(module) if _is_plain_sequential(module) else [module]


def _trace(model: nn.Module, place: nn.Module | None) -> Split:
    holders = _holders(model, place)

    class Tracer(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            del module_qualified_name
            return m is place or isinstance(m, AdversarialDropout) or m not in holders

    with _untouched(model, holders):
        graph = Tracer().trace(model)
    calls = [node for node in graph.nodes if node.op == "call_module"]
    roots = {n for n in calls if (m := model.get_submodule(n.target)) is place or isinstance(m, AdversarialDropout)}
    above: set[fx.Node] = set()
    for node in graph.nodes:
        if node in roots or node.op == "output" or above.intersection(node.all_input_nodes):
            above.add(node)
    first = min((position for position, node in enumerate(graph.nodes) if node in roots), default=0)
    for position, node in enumerate(graph.nodes):
        # Above the cut, a change of what crosses it would be seen by the next pass. Below the cut and after the first
        # layer, a change would now come before the layer.
        reaches_down = above.isdisjoint(node.all_input_nodes[:1]) if node in above else position > first
        if reaches_down and _in_place(model, node):
            raise ValueError(f"{node} works in place on something that crosses the cut")
    crossing = [n for n in graph.nodes if n not in above and above.intersection(n.users)]

    under, upper = fx.Graph(), fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node not in above:
            copies[node] = under.node_copy(node, copies.__getitem__)
    under.output(tuple(copies[node] for node in crossing))

    hidden = upper.placeholder("hidden")
    inner = {node: upper.call_function(getitem, (hidden, i)) for i, node in enumerate(crossing)}
    for node in graph.nodes:
        if node in above:
            inner[node] = upper.node_copy(node, inner.__getitem__)
    return Split(fx.GraphModule(model, under), fx.GraphModule(model, upper))


def _in_place(model: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return any(getattr(m, "inplace", False) for m in model.get_submodule(str(node.target)).modules())
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    called = node.op in ("call_function", "call_method")
    return called and (bool(node.kwargs.get("inplace")) or (name.endswith("_") and not name.endswith("__")))


@contextmanager
def _untouched(model: nn.Module, traced: list[nn.Module]) -> Iterator[None]:
    """Refuse a forward pass that changes its modules or makes a tensor of its own, and undo what tracing it did."""
    noise, python_noise = torch.get_rng_state(), random.getstate()
    before = [(m, dict(m.__dict__), dict(m._buffers)) for m in traced]
    values = {tensor: (tensor._version, tensor.clone()) for m in traced for tensor in m.buffers(recurse=False)}
    changed = False
    try:
        yield
    finally:
        for module, attributes, buffers in before:
            changed |= module.__dict__.keys() != attributes.keys()
            changed |= any(module.__dict__.get(k) is not v for k, v in attributes.items())
            changed |= any(module._buffers[k] is not b for k, b in buffers.items())
            module.__dict__.clear()
            module.__dict__.update(attributes)
            module._buffers.update(buffers)
        for tensor, (version, value) in values.items():
            if tensor._version != version:
                changed = True
                tensor.copy_(value)
        if not torch.equal(noise, torch.get_rng_state()) or python_noise != random.getstate():
            changed = True
            torch.set_rng_state(noise)
            random.setstate(python_noise)
    if changed:
        raise ValueError(
            f"the forward pass of {type(model).__name__} changes it, draws noise or makes a tensor by itself"
        )
