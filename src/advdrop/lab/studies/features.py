"""Figure 2: the features of an autoencoder, as a short text."""

from __future__ import annotations

import base64
import zlib

import torch
from torch import Tensor

from advdrop import checks
from advdrop.lab.records.measurement import LEVELS


def order(activations: Tensor) -> Tensor:
    """The units sorted by mean activation, the largest first, ``(H,)``; dead units are last."""
    return activations.mean(0).argsort(descending=True, stable=True)


def packed(weights: Tensor) -> tuple[str, float]:
    """Weights ``(H, D)`` as a short text, and the weight that its highest level stands for.

    One weight in 1,000 may be larger and is clipped, so that a single weight does not determine the scale.
    """
    checks.finite("weights", weights)
    flat = weights.abs().flatten()
    scale = float(flat.kthvalue(max(1, round(0.999 * len(flat))))[0]) or 1.0
    levels = (weights / scale * LEVELS).round().clamp(-LEVELS, LEVELS).to(torch.int8)
    return base64.b85encode(zlib.compress(levels.numpy().tobytes(), 9)).decode(), scale
