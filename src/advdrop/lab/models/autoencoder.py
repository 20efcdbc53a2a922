"""The autoencoder of the paper's sparsity study (Figures 2 and 3)."""

from __future__ import annotations

import math
from typing import Literal, get_args

from torch import nn

from advdrop import checks
from advdrop.lab.models.layers import he_initialized
from advdrop.masks import AdversarialDropout

Initialization = Literal["glorot", "he"]


def autoencoder(
    layer: AdversarialDropout | None = None,
    shape: tuple[int, ...] = (1, 28, 28),
    *,
    hidden: int = 256,
    initialization: Initialization = "glorot",
) -> nn.Sequential:
    """One hidden layer of 256 ReLU units, adversarial dropout on them, a linear decoder.

    The output is the reconstruction of the flattened example. It has no logits: its divergence is the quadratic error,
    the mean of (x − x̂)². The other divergences of ``advdrop`` apply a softmax to the pixels.

    Args:
        layer: the AdversarialDropout layer; by default the paper's p = 0.5, δ = 0.3.
        shape: one example's shape; it is flattened.
        hidden: the number of hidden units.
        initialization: Glorot's, or He's, with which more than half of the units die in the first updates on MNIST,
            with or without dropout.

    Shape: ``(B, *shape) -> (B, D)``, D being the number of values in one example.

    References: Park et al. (2018), section "Experiments", the visualization of autoencoders.

    Deviations: none known. The paper gives no activation of the output and no initialization. The weights are not tied.
    """
    values = math.prod(shape)
    checks.count("hidden", hidden)
    checks.choice("initialization", initialization, get_args(Initialization))
    encoder, decoder = nn.Linear(values, hidden), nn.Linear(hidden, values)
    model = nn.Sequential(nn.Flatten(), encoder, nn.ReLU(), layer or AdversarialDropout(p=0.5, delta=0.3), decoder)
    if initialization == "he":
        return he_initialized(model)
    for dense in (encoder, decoder):
        nn.init.xavier_uniform_(dense.weight)
        nn.init.zeros_(dense.bias)
    return model
