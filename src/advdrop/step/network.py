"""How a network is run: a lower part that no mask changes, and an upper part that runs once for each mask.

The lower part ends at the first AdversarialDropout layer. A :class:`Lower` is the lower part of one pass, with its
noise, and ``Lower.output`` runs the upper part on it. A plain ``nn.Sequential`` is divided into two lists of children
(:mod:`advdrop.step.sequential_network`). Any other network runs as a whole; the first pass records the torch calls of
the lower part, and later passes get the recorded results (:mod:`advdrop.step.any_network`).
:func:`advdrop.step.divide.network_of` chooses between the two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from advdrop.masks.layer import MaskSource, use_masks
from advdrop.randomness import NoiseState, PythonState, borrowed_noise, python_state
from advdrop.step.batch_norm import RunningStatistics
from advdrop.step.inputs import Inputs, Weights, call


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
        with self.statistics.updates(update), noise, python_noise(lower.python), use_masks(masks):
            return call(self.model, inputs)


@contextmanager
def python_noise(start: PythonState | None) -> Iterator[None]:
    """Set Python's and numpy's generators to ``start`` and restore them on exit; with None, do nothing."""
    before = None if start is None else python_state()
    try:
        if start is not None:
            start.restore()
        yield
    finally:
        if before is not None:
            before.restore()
