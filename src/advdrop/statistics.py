"""Batch-norm statistics when one step makes several passes.

Every pass of a training step normalises with the statistics of its own batch. Which passes may also move the
running ones, the ones of evaluation, is a choice: three passes that all move them move them three times.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

from torch import nn
from torch.nn.modules.instancenorm import _InstanceNorm

from advdrop.vocabulary import PassName

PASSES: tuple[PassName, ...] = get_args(PassName)

MOVING: frozenset[PassName] = frozenset({"labelled", "clean", "second", "adversarial"})
"""The passes that move running statistics in the authors' code (the paper does not say), and Π's second pass, which is
the counterpart of the adversarial one."""


@contextmanager
def frozen_statistics(*modules: nn.Module) -> Iterator[None]:
    """Inside the block no normalisation layer moves its running statistics; training still uses the batch's.

    Args:
        modules: the networks to freeze. Any module with a ``track_running_stats`` attribute is covered: torch's
            batch and instance norms, and whatever follows their convention.

    >>> import torch
    >>> norm = nn.BatchNorm1d(2)
    >>> with frozen_statistics(norm):
    ...     _ = norm(torch.randn(8, 2) + 5.0)
    >>> norm.running_mean
    tensor([0., 0.])
    """
    layers: list[Any] = [layer for module in modules for layer in module.modules() if layer.training]
    moving = [layer for layer in layers if getattr(layer, "track_running_stats", False)]
    # An instance norm goes on moving its buffers when it no longer tracks: it must move them by nothing.
    instance = {norm: norm.momentum for norm in moving if isinstance(norm, _InstanceNorm)}
    batch = [norm for norm in moving if norm not in instance]
    try:
        for norm in instance:
            norm.momentum = 0.0
        for norm in batch:
            norm.track_running_stats = False
        yield
    finally:
        for norm, momentum in instance.items():
            norm.momentum = momentum
        for norm in batch:
            norm.track_running_stats = True
