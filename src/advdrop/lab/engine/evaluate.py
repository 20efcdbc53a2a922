"""The error of a network, measured on one device, with every image exactly once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from advdrop.eval_mode import eval_mode
from advdrop.lab.data.examples import Examples
from advdrop.lab.data.preprocess import Preprocess


@torch.no_grad()
def predictions(
    network: nn.Module, x: Tensor, preprocess: Preprocess, batch: int = 500, progress: bool = False
) -> Tensor:
    """Return the class of each example, ``(N,)`` on the CPU. Every module of the network keeps its mode.

    Args:
        network: from ``(B, ...)`` to logits ``(B, C)``.
        x: examples as they were stored, ``(N, ...)``.
        preprocess: applied to each batch.
        batch: the number of examples in a batch.
        progress: whether to show a bar on a terminal.
    """
    from rich.console import Console
    from rich.progress import track

    device = next(network.parameters()).device
    preprocess = preprocess.to(device)
    console = Console(stderr=True)
    parts = x.split(batch)
    shown = track(parts, "evaluating", console=console, transient=True) if progress and console.is_terminal else parts
    with eval_mode(network):
        return torch.cat([network(preprocess(part.to(device))).argmax(1) for part in shown]).cpu()


def error_percent(network: nn.Module, examples: Examples, preprocess: Preprocess) -> float:
    """Return the share of wrong predictions, in percent."""
    wrong = int((predictions(network, examples.x, preprocess) != examples.y).sum())
    return 100.0 * wrong / len(examples)
