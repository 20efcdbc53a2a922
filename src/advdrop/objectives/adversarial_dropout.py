"""Adversarial dropout: the general term of formula 3, and its special cases SAdD and VAdD.

L_AdD = D[g(x, y, θ), f(x, εadv)],   εadv = argmax D[g, f(x, ε)] over ‖εs − ε‖ ≤ δH
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import wraps
from operator import mul
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, nn

from advdrop import checks
from advdrop.choices import BudgetOf, Noise
from advdrop.divergences import Divergence, Given, bernoulli_kl, cross_entropy, full_precision, kl, mse
from advdrop.masks import FirstOrder, MaskProblem, Masks, Search, flip_budget, search_measures
from advdrop.masks.budget import shared_budget, warn_no_flip
from advdrop.masks.search import SearchBudget
from advdrop.masks.zero_jacobian import rounding
from advdrop.objectives.base import Term
from advdrop.objectives.ema import EMA
from advdrop.objectives.targets import Target, Teacher, clean_output, confidence, labels

if TYPE_CHECKING:
    from advdrop.step.batch import Rows
    from advdrop.step.network import Lower
    from advdrop.step.passes import Pass, Passes, Repeated, View


@dataclass(frozen=True)
class Searched:
    """The result of a mask search.

    Args:
        clean: the pass with εs.
        target: g.
        lower: the lower part of the adversarial pass.
        problem: the problem that was solved: D as a function of the masks, εs and the budget.
        masks: εadv, one for each run of a layer.
        jacobians: the Jacobians that the search computed; empty unless the step measures.
    """

    clean: Pass
    target: Tensor
    lower: Lower
    problem: MaskProblem
    masks: Masks
    jacobians: list[Masks]


@dataclass(kw_only=True)
class AdD(Term):
    """D[g, f(x, εadv)], for any target, divergence and search.

    Args:
        target: g: a function such as those of ``advdrop.objectives.targets``, another network (a teacher, which runs in
            evaluation mode without gradients on the same inputs), or an :class:`EMA` of the network. The gradient of
            the loss flows into the output of a function unless ``detach`` is set; the search treats it as a constant.
        divergence: D.
        delta: δ for every layer; each layer's own if not given.
        search: how to search for εadv.
        search_divergence: the D of the search; that of the loss if not given.
        noise: the noise in the rest of the network. With ``"shared"``, the adversarial pass has the inputs and the
            noise of the clean pass: h is computed once, and only the upper network runs again. With
            ``"independent"``, it has new noise, and the second view if the batch has one. This needs a second pass of
            the lower network, which the search and the adversarial pass share.
        budget: ``"layer"`` allows int(δ·H) flips in each layer; ``"shared"`` allows int(Σ δ·H) in all layers together.
        given: what a floating-point target is.
        detach: whether g is a constant in the loss, too. Without it, the same output for all rows is a minimum.
        confidence: the power of a weight on each row, ((max_c g_c − 1/C) / (1 − 1/C))^confidence; 0 is no weight.
        fresh: whether the flips start from a new sampled mask εs instead of that of the clean pass.
        rows: the rows the term runs on.

    References: Park et al. (2018), formulas 3 to 5 and Algorithm 1.
    """

    target: Target | nn.Module
    divergence: Divergence
    rows: Rows
    delta: float | None = None
    search: Search = field(default_factory=FirstOrder)
    search_divergence: Divergence | None = None
    noise: Noise = "independent"
    budget: BudgetOf = "layer"
    given: Given = "logits"
    detach: bool = False
    confidence: float = 0.0
    fresh: bool = False
    _warned: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.delta is not None:
            checks.fraction("delta", self.delta)
        checks.function("divergence", self.divergence)
        checks.function("search_divergence", self.search_divergence or self.divergence)
        if isinstance(self.target, nn.Module):
            self.target = Teacher(self.target)
        if not callable(self.target) or isinstance(self.target, type):
            raise TypeError(f"target must be a function, a network (a teacher) or an EMA, got {self.target!r}")
        if not isinstance(self.search, Search):
            raise TypeError(f"search must be a search such as FirstOrder(), got {self.search!r}")
        checks.choice("noise", self.noise, ("independent", "shared"))
        checks.choice("budget", self.budget, ("layer", "shared"))
        if checks.not_negative("confidence", self.confidence) and self.divergence in (mse, bernoulli_kl):
            raise ValueError(
                f"confidence={self.confidence} is that of a distribution over classes, and {self.divergence.__name__} "
                "compares values or yes-or-no answers; use confidence=0"
            )

    @property
    def name(self) -> str:
        """The name of the class and of the divergence, such as ``vadd_kl``."""
        divergence = getattr(self.divergence, "__name__", type(self.divergence).__name__)
        return f"{type(self).__name__.lower()}_{divergence}"

    @property
    def views(self) -> tuple[View, ...]:
        """The clean pass, and another lower pass if the noise is independent."""
        return ("clean",) if self.noise == "shared" else ("clean", "adversarial")

    @property
    def repeated(self) -> Repeated:
        """With shared noise, that of the upper network."""
        return "upper" if self.noise == "shared" else "nothing"

    @property
    def searches_clean(self) -> bool:
        """With shared noise, the upper part of the clean pass runs again."""
        return self.noise == "shared"

    def attach(self, model: nn.Module) -> None:
        """Let a target with a state, such as an EMA, start from this network."""
        if isinstance(self.target, EMA):
            self.target.start(model)

    def term_state(self) -> dict[str, Tensor]:
        """Return the state of the target, if it has one."""
        return self.target.state_dict() if isinstance(self.target, EMA) else {}

    def load_term_state(self, state: dict[str, Tensor]) -> None:
        """Load the state of the target."""
        if isinstance(self.target, EMA):
            self.target.load_state_dict(state)

    def per_example(self, passes: Passes) -> Tensor:
        """Return D[g, f(x, εadv)], ``(B,)``."""
        found = self.searched(passes)
        clean = found.clean
        if passes.measure:
            passes.measures = search_measures(found.problem.sampled, found.masks, found.problem.budget, found.jacobians)
        masks, shared = clean.scale(found.masks), self.noise == "shared"
        logits = passes.masked(found.lower, clean, masks, "adversarial", repeat=shared)
        divergence = trusted(self.divergence, self.confidence) if self.confidence else self.divergence
        return self._compare(passes, divergence, found.target, logits)

    def _compare(self, passes: Passes, divergence: Divergence, target: Tensor, logits: Tensor) -> Tensor:
        if self.target is labels:
            return passes.compare.labels(divergence, logits, given=self.given)
        return passes.compare(divergence, target, logits, self.rows, given=self.given)

    def searched(self, passes: Passes) -> Searched:
        """Search for εadv, and return it together with the clean pass, the target and the problem."""
        clean = passes.clean(self.rows)
        if not clean.layers:
            raise ValueError(
                f"{type(self).__name__} needs a model with an AdversarialDropout layer, and none ran in "
                f"{type(passes.network.model).__name__}; call advdrop.insert(model, after=...), or put "
                "advdrop.AdversarialDropout(p, delta) in place of nn.Dropout"
            )
        self._check_rows(clean, passes.batch.count(self.rows))
        target = self.target(passes, self.rows)
        target = target.detach() if self.detach else target
        lower = clean.lower if self.noise == "shared" else passes.lower_again(self.rows)
        search_divergence, fixed = self.search_divergence or self.divergence, target.detach()

        last = clean.logits.detach()

        def divergence(masks: Masks) -> Tensor:
            nonlocal last
            logits = passes.masked(lower, clean, masks, "search", repeat=True)
            last = logits.detach()
            return self._compare(passes, search_divergence, fixed, logits)

        @torch.enable_grad()
        def agrees() -> bool:
            # D may be flat, as QE of many classes is. A slope is rounding only beside that of outputs which differ.
            point = full_precision(last).detach().requires_grad_()
            ramp = torch.linspace(1.0, 0.0, point.shape[1]).to(point).view(-1, *[1] * (point.dim() - 2))
            slopes = []
            for output in (point, point + ramp):
                reached = self._compare(passes, search_divergence, fixed, output)
                slopes.append(torch.autograd.grad(reached.sum(), point)[0])
            here, beside = (slope.abs().flatten(1).amax(1) for slope in slopes)
            return rounding(here) and bool((here <= 64 * torch.finfo(here.dtype).eps * beside).all())

        budget = self._budget(clean)
        jacobians: list[Masks] = []
        observe = jacobians.append if passes.measure else None
        sampled = passes.sample(clean) if self.fresh else clean.masks
        problem = MaskProblem(divergence, sampled, budget, clean.scale, passes.generator, observe, agrees)
        masks = self.search(problem) if self._may_flip(clean, budget) else sampled
        return Searched(clean, target, lower, problem, masks, jacobians)

    def _check_rows(self, clean: Pass, rows: int | None) -> None:
        """Warn once if the first dimension of the units is not the examples, as in (T, B, F)."""
        for mask, shape, units in zip(clean.masks, clean.shapes, self._units(clean), strict=True):
            time_first = len(shape) > 1 and shape[0] == rows != len(mask)
            if rows is not None and (time_first or len(mask) % rows):
                checks.warn_once(
                    f"the first dimension of the units must be the {rows} examples, got units of shape "
                    f"{(len(mask), *shape)}: each of these {len(mask)} rows may have its own int(δ·H) flips, H = "
                    f"{units}. Put the layer where the units are (B, ...), such as nn.LSTM(batch_first=True)"
                )

    def _may_flip(self, clean: Pass, budget: SearchBudget) -> bool:
        """Return True if the budget allows a flip; warn once if δ is too small for the layers."""
        if any(budget) if isinstance(budget, tuple) else budget:
            return True
        if not self._warned:
            units, deltas = self._units(clean), self._deltas(clean)
            flips, delta, most = max(zip(map(mul, deltas, units), deltas, units, strict=True))
            if self.budget == "shared":
                flips, most = sum(map(mul, deltas, units)), sum(units)
                delta = flips / most
            self._warned = warn_no_flip(delta, most, type(self).__name__)
        return False

    def _deltas(self, clean: Pass) -> list[float]:
        return [layer.delta if self.delta is None else self.delta for layer in clean.layers]

    def _units(self, clean: Pass) -> list[int]:
        return [mask.shape[1:].numel() for mask in clean.masks]

    def _budget(self, clean: Pass) -> SearchBudget:
        units, deltas = self._units(clean), self._deltas(clean)
        if self.budget == "shared":
            return shared_budget(deltas, units)
        return tuple(flip_budget(delta, h) for delta, h in zip(deltas, units, strict=True))


def trusted(divergence: Divergence, power: float) -> Divergence:
    """Return D times the confidence of the target."""

    @wraps(divergence)
    def value(target: Tensor, logits: Tensor, *, given: Given = "logits") -> Tensor:
        found = divergence(target, logits, given=given)
        checks.one_each("a divergence", found, len(logits))
        return found * confidence(target, given, power)

    return value


@final
@dataclass(kw_only=True)
class SAdD(AdD):
    """Supervised adversarial dropout, formula 4: the target is the label.

    Args:
        delta: δ; each layer's own if not given.
        divergence: D, cross-entropy by default.
        noise: ``"shared"`` (the default) or ``"independent"`` noise in the adversarial pass, see :class:`AdD`.
        search: how to search for εadv, :class:`FirstOrder` by default.
        search_divergence: see :class:`AdD`, which also describes ``budget`` and ``given``.

    >>> SAdD(delta=0.05).name
    'sadd_cross_entropy'
    """

    target: Target | nn.Module = labels
    divergence: Divergence = cross_entropy
    rows: Rows = "labeled"
    noise: Noise = "shared"
    given: Given = "probabilities"


@final
@dataclass(kw_only=True)
class VAdD(AdD):
    """Virtual adversarial dropout, formula 5: the target is the network's own clean output, so no label is needed.

    Args:
        delta: δ; each layer's own if not given.
        divergence: D, :func:`kl` by default, or :func:`qe` or :func:`cross_entropy`.
        target: g of formula 3, if not the clean output: another network (a teacher) or an :class:`EMA`, see
            :class:`AdD`.
        noise: ``"independent"`` (the default) or ``"shared"`` noise in the adversarial pass, see :class:`AdD`.
        search: how to search for εadv, :class:`FirstOrder` by default.
        rows: ``"unlabeled"`` (the default; labeled rows where there are no others) or ``"labeled"``.
        search_divergence: see :class:`AdD`, which also describes ``budget`` and ``given``.

    >>> VAdD(delta=0.05).name
    'vadd_kl'
    """

    target: Target | nn.Module = clean_output
    divergence: Divergence = kl
    rows: Rows = "unlabeled"
