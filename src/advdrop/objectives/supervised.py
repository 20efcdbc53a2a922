"""The supervised loss l(y, f(x)), whatever the labels are."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from advdrop.objectives.base import Term

if TYPE_CHECKING:
    from advdrop.step.batch import Rows
    from advdrop.step.passes import Passes


@dataclass
class Supervised(Term):
    """A loss of the labeled rows. Methods with a loss of two passes, such as R-Drop, take one as ``loss=``."""

    rows: Rows = field(default="labeled", init=False, repr=False)

    @abstractmethod
    def of(self, passes: Passes, logits: Tensor) -> Tensor:
        """Return the loss of each labeled row at these logits, ``(B,)``."""

    def per_example(self, passes: Passes) -> Tensor:
        """Return the loss of the clean pass, ``(B,)``."""
        return self.of(passes, passes.clean(self.rows).logits)


def checked(loss: object) -> None:
    """Raise an error unless an option ``loss`` is a supervised loss."""
    if isinstance(loss, type) or not hasattr(loss, "of"):
        raise TypeError(f"loss must be a supervised loss such as CrossEntropy(), got {loss!r}")
