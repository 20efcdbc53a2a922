"""Algorithm 1 made visible: what the mask search does with one example."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from advdrop import checks
from advdrop.batch import Batch
from advdrop.masks import AdversarialDropout, Masks
from advdrop.modes import evaluating
from advdrop.objectives import AdD, SAdD, VAdD
from advdrop.objectives.adversarial_dropout import Searched
from advdrop.objectives.passes import Passes
from advdrop.randomness import derived_generator
from advdrop.report.explanation import Explanation


def explain(
    model: nn.Module,
    x: Tensor,
    label: int | None = None,
    *,
    target: Literal["output", "label"] | None = None,
    delta: float | None = None,
    term: AdD | None = None,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    title: str = "One example",
) -> Explanation:
    """The sampled mask, the Jacobian, the flips and the class probabilities of one example.

    The network is in evaluation mode but for its AdversarialDropout layer, so the mask is all that is random.

    Args:
        model: a network with an AdversarialDropout layer, whose output is logits.
        x: one example as the network takes it, ``(...)`` without a batch dimension.
        label: its class, for the target ``"label"``.
        target: what the output is driven away from: the network's own clean ``"output"`` (VAdD) or the ``"label"``
            (SAdD). If not given, the output, unless the layer drops nothing by itself (p = 0): then the search would
            have nothing to go by, and the label is taken.
        delta: δ; the layer's own if not given.
        term: the whole objective instead, with its divergence and search.
        seed: of the sampled mask.
        classes: their names; numbers if not given.
        title: of the figure.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, AdversarialDropout)]
    if len(layers) != 1:
        raise ValueError(
            f"explain needs a network with one AdversarialDropout layer, got {len(layers)} in {type(model).__name__}"
        )
    checks.floating("x", x)
    target = target or ("output" if layers[0].p > 0 or label is None else "label")
    if target == "label" and label is None:
        raise ValueError("the target 'label' needs the label of the example")
    chosen = term or (VAdD(delta=delta, noise="shared") if target == "output" else SAdD(delta=delta))
    chosen = replace(chosen, rows="labelled")
    batch = Batch(x[None], torch.tensor([label or 0], device=x.device))
    with evaluating(model):
        layers[0].train()  # the mask is all that is random
        passes = Passes(model, batch, derived_generator(seed, "explain", device=x.device), (), measure=True)
        found = chosen.searched(passes)
        with torch.no_grad():
            outputs = [passes.upper(found.h, found.clean.layers, masks, "search") for masks in _masks(found)]
            divergences = [float(chosen.divergence(found.target, logits, given=chosen.given)) for logits in outputs[1:]]
    jacobian = found.jacobians[0][0] if found.jacobians else torch.zeros_like(found.masks[0])
    names = [str(number) for number in range(outputs[0].shape[1])] if classes is None else list(classes)
    whole, before, after = (logits[0].softmax(0).tolist() for logits in outputs)
    budget = found.problem.budget
    return Explanation(
        title=title,
        image=_image(x),
        shape=tuple(found.masks[0].shape[1:]),
        sampled=[int(value) for value in found.clean.masks[0].flatten().tolist()],
        jacobian=jacobian.flatten().tolist(),
        adversarial=[int(value) for value in found.masks[0].flatten().tolist()],
        budget=sum(budget) if isinstance(budget, tuple) else budget,
        target="the network's own clean output" if target == "output" else f"the label {names[label or 0]}",
        classes=names,
        whole=whole,
        before=before,
        after=after,
        divergence=(divergences[0], divergences[1]),
    )


def _masks(found: Searched) -> Iterator[Masks]:
    """ε = 1, εs and εadv, scaled as the layer does."""
    yield tuple(torch.ones_like(mask) for mask in found.masks)
    yield found.clean.scale(found.clean.masks)
    yield found.clean.scale(found.masks)


def _image(x: Tensor) -> list[list[float]]:
    """The brightness of an image, from 0 to 1 over its own range; nothing for a row of a table."""
    if x.dim() not in (2, 3):
        return []
    grey = x.detach().float().cpu()
    grey = grey.mean(0) if grey.dim() == 3 else grey
    low, high = float(grey.min()), float(grey.max())
    scaled: list[list[float]] = ((grey - low) / (high - low or 1.0)).tolist()
    return scaled
