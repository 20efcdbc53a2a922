"""Adversarial dropout: the general term of formula 3, and its special cases SAdD and VAdD.

L_AdD = D[g(x, y, θ), f(x, εadv)],   εadv = argmax D[g, f(x, ε)] over ‖εs − ε‖ ≤ δH
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from advdrop import checks
from advdrop.batch import Rows
from advdrop.divergences import Divergence, Given, cross_entropy, kl
from advdrop.masks import FirstOrder, MaskProblem, Masks, Search, flip_budget, search_measures
from advdrop.masks.budget import warn_if_none
from advdrop.masks.search import SearchBudget
from advdrop.models.split import Hidden
from advdrop.objectives.base import Term
from advdrop.objectives.passes import Pass, Passes, Replayed, View
from advdrop.randomness import NoiseState
from advdrop.vocabulary import BudgetOf, Noise

Target = Callable[[Passes, Rows], Tensor]
"""g: from the passes of the step and the rows of the term to labels ``(B,)``, logits or probabilities ``(B, C)``."""


def labels(passes: Passes, rows: Rows) -> Tensor:
    """g(y) = y, the target of SAdD."""
    if rows != "labelled":
        raise ValueError(f"labels are the target of labelled rows only, got rows={rows!r}")
    return passes.batch.labels()


def clean_output(passes: Passes, rows: Rows) -> Tensor:
    """g(x, θ) = f(x, εs), the target of VAdD."""
    return passes.clean(rows).logits


@dataclass(frozen=True)
class Searched:
    """What the mask search of a step found.

    Args:
        clean: the pass with εs.
        target: g.
        h: what crosses the cut in the adversarial pass.
        noise: the state of the noise there.
        problem: what was searched: D as a function of the masks, εs and the budget.
        masks: εadv, one for each layer.
        jacobians: what the search looked at; only if the step is measured.
    """

    clean: Pass
    target: Tensor
    h: Hidden
    noise: NoiseState
    problem: MaskProblem
    masks: Masks
    jacobians: list[Masks]


@dataclass(kw_only=True)
class AdD(Term):
    """D[g, f(x, εadv)], for any target, divergence and search.

    Args:
        target: g. Gradients flow through it in the loss; the search takes it as given.
        divergence: D.
        delta: δ for every layer; each layer's own if not given.
        search: how εadv is looked for.
        search_divergence: the D that is searched with, if another than that of the loss.
        noise: the noise ρ of the rest of the network, and the view. ``"shared"``: the adversarial pass sees what the
            clean one saw; h is computed once, and only the upper network runs again. ``"independent"``: other noise,
            and the second view where the batch has one; a second pass of the under network, which the search and the
            adversarial pass share.
        budget: int(δ·H) flips in each ``"layer"``, or one budget ``"shared"`` by all layers, int(Σ δ·H).
        given: what a floating-point target is.
        rows: the rows the term runs on.

    References: Park et al. (2018), formulas 3 to 5 and Algorithm 1.
    """

    target: Target
    divergence: Divergence
    rows: Rows
    delta: float | None = None
    search: Search = field(default_factory=FirstOrder)
    search_divergence: Divergence | None = None
    noise: Noise = "independent"
    budget: BudgetOf = "layer"
    given: Given = "logits"
    _warned: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.delta is not None:
            checks.fraction("delta", self.delta)
        if not callable(self.divergence):
            raise TypeError(f"divergence must be a function such as advdrop.kl, got {self.divergence!r}")
        if not isinstance(self.search, Search):
            raise TypeError(f"search must be a search such as FirstOrder(), got {self.search!r}")
        checks.choice("noise", self.noise, ("independent", "shared"))
        checks.choice("budget", self.budget, ("layer", "shared"))

    @property
    def name(self) -> str:
        """Such as ``vadd_kl``."""
        divergence = getattr(self.divergence, "__name__", type(self.divergence).__name__)
        return f"{type(self).__name__.lower()}_{divergence}"

    @property
    def ahead(self) -> tuple[View, ...]:
        """The clean pass, and another one of the under network if the noise is independent."""
        return ("clean",) if self.noise == "shared" else ("clean", "adversarial")

    @property
    def replayed(self) -> Replayed:
        """With shared noise, that of the upper network."""
        return "upper" if self.noise == "shared" else "nothing"

    def per_example(self, passes: Passes) -> Tensor:
        """``(B,)``."""
        found, shared = self.searched(passes), self.noise == "shared"
        clean = found.clean
        if passes.measure:
            passes.measures = search_measures(clean.masks, found.masks, found.problem.budget, found.jacobians)
        with passes.unnoticed(found.noise) if shared else nullcontext():
            logits = passes.upper(found.h, clean.layers, clean.scale(found.masks), "adversarial")
        return self.divergence(found.target, logits, given=self.given)

    def searched(self, passes: Passes) -> Searched:
        """εadv, and everything that it was found with."""
        clean = passes.clean(self.rows)
        if not clean.layers:
            raise ValueError(
                f"{type(self).__name__} needs a model with an AdversarialDropout layer, and none ran in "
                f"{type(passes.model).__name__}; put advdrop.AdversarialDropout(p, delta) where nn.Dropout stood"
            )
        target = self.target(passes, self.rows)
        shared = self.noise == "shared"
        h = clean.h if shared else passes.under_again(self.rows)
        noise = clean.upper_noise if shared else passes.noise()

        searched, fixed, constant = self.search_divergence or self.divergence, target.detach(), _detached(h)

        def divergence(masks: Masks) -> Tensor:
            with passes.unnoticed(noise):
                logits = passes.upper(constant, clean.layers, masks, "search")
            return searched(fixed, logits, given=self.given)

        budget = self._budget(clean)
        jacobians: list[Masks] = []
        observe = jacobians.append if passes.measure else None
        problem = MaskProblem(divergence, clean.masks, budget, clean.scale, passes.generator, observe)
        masks = self.search(problem) if self._may_flip(clean, budget) else clean.masks
        return Searched(clean, target, h, noise, problem, masks, jacobians)

    def _may_flip(self, clean: Pass, budget: SearchBudget) -> bool:
        """Whether there is a budget at all; a δ that is too small for the layers is said once."""
        if any(budget) if isinstance(budget, tuple) else budget:
            return True
        if not self._warned:
            units, delta = max(mask[0].numel() for mask in clean.masks), max(self._deltas(clean))
            self._warned = warn_if_none(0, delta, units, type(self).__name__)
        return False

    def _deltas(self, clean: Pass) -> list[float]:
        return [layer.delta if self.delta is None else self.delta for layer in clean.layers]

    def _budget(self, clean: Pass) -> SearchBudget:
        units = [mask[0].numel() for mask in clean.masks]
        deltas = self._deltas(clean)
        if self.budget == "shared":
            return int(sum(delta * h for delta, h in zip(deltas, units, strict=True)))
        return tuple(flip_budget(delta, h) for delta, h in zip(deltas, units, strict=True))


@final
@dataclass(kw_only=True)
class SAdD(AdD):
    """Supervised adversarial dropout, formula 4: the target is the label.

    Args:
        delta: δ; each layer's own if not given.
        divergence: D, cross-entropy by default.
        noise: ``"shared"`` (the default) or ``"independent"`` noise in the adversarial pass, see :class:`AdD`.
        search: how εadv is looked for, :class:`FirstOrder` by default.
        search_divergence: see :class:`AdD`; so are ``budget`` and ``given``.

    >>> SAdD(delta=0.05).name
    'sadd_cross_entropy'
    """

    target: Target = labels
    divergence: Divergence = cross_entropy
    rows: Rows = "labelled"
    noise: Noise = "shared"


@final
@dataclass(kw_only=True)
class VAdD(AdD):
    """Virtual adversarial dropout, formula 5: the target is the network's own clean output, so no label is needed.

    Args:
        delta: δ; each layer's own if not given.
        divergence: D, :func:`kl` by default, or :func:`qe` or :func:`cross_entropy`.
        noise: ``"independent"`` (the default) or ``"shared"`` noise in the adversarial pass, see :class:`AdD`.
        search: how εadv is looked for, :class:`FirstOrder` by default.
        rows: ``"unlabelled"`` (the default; the labelled ones where there are no others) or ``"labelled"``.
        search_divergence: see :class:`AdD`; so are ``budget`` and ``given``.

    >>> VAdD(delta=0.05).name
    'vadd_kl'
    """

    target: Target = clean_output
    divergence: Divergence = kl
    rows: Rows = "unlabelled"


def _detached(h: Hidden) -> Hidden:
    if isinstance(h, tuple | list):
        return tuple(map(_detached, h))
    return h.detach() if isinstance(h, Tensor) else h
