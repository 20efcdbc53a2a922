"""Measure how much a trained network depends on single units of a layer.

Units are lost (set to zero), the most important ones first, until the prediction changes. If everything above the layer
is affine, the smallest number of lost units is computed exactly. Otherwise a search gives bounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, TypedDict, Unpack, overload

import torch
from torch import nn

from advdrop import checks
from advdrop.analysis.faults import Fault, fault, measure
from advdrop.analysis.layers import Chosen, inserted, layers_of
from advdrop.analysis.ranking import LayerAudit, Ranking
from advdrop.analysis.sample import Batches, Data, batches_of, rows_of, sampled
from advdrop.analysis.worst import Fewest, Upper, affine_above, random_hits, worst_by_rank, worst_by_search
from advdrop.eval_mode import eval_mode
from advdrop.insertion import adversarial_layers
from advdrop.masks import AdversarialDropout
from advdrop.randomness import device_of, unnoticed
from advdrop.step.outputs import Outputs

BUDGETS = (0, 1, 2, 4, 8, 16, 32, 64)
MOST_CRITICAL = 20
"""How many critical units an audit lists."""
NO_EXAMPLES = "there are no examples to audit the network with"


@dataclass(frozen=True)
class Audit:
    """How much a network depends on the units of one layer.

    Args:
        name: the name of the network.
        units: H, the number of units of the layer.
        examples: the number of examples.
        budgets: the numbers of units that may be lost; 0 first.
        worst: for each budget, the accuracy in percent without the worst units that were found. The true worst case is
            at most this.
        certain: for each budget, the percentage of examples that are certainly right, whichever units are lost. The
            true worst case is at least this. It equals ``worst`` if the audit is exact.
        random: for each budget, the accuracy in percent without random units, averaged over the draws.
        exact: whether ``fewest`` and ``at_least`` are exact rather than bounds.
        fewest: for each example, the smallest number of lost units that was found to change its prediction; 0 if the
            prediction is wrong already, None if none was found within the largest budget.
        at_least: for each example, a lower bound of ``fewest``: if fewer units are lost, its prediction is certainly
            right.
        critical_units: the units that are lost most often where a prediction changes, the most frequent first, each
            with the percentage of the right predictions that it takes part in changing.
        fragile_examples: the examples whose prediction one lost unit changes, each with the unit.
        sample: the position of each example in the data.
    """

    name: str
    units: int
    examples: int
    budgets: Sequence[int]
    worst: Sequence[float]
    certain: Sequence[float]
    random: Sequence[float]
    exact: bool
    fewest: Sequence[int | None]
    at_least: Sequence[int]
    critical_units: Sequence[tuple[int, float]]
    fragile_examples: Sequence[tuple[int, int]]
    sample: Sequence[int] = ()

    @property
    def median(self) -> int | None:
        """The number of lost units that changes half of the right predictions; None if it was not found."""
        right = sorted(float("inf") if few is None else few for few in self.fewest if few != 0)
        middle = right[(len(right) - 1) // 2] if right else float("inf")
        return None if middle == float("inf") else int(middle)

    @property
    def summary(self) -> str:
        """The main results in a few lines of text."""
        if all(few == 0 for few in self.fewest):
            return f"{self.name}: {self.units} units, {self.examples} examples, and no prediction is right"
        found = sum(few is not None and few > 0 for few in self.fewest)
        kind = "exact" if self.exact else "bounds: the smallest numbers that were found"
        half = (
            f"{self.median} lost units change half of the right predictions"
            if self.median is not None
            else f"{self.budgets[-1]} lost units change less than half of the right predictions"
        )
        lines = [
            f"{self.name}: {self.units} units, {self.examples} examples, {self.worst[0]:.1f} % right ({kind})",
            f"{half}; {found} change with at most {self.budgets[-1]}",
        ]
        if self.critical_units:
            critical = ", ".join(f"{unit} ({share:.1f} %)" for unit, share in self.critical_units[:5])
            lines.append(f"most critical units: {critical}")
        if self.fragile_examples:
            fragile = ", ".join(f"{example} (unit {unit})" for example, unit in self.fragile_examples[:5])
            more = f" and {len(self.fragile_examples) - 5} more" if len(self.fragile_examples) > 5 else ""
            lines.append(f"examples that depend on one unit: {fragile}{more}")
        else:
            tried = all(least != 1 for least in self.at_least)
            lines.append("no example depends on one unit" if tried else "no example was found that depends on one unit")
        return "\n".join(lines)

    def of_sample(self, positions: Sequence[int]) -> Audit:
        """Return the same audit, with examples named by their positions in the data that the sample is from."""
        fragile = [(positions[example], unit) for example, unit in self.fragile_examples]
        return replace(self, fragile_examples=fragile, sample=list(positions))

    def json(self) -> dict[str, Any]:
        """Return all values and the median, for a JSON file."""
        return asdict(self) | {"median": self.median}


class Options(TypedDict, total=False):
    """The options of both kinds of audits, for type checkers."""

    faults: Sequence[str | Fault]
    channels: bool
    examples: int | None
    budgets: Sequence[int]
    draws: int
    singles: bool | None
    seed: int
    name: str
    progress: Callable[[int], object]


@overload
def audit(model: nn.Module, data: Data, *, layers: None = None, **options: Unpack[Options]) -> Audit: ...


@overload
def audit(model: nn.Module, data: Data, *, layers: Chosen, **options: Unpack[Options]) -> Ranking: ...


def audit(
    model: nn.Module,
    data: Data,
    *,
    layers: Chosen | None = None,
    faults: Sequence[str | Fault] = (),
    channels: bool = True,
    examples: int | None = None,
    budgets: Sequence[int] = BUDGETS,
    draws: int = 10,
    singles: bool | None = None,
    seed: int = 0,
    name: str = "network",
    progress: Callable[[int], object] = lambda _: None,
) -> Audit | Ranking:
    """Measure the accuracy of a network when units are lost, and find the units and examples that are most sensitive.

    The network runs in evaluation mode. If the layer runs several times in a pass, it loses the same units every time.
    An output with NaN or infinity, as a network that divides by the norm of its units gives without them, is wrong.

    Args:
        model: a network. It must return logits: a tensor, or an object with an attribute or a key ``logits``. Without
            ``layers`` it has one AdversarialDropout layer (:func:`advdrop.insert` puts one after any module).
        data: batches of inputs of B rows and labels ``(B,)``, such as a DataLoader, or a pair of all inputs and labels.
        layers: the names of modules, or ``"all"``: audit each of them and rank them. ``"all"`` is every module, also a
            block, that runs once in a pass and returns a tensor of its own with the batch first, except the logits.
        faults: with ``layers``, other faults to measure: ``"stuck:VALUE"`` (units), ``"sign"`` and ``"bit"``,
            ``"bit:exponent"`` ... (weights), or objects of :mod:`advdrop.analysis.faults`.
        channels: with ``layers``, whether a whole channel of a convolution, or a feature of a sequence, is one unit.
        examples: the size of a random sample with the same number of each class; None for all rows. The data are read
            to their end and kept in memory for it.
        budgets: the numbers of units that may be lost.
        draws: the number of random masks or faults for each budget.
        singles: whether to try every unit by itself if the network is not known to be affine above the layer. This
            takes H passes of the upper network for each batch. Then it is certain which examples depend on one unit.
            None: only without ``layers``.
        seed: seeds the sample, the random masks and the faults.
        name: the name of the network in the results.
        progress: called with the number of finished examples after each batch, counted over all layers.

    Returns:
        An :class:`Audit`; with ``layers``, a ``Ranking`` of them, the most sensitive layer first.

    >>> model = nn.Sequential(AdversarialDropout(), nn.Linear(3, 2, bias=False))
    >>> _ = model[1].weight.data.copy_(torch.tensor([[2.0, 2.0, 0.0], [1.0, 0.0, 1.0]]))
    >>> found = audit(model, [(torch.ones(1, 3), torch.tensor([0]))], budgets=(0, 1, 2), draws=1)
    >>> found.fewest, found.exact  # 4 against 2; without unit 1 it is 2 against 2, without 0 and 1 it is 0 against 1
    ([2], True)
    """
    checks.differentiable("an audit")
    own = adversarial_layers(model)
    if layers is None and len(own) != 1:
        raise ValueError(
            f"an audit needs a network with one AdversarialDropout layer, got {len(own)} in {type(model).__name__}; "
            "advdrop.insert(model, after=...) puts one after any module, and layers='all' ranks all modules"
        )
    if layers is None and faults:
        raise ValueError("faults are measured in layers that are named: pass layers='all' or a list of names")
    checks.count("draws", draws)
    allowed = sorted({0, *(checks.count("budgets", budget) for budget in budgets if budget != 0)})
    kinds, positions, batches = [fault(each) for each in faults], None, batches_of(data)
    if examples is not None:
        batches, positions = sampled(batches, examples, seed)

    def audited(layer: AdversarialDropout, batches: Batches, singles: bool, done: int = 0) -> Audit:
        found = _audit(model, layer, batches, allowed, draws, singles, seed, name, lambda n: progress(done + n))
        return found if positions is None else found.of_sample(positions)

    with eval_mode(model), _frozen(model), torch.enable_grad():
        if layers is None:
            return audited(own[0], batches, singles is not False)
        kept = list(batches)
        if not kept:
            raise ValueError(NO_EXAMPLES)
        logits = Outputs().find
        found: list[LayerAudit] = []
        x, y = kept[0]
        for layer in layers_of(
            model, rows_of(x, range(min(2, len(y))), len(y)), layers, logits=logits, channels=channels
        ):
            with inserted(model, layer.name, part=layer.part, granularity=layer.granularity) as dropout:
                lost = audited(dropout, kept, bool(singles), len(found) * sum(len(y) for _, y in kept))
            results = [
                result
                for kind in kinds
                for result in measure(
                    model,
                    model.get_submodule(layer.name),
                    kept,
                    kind,
                    allowed[1:],
                    logits=logits,
                    part=layer.part,
                    granularity=layer.granularity,
                    draws=draws,
                    seed=seed,
                )
            ]
            found.append(LayerAudit(layer, lost, results))
    return Ranking(name, sorted(found, key=lambda each: each.mean_worst))


def _audit(
    model: nn.Module,
    layer: AdversarialDropout,
    batches: Batches,
    budgets: Sequence[int],
    draws: int,
    singles: bool,
    seed: int,
    name: str,
    progress: Callable[[int], object],
) -> Audit:
    """Audit one layer of a network that is in evaluation mode and has no parameters that require gradients."""
    generator = torch.Generator().manual_seed(seed)
    exact = affine_above(model, layer)
    found: list[Fewest] = []
    units, random = 0, [0.0] * len(budgets)
    for x, y in batches:
        with unnoticed(device_of(model)):
            upper = Upper(model, layer, x, y)
            units = upper.units
            exact = exact and not upper.rounded  # in half precision, rounding errors change predictions
            most = min(budgets[-1], units)
            found += worst_by_rank(upper, most) if exact else worst_by_search(upper, most, singles)
            for place, budget in enumerate(budgets):
                random[place] += random_hits(upper, min(budget, units), draws, generator)
        progress(len(found))
    if not found:
        raise ValueError(NO_EXAMPLES)
    examples = len(found)
    right = sum(each.count != 0 for each in found)
    counts = Counter(unit for each in found for unit in each.units)
    return Audit(
        name=name,
        units=units,
        examples=examples,
        budgets=list(budgets),
        worst=[100 * sum(each.count is None or each.count > k for each in found) / examples for k in budgets],
        certain=[100 * sum(each.at_least > k for each in found) / examples for k in budgets],
        random=[100 * hits / examples for hits in random],
        exact=exact,
        fewest=[each.count for each in found],
        at_least=[each.at_least for each in found],
        critical_units=[(unit, 100 * count / right) for unit, count in counts.most_common(MOST_CRITICAL)],
        fragile_examples=[(i, each.units[0]) for i, each in enumerate(found) if each.count == 1],
    )


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Make all parameters constants inside the block."""
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    model.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, required in before.items():
            parameter.requires_grad = required
