"""How to read what a network returns: where the logits and their classes are, and which places count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from advdrop import checks
from advdrop.outputs import part_of
from advdrop.step.inputs import Inputs

Logits = Callable[[Any], Tensor] | int | str | None
"""How to get the logits from what a network returns: a function, a position in a tuple, or a key. None: the output has
an attribute or a key ``logits``. If the output is a tensor, it is the logits, unless there is a function."""

Classes = Literal[1, -1]
"""The dimension of the classes in the logits: 1 for ``(B, C, *D)``, -1 for ``(B, *D, C)``."""

Mask = Callable[[Any], Tensor] | int | str | None
"""Where among the inputs the mask of the places that count is: a key, a position in a tuple, or a function of them."""

ATTENTION_MASK = "attention_mask"


@dataclass(frozen=True)
class Outputs:
    """How to read what a network returns. All terms get logits ``(B, C, *D)`` and labels ``(B, *D)``.

    Args:
        logits: where the logits are.
        classes: the dimension of the classes.
        ignore_index: the label of places, or whole examples, that have no label.
        mask: where among the inputs the mask of the places is. Inputs without the default name have no mask.
    """

    logits: Logits = None
    classes: Classes = 1
    ignore_index: int | None = None
    mask: Mask = ATTENTION_MASK

    def __post_init__(self) -> None:
        if self.classes not in (1, -1):
            raise ValueError(f"classes must be 1 for outputs (B, C, *D) or -1 for (B, *D, C), got {self.classes!r}")
        if self.ignore_index is not None:
            checks.count("ignore_index", self.ignore_index, least=-(2**31))

    def find(self, output: Any) -> Tensor:
        """Return the logits in what the network returned, ``(B, C, *D)``."""
        found = output
        if callable(self.logits):
            found = self.logits(output)
        elif not isinstance(output, Tensor):  # a network with auxiliary outputs may return a tensor in evaluation mode
            found = part_of(output, "logits" if self.logits is None else self.logits)
        if not isinstance(found, Tensor) or found.dim() < 2:
            shown = tuple(found.shape) if isinstance(found, Tensor) else type(output).__name__
            way = (  # an audit and an explanation have no option for that
                "; say where they are with Step(..., logits=...), a position, a name or a function, or wrap the "
                "network in a module that returns them"
            )
            if isinstance(found, Tensor):
                way = "; if it is one value per example, use Step(..., logits=lambda output: output.unsqueeze(1))"
                way = way if found.dim() == 1 and self.logits is None and found is output else ""
            elif self.logits is not None:
                way = f" without {self.logits!r}"
            raise ValueError(f"the network must return logits (B, C) or (B, C, *D), got {shown}{way}")
        return self.classes_second(found)

    def classes_second(self, tensor: Tensor) -> Tensor:
        """Return ``(B, *D, C)`` as ``(B, C, *D)`` if the classes are last."""
        return tensor.movedim(-1, 1) if self.classes == -1 and tensor.dim() > 2 else tensor

    def labels(self, y: Tensor) -> Tensor:
        """Return integer labels ``(B, *D)`` with 0 in the places that have none, or other targets ``(B, C, *D)``."""
        if y.is_floating_point() or y.dtype == torch.bool:
            return self.classes_second(y)
        return y if self.ignore_index is None else y.masked_fill(y == self.ignore_index, 0)

    def labeled(self, y: Tensor, logits: Tensor) -> Tensor | None:
        """Return which places have a label, ``(B, *D)``; None if all have."""
        if self.ignore_index is None or y.is_floating_point() or y.dtype == torch.bool:
            return None
        if 0 <= self.ignore_index < logits.shape[1]:
            raise ValueError(
                f"ignore_index={self.ignore_index} is also one of the classes 0..{logits.shape[1] - 1} of the network; "
                f"give the places without a label another number, y.masked_fill(unlabeled, -100)"
            )
        if self.classes_second(y).shape == logits.shape:  # multi-label targets, not labels
            return None
        checks.labels_fit(y, logits)
        return y != self.ignore_index

    def places(self, inputs: Inputs) -> Tensor | None:
        """Return the mask of the places that count; None if the inputs have none."""
        if self.mask is None:
            return None
        found = self.mask(inputs) if callable(self.mask) else part_of(inputs, self.mask)
        if isinstance(found, Tensor):
            return found
        if self.mask == ATTENTION_MASK:
            return None
        shown = list(inputs) if hasattr(inputs, "keys") else type(inputs).__name__
        raise ValueError(
            f"mask={self.mask!r} is not a tensor among the inputs {shown}; use Step(..., mask=None) if all count"
        )


def counting(mask: Tensor) -> Tensor:
    """Return which places count, ``(B, *D)``, or raise an error if a mask is one to add to attention scores."""
    if mask.is_floating_point() and checks.due("mask", mask) and bool((mask < 0.0).any()):
        raise ValueError(
            f"the mask of the places must be 0 where they do not count, got values down to {mask.min().item():g}; a "
            "mask that is added to attention scores is 0 where they do: Step(..., mask=lambda inputs: "
            "inputs['attention_mask'] == 0)"
        )
    return mask != 0
