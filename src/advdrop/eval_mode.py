"""Evaluation mode for the length of a ``with`` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode; on exit, restore the mode of each module.

    >>> model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    >>> with eval_mode(model):
    ...     [module.training for module in model]
    [False, False]
    >>> [module.training for module in model]
    [True, False]
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        # ``train`` of a module may do more than set its mode, such as split weights that ``eval`` has merged. It also
        # sets the modes of the modules inside, so every mode is set once more.
        for module, training in modes.items():
            if module.training != training:
                module.train(training)
        for module, training in modes.items():
            module.training = training
