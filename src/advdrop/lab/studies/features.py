"""Figure 2: what each hidden unit of an autoencoder looks for."""

from __future__ import annotations

import base64
import zlib

import torch
from torch import Tensor, nn

from advdrop import checks
from advdrop.lab.records.measurement import LEVELS
from advdrop.lab.studies.autoencoders import encoder


def features(model: nn.Module) -> Tensor:
    """The weights from the input to each hidden unit, ``(H, D)``."""
    linear = next(layer for layer in encoder(model).modules() if isinstance(layer, nn.Linear))
    return linear.weight.detach()


def order(activations: Tensor) -> Tensor:
    """The units by their mean activation, the strongest first, ``(H,)``: dead ones come last."""
    return activations.mean(0).argsort(descending=True, stable=True)


def packed(weights: Tensor) -> tuple[str, float]:
    """Weights ``(H, D)`` as a short text, and the size that its largest step stands for.

    Of 1,000 weights one may be larger than that and is cut off, so that a single one does not set the scale.
    """
    checks.finite("weights", weights)
    flat = weights.abs().flatten()
    scale = float(flat.kthvalue(max(1, round(0.999 * len(flat))))[0]) or 1.0
    steps = (weights / scale * LEVELS).round().clamp(-LEVELS, LEVELS).to(torch.int8)
    return base64.b85encode(zlib.compress(steps.numpy().tobytes(), 9)).decode(), scale
