"""The error of a network, measured on one device, with every image exactly once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from advdrop.eval_mode import eval_mode
from advdrop.lab.data.examples import Examples
from advdrop.lab.data.preprocess import Preprocess

BATCH = 500
"""How many examples are evaluated at a time. The last bits of the outputs may depend on it."""


@torch.no_grad()
def outputs(network: nn.Module, x: Tensor, preprocess: Preprocess, batch: int = BATCH) -> Tensor:
    """Return the logits of each stored example in x, ``(N, C)`` on the CPU. Every module keeps its mode."""
    device = next(network.parameters()).device
    preprocess = preprocess.to(device)
    with eval_mode(network):
        return torch.cat([network(preprocess(part.to(device))) for part in x.split(batch)]).cpu()


def error_percent(network: nn.Module, examples: Examples, preprocess: Preprocess) -> float:
    """Return the share of wrong predictions, in percent."""
    wrong = int((outputs(network, examples.x, preprocess).argmax(1) != examples.y).sum())
    return 100.0 * wrong / len(examples)
