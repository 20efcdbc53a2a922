"""Running statistics of normalization layers when one step makes several passes.

Every pass of a training step normalizes with the statistics of its own batch. A pass may also update the running
statistics, which are used in evaluation. Which passes do so is a choice: if three passes of a step do, the statistics
are updated three times per step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self, get_args

from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from advdrop.choices import PassName

PASSES: tuple[PassName, ...] = get_args(PassName)

UPDATING: frozenset[PassName] = frozenset({"labeled", "clean", "second", "adversarial"})
"""The passes that update running statistics by default: those of the authors' code (the paper does not say), and the
second pass of the Π model, which corresponds to the adversarial pass."""


class RunningStatistics:
    """A switch that allows or forbids a set of layers to update their running statistics.

    Args:
        modules: the modules to look through. Every module with a ``track_running_stats`` attribute is covered: torch's
            batch and instance norms, and modules that follow their convention.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.layers: list[Any] = [module for module in modules if hasattr(module, "track_running_stats")]

    def counters(self) -> list[Tensor]:
        """Return the tensors in which the layers count their batches."""
        found = (getattr(layer, "num_batches_tracked", None) for layer in self.layers)
        return [counter for counter in found if counter is not None]

    def updates(self, allowed: bool) -> Switch:
        """Return a ``with`` block in which updates are allowed or forbidden, see :class:`Switch`."""
        return Switch(self.layers, allowed) if self.layers else _NO_LAYERS


class Switch:
    """A ``with`` block in which updates are allowed or forbidden. Call the switch inside the block to change that.

    Args:
        layers: the normalization layers.
        allowed: whether updates are allowed at the beginning of the block.
    """

    def __init__(self, layers: list[Any], allowed: bool) -> None:
        self._updating = [layer for layer in layers if layer.training and layer.track_running_stats]
        self._momentum: dict[Any, float | None] = {}
        self._allowed, self._at_start = True, allowed

    def __enter__(self) -> Self:
        self(self._at_start)
        return self

    def __exit__(self, *_: object) -> None:
        self(True)

    def __call__(self, allowed: bool) -> None:
        """Allow or forbid updates from here on."""
        if allowed == self._allowed or not self._updating:
            return
        for layer in self._updating:
            if not isinstance(layer, _InstanceNorm):
                layer.track_running_stats = allowed
            elif allowed:
                layer.momentum = self._momentum.pop(layer)
            else:  # without tracking, an instance norm still updates its buffers, so its momentum is set to 0
                self._momentum[layer], layer.momentum = layer.momentum, 0.0
        self._allowed = allowed


_NO_LAYERS = Switch([], allowed=True)


@contextmanager
def frozen_statistics(*modules: nn.Module) -> Iterator[None]:
    """Keep normalization layers from updating their running statistics inside the block.

    In training mode they still normalize with the statistics of the batch.

    Args:
        modules: the networks to freeze, see :class:`RunningStatistics`.

    >>> import torch
    >>> norm = nn.BatchNorm1d(2)
    >>> with frozen_statistics(norm):
    ...     _ = norm(torch.randn(8, 2) + 5.0)
    >>> norm.running_mean
    tensor([0., 0.])
    """
    with RunningStatistics(part for module in modules for part in module.modules()).updates(False):
        yield
