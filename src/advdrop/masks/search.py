"""Searches for the adversarial mask, all with one interface: ``search(problem) -> masks``.

A search does not depend on a network: its problem is D as a function of the masks, the sampled masks εs and a budget.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from math import ceil
from typing import final

import torch
from torch import Tensor

from advdrop import checks
from advdrop.choices import Order, Ties
from advdrop.masks.flip import flip_sampled
from advdrop.masks.jacobian import MaskDivergence, Masks, mask_jacobian
from advdrop.masks.zero_jacobian import ZeroWatch

SearchBudget = int | tuple[int, ...]
"""The number of flips allowed: one int for all layers together, or one int for each layer."""


@dataclass(frozen=True)
class MaskProblem:
    """argmax D(ε) over the masks within ``budget`` flips of εs (Eq. 3).

    Args:
        divergence: D of each example ``(B,)``, as a function of what the units are multiplied with.
        sampled: εs, one ``(B, *H)`` of 0 and 1 per layer (not checked: the layers sample it).
        budget: the number of flips allowed, one int shared by the layers or one for each.
        scale: turns masks of 0 and 1 into what the units are multiplied with (see ``scale_mask``).
        generator: the source of randomness, for searches that need it.
        observe: is called with every Jacobian that a search computes.
        agrees: returns whether the last output agreed with the target up to rounding; without it, a Jacobian of zeros
            means that it did.
    """

    divergence: MaskDivergence
    sampled: Masks
    budget: SearchBudget
    scale: Callable[[Masks], Masks] = tuple
    generator: torch.Generator | None = None
    observe: Callable[[Masks], None] | None = None
    agrees: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.budget, int | tuple):
            raise TypeError(f"budget must be an int, or a tuple of one int for each layer, got {self.budget!r}")

    def jacobian(self, masks: Masks | None = None) -> Masks:
        """Return J at these masks after scaling; without masks, at ε0 = 1 (the network without dropout), unscaled."""
        at = tuple(torch.ones_like(mask) for mask in self.sampled) if masks is None else self.scale(masks)
        jacobian = mask_jacobian(self.divergence, at)
        if self.observe is not None:
            self.observe(jacobian)
        return jacobian

    def flip(self, jacobians: Masks, *, order: Order = "largest", ties: Ties = "exact") -> Masks:
        """Return the best masks within the budget for a linear D (Algorithm 1)."""
        if isinstance(self.budget, tuple):
            triples = zip(self.sampled, jacobians, self.budget, strict=True)
            return tuple(flip_sampled(mask, j, k, order=order, ties=ties) for mask, j, k in triples)
        if len(self.sampled) == 1:
            return (flip_sampled(self.sampled[0], jacobians[0], self.budget, order=order, ties=ties),)
        return self.separate(flip_sampled(join(self.sampled), join(jacobians), self.budget, order=order, ties=ties))

    @torch.no_grad()
    def better(self, first: Masks, second: Masks) -> Masks:
        """Return for each example the masks with the higher divergence; the first if both are equal."""
        second_wins = self.divergence(self.scale(second)) > self.divergence(self.scale(first))
        return tuple(
            torch.where(_for_rows(second_wins, one).view(-1, *[1] * (one.dim() - 1)), other, one)
            for one, other in zip(first, second, strict=True)
        )

    def separate(self, joint: Tensor) -> Masks:
        """Split one mask ``(B, ΣH)`` into those of the layers."""
        parts = joint.split([mask.shape[1:].numel() for mask in self.sampled], dim=1)
        return tuple(part.reshape(mask.shape) for part, mask in zip(parts, self.sampled, strict=True))


def join(masks: Masks) -> Tensor:
    """Join the masks of all layers, ``(B, ΣH)``."""
    if len(lengths := {len(mask) for mask in masks}) > 1:
        raise ValueError(
            f"layers with different numbers of rows, {sorted(lengths)}, cannot be searched together: a budget that is "
            "shared, and an exhaustive search, need one row of units for each example in all layers"
        )
    return torch.cat([mask.flatten(1) for mask in masks], dim=1)


class Search(ABC):
    """A way to search for εadv.

    To write a search, implement ``__call__`` from a :class:`MaskProblem` to masks within its budget.
    """

    @abstractmethod
    def __call__(self, problem: MaskProblem) -> Masks:
        """Return masks within the budget that make the divergence large."""


@final
@dataclass(eq=False)
class FirstOrder(Search):
    """The paper's search: one Jacobian at ε0 = 1, then the largest gains (Algorithm 1).

    Args:
        order: see ``flip_mask``.
        ties: see ``flip_mask``.
    """

    order: Order = "largest"
    ties: Ties = "exact"
    _watch: ZeroWatch = field(default_factory=ZeroWatch, init=False, repr=False)

    def __post_init__(self) -> None:
        checks.choice("order", self.order, ("largest", "smallest"))
        checks.choice("ties", self.ties, ("exact", "dropped"))

    def __call__(self, problem: MaskProblem) -> Masks:
        """Search with one forward and one backward pass of the network above the layer."""
        jacobian = problem.jacobian()
        self._watch(jacobian, problem.agrees)
        return problem.flip(jacobian, order=self.order, ties=self.ties)


@final
@dataclass(eq=False)
class Iterated(Search):
    """Compute a new Jacobian after every 1/n of the budget. Return that mask or the paper's, whichever is better.

    Args:
        steps: n, the number of Jacobians. The first is at ε0 = 1, as in the paper, and the others are at the mask found
            so far. A later step does not undo a flip of an earlier one.
    """

    steps: int = 4
    _watch: ZeroWatch = field(default_factory=ZeroWatch, init=False, repr=False)

    def __post_init__(self) -> None:
        checks.count("steps", self.steps)

    def __call__(self, problem: MaskProblem) -> Masks:
        """Search with n forward and backward passes, and two more forward passes, of the network above the layer."""
        jacobian = problem.jacobian()
        self._watch(jacobian, problem.agrees)
        one_shot, masks = problem.flip(jacobian), problem.sampled
        parts = _parts(problem.budget, self.steps)
        if len(parts) < 2:
            return one_shot
        for part in parts:
            if masks is not problem.sampled:
                jacobian = problem.jacobian(masks)
            untouched = tuple(j * (m == s) for j, m, s in zip(jacobian, masks, problem.sampled, strict=True))
            masks = replace(problem, sampled=masks, budget=part).flip(untouched)
        return problem.better(one_shot, masks)


@final
@dataclass(eq=False)
class Probe(Search):
    """Compute the Jacobian at random flips of εs, for problems whose Jacobian at ε0 = 1 is zero.

    If the clean and the perturbed pass agree at ε0 (no dropout at the layer, no other noise), D has its minimum there,
    and D ≈ ½(ε − ε0)ᵀA(ε − ε0), where A is the Hessian. The Jacobian at a random neighbor is A times a random
    direction: one step of the power iteration of VAT, with masks instead of vectors.

    Args:
        iterations: power iterations; each starts from the mask of the one before.
    """

    iterations: int = 1

    def __post_init__(self) -> None:
        checks.count("iterations", self.iterations)

    def __call__(self, problem: MaskProblem) -> Masks:
        """Search with ``iterations`` forward and backward passes of the network above the layer."""
        masks = RandomFlips()(problem)
        for _ in range(self.iterations):
            masks = problem.flip(problem.jacobian(masks))
        return masks


@final
@dataclass(eq=False)
class RandomFlips(Search):
    """Flip units chosen at random, as many as the budget allows; for comparison."""

    def __call__(self, problem: MaskProblem) -> Masks:
        """Choose without any pass."""
        # Every flip has a positive, random gain. In half precision many gains would be equal.
        gains = (
            torch.empty_like(m, dtype=torch.promote_types(m.dtype, torch.float32)).uniform_(
                0.5, 1.0, generator=problem.generator
            )
            for m in problem.sampled
        )
        return problem.flip(tuple(g * (1 - 2 * m) for g, m in zip(gains, problem.sampled, strict=True)))


@final
@dataclass(eq=False)
class Exhaustive(Search):
    """Try every mask within the budget and return the best; for small layers only.

    Args:
        max_units: the largest number of units; the work grows as 2^H.
    """

    max_units: int = 16

    @torch.no_grad()
    def __call__(self, problem: MaskProblem) -> Masks:
        """Search with one forward pass for every mask within the budget."""
        best = start = join(problem.sampled)
        units = start.shape[1]
        if units > self.max_units:
            raise ValueError(
                f"an exhaustive search over {units} units would try up to 2^{units} masks; use another search, or "
                f"raise max_units (now {self.max_units})"
            )
        highest = problem.divergence(problem.scale(problem.sampled))
        if len(highest) != len(start):
            raise ValueError(
                f"an exhaustive search needs one row of units for each example, got {len(start)} rows for "
                f"{len(highest)} examples; use another search"
            )
        most = sum(problem.budget) if isinstance(problem.budget, tuple) else problem.budget
        for flips in chain.from_iterable(combinations(range(units), size) for size in range(1, most + 1)):
            flipped = torch.zeros_like(start[0])
            flipped[list(flips)] = 1.0
            if not _within_budget(problem, flipped):
                continue
            masks = (start - flipped).abs()
            reached = problem.divergence(problem.scale(problem.separate(masks)))
            best = torch.where((reached > highest)[:, None], masks, best)
            highest = torch.maximum(reached, highest)
        return problem.separate(best)


def _for_rows(values: Tensor, mask: Tensor) -> Tensor:
    """Return a value of each example, ``(B,)``, for each row of a mask. The rows of an example are neighbors.

    >>> _for_rows(torch.tensor([True, False]), torch.ones(4, 3))
    tensor([ True,  True, False, False])
    """
    several, rest = divmod(len(mask), len(values))
    if not len(mask):
        return values[:0]
    if rest or not several:
        raise ValueError(
            f"a mask of {len(mask)} rows does not belong to {len(values)} examples; put the layer where the units are "
            "(B, ...), or use search=FirstOrder()"
        )
    return values.repeat_interleave(several) if several > 1 else values


def _parts(budget: SearchBudget, steps: int) -> list[SearchBudget]:
    """Divide the budget into at most ``steps`` parts, none of them empty."""

    def part(k: int, step: int) -> int:
        return ceil(k * (step + 1) / steps) - ceil(k * step / steps)

    if isinstance(budget, tuple):
        return [parts for step in range(steps) if any(parts := tuple(part(k, step) for k in budget))]
    return [k for step in range(steps) if (k := part(budget, step))]


def _within_budget(problem: MaskProblem, flipped: Tensor) -> bool:
    if not isinstance(problem.budget, tuple):
        return int(flipped.sum()) <= problem.budget
    sizes = [mask.shape[1:].numel() for mask in problem.sampled]
    return all(int(f.sum()) <= k for f, k in zip(flipped.split(sizes), problem.budget, strict=True))
