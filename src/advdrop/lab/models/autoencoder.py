"""The autoencoder of the paper's sparsity study (Figures 2 and 3)."""

from __future__ import annotations

from typing import Literal, get_args

from torch import nn

from advdrop import checks
from advdrop.lab.models import shapes
from advdrop.lab.models.layers import glorot_initialized, he_initialized
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

    The output is the reconstruction of the flattened example, and no logits: its D is the quadratic error, the mean
    over the D values of (x − x̂)². The divergences of ``advdrop`` would first put a softmax over the pixels.

    Args:
        layer: the AdversarialDropout layer; by default the paper's p = 0.5, δ = 0.3.
        shape: one example's shape; it is flattened.
        hidden: the number of hidden units.
        initialization: Glorot's, or He's, with which more than half of the units die in the first updates on MNIST,
            with or without dropout.

    Shape: ``(B, *shape) -> (B, D)``, D the number of values in one example.

    References: Park et al. (2018), section "Experiments", the visualization of autoencoders.

    Deviations: none known; the paper gives no activation for the output and no initialization, and its weights are not
    tied here.
    """
    values = shapes.features("autoencoder", shape)
    checks.count("hidden", hidden)
    checks.choice("initialization", initialization, get_args(Initialization))
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(values, hidden),
        nn.ReLU(),
        layer if layer is not None else AdversarialDropout(p=0.5, delta=0.3),
        nn.Linear(hidden, values),
    )
    if initialization == "he":
        he_initialized(model)
    else:
        glorot_initialized(model)
    return model
