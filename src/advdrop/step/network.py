"""How a network is run: a lower part that no mask changes, and an upper part that runs once for each mask.

The lower part ends at the first AdversarialDropout layer. A :class:`Lower` is the lower part of one pass, with its
noise, and ``Lower.output`` runs the upper part on it. A plain ``nn.Sequential`` is divided into two lists of children
(:class:`SequentialNetwork`). Any other network runs as a whole; the first pass records the torch calls of the lower
part, and later passes get the recorded results (:class:`AnyNetwork`).
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.module import _has_any_global_hook
from torch.nn.utils import parametrize

from advdrop.masks import AdversarialDropout
from advdrop.masks.layer import MaskSource, use_masks
from advdrop.randomness import NO_NOISE, NoiseState, PythonState, borrowed_noise, noise_state, python_state
from advdrop.step.batch_norm import RunningStatistics
from advdrop.step.copies import Attributes, own
from advdrop.step.tape import Player, Recorder, Restart, Tape
from advdrop.step.together import all_modules, before_noise, kind, still

MOST_RESTARTS = 3
"""A network is not recorded any more after this many passes had to start again."""

Inputs = Any
"""What a network is called with: one tensor, a tuple of arguments, a dict of keyword arguments, or any other object."""


Weights = dict[str, Tensor]
"""Parameters and buffers by their names."""


def call(model: nn.Module, inputs: Inputs, weights: Weights | None = None) -> Any:
    """Call a network with its inputs; if given, with other weights than its own."""
    args = () if isinstance(inputs, Mapping) else inputs if type(inputs) is tuple else (inputs,)
    args, kwargs = own((args, dict(inputs) if isinstance(inputs, Mapping) else {}), {})
    return model(*args, **kwargs) if weights is None else functional_call(model, weights, args, kwargs)


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


class Lower(ABC):
    """The lower part of one pass."""

    start: NoiseState
    """The state of torch's generators at the start of the pass."""

    python: PythonState | None
    """The state of Python's and numpy's generators at the start of the pass, or None if nothing draws from them."""

    @abstractmethod
    def output(self, masks: MaskSource, *, update: bool, repeat: bool) -> Any:
        """Run the upper part and return what the network returns.

        Args:
            masks: supplies the scaled masks.
            update: whether norms in the upper part may update their running statistics.
            repeat: whether the upper part runs with the noise that it had the first time, and the global generators are
                restored afterwards.
        """


class Network(ABC):
    """A model and how to run it.

    Args:
        model: the model.
        device: the device of its inputs.
        statistics: its running statistics.
    """

    def __init__(self, model: nn.Module, device: torch.device, statistics: RunningStatistics) -> None:
        self.model, self.device, self.statistics = model, device, statistics

    @abstractmethod
    def run(self, inputs: Inputs, masks: MaskSource, *, update: bool, again: bool) -> tuple[Lower, Any]:
        """Run a whole pass with new noise.

        Args:
            inputs: of the model.
            masks: supplies the scaled masks.
            update: whether norms may update their running statistics.
            again: whether the upper part will run again on the same lower part.
        """

    @abstractmethod
    def lower(self, inputs: Inputs, *, update: bool) -> Lower:
        """Run the lower part alone with new noise."""

    def full(self, inputs: Inputs, masks: MaskSource, *, update: bool, weights: Weights | None = None) -> Any:
        """Run a whole pass with new noise, and reuse nothing; if given, with other weights."""
        with self.statistics.updates(update), use_masks(masks):
            return call(self.model, inputs, weights)

    def repeat(self, inputs: Inputs, masks: MaskSource, lower: Lower, *, update: bool) -> Any:
        """Run a whole pass on other inputs with the noise of an earlier pass, then restore the generators."""
        noise = borrowed_noise(self.device, lower.start)
        with self.statistics.updates(update), noise, _python_noise(lower.python), use_masks(masks):
            return call(self.model, inputs)


@contextmanager
def _python_noise(start: PythonState | None) -> Iterator[None]:
    """Set Python's and numpy's generators to ``start`` and restore them on exit; with None, do nothing."""
    before = None if start is None else python_state()
    try:
        if start is not None:
            start.restore()
        yield
    finally:
        if before is not None:
            before.restore()


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
        self.python_draws = not all(map(_stateless, self.upper))

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
            python = _python_noise(self.python if repeat else None)
            with network.statistics.updates(update), python, use_masks(masks):
                return through(network.upper, self.h)
        finally:
            before.restore()


class AnyNetwork(Network):
    """Any other network; nothing is assumed about its ``forward``.

    Args:
        model: the model.
        device: the device of its inputs.
        statistics: its running statistics.
        taped: whether lower parts are recorded and replayed; otherwise every pass is a full pass.
    """

    def __init__(
        self, model: nn.Module, device: torch.device, statistics: RunningStatistics, taped: bool = True
    ) -> None:
        super().__init__(model, device, statistics)
        self.modules = all_modules(model)
        self.taped = taped and not any(_compiled(module) or _has_fast_path(module) for module in self.modules)
        self.restarts = 0
        self.why_slow = ""

    def controlled(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the running means and variances that the step controls, and the counters of batches."""
        names = ("running_mean", "running_var")
        found = (getattr(layer, name, None) for layer in self.statistics.layers for name in names)
        return [tensor for tensor in found if tensor is not None], self.statistics.counters()

    def run(self, inputs: Inputs, masks: MaskSource, *, update: bool, again: bool) -> tuple[Lower, Any]:
        """Run a whole pass."""
        lower = _AnyLower(self, inputs, update)
        return lower, lower.output(masks, update=update, repeat=False, again=again)

    def lower(self, inputs: Inputs, *, update: bool) -> Lower:
        """Prepare the lower part. It runs when its upper part runs for the first time."""
        return _AnyLower(self, inputs, update)


class _AnyLower(Lower):
    """The inputs and the noise of a pass and, after it has run, the recordings of its lower part."""

    def __init__(self, network: AnyNetwork, inputs: Inputs, update: bool) -> None:
        self.network, self.inputs, self.update = network, inputs, update
        self.tapes: dict[bool, Tape | None] = {}  # by whether gradients were enabled; None: not recorded
        self.ran = False

    def output(self, masks: MaskSource, *, update: bool, repeat: bool, again: bool = True) -> Any:
        """Run the whole network: the first time from the beginning, later on the recorded lower part."""
        if not self.ran:
            return self._first(masks, update, repeat, again)
        before = noise_state(self.network.device), python_state()
        try:
            return self._again(masks, update)
        finally:
            if repeat:
                for state in before:
                    state.restore()

    def _first(self, masks: MaskSource, update: bool, repeat: bool, again: bool) -> Any:
        device = self.network.device
        self.ran, self.start, self.python = True, noise_state(device), python_state()
        after_lower: tuple[NoiseState, PythonState] = (self.start, self.python)

        def reached() -> None:  # the first layer runs, so the lower part has ended
            nonlocal after_lower
            if repeat:
                after_lower = noise_state(device), python_state()

        output = self._record(masks, self.update, update, reached) if again else self._run(masks, self.update, update)
        if repeat:
            for state in after_lower:
                state.restore()
        return output

    def _again(self, masks: MaskSource, update: bool) -> Any:
        self._rewind()
        network, gradients = self.network, torch.is_grad_enabled()
        if gradients not in self.tapes:
            return self._record(masks, False, update)
        tape = self.tapes[gradients]
        if tape is None:
            return self._run(masks, False, update)
        player = Player(tape, tape.length(), *network.controlled())
        attributes = Attributes(network.modules)
        try:
            output = self._run(masks, False, update, player, player.stop)
            if not player.failed:
                self._tell(player, tape)
                return output
        except Restart:
            pass
        except Exception:
            if not (player.below and player.stand_ins):
                raise
            player.fail("a computation that torch does not report needs a result that had not been kept")
        attributes.restore()
        for tensor, before in reversed(player.undo):
            tensor.data.copy_(before)
        self._tell(player, tape)
        self.tapes[gradients] = None
        network.restarts += 1
        self._rewind()
        if (rewind := getattr(masks, "rewind", None)) is not None:
            rewind()
        return self._run(masks, False, update)

    def _rewind(self) -> None:
        """Set all generators to their states at the start of the pass."""
        self.start.restore()
        if self.python is not None:
            self.python.restore()

    def _record(self, masks: MaskSource, below: bool, above: bool, reached: Callable[[], None] | None = None) -> Any:
        """Run the network and record its lower part for later passes in the same grad mode."""
        network, gradients = self.network, torch.is_grad_enabled()
        if not network.taped or network.restarts >= MOST_RESTARTS:
            self.tapes[gradients] = None
            return self._run(masks, below, above, reached=reached)
        recorder = Recorder(network.device, *network.controlled())

        def stop() -> None:
            recorder.stop()
            if reached is not None:
                reached()

        output = self._run(masks, below, above, recorder, stop)
        self.tapes[gradients] = recorder.tape()
        return output

    def _run(
        self,
        masks: MaskSource,
        below: bool,
        above: bool,
        mode: Recorder | Player | None = None,
        reached: Callable[[], None] | None = None,
    ) -> Any:
        """Run the network.

        Args:
            masks: supplies the scaled masks.
            below: whether norms below the first layer may update their running statistics.
            above: whether norms above it may.
            mode: records or replays the lower part.
            reached: is called when the first layer runs.
        """
        with self.network.statistics.updates(below) as switch:
            first = True

            def source(layer: AdversarialDropout, h: Tensor) -> Tensor:
                nonlocal first
                if first:
                    if reached is not None:
                        reached()
                    first = False
                    switch(above)
                return masks(layer, h)

            with use_masks(source), mode or nullcontext():
                return call(self.network.model, self.inputs)

    def _tell(self, player: Player, tape: Tape) -> None:
        """Warn once if less than half of the lower part could be replayed."""
        network = self.network
        if network.why_slow or 2 * player.position >= tape.total:
            return
        network.why_slow = player.reason or "its forward pass made other torch calls"
        warnings.warn(
            f"only {player.position} of {tape.total} torch calls below the AdversarialDropout layer of "
            f"{type(network.model).__name__} could be reused; the others run again for every mask, which is correct "
            f"but slower. The reason: {network.why_slow}",
            stacklevel=2,
        )


def _compiled(module: nn.Module) -> bool:
    compiled = getattr(module, "_compiled_call_impl", None) is not None
    return compiled or type(module).__name__ in ("OptimizedModule", "RecursiveScriptModule")


def _has_fast_path(module: nn.Module) -> bool:
    """Return True if a module computes something else while torch calls are recorded, as torch's fast paths do."""
    return not module.training and isinstance(module, _FAST)


_FAST = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)


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
        if plain and all(map(_stateless, children[:layer])):
            return SequentialNetwork(model, children, layer, device, statistics)
    return AnyNetwork(model, device, statistics, taped)


def _stateless(module: nn.Module) -> bool:
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
    return not hooks and "forward" not in vars(module) and not _compiled(module)


def plain_children(model: nn.Module, whole: Collection[nn.Module] = ()) -> list[nn.Module] | None:
    """Return the modules that a plain, perhaps nested, ``nn.Sequential`` runs one after the other, or None.

    Those in ``whole`` are not divided.
    """
    if type(model) is not nn.Sequential or not _unhooked(model) or model in whole:
        return None
    return [part for child in model for part in plain_children(child, whole) or [child]]


def contains_layer(model: nn.Module) -> bool:
    """Return True if a module contains an AdversarialDropout layer, its own or an inserted one."""
    return any(isinstance(module, AdversarialDropout) or _inserted(module) for module in all_modules(model))


def _inserted(module: nn.Module) -> bool:
    return any(isinstance(getattr(hook, "layer", None), AdversarialDropout) for hook in module._forward_hooks.values())
