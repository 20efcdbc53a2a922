"""The error of a network, measured on one device, with every image exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from advdrop.lab.data.examples import Examples
from advdrop.lab.data.preprocess import Preprocess
from advdrop.lab.engine.progress import track


@torch.no_grad()
def predictions(
    network: nn.Module, x: Tensor, preprocess: Preprocess, batch: int = 500, progress: bool = False
) -> Tensor:
    """Return the class of each example, ``(N,)`` on the CPU.

    Args:
        network: from ``(B, ...)`` to logits ``(B, C)``.
        x: examples as they were stored, ``(N, ...)``.
        preprocess: applied to each batch.
        batch: the number of examples in a batch.
        progress: whether to show a bar on a terminal.
    """
    device = next(network.parameters()).device
    preprocess = preprocess.to(device)
    with eval_mode(network):
        parts = track(x.split(batch), "evaluating", progress)
        return torch.cat([network(preprocess(part.to(device))).argmax(1) for part in parts]).cpu()


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[None]:
    """Put the network into evaluation mode; afterward, every module has the mode that it had before."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def error_percent(network: nn.Module, examples: Examples, preprocess: Preprocess) -> float:
    """Return the share of wrong predictions, in percent."""
    wrong = int((predictions(network, examples.x, preprocess) != examples.y).sum())
    return 100.0 * wrong / len(examples)
