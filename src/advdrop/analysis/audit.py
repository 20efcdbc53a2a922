"""How fragile a trained network is to losing units.

The layer of the masks becomes the place of a fault: units are lost, the worst ones first, until the prediction changes.
Where everything above the layer is affine the smallest number is known exactly; elsewhere it is between bounds.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx, nn

from advdrop import checks
from advdrop.masks import AdversarialDropout, handing
from advdrop.masks.sample import mask_shape
from advdrop.models.split import Hidden, cut
from advdrop.modes import evaluating
from advdrop.report.audited import Audit

BUDGETS = (0, 1, 2, 4, 8, 16, 32, 64)
NAMED = 20
"""How many of the units that a network leans on are named."""
AFFINE_MODULES = (
    AdversarialDropout,
    nn.AdaptiveAvgPool2d,
    nn.AvgPool2d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.Conv2d,
    nn.Dropout,
    nn.Flatten,
    nn.Identity,
    nn.Linear,
)
"""In evaluation mode."""
AFFINE_FUNCTIONS = (operator.getitem, operator.add, torch.add, torch.flatten)


def audit(
    model: nn.Module,
    data: Iterable[tuple[Tensor, Tensor]],
    *,
    budgets: Sequence[int] = BUDGETS,
    draws: int = 10,
    singles: bool = True,
    seed: int = 0,
    name: str = "network",
    progress: Callable[[int], object] = lambda _: None,
) -> Audit:
    """Accuracy against the number of lost units, and the units and examples that it hangs on.

    Args:
        model: a network with one AdversarialDropout layer (``advdrop.wrap`` puts one anywhere); its output is logits.
        data: batches of examples ``(B, ...)`` and labels ``(B,)``, such as a DataLoader.
        budgets: the numbers of units that may be lost.
        draws: random masks for each budget.
        singles: whether to try every unit by itself where the smallest number is not known exactly: H passes of the
            upper network, after which it is certain which examples hang on one unit.
        seed: of the random masks.
        name: what to call the network.
        progress: is told how many examples are done.

    >>> model = nn.Sequential(AdversarialDropout(), nn.Linear(3, 2, bias=False))
    >>> _ = model[1].weight.data.copy_(torch.tensor([[2.0, 2.0, 0.0], [1.0, 0.0, 1.0]]))
    >>> found = audit(model, [(torch.ones(1, 3), torch.tensor([0]))], budgets=(0, 1, 2), draws=1)
    >>> found.fewest, found.exact  # 4 against 2; without unit 1 it is 2 against 2, without 0 and 1 it is 0 against 1
    ([2], True)
    """
    layers = [layer for layer in model.modules() if isinstance(layer, AdversarialDropout)]
    if len(layers) != 1:
        raise ValueError(
            f"an audit needs a network with one AdversarialDropout layer, got {len(layers)} in {type(model).__name__}; "
            "advdrop.wrap(model, after=...) puts one behind any module"
        )
    checks.count("draws", draws)
    allowed = sorted({0, *(checks.count("budgets", budget) for budget in budgets if budget != 0)})
    generator = torch.Generator().manual_seed(seed)
    whole = Found()
    random = [0.0] * len(allowed)
    with evaluating(model), _constant(model):
        split = cut(model)
        exact = affine(split.upper)
        for x, y in data:
            upper = Upper.of(split.upper, split.under(x), layers[0], y)
            most = min(allowed[-1], upper.units)
            whole += worst_by_rank(upper, most) if exact else worst_by_search(upper, most, singles)
            for place, budget in enumerate(allowed):
                random[place] += _random_hits(upper, min(budget, upper.units), draws, generator)
            progress(len(whole.fewest))
    if not whole.fewest:
        raise ValueError("there are no examples to audit the network with")
    images = len(whole.fewest)
    right = sum(few != 0 for few in whole.fewest)
    counts = Counter(unit for lost in whole.lost for unit in lost)
    return Audit(
        name=name,
        units=upper.units,
        images=images,
        budgets=allowed,
        worst=[100 * sum(few is None or few > k for few in whole.fewest) / images for k in allowed],
        certain=[100 * sum(least > k for least in whole.at_least) / images for k in allowed],
        random=[100 * hits / images for hits in random],
        exact=exact,
        fewest=whole.fewest,
        at_least=whole.at_least,
        leaned_on=[(unit, 100 * count / right) for unit, count in counts.most_common(NAMED)],
        hanging=[(i, lost[0]) for i, (few, lost) in enumerate(zip(whole.fewest, whole.lost, strict=True)) if few == 1],
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


@dataclass(frozen=True)
class Upper:
    """What lies above the layer, as a function of the mask alone, for a batch of examples.

    Args:
        module: from what crosses the cut to the logits.
        hidden: what crosses the cut.
        shape: of the mask.
        y: the labels.
    """

    module: nn.Module
    hidden: Hidden
    shape: torch.Size
    y: Tensor

    @classmethod
    def of(cls, module: nn.Module, hidden: Hidden, layer: AdversarialDropout, y: Tensor) -> Upper:
        """Runs once, to see what mask the layer wants."""
        seen: list[torch.Size] = []

        def hand(_: AdversarialDropout, h: Tensor) -> Tensor:
            seen.append(torch.Size(mask_shape(h.shape, layer.granularity)))
            return h.new_ones(seen[-1])

        with torch.no_grad(), handing(hand):
            module(hidden)
        return cls(module, hidden, seen[0], y)

    @property
    def units(self) -> int:
        """H."""
        return int(self.shape[1:].numel())

    def logits(self, masks: Tensor, rows: Tensor) -> Tensor:
        """Of these examples under these masks ``(R, H)``; one may come several times."""
        with handing(lambda *_: masks.view(len(rows), *self.shape[1:])):
            output: Tensor = self.module(_at(self.hidden, rows, len(self.y)))
        return output

    def ones(self, rows: int) -> Tensor:
        """Masks that lose nothing."""
        return torch.ones(rows, self.units, device=self.y.device)

    @torch.no_grad()
    def right(self, masks: Tensor, rows: Tensor) -> Tensor:
        """Which of these examples are predicted right under these masks."""
        return self.logits(masks, rows).argmax(1) == self.y[rows]


def _at(hidden: Hidden, rows: Tensor, batch: int) -> Hidden:
    if isinstance(hidden, tuple | list):
        return tuple(_at(part, rows, batch) for part in hidden)
    per_example = isinstance(hidden, Tensor) and hidden.dim() > 0 and len(hidden) == batch
    return hidden[rows] if per_example else hidden


def worst_by_rank(upper: Upper, most: int) -> Found:
    """Exact, for affine networks: each unit has a share in the lead over each rival, and the largest are lost first."""
    everything = torch.arange(len(upper.y), device=upper.y.device)
    masks = upper.ones(len(everything)).requires_grad_()
    logits = upper.logits(masks, everything)
    slopes = torch.stack(
        [torch.autograd.grad(logits[:, c].sum(), masks, retain_graph=True)[0] for c in range(logits.shape[1])], dim=1
    )
    logits = logits.detach()
    lead = logits.gather(1, upper.y[:, None]) - logits
    shares = slopes[everything, upper.y][:, None] - slopes  # (B, C, H): what each unit adds to the lead over c
    order = shares.argsort(dim=2, descending=True)
    after = lead[:, :, None] - shares.gather(2, order).clamp_min(0).cumsum(2)
    # A tie goes to the class with the smaller number, as argmax does.
    classes = torch.arange(logits.shape[1], device=logits.device)
    beaten = torch.where(classes[None, :, None] < upper.y[:, None, None], after <= 0, after < 0)
    beaten[everything, upper.y] = False
    needed = torch.where(beaten.any(2), beaten.int().argmax(2) + 1, upper.units + 1)
    count, rival = needed.min(1)
    found, right = Found(), logits.argmax(1) == upper.y
    for i in range(len(upper.y)):
        few = int(count[i]) if bool(right[i]) else 0
        reached = few <= most
        found.fewest.append(few if reached else None)
        found.lost.append(order[i, rival[i], :few].tolist() if reached else [])
        found.at_least.append(few)
    return found


def worst_by_search(upper: Upper, most: int, singles: bool) -> Found:
    """Bounds, for any network: lose the units that hold the lead over the strongest rival, as Algorithm 1 would."""
    masks = upper.ones(len(upper.y))
    rows = torch.arange(len(upper.y), device=upper.y.device)
    standing = upper.right(masks, rows)
    right, lost = standing.clone(), 0
    while lost < most and bool(standing.any()):
        step = min(max(1, lost // 8), most - lost)
        left = standing.nonzero()[:, 0]
        masks[left] = _without(upper, masks[left], left, step)
        standing[left] = upper.right(masks[left], left)
        lost += step
    changed = (right & ~standing).nonzero()[:, 0]
    masks[changed] = _pruned(upper, masks[changed], changed)
    alone = _singles(upper, right.nonzero()[:, 0]) if singles and most > 0 else {}
    found = Found()
    for i in range(len(upper.y)):
        units = [alone[i]] if i in alone else (masks[i] == 0).nonzero()[:, 0].tolist()
        broken = bool(right[i]) and (i in alone or not bool(standing[i]))
        found.fewest.append(len(units) if broken else 0 if not bool(right[i]) else None)
        found.lost.append(units if broken else [])
        least = 1 if i in alone or not singles else 2
        found.at_least.append(least if bool(right[i]) else 0)
    return found


def _without(upper: Upper, masks: Tensor, rows: Tensor, step: int) -> Tensor:
    """The masks without the kept units that do most for the lead over the strongest rival."""
    points = masks.clone().requires_grad_()
    logits = upper.logits(points, rows)
    own = logits.gather(1, upper.y[rows, None])[:, 0]
    rival = logits.scatter(1, upper.y[rows, None], -torch.inf).amax(1)
    (share,) = torch.autograd.grad((own - rival).sum(), points)
    kept = torch.where(masks > 0, share, -torch.inf)
    return masks.scatter(1, kept.topk(step, dim=1).indices, 0.0)


def _pruned(upper: Upper, masks: Tensor, rows: Tensor) -> Tensor:
    """The masks with every unit back whose loss the change does not need."""
    lost = (masks == 0).nonzero()
    for unit in lost[:, 1].unique().tolist():
        having = (masks[:, unit] == 0).nonzero()[:, 0]
        back = masks[having].clone()
        back[:, unit] = 1.0
        spared = having[~upper.right(back, rows[having])]
        masks[spared, unit] = 1.0
    return masks


def _singles(upper: Upper, rows: Tensor, chunk: int = 4096) -> dict[int, int]:
    """The examples that one unit holds, and the unit: every one is tried."""
    alone: dict[int, int] = {}
    each = max(1, chunk // max(1, len(rows)))
    for start in range(0, upper.units, each):
        units = torch.arange(start, min(start + each, upper.units), device=rows.device)
        repeated, tried = rows.repeat(len(units)), units.repeat_interleave(len(rows))
        masks = upper.ones(len(repeated)).scatter(1, tried[:, None], 0.0)
        broken = (~upper.right(masks, repeated)).nonzero()[:, 0]
        for row, unit in zip(repeated[broken].tolist(), tried[broken].tolist(), strict=True):
            alone.setdefault(row, unit)
    return alone


def _random_hits(upper: Upper, budget: int, draws: int, generator: torch.Generator) -> float:
    """The mean number of examples that are right when this many random units are lost."""
    rows = torch.arange(len(upper.y), device=upper.y.device)
    if budget == 0:
        return float(upper.right(upper.ones(len(rows)), rows).sum())
    hits = 0
    for _ in range(draws):
        places = torch.rand(len(rows), upper.units, generator=generator).topk(budget, dim=1).indices.to(rows.device)
        hits += int(upper.right(upper.ones(len(rows)).scatter(1, places, 0.0), rows).sum())
    return hits / draws


def affine(module: nn.Module) -> bool:
    """Whether a network is affine in the mask, as far as its structure tells.

    >>> affine(nn.Sequential(AdversarialDropout(), nn.Linear(3, 2)))
    True
    >>> affine(nn.Sequential(AdversarialDropout(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)))
    False
    """
    if isinstance(module, fx.GraphModule):
        for node in module.graph.nodes:
            inner = module.get_submodule(str(node.target)) if node.op == "call_module" else None
            plain = node.op in ("placeholder", "output", "get_attr")
            if not plain and not (affine(inner) if inner is not None else node.target in AFFINE_FUNCTIONS):
                return False
        return True
    if type(module) is nn.Sequential:
        return all(affine(child) for child in module)
    return type(module) in AFFINE_MODULES


@contextmanager
def _constant(model: nn.Module) -> Iterator[None]:
    """Inside the block no parameter wants a gradient."""
    wanted = {parameter: parameter.requires_grad for parameter in model.parameters()}
    model.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, before in wanted.items():
            parameter.requires_grad = before
