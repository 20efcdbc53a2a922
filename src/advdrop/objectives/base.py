"""The base of every objective: a weighted sum of terms, each with one value per example.

An objective is written like the paper's formula::

    CrossEntropy() + Ramp(1.0, over=0.3) * VAdD(delta=0.05)                        # formula 6
    CrossEntropy() + Ramp(1.0, over=0.3) * VAdD(delta=0.05) + VAT(epsilon=8.0)     # formula 7
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, final

from torch import Tensor, nn

from advdrop.hidden import Place
from advdrop.schedules import Schedule

if TYPE_CHECKING:
    from advdrop.step.batch import Rows
    from advdrop.step.passes import Passes, Repeated, View

Weight = float | Schedule

WeightedTerm = tuple[tuple[Weight, ...], "Term"]
"""The factors of the weight of a term, and the term."""


@cache
def _lower_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z][a-z]{2})", "_", name).lower()


class Objective(ABC):
    """A weighted sum of terms. Add objectives with ``+``; multiply them with a number or a schedule.

    An objective is a formula. :class:`advdrop.Step` evaluates it on a network and a batch.
    """

    @property
    @abstractmethod
    def parts(self) -> tuple[WeightedTerm, ...]:
        """The terms, each with the factors of its weight."""

    def named_parts(self) -> dict[str, WeightedTerm]:
        """Return the parts by the names of their terms. If several terms have one name, a number is appended."""
        named: dict[str, WeightedTerm] = {}
        for part in self.parts:
            name, number = part[1].name, 2
            while name in named:
                name, number = f"{part[1].name}_{number}", number + 1
            named[name] = part
        return named

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each term that has one."""
        return {name: state for name, (_, term) in self.named_parts().items() if (state := term.term_state())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned."""
        terms = {name: term for name, (_, term) in self.named_parts().items() if term.term_state()}
        if terms.keys() != state.keys():
            raise ValueError(f"this objective needs the state of {sorted(terms)}, got that of {sorted(state)}")
        for name, term in terms.items():
            term.load_term_state(state[name])

    def __add__(self, other: Objective) -> Objective:
        if not isinstance(other, Objective):
            return NotImplemented
        return Combination(self.parts + other.parts)

    def __radd__(self, other: object) -> Objective:
        return self if other == 0 else NotImplemented  # so that sum() works

    def __mul__(self, weight: Weight) -> Objective:
        if isinstance(weight, Objective | type) or not (callable(weight) or isinstance(weight, int | float)):
            return NotImplemented
        if not callable(weight) and not 0.0 <= weight < math.inf:
            raise ValueError(f"a weight must be finite and not negative, got {weight!r}")
        return Combination(tuple(((*factors, weight), term) for factors, term in self.parts))

    __rmul__ = __mul__


class Term(Objective):
    """One term of an objective: a value for each of the rows it runs on.

    To write a term, set ``rows`` and implement :meth:`per_example`. The properties tell a step which passes the term
    will need.
    """

    rows: Rows
    """The rows the term runs on."""

    @property
    def views(self) -> tuple[View, ...]:
        """The passes on its rows that the term will need and that do not depend on each other."""
        return ("clean",)

    @property
    def repeated(self) -> Repeated:
        """The part of the network that the term runs again with the noise of the clean pass."""
        return "nothing"

    @property
    def input_gradient(self) -> bool:
        """Whether the term differentiates the labeled clean pass with respect to its input."""
        return False

    @property
    def searches_clean(self) -> bool:
        """Whether the term runs the upper part of the clean pass again with other masks."""
        return False

    @property
    def hidden(self) -> tuple[Place, ...]:
        """The modules whose outputs in the clean passes the term will need, by name or by class."""
        return ()

    @property
    def trained(self) -> nn.Module | None:
        """A module that is trained with the network and is not part of it. A step holds it and saves it."""
        return None

    @property
    def opponent(self) -> Objective | None:
        """What another player minimizes after each update with its ``trained`` modules alone, such as a generator."""
        return None

    @property
    def name(self) -> str:
        """The key of the term in ``Loss.terms``, such as ``cross_entropy``."""
        return _lower_case(type(self).__name__)

    @property
    def parts(self) -> tuple[WeightedTerm, ...]:
        """The term itself, without a weight."""
        return (((), self),)

    @abstractmethod
    def per_example(self, passes: Passes) -> Tensor:
        """Return the value for each of the rows, ``(B,)``."""

    def attach(self, model: nn.Module) -> None:
        """Prepare the term for a network. A step calls this once, before the first batch."""
        del model

    def term_state(self) -> dict[str, Tensor]:
        """Return what a checkpoint must contain; most terms have no state."""
        return {}

    def load_term_state(self, state: dict[str, Tensor]) -> None:
        """Load what ``term_state`` returned."""
        del state


@final
@dataclass(frozen=True)
class Combination(Objective):
    """The result of ``+`` and ``*``."""

    terms: tuple[WeightedTerm, ...]

    @property
    def parts(self) -> tuple[WeightedTerm, ...]:
        """The terms and their weights."""
        return self.terms
