"""The fewest units of a layer whose loss changes a prediction: exact for affine networks, bounds for others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from advdrop import checks
from advdrop.analysis.faults import right as is_right
from advdrop.insertion import InsertedLayer, adversarial_layers
from advdrop.masks import AdversarialDropout, mask_jacobian, mask_shape
from advdrop.step.batch import Batch
from advdrop.step.batch_norm import RunningStatistics
from advdrop.step.divide import network_of
from advdrop.step.inputs import Inputs
from advdrop.step.mask_sources import all_kept
from advdrop.step.outputs import Outputs
from advdrop.step.sequential_network import plain_children

AFFINE_MODULES = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Identity, nn.Flatten),
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, AdversarialDropout),
)
"""Modules that are affine in evaluation mode."""


@dataclass(frozen=True)
class Fewest:
    """The fewest lost units that were found to change the prediction of an example.

    Args:
        count: how many; 0 if the prediction is wrong already, None if none were found.
        units: these units.
        at_least: how many are certainly needed; 0 if the prediction is wrong already.
    """

    count: int | None
    units: list[int]
    at_least: int


class Upper:
    """The logits of one batch as a function of the masks of a layer, ``(B, H)``.

    Args:
        model: a network, in evaluation mode.
        layer: its AdversarialDropout layer whose units are lost; other such layers keep all units.
        x: the inputs of B rows.
        y: their labels, ``(B,)``.
    """

    def __init__(self, model: nn.Module, layer: AdversarialDropout, x: Inputs, y: Tensor) -> None:
        batch = Batch(x, y)
        network = network_of(model, x, batch.device, RunningStatistics(model.modules()))
        self._logits = Outputs().find
        inputs_of_layer: list[Tensor] = []

        def ones(each: AdversarialDropout, h: Tensor) -> Tensor:
            if each is layer:
                inputs_of_layer.append(h)
            return all_kept(each, h)

        with batch.unchanged("an audit"):
            self._lower, output = network.run(x, ones, update=False, again=True)
        if not inputs_of_layer:
            raise ValueError(f"the AdversarialDropout layer of {type(model).__name__} did not run")
        h, self._layer = inputs_of_layer[0], layer
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
        self.y = y.to(logits.device).long()
        self.rounded = logits.dtype.itemsize < 4

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

        def source(each: AdversarialDropout, h: Tensor) -> Tensor:
            return mask if each is self._layer else all_kept(each, h)

        return self._logits(self._lower.output(source, update=False, repeat=True))

    @torch.no_grad()
    def right(self, masks: Tensor) -> Tensor:
        """Return which predictions are right with these masks, ``(B,)``; without units a network may give NaN."""
        return is_right(self.logits(masks), self.y)


def worst_by_rank(upper: Upper, most: int) -> list[Fewest]:
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
    # What is left of a lead may be a rounding error: without bias, the logits are all 0 when all active units are lost.
    rounding = 4 * torch.finfo(after.dtype).eps * (logits.abs().amax(1)[:, None] + shares.abs().sum(2))
    after = torch.where(after.abs() <= rounding[:, :, None], 0.0, after)
    # A tie goes to the class with the smaller number, as in argmax.
    beaten = torch.where(classes[None, :, None] < y[:, None, None], after <= 0, after < 0)
    beaten[rows, y] = False
    needed = torch.where(beaten.any(2), beaten.int().argmax(2) + 1, upper.units + 1)
    counts, rivals = needed.min(1)
    counts = torch.where(logits.argmax(1) == y, counts, 0)
    return [
        Fewest(few, order[i, rival, :few].tolist(), few) if few <= most else Fewest(None, [], few)
        for i, (few, rival) in enumerate(zip(counts.tolist(), rivals.tolist(), strict=True))
    ]


def worst_by_search(upper: Upper, most: int, singles: bool) -> list[Fewest]:
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
    found = []
    for mask, unit, was_right, stands in zip(masks, single, right.tolist(), standing.tolist(), strict=True):
        changed = was_right and (unit is not None or not stands)
        units = [] if not changed else [unit] if unit is not None else (mask == 0).nonzero()[:, 0].tolist()
        certain = 2 if tried and unit is None else 1
        found.append(Fewest(len(units) if changed else None, units, certain) if was_right else Fewest(0, [], 0))
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


def random_hits(upper: Upper, budget: int, draws: int, generator: torch.Generator) -> float:
    """Return the mean number of right predictions when this many random units are lost."""
    ones = upper.ones()
    if budget == 0:
        return float(upper.right(ones).sum())
    hits = 0
    for _ in range(draws):
        units = torch.rand(ones.shape, generator=generator).topk(budget, dim=1).indices.to(ones.device)
        hits += int(upper.right(ones.scatter(1, units, 0.0)).sum())
    return hits / draws


def affine_above(model: nn.Module, layer: AdversarialDropout) -> bool:
    """Return True if the logits are known to be affine in the mask of an AdversarialDropout layer.

    This is known of a plain ``nn.Sequential`` (it may be nested) with affine modules above the layer.

    >>> layer = AdversarialDropout()
    >>> affine_above(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), layer, nn.Linear(3, 2)), layer)
    True
    >>> affine_above(nn.Sequential(layer, nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)), layer)
    False
    """
    children = plain_children(model) or []
    place = next((place for place, child in enumerate(children) if layer in adversarial_layers(child)), None)
    if place is None:
        return False
    holder, hooks = children[place], list(children[place]._forward_hooks.values())
    itself = holder is layer and not hooks
    inserted = [hook.layer for hook in hooks if isinstance(hook, InsertedLayer) and hook.part is None]
    only_hook = len(hooks) == 1 and layer in inserted
    return (itself or only_hook) and all(affine(child) and child is not layer for child in children[place + 1 :])


def affine(module: nn.Module) -> bool:
    """Return True if a module is known to be affine in evaluation mode.

    >>> affine(nn.Linear(2, 2)), affine(nn.ReLU())
    (True, False)
    """
    changed = module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__
    batch_statistics = getattr(module, "running_mean", module) is None  # a batch norm that does not track them
    return type(module) in AFFINE_MODULES and not changed and not batch_statistics
