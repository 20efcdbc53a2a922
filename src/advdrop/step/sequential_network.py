"""A plain ``nn.Sequential`` as a network of two lists of children."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from advdrop.masks.layer import MaskSource, use_masks
from advdrop.randomness import NO_NOISE, NoiseState, noise_state, python_state
from advdrop.step.any_network import compiled
from advdrop.step.batch_norm import RunningStatistics
from advdrop.step.network import Lower, Network, python_noise
from advdrop.step.together import all_modules, before_noise, kind, still


class SequentialNetwork(Network):
    """A plain, perhaps nested, ``nn.Sequential`` whose first AdversarialDropout layer is one of its children.

    Args:
        model: the model.
        children: its children in the order in which they run.
        layer: the position of the first AdversarialDropout layer; the number of children if there is none.
        device: the device of its inputs.
        statistics: its running statistics.
    """

    def __init__(
        self,
        model: nn.Module,
        children: list[nn.Module],
        layer: int,
        device: torch.device,
        statistics: RunningStatistics,
    ) -> None:
        super().__init__(model, device, statistics)
        self._remembered: dict[Hashable, Any] = {}
        shared = before_noise(children[:layer])
        self.first, self.rest, self.upper = children[:shared], children[shared:layer], children[layer:]
        self.draws = not still([*self.rest, *self.upper])
        self.python_draws = not all(map(stateless, self.upper))

    def noise(self) -> NoiseState:
        """Return the state of the global generators, or nothing if no module above ``first`` draws from them."""
        return noise_state(self.device) if self.draws else NO_NOISE

    def remember(self, key: Hashable, find: Callable[[], Any]) -> Any:
        """Return what was found for this key before, or find it now. A change of a module leads to a new network."""
        if key not in self._remembered:
            self._remembered[key] = find()
        return self._remembered[key]

    def begin(self, x: Tensor) -> Tensor:
        """Run the modules before the first one that draws noise; passes of the same rows can share the result."""
        begun: Tensor = through(self.first, x)
        return begun

    def run(self, inputs: Tensor, masks: MaskSource, *, update: bool, again: bool) -> tuple[Lower, Any]:
        """Run a whole pass."""
        del again
        return self.run_from(self.begin(inputs), masks, update=update)

    def run_from(self, begun: Tensor, masks: MaskSource, *, update: bool) -> tuple[Lower, Any]:
        """Run a whole pass, starting from the result of :meth:`begin`."""
        with self.statistics.updates(update):
            start = self.noise()
            h = through(self.rest, begun)
            lower = SequentialLower(self, h, start, self.noise())
            with use_masks(masks):
                output = through(self.upper, h)
        return lower, output

    def lower(self, inputs: Tensor, *, update: bool) -> Lower:
        """Run the lower part alone."""
        return self.lower_from(self.begin(inputs), update=update)

    def lower_from(self, begun: Tensor, *, update: bool) -> Lower:
        """Run the lower part, starting from the result of :meth:`begin`."""
        start = self.noise()
        with self.statistics.updates(update):
            h = through(self.rest, begun)
        return SequentialLower(self, h, start, self.noise())


def through(modules: list[nn.Module], x: Any) -> Any:
    """Run modules one after the other."""
    for module in modules:
        x = module(x)
    return x


class SequentialLower(Lower):
    """The input h of the first layer. The upper part does not change it in place: the layer returns a new tensor."""

    def __init__(self, network: SequentialNetwork, h: Tensor, start: NoiseState, noise: NoiseState) -> None:
        self.network, self.h, self.start, self.noise = network, h, start, noise
        self.python = python_state() if network.python_draws else None

    def output(self, masks: MaskSource, *, update: bool, repeat: bool) -> Any:
        """Run the upper part."""
        network = self.network
        before = network.noise() if repeat else NO_NOISE
        try:
            if repeat:
                self.noise.restore()
            python = python_noise(self.python if repeat else None)
            with network.statistics.updates(update), python, use_masks(masks):
                return through(network.upper, self.h)
        finally:
            before.restore()


def stateless(module: nn.Module) -> bool:
    """Return True if it is known that a module keeps no state between passes, except running statistics."""
    return all(kind(part) is not None or (_unhooked(part) and _known(part)) for part in all_modules(module))


def _known(module: nn.Module) -> bool:
    """Return True for modules of torch and of this package, except spectral norm, whose state changes in each pass."""
    own = type(module).__mro__[1 if parametrize.is_parametrized(module) else 0]
    return own.__module__.startswith(_KNOWN_MODULES) and own.__name__ != "_SpectralNorm"


_KNOWN_MODULES = ("torch.nn.modules.", "torch.nn.utils.parametriz", "advdrop.")


def _unhooked(module: nn.Module) -> bool:
    """Return True if a module runs its forward method and nothing else."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return not hooks and "forward" not in vars(module) and not compiled(module)


def plain_children(model: nn.Module, whole: Collection[nn.Module] = ()) -> list[nn.Module] | None:
    """Return the modules that a plain, perhaps nested, ``nn.Sequential`` runs one after the other, or None.

    Those in ``whole`` are not divided.
    """
    if type(model) is not nn.Sequential or not _unhooked(model) or model in whole:
        return None
    return [part for child in model for part in plain_children(child, whole) or [child]]
