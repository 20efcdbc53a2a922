"""Running statistics of normalization layers when one step makes several passes.

Every pass of a training step normalizes with the statistics of its own batch. A pass may also update the running
statistics, which are used in evaluation. Which passes do so is a choice: if three passes of a step do, the statistics
are updated three times per step.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
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
        self._updating = [layer for layer in dict.fromkeys(layers) if layer.training and layer.track_running_stats]
        self._before: dict[Any, tuple[float | None, Tensor | None]] = {}
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
            if type(layer).forward not in _FORWARD:
                layer.track_running_stats = allowed
                continue
            # With a momentum of 0, torch's norms make the same calls as before. Without tracking they would not: an
            # activation checkpoint that runs them again in the backward pass would find other tensors.
            if allowed:
                layer.momentum, layer._buffers["num_batches_tracked"] = self._before.pop(layer)
            else:
                count = layer.num_batches_tracked
                self._before[layer] = layer.momentum, count
                layer.momentum = _NoMomentum.instead_of(layer.momentum)
                layer._buffers["num_batches_tracked"] = None if count is None else _NoCount.instead_of(count)
        self._allowed = allowed


# A network that is copied or pickled within the block gets the momentum and the counter that it had before.


class _NoMomentum(float):
    """A momentum of 0 in the place of another one."""

    before: float | None

    @classmethod
    def instead_of(cls, momentum: float | None) -> _NoMomentum:
        zero = cls(0.0)
        zero.before = momentum
        return zero

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _same, (self.before,)


class _NoCount(Tensor):
    """A counter of batches that does not count; otherwise an ordinary tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    before: Tensor

    @classmethod
    def instead_of(cls, count: Tensor) -> _NoCount:
        with torch._C.DisableTorchFunction():
            still = count.as_subclass(cls)
        still.before = count
        return still

    def add_(self, *_: Any) -> Tensor:  # type: ignore[override]
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return copy.deepcopy(self.before, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _same, (self.before,)


def _same(value: Any) -> Any:
    return value


_FORWARD = {norm.forward for norm in (_BatchNorm, _InstanceNorm, nn.SyncBatchNorm)}

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
