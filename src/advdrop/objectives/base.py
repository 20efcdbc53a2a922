"""What every objective is: terms, each per example until it is reduced, added up with weights.

The paper's formulas read as they are written::

    CrossEntropy() + Ramp(1.0, over=0.3) * VAdD(delta=0.05)                        # formula 6
    CrossEntropy() + Ramp(1.0, over=0.3) * VAdD(delta=0.05) + VAT(epsilon=8.0)     # formula 7
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from advdrop import checks
from advdrop.batch import Batch, Rows
from advdrop.objectives.passes import Passes, Replayed, View
from advdrop.schedules import Schedule
from advdrop.statistics import MOVING
from advdrop.vocabulary import PassName

Weight = float | Schedule


@dataclass(frozen=True)
class Loss:
    """The value of an objective.

    Args:
        total: Σ λ·term, a scalar to call ``backward()`` on.
        terms: the mean of each term before its weight, detached.
        weights: λ of each term at this progress.
        measures: what the terms measured of themselves, if asked to, such as ``vadd_kl/flips``; detached.
    """

    total: Tensor
    terms: dict[str, Tensor]
    weights: dict[str, float]
    measures: dict[str, Tensor]


class Objective(ABC):
    """A weighted sum of terms. Add objectives with ``+``; weight them with ``*`` and a number or a schedule."""

    @property
    @abstractmethod
    def parts(self) -> tuple[tuple[tuple[Weight, ...], Term], ...]:
        """Each term behind the factors of its weight."""

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        *,
        progress: float = 1.0,
        generator: torch.Generator | None = None,
        moving: Collection[PassName] = MOVING,
        measure: bool = False,
    ) -> Loss:
        """Run the passes and add up the terms.

        Args:
            model: the network, in training mode; its output is logits ``(B, C)``.
            batch: the rows of this step.
            progress: the share of the training that is done, in [0, 1]; schedules depend on it.
            generator: the randomness of masks and perturbations, on the device of the batch. Without it, one draw from
                the global generator seeds them.
            moving: the passes that may move running batch-norm statistics, see ``advdrop.statistics``.
            measure: whether the terms measure themselves: the flips that a mask search made, and so on.
        """
        checks.fraction("progress", progress)
        wants_gradient = any(term.input_gradient for _, term in self.parts)
        ahead = [(term.rows, view) for _, term in self.parts for view in term.ahead]
        replayed = max((term.replayed for _, term in self.parts), key=("nothing", "upper", "all").index)
        passes = Passes(model, batch, generator, moving, wants_gradient, measure, ahead, replayed)
        terms, weights, measures, total = {}, {}, {}, None
        for name, (factors, term) in self.named_parts().items():
            checks.choice("rows", term.rows, ("labelled", "unlabelled"))
            try:
                value = term.per_example(passes).mean()
            except checks.NonFiniteError as error:
                raise checks.NonFiniteError(f"{name}: {error}") from None
            weight = math.prod(factor(progress) if callable(factor) else factor for factor in factors)
            total = weight * value if total is None else total + weight * value
            terms[name], weights[name] = value.detach(), weight
            measures.update({f"{name}/{key}": measured for key, measured in passes.take_measures().items()})
        assert total is not None
        return Loss(total, terms, weights, measures)

    def named_parts(self) -> dict[str, tuple[tuple[Weight, ...], Term]]:
        """The parts by the names of their terms; a name that comes again is numbered."""
        named: dict[str, tuple[tuple[Weight, ...], Term]] = {}
        for part in self.parts:
            name, number = part[1].name, 2
            while name in named:
                name, number = f"{part[1].name}_{number}", number + 1
            named[name] = part
        return named

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training needs: the state of each term that has one."""
        return {name: state for name, (_, term) in self.named_parts().items() if (state := term.term_state())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state that ``state_dict`` gave."""
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
    """One term of an objective: a value for each example of some rows."""

    rows: Rows
    """The rows the term runs on."""

    input_gradient: ClassVar[bool] = False
    """Whether the term differentiates the labelled clean pass with respect to its input."""

    @property
    def ahead(self) -> tuple[View, ...]:
        """The passes of its rows that the term will ask for and that need nothing of each other."""
        return ("clean",)

    @property
    def replayed(self) -> Replayed:
        """The part of the network whose noise in the clean pass the term wants to see again."""
        return "nothing"

    @property
    def name(self) -> str:
        """The key of the term in ``Loss.terms``, such as ``cross_entropy``."""
        return re.sub(r"(?<=[a-z])(?=[A-Z][a-z]{2})", "_", type(self).__name__).lower()

    @property
    def parts(self) -> tuple[tuple[tuple[Weight, ...], Term], ...]:
        """Itself, unweighted."""
        return (((), self),)

    @abstractmethod
    def per_example(self, passes: Passes) -> Tensor:
        """The value for each of the rows, ``(B,)``."""

    def term_state(self) -> dict[str, Tensor]:
        """What must survive an interruption; most terms have nothing."""
        return {}

    def load_term_state(self, state: dict[str, Tensor]) -> None:
        """Take up the state that ``term_state`` gave."""
        del state


@final
@dataclass(frozen=True)
class Combination(Objective):
    """What ``+`` and ``*`` make."""

    terms: tuple[tuple[tuple[Weight, ...], Term], ...]

    @property
    def parts(self) -> tuple[tuple[tuple[Weight, ...], Term], ...]:
        """The terms and their weights."""
        return self.terms


@final
class TrainingStep(nn.Module):
    """A network and its objective as one module, so that ``DistributedDataParallel`` can wrap the whole step.

    Args:
        model: the network.
        objective: the objective.
        moving: the passes that may move running batch-norm statistics.

    >>> from advdrop.objectives import CrossEntropy
    >>> step = TrainingStep(nn.Linear(3, 2), CrossEntropy())
    >>> step(Batch(torch.ones(1, 3), torch.tensor([1]))).total.shape
    torch.Size([])
    """

    def __init__(self, model: nn.Module, objective: Objective, moving: Collection[PassName] = MOVING) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.moving = moving

    def forward(
        self, batch: Batch, progress: float = 1.0, generator: torch.Generator | None = None, measure: bool = False
    ) -> Loss:
        """The loss of one step."""
        return self.objective(
            self.model, batch, progress=progress, generator=generator, moving=self.moving, measure=measure
        )
