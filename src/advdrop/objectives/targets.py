"""The target g of the general term of formula 3: what the adversarial output is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from advdrop import checks
from advdrop.divergences import Given

if TYPE_CHECKING:
    from advdrop.step.batch import Rows
    from advdrop.step.passes import Passes

Target = Callable[[Any, Any], Tensor]
"""g: a function that takes the passes of the step and the rows of the term, and returns labels ``(B,)``, or logits or
probabilities ``(B, C)``."""


@dataclass(frozen=True, eq=False)
class Teacher:
    """Another network as the target, g(x) = h(x) in evaluation mode and without gradients.

    It gets the same inputs as the network that is trained and must have the same outputs; otherwise it may be of any
    architecture. If it returns a tensor, that is its logits; otherwise they are found as those of the network. If both
    return a tensor, and ``Step(..., logits=...)`` is a function, the function is for both.

    Args:
        network: the teacher. It is moved to the device of the batch.
    """

    network: nn.Module

    def __call__(self, passes: Passes, rows: Rows) -> Tensor:
        """Return the output of the teacher, as logits."""
        first = next(self.network.parameters(), None)
        if first is not None and first.device != passes.batch.device:
            self.network.to(passes.batch.device)
        own, taught = passes.clean(rows).logits, passes.taught(self.network, rows)
        name = type(self.network).__name__
        if taught.shape != own.shape:
            raise ValueError(
                f"the teacher {name} returns {tuple(taught.shape)} and the network {tuple(own.shape)}: a target needs "
                "the same outputs, for the same classes in the same order; give the teacher a head with as many outputs"
            )
        checks.finite(f"the output of the teacher {name}", taught, "the teacher itself is broken: check its weights")
        return taught


def labels(passes: Passes, rows: Rows) -> Tensor:
    """Return g(y) = y, the target of SAdD."""
    if rows != "labeled":
        raise ValueError(f"labels are the target of labeled rows only, got rows={rows!r}")
    return passes.labels()


def clean_output(passes: Passes, rows: Rows) -> Tensor:
    """Return g(x, θ) = f(x, εs), the target of VAdD."""
    return passes.clean(rows).logits


def steady_output(passes: Passes, rows: Rows) -> Tensor:
    """Return g(x, θ) = f(x) in evaluation mode, without any noise, as a constant.

    It is the best guess that the network has. It takes one more pass, without gradients.
    """
    return passes.steady(rows)


@dataclass(frozen=True)
class OtherMembers:
    """The mean output of the other members of an ensemble: gₖ(x) = 1/(K − 1) Σⱼ≠ₖ softmax fⱼ(x, εs).

    The network holds K members and returns their outputs one below the other, ``(K·B, C)``. The target is
    probabilities: use it with ``given="probabilities"``.

    Args:
        members: K, at least 2.
        values: whether the outputs are values and not logits, as in regression; then there is no softmax.
        groups: the number of groups of equal size that the members form, in order. A member's target comes from its
            group.

    >>> from advdrop.objectives import VAdD
    >>> VAdD(target=OtherMembers(3), given="probabilities").name
    'vadd_kl'
    """

    members: int
    values: bool = False
    groups: int = 1

    def __post_init__(self) -> None:
        checks.count("members", self.members, least=2)
        if self.members % checks.count("groups", self.groups) or self.members < 2 * self.groups:
            raise ValueError(
                f"{self.members} members do not form {self.groups} groups of equal size with at least two members each"
            )

    def __call__(self, passes: Passes, rows: Rows) -> Tensor:
        """Return gₖ for each member and row, ``(K·B, C)``."""
        outputs = passes.clean(rows).logits
        members = self.members // self.groups
        own = (outputs if self.values else outputs.softmax(1)).unflatten(0, (self.groups, members, -1))
        others: Tensor = (own.sum(1, keepdim=True) - own) / (members - 1)
        return others.flatten(0, 2)


@torch.no_grad()
def confidence(target: Tensor, given: Given, power: float) -> Tensor:
    """Return ((max_c g_c − 1/C) / (1 − 1/C))^power, ``(B,)``: 0 for the uniform distribution, 1 for a certain one.

    Labels and a single class are certain.

    >>> confidence(torch.tensor([[0.5, 0.5], [0.0, 1.0], [0.25, 0.75]]), "probabilities", 1.0)
    tensor([0.0000, 1.0000, 0.5000])
    """
    if not target.is_floating_point() or target.shape[1] == 1:
        return torch.ones(len(target), device=target.device)
    classes = target.shape[1]
    top = (target if given == "probabilities" else target.softmax(1)).amax(1)
    return ((top - 1 / classes) / (1 - 1 / classes)).clamp_min(0.0).pow(power)
