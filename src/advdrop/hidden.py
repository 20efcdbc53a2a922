"""The outputs of hidden modules: which modules are meant, and what they return in the passes of a ``with`` block."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from advdrop.outputs import first_tensor

Place = str | type[nn.Module]
"""The name of a module of the network, or a class: all its modules of that class."""


def modules_at(model: nn.Module, places: Collection[Place]) -> dict[str, nn.Module]:
    """Return the modules at these places by their names, in the order of the network.

    >>> list(modules_at(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), ["0", nn.ReLU]))
    ['0', '1']
    """
    if isinstance(places, str | type):
        raise TypeError(f"places must be several names or classes, got {places!r}; one place is ({places!r},)")
    modules = dict(model.named_modules())
    kinds = tuple(place for place in places if isinstance(place, type))
    for place in places:
        if place not in modules and not (
            isinstance(place, type) and any(isinstance(m, place) for m in modules.values())
        ):
            shown = place.__name__ if isinstance(place, type) else repr(place)
            known = ", ".join(name for name in modules if name)
            way = "; a layer that insert() put there is no module, so name the module that it follows"
            raise ValueError(f"the network has no module {shown}; there are {known}{way * isinstance(place, type)}")
    return {name: module for name, module in modules.items() if name in places or isinstance(module, kinds)}


@contextmanager
def watched(model: nn.Module, places: Collection[Place]) -> Iterator[dict[str, Tensor]]:
    """Collect what the modules at these places return inside the block, by their names, in the order they run.

    Each must run once. If a module returns a tuple or a dict, as an LSTM does, it is the first tensor in it. Nothing
    may change it in place later in the pass.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> with watched(model, ["0"]) as hidden:
    ...     _ = model(torch.zeros(1, 2))
    >>> hidden["0"].shape
    torch.Size([1, 3])
    """
    found: dict[str, Tensor] = {}
    versions: dict[str, int] = {}
    with ExitStack() as hooks:
        for name, module in modules_at(model, places).items():
            hooks.enter_context(module.register_forward_hook(partial(_keep, found, versions, name)))
        yield found
    for name, version in versions.items():
        if found[name]._version != version:
            raise ValueError(
                f"what the module {name!r} returns is changed in place above it, so its output is not known; name the "
                "module that changes it instead, or use inplace=False there"
            )


def _keep(
    found: dict[str, Tensor], versions: dict[str, int], name: str, _: nn.Module, __: object, output: object
) -> None:
    if name in found:
        raise ValueError(
            f"the module {name!r} runs several times in a pass, and each time is another hidden layer; name modules "
            "that run once, or give the network a module of its own for each of them"
        )
    tensor = first_tensor(output)[1]
    if tensor is None:
        raise TypeError(f"the module {name!r} returns a {type(output).__name__} without a tensor; name another one")
    found[name] = tensor
    with torch._C.DisableTorchFunction():  # a recording of the pass must not contain this
        if not tensor.is_inference():
            versions[name] = tensor._version
