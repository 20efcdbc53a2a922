"""Any network as a whole, whose lower part is recorded and replayed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from advdrop.masks import AdversarialDropout
from advdrop.masks.layer import MaskSource, use_masks
from advdrop.randomness import NoiseState, PythonState, noise_state, python_state
from advdrop.step.batch_norm import RunningStatistics
from advdrop.step.copies import Attributes
from advdrop.step.inputs import Inputs, call
from advdrop.step.network import Lower, Network
from advdrop.step.player import Player
from advdrop.step.recorder import Recorder
from advdrop.step.tape import Restart, Tape
from advdrop.step.together import all_modules

MOST_RESTARTS = 3
"""A network is no longer recorded after this many passes had to start again."""


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
        self.taped = taped and not any(compiled(module) or _has_fast_path(module) for module in self.modules)
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
                self._warn_if_slow(player, tape)
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
        self._warn_if_slow(player, tape)
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

    def _warn_if_slow(self, player: Player, tape: Tape) -> None:
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


def compiled(module: nn.Module) -> bool:
    """Return True if a module runs compiled code, which makes no torch calls that could be recorded."""
    compiled = getattr(module, "_compiled_call_impl", None) is not None
    return compiled or type(module).__name__ in ("OptimizedModule", "RecursiveScriptModule")


def _has_fast_path(module: nn.Module) -> bool:
    """Return True if a module computes something else while torch calls are recorded, as torch's fast paths do."""
    return not module.training and isinstance(module, _FAST)


_FAST = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)
