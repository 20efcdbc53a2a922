"""Choose how a model is divided into a lower part, which no mask changes, and an upper part."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from advdrop.masks import AdversarialDropout
from advdrop.step.any_network import AnyNetwork
from advdrop.step.batch_norm import RunningStatistics
from advdrop.step.inputs import Inputs
from advdrop.step.network import Network
from advdrop.step.sequential_network import SequentialNetwork, plain_children, stateless
from advdrop.step.together import all_modules, kind


def network_of(
    model: nn.Module,
    inputs: Inputs,
    device: torch.device,
    statistics: RunningStatistics,
    taped: bool = True,
    watched: Collection[nn.Module] = (),
) -> Network:
    """Return how to run a model on inputs of this type.

    Args:
        model: the model.
        inputs: an example of its inputs; only their type counts.
        device: the device of the inputs.
        statistics: the running statistics of the model.
        taped: whether lower parts may be reused; if not, every pass is a full pass.
        watched: modules that must run as a whole, because their outputs are wanted.
    """
    children = plain_children(model, watched) if taped and isinstance(inputs, Tensor) else None
    if children is not None and not _has_any_global_hook():
        holders = [i for i, child in enumerate(children) if contains_layer(child)]
        layer = holders[0] if holders else len(children)
        plain = not holders or (isinstance(children[layer], AdversarialDropout) and kind(children[layer]) is not None)
        if plain and all(map(stateless, children[:layer])):
            return SequentialNetwork(model, children, layer, device, statistics)
    return AnyNetwork(model, device, statistics, taped)


def contains_layer(model: nn.Module) -> bool:
    """Return True if a module contains an AdversarialDropout layer, its own or an inserted one."""
    return any(isinstance(module, AdversarialDropout) or _inserted(module) for module in all_modules(model))


def _inserted(module: nn.Module) -> bool:
    return any(isinstance(getattr(hook, "layer", None), AdversarialDropout) for hook in module._forward_hooks.values())
