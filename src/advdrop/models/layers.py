"""Small layers that torch does not have."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from advdrop import checks


class GaussianNoise(nn.Module):
    """x + γ, γ ~ N(0, σ²), in training; nothing in evaluation.

    Args:
        sigma: σ; 0 turns the noise off.
    """

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


def he_initialised(model: nn.Module, slope: float = 0.0) -> None:
    """He initialisation (fan-in) of every convolution and dense layer, for leaky ReLUs of this slope; biases zero."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, a=slope)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
