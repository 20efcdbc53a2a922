"""Small layers that torch does not have."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from advdrop import checks
from advdrop.masks.bernoulli import bernoulli_like


class Dropout(nn.Dropout):
    """``nn.Dropout`` with masks from whole random words (:mod:`advdrop.masks.bernoulli`): the same law, other draws.

    >>> Dropout(0.5).eval()(torch.ones(2))
    tensor([1., 1.])
    """

    rowwise = "noisy"  # see advdrop.step.together

    def forward(self, x: Tensor) -> Tensor:
        """Any shape to the same."""
        if not self.training or self.p == 0.0:
            return x
        if torch.compiler.is_compiling():  # a compiler fuses torch's own, and does not know these draws
            return super().forward(x)
        keep = 1.0 - self.p
        return x * bernoulli_like(x, keep, value=1.0 / keep if keep else 0.0)


class GaussianNoise(nn.Module):
    """x + γ, γ ~ N(0, σ²), in training; nothing in evaluation.

    Args:
        sigma: σ; 0 turns the noise off.
    """

    rowwise = "noisy"  # see advdrop.step.together

    def __init__(self, sigma: float) -> None:
        super().__init__()
        if sigma != 0.0:
            checks.positive("sigma", sigma)
        self.sigma = sigma

    def forward(self, x: Tensor) -> Tensor:
        """Any shape to the same."""
        return x + self.sigma * torch.randn_like(x) if self.training and self.sigma else x

    def extra_repr(self) -> str:
        """The option, as it would be typed."""
        return f"sigma={self.sigma}"


class MeanOnlyBatchNorm2d(nn.Module):
    """x − μ + b for each channel: batch norm that leaves the variance alone.

    μ is the mean over the batch and the pixels in training, and the running mean in evaluation. Gradients flow
    through μ.

    Args:
        features: the number of channels.
        momentum: the share of a new mean in the running one, as in torch.
        track_running_stats: whether there is a running mean; without it the batch's is used in evaluation too.

    Shape: ``(B, features, H, W)`` to the same.

    References: Salimans and Kingma (2016), Weight Normalization, section 4.
    """

    running_mean: Tensor | None

    def __init__(self, features: int, momentum: float = 0.1, track_running_stats: bool = True) -> None:
        super().__init__()
        self.features = checks.count("features", features)
        self.momentum = checks.fraction("momentum", momentum)
        self.track_running_stats = track_running_stats
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features) if track_running_stats else None)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape, centered."""
        if x.dim() != 4 or x.shape[1] != self.features:
            raise ValueError(f"MeanOnlyBatchNorm2d expected (B, {self.features}, H, W), got {tuple(x.shape)}")
        mean = self.running_mean
        if self.training or mean is None:
            # A mean of half-precision activations is taken in the precision of the parameters, as torch's norms do.
            mean = x.mean((0, 2, 3), dtype=torch.promote_types(x.dtype, self.bias.dtype))
            if self.training and self.track_running_stats and self.running_mean is not None:
                self.running_mean.lerp_(mean.detach().to(self.running_mean.dtype), self.momentum)
        return x + (self.bias - mean).to(x.dtype).view(1, -1, 1, 1)

    def extra_repr(self) -> str:
        """The options, as they would be typed."""
        return f"{self.features}, momentum={self.momentum}, track_running_stats={self.track_running_stats}"


def he_initialized(model: nn.Module, slope: float = 0.0) -> None:
    """He initialization (fan-in) of every convolution and dense layer, for leaky ReLUs of this slope; biases zero."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            if parametrize.is_parametrized(module, "weight"):
                # This weight is computed anew at every access: only an assignment reaches the tensors behind it.
                fresh = torch.empty_like(module.weight)
                module.weight = nn.init.kaiming_normal_(fresh, a=slope)
            else:
                nn.init.kaiming_normal_(module.weight, a=slope)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def glorot_initialized(model: nn.Module) -> None:
    """Glorot's uniform initialization of every dense layer; biases zero."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
