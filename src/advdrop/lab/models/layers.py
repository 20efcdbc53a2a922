"""Small layers that torch does not have, and what the networks share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from advdrop import checks
from advdrop.masks.bernoulli import bernoulli_like


class Dropout(nn.Dropout):
    """``nn.Dropout`` with the faster masks of :mod:`advdrop.masks.bernoulli`: the same distribution, other draws.

    >>> Dropout(0.5).eval()(torch.ones(2))
    tensor([1., 1.])
    """

    rowwise = "noisy"  # see advdrop.step.together

    def forward(self, x: Tensor) -> Tensor:
        """Any shape to the same."""
        if not self.training or self.p == 0.0:
            return x
        if torch.compiler.is_compiling():  # a compiler fuses torch's own dropout and cannot trace these draws
            return super().forward(x)
        keep = 1.0 - self.p
        return x * bernoulli_like(x, keep, value=1.0 / keep if keep else 0.0)


class GaussianNoise(nn.Module):
    """x + γ, γ ~ N(0, σ²), in training; the identity in evaluation.

    Args:
        sigma: σ; 0 turns the noise off.
    """

    rowwise = "noisy"  # see advdrop.step.together

    def __init__(self, sigma: float) -> None:
        super().__init__()
        self.sigma = checks.not_negative("sigma", sigma)

    def forward(self, x: Tensor) -> Tensor:
        """Any shape to the same."""
        return x + self.sigma * torch.randn_like(x) if self.training and self.sigma else x


class MeanOnlyBatchNorm2d(nn.Module):
    """x − μ + b for each channel: batch norm that does not change the variance.

    μ is the mean over the batch and the pixels in training, and the running mean in evaluation. Gradients flow
    through μ.

    Args:
        features: the number of channels.
        momentum: the share of a new mean in the running mean, as in torch.

    Shape: ``(B, features, H, W)`` to the same.

    References: Salimans and Kingma (2016), Weight Normalization, section 4.
    """

    running_mean: Tensor

    def __init__(self, features: int, momentum: float = 0.1) -> None:
        super().__init__()
        self.momentum = momentum
        self.track_running_stats = True  # advdrop.step.batch_norm turns it off for some passes
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        """The same shape, centered."""
        mean = self.running_mean
        if self.training:
            # In float32 at least, as in torch. A sum, because the gradient of torch's mean is divided for each pixel.
            mean = x.sum((0, 2, 3), dtype=torch.promote_types(x.dtype, torch.float32)) / x[:, 0].numel()
            if self.track_running_stats:
                self.running_mean.lerp_(mean.detach().to(self.running_mean.dtype), self.momentum)
        return x + (self.bias - mean).to(x.dtype).view(1, -1, 1, 1)


def he_initialized(model: nn.Sequential, slope: float = 0.0) -> nn.Sequential:
    """Initialize a model as He et al. do (fan-in), for leaky ReLUs of this slope; biases are zero."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            if parametrize.is_parametrized(module, "weight"):
                # This weight is recomputed at every access: only an assignment changes the tensors behind it.
                module.weight = nn.init.kaiming_normal_(torch.empty_like(module.weight), a=slope)
            else:
                nn.init.kaiming_normal_(module.weight, a=slope)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def image_shape(network: str, shape: Sequence[int], least: int = 1) -> tuple[int, int, int]:
    """Return C, H and W of one image with at least ``least`` pixels a side, or an error that names the network."""
    if len(shape) != 3 or shape[0] < 1 or min(shape[1:]) < least:
        raise ValueError(
            f"{network} needs images (C, H, W) of at least {least} x {least} pixels, got shape {tuple(shape)}; "
            "pad or enlarge them, or use mlp, which takes any shape"
        )
    channels, height, width = shape
    return channels, height, width
