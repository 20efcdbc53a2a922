"""An ensemble of small networks that run as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from advdrop.masks import AdversarialDropout


class MemberLinear(nn.Module):
    """K linear layers, one for each member of an ensemble, in one batched product.

    Weights have He's initialization (fan-in), biases are zero.

    Args:
        members: K.
        inputs: D, the number of input features of each member.
        outputs: H, the number of output features of each member.
        shared: whether all members have the same input.

    Shape: ``(K·B, D) -> (K·B, H)``, the rows of the first member first; ``(B, D) -> (K·B, H)`` if the input is shared.
    """

    def __init__(self, members: int, inputs: int, outputs: int, shared: bool = False) -> None:
        super().__init__()
        self.members, self.shared = members, shared
        self.weight = nn.Parameter(torch.randn(members, inputs, outputs) * math.sqrt(2 / inputs))
        self.bias = nn.Parameter(torch.zeros(members, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all members."""
        rows = x.expand(self.members, *x.shape) if self.shared else x.unflatten(0, (self.members, -1))
        return torch.baddbmm(self.bias, rows, self.weight).flatten(0, 1)

    def extra_repr(self) -> str:
        """Return the sizes."""
        members, inputs, outputs = self.weight.shape
        return f"members={members}, inputs={inputs}, outputs={outputs}, shared={self.shared}"


def perceptrons(members: int, units: Sequence[int], outputs: int, layer: AdversarialDropout) -> nn.Sequential:
    """Return K multilayer perceptrons with ReLU as one network, with this layer on their last hidden units.

    Args:
        members: K.
        units: the number of features, then that of each hidden layer.
        outputs: C.
        layer: the AdversarialDropout layer.

    Shape: ``(B, D) -> (K·B, C)``, the rows of the first member first.

    >>> perceptrons(3, [4, 8], 2, AdversarialDropout(p=0.5))
    Sequential(
      (0): MemberLinear(members=3, inputs=4, outputs=8, shared=True)
      (1): ReLU()
      (2): AdversarialDropout(p=0.5, delta=0.05, scale='inverted', granularity='unit')
      (3): MemberLinear(members=3, inputs=8, outputs=2, shared=False)
    )
    """
    below = [
        module
        for depth, (inputs, hidden) in enumerate(pairwise(units))
        for module in (MemberLinear(members, inputs, hidden, shared=depth == 0), nn.ReLU())
    ]
    return nn.Sequential(*below, layer, MemberLinear(members, units[-1], outputs))
