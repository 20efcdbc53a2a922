"""Measure how much a trained network depends on single units of a layer.

Units are lost (set to zero), the most important ones first, until the prediction changes. If everything above the layer
is affine, the smallest number of lost units is computed exactly. Otherwise a search gives bounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from advdrop import checks
from advdrop.eval_mode import eval_mode
from advdrop.insertion import InsertedLayer, adversarial_layers
from advdrop.masks import AdversarialDropout, mask_jacobian, mask_shape
from advdrop.randomness import ONE_THREAD
from advdrop.step.batch import Batch
from advdrop.step.batch_norm import RunningStatistics
from advdrop.step.network import Inputs, contains_layer, network_of, plain_children
from advdrop.step.outputs import Outputs

BUDGETS = (0, 1, 2, 4, 8, 16, 32, 64)
MOST_CRITICAL = 20
"""How many critical units an audit lists."""
AFFINE_MODULES = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Identity, nn.Flatten),
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
)
"""Modules that are affine in evaluation mode."""


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

    @property
    def median(self) -> int | None:
        """The number of lost units that changes half of the right predictions; None if it was not found."""
        right = sorted(float("inf") if few is None else few for few in self.fewest if few != 0)
        middle = right[(len(right) - 1) // 2] if right else float("inf")
        return None if middle == float("inf") else int(middle)

    @property
    def summary(self) -> str:
        """The main results in a few lines of text."""
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
            lines.append("no example depends on one unit")
        return "\n".join(lines)

    def json(self) -> dict[str, Any]:
        """Return all values and the median, for a JSON file."""
        return asdict(self) | {"median": self.median}


def audit(
    model: nn.Module,
    data: Iterable[tuple[Inputs, Tensor]],
    *,
    budgets: Sequence[int] = BUDGETS,
    draws: int = 10,
    singles: bool = True,
    seed: int = 0,
    name: str = "network",
    progress: Callable[[int], object] = lambda _: None,
) -> Audit:
    """Measure the accuracy of a network when units are lost, and find the units and examples that are most sensitive.

    The network runs in evaluation mode. If the layer runs several times in a pass, it loses the same units every time.

    Args:
        model: a network with one AdversarialDropout layer (:func:`advdrop.insert` puts one behind any module). It must
            return logits: a tensor, or an object with an attribute or a key ``logits``.
        data: batches of inputs of B rows and labels ``(B,)``, such as a DataLoader.
        budgets: the numbers of units that may be lost.
        draws: the number of random masks for each budget.
        singles: whether to try every unit by itself if the network is not known to be affine above the layer. This
            takes H passes of the upper network for each batch. Then it is certain which examples depend on one unit.
        seed: seeds the random masks.
        name: the name of the network in the results.
        progress: called with the number of finished examples after each batch.

    >>> model = nn.Sequential(AdversarialDropout(), nn.Linear(3, 2, bias=False))
    >>> _ = model[1].weight.data.copy_(torch.tensor([[2.0, 2.0, 0.0], [1.0, 0.0, 1.0]]))
    >>> found = audit(model, [(torch.ones(1, 3), torch.tensor([0]))], budgets=(0, 1, 2), draws=1)
    >>> found.fewest, found.exact  # 4 against 2; without unit 1 it is 2 against 2, without 0 and 1 it is 0 against 1
    ([2], True)
    """
    layers = adversarial_layers(model)
    if len(layers) != 1:
        raise ValueError(
            f"an audit needs a network with one AdversarialDropout layer, got {len(layers)} in {type(model).__name__}; "
            "advdrop.insert(model, after=...) puts one behind any module"
        )
    checks.count("draws", draws)
    allowed = sorted({0, *(checks.count("budgets", budget) for budget in budgets if budget != 0)})
    generator = torch.Generator().manual_seed(seed)
    exact = affine_above(model)
    found, units, random = Found(), 0, [0.0] * len(allowed)
    with eval_mode(model), _frozen(model), torch.enable_grad():
        for x, y in data:
            with ONE_THREAD:
                upper = Upper(model, x, y)
                units = upper.units
                most = min(allowed[-1], units)
                found += worst_by_rank(upper, most) if exact else worst_by_search(upper, most, singles)
                for place, budget in enumerate(allowed):
                    random[place] += _random_hits(upper, min(budget, units), draws, generator)
            progress(len(found.fewest))
    if not found.fewest:
        raise ValueError("there are no examples to audit the network with")
    examples = len(found.fewest)
    right = sum(few != 0 for few in found.fewest)
    counts = Counter(unit for lost in found.lost for unit in lost)
    return Audit(
        name=name,
        units=units,
        examples=examples,
        budgets=allowed,
        worst=[100 * sum(few is None or few > k for few in found.fewest) / examples for k in allowed],
        certain=[100 * sum(least > k for least in found.at_least) / examples for k in allowed],
        random=[100 * hits / examples for hits in random],
        exact=exact,
        fewest=found.fewest,
        at_least=found.at_least,
        critical_units=[(unit, 100 * count / right) for unit, count in counts.most_common(MOST_CRITICAL)],
        fragile_examples=[(i, lost[0]) for i, lost in enumerate(found.lost) if len(lost) == 1],
    )


@dataclass
class Found:
    """For each example: the fewest lost units that were found, those units, and how many are certainly needed."""

    fewest: list[int | None] = field(default_factory=list)
    lost: list[list[int]] = field(default_factory=list)
    at_least: list[int] = field(default_factory=list)

    def __iadd__(self, other: Found) -> Found:
        self.fewest += other.fewest
        self.lost += other.lost
        self.at_least += other.at_least
        return self


class Upper:
    """The logits of one batch as a function of the masks of the layer, ``(B, H)``.

    Args:
        model: a network with one AdversarialDropout layer, in evaluation mode.
        x: the inputs of B rows.
        y: their labels, ``(B,)``.
    """

    def __init__(self, model: nn.Module, x: Inputs, y: Tensor) -> None:
        network = network_of(model, x, Batch(x, y).device, RunningStatistics(model.modules()))
        self._logits = Outputs().find
        inputs_of_layer: list[Tensor] = []

        def ones(layer: AdversarialDropout, h: Tensor) -> Tensor:
            inputs_of_layer.append(h)
            return h.new_ones(mask_shape(h.shape, layer.granularity))

        self._lower, output = network.run(x, ones, update=False, again=True)
        if not inputs_of_layer:
            raise ValueError(f"the AdversarialDropout layer of {type(model).__name__} did not run")
        h, layer = inputs_of_layer[0], adversarial_layers(model)[0]
        self._shape = mask_shape(h.shape, layer.granularity)
        if len(h) != len(y):
            raise ValueError(
                f"the first dimension of the units must be the {len(y)} examples, got units of shape {tuple(h.shape)}"
            )
        self._dtype = torch.promote_types(h.dtype, torch.float32)
        logits = self._logits(output)
        if logits.dim() != 2:
            raise ValueError(f"audit needs one prediction per example, logits (B, C), got {tuple(logits.shape)}")
        checks.finite("the output of the network", logits)  # NaN would count as class 0
        checks.labels(y, logits.shape[1])
        self.y = y.to(logits.device)

    @property
    def units(self) -> int:
        """H, the number of units."""
        return int(torch.Size(self._shape[1:]).numel())

    def ones(self) -> Tensor:
        """Return masks that lose nothing, ``(B, H)``."""
        return torch.ones(len(self.y), self.units, dtype=self._dtype, device=self.y.device)

    def logits(self, masks: Tensor) -> Tensor:
        """Return the logits with these masks, ``(B, C)``."""
        mask = masks.view(self._shape)
        return self._logits(self._lower.output(lambda *_: mask, update=False, repeat=True))

    @torch.no_grad()
    def right(self, masks: Tensor) -> Tensor:
        """Return which predictions are right with these masks, ``(B,)``."""
        return self.logits(masks).argmax(1) == self.y


def worst_by_rank(upper: Upper, most: int) -> Found:
    """Find the fewest lost units exactly, for an affine network.

    The lead over a class is the logit of the right class minus the logit of that class. Each unit adds a share to it.
    The units with the largest shares are lost first.
    """
    ones, y = upper.ones(), upper.y
    with torch.no_grad():
        logits = upper.logits(ones)

    def slopes_of(c: int) -> Tensor:
        return mask_jacobian(lambda masks: upper.logits(masks[0])[:, c], (ones,))[0]

    slopes = torch.stack([slopes_of(c) for c in range(logits.shape[1])], dim=1)
    rows, classes = torch.arange(len(y), device=y.device), torch.arange(logits.shape[1], device=y.device)
    lead = logits.gather(1, y[:, None]) - logits
    shares = slopes[rows, y][:, None] - slopes  # (B, C, H): what each unit adds to the lead over c
    order = shares.argsort(dim=2, descending=True)
    after = lead[:, :, None] - shares.gather(2, order).clamp_min(0).cumsum(2)
    # A tie goes to the class with the smaller number, as in argmax.
    beaten = torch.where(classes[None, :, None] < y[:, None, None], after <= 0, after < 0)
    beaten[rows, y] = False
    needed = torch.where(beaten.any(2), beaten.int().argmax(2) + 1, upper.units + 1)
    counts, rivals = needed.min(1)
    found, right = Found(), (logits.argmax(1) == y).tolist()
    for i, (count, rival) in enumerate(zip(counts.tolist(), rivals.tolist(), strict=True)):
        few = count if right[i] else 0
        reached = few <= most
        found.fewest.append(few if reached else None)
        found.lost.append(order[i, rival, :few].tolist() if reached else [])
        found.at_least.append(few)
    return found


def worst_by_search(upper: Upper, most: int, singles: bool) -> Found:
    """Find bounds for any network: lose the units that add most to the lead over the best other class."""
    masks = upper.ones()
    right = upper.right(masks)
    standing, lost = right.clone(), 0  # standing: predictions that are still right
    while lost < most and bool(standing.any()):
        step = min(max(1, lost // 8), most - lost)
        masks = torch.where(standing[:, None], _without(upper, masks, step), masks)
        standing &= upper.right(masks)
        lost += step
    masks = _pruned(upper, masks, right & ~standing)
    tried = singles and most > 0
    single = _single_units(upper, right) if tried else [None] * len(right)
    found = Found()
    for mask, unit, was_right, stands in zip(masks, single, right.tolist(), standing.tolist(), strict=True):
        changed = was_right and (unit is not None or not stands)
        units = [] if not changed else [unit] if unit is not None else (mask == 0).nonzero()[:, 0].tolist()
        found.fewest.append(len(units) if changed else None if was_right else 0)
        found.lost.append(units)
        found.at_least.append(0 if not was_right else 2 if tried and unit is None else 1)
    return found


def _without(upper: Upper, masks: Tensor, step: int) -> Tensor:
    """Return the masks without the ``step`` units that add most to the lead over the best other class."""
    y = upper.y[:, None]

    def lead(points: tuple[Tensor, ...]) -> Tensor:
        logits = upper.logits(points[0])
        return logits.gather(1, y)[:, 0] - logits.scatter(1, y, -torch.inf).amax(1)

    (share,) = mask_jacobian(lead, (masks,))
    kept = torch.where(masks > 0, share, -torch.inf)
    return masks.scatter(1, kept.topk(step, dim=1).indices, 0.0)


def _pruned(upper: Upper, masks: Tensor, changed: Tensor) -> Tensor:
    """Return the masks with every lost unit restored that the changed predictions do not need."""
    lost = (masks == 0) & changed[:, None]
    counts = lost.sum(1)
    order = lost.int().argsort(dim=1, descending=True, stable=True)  # of each example, the lost units first
    for place in range(int(counts.max())):
        restored = masks.scatter(1, order[:, place, None], 1.0)
        not_needed = (place < counts) & ~upper.right(restored)
        masks = torch.where(not_needed[:, None], restored, masks)
    return masks


def _single_units(upper: Upper, right: Tensor) -> list[int | None]:
    """Return for each example the first unit whose loss alone makes the prediction wrong; every unit is tried."""
    single = torch.full_like(upper.y, upper.units)
    if bool(right.any()):
        for unit in range(upper.units):
            masks = upper.ones()
            masks[:, unit] = 0.0
            wrong = right & ~upper.right(masks)
            single[wrong] = single[wrong].clamp_max(unit)
    return [unit if unit < upper.units else None for unit in single.tolist()]


def _random_hits(upper: Upper, budget: int, draws: int, generator: torch.Generator) -> float:
    """Return the mean number of right predictions when this many random units are lost."""
    ones = upper.ones()
    if budget == 0:
        return float(upper.right(ones).sum())
    hits = 0
    for _ in range(draws):
        units = torch.rand(ones.shape, generator=generator).topk(budget, dim=1).indices.to(ones.device)
        hits += int(upper.right(ones.scatter(1, units, 0.0)).sum())
    return hits / draws


def affine_above(model: nn.Module) -> bool:
    """Return True if the logits are known to be affine in the mask of the only AdversarialDropout layer.

    This is known of a plain ``nn.Sequential`` (it may be nested) with affine modules above the layer.

    >>> affine_above(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), AdversarialDropout(), nn.Linear(3, 2)))
    True
    >>> affine_above(nn.Sequential(AdversarialDropout(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)))
    False
    """
    children = plain_children(model) or []
    place = next((place for place, child in enumerate(children) if contains_layer(child)), None)
    if place is None:
        return False
    holder, hooks = children[place], list(children[place]._forward_hooks.values())
    itself = type(holder) is AdversarialDropout and not hooks
    inserted = len(hooks) == 1 and isinstance(hooks[0], InsertedLayer) and hooks[0].part is None
    return (itself or inserted) and all(map(affine, children[place + 1 :]))


def affine(module: nn.Module) -> bool:
    """Return True if a module is known to be affine in evaluation mode.

    >>> affine(nn.Linear(2, 2)), affine(nn.ReLU())
    (True, False)
    """
    changed = module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__
    batch_statistics = getattr(module, "running_mean", module) is None  # a batch norm that does not track them
    return type(module) in AFFINE_MODULES and not changed and not batch_statistics


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
