"""The error of a network: one device, every image exactly once."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from tqdm import tqdm

from advdrop.lab.data.examples import Examples
from advdrop.lab.data.preprocess import Preprocess


@torch.no_grad()
def predictions(
    network: nn.Module, x: Tensor, preprocess: Preprocess, batch: int = 500, progress: bool = False
) -> Tensor:
    """The class of each example, ``(N,)`` on the CPU; the network is left in the mode it was in.

    Args:
        network: from ``(B, ...)`` to logits ``(B, C)``.
        x: examples as they were stored, ``(N, ...)``.
        preprocess: applied to each batch.
        batch: how many at a time.
        progress: whether to show a bar, if there is a terminal to show it on.
    """
    device = next(network.parameters()).device
    preprocess = preprocess.to(device)
    was_training = network.training
    network.eval()
    try:
        parts = tqdm(x.split(batch), desc="evaluating", leave=False, disable=None if progress else True)
        return torch.cat([network(preprocess(part.to(device))).argmax(1) for part in parts]).cpu()
    finally:
        network.train(was_training)


def error_percent(network: nn.Module, examples: Examples, preprocess: Preprocess) -> float:
    """The share of wrong predictions, in percent."""
    wrong = int((predictions(network, examples.x, preprocess) != examples.y).sum())
    return 100.0 * wrong / len(examples)
