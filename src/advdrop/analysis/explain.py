"""Show what the mask search (Algorithm 1) does with one example."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from advdrop import checks
from advdrop.eval_mode import eval_mode
from advdrop.insertion import adversarial_layers
from advdrop.masks import AdversarialDropout, Masks
from advdrop.objectives import EMA, AdD, SAdD, VAdD
from advdrop.objectives.adversarial_dropout import Searched
from advdrop.objectives.targets import clean_output, labels
from advdrop.randomness import derived_generator, unnoticed
from advdrop.step.batch import Batch
from advdrop.step.step import Step


@dataclass(frozen=True)
class Explanation:
    """What the mask search does with one example.

    Args:
        title: the title of the example.
        image: the pixels from 0 to 1, ``(rows, columns)``; empty if the example is not an image.
        shape: the shape of the units of the layer, such as ``(128, 4, 4)``.
        sampled: εs, a 0 or 1 for each unit.
        jacobian: J at ε0 = 1, a number for each unit.
        adversarial: εadv, a 0 or 1 for each unit.
        budget: the number of flips allowed.
        target: the target of the divergence, in words.
        classes: the names of the classes.
        whole: the class probabilities without dropout.
        before: the class probabilities with εs.
        after: the class probabilities with εadv.
        divergence: D with εs and with εadv.
    """

    title: str
    image: Sequence[Sequence[float]]
    shape: Sequence[int]
    sampled: Sequence[int]
    jacobian: Sequence[float]
    adversarial: Sequence[int]
    budget: int
    target: str
    classes: Sequence[str]
    whole: Sequence[float]
    before: Sequence[float]
    after: Sequence[float]
    divergence: tuple[float, float]

    @property
    def flips(self) -> list[int]:
        """The flipped units, the largest gain first."""
        pairs = enumerate(zip(self.sampled, self.adversarial, strict=True))
        changed = [unit for unit, (before, after) in pairs if before != after]
        return sorted(changed, key=lambda unit: -abs(self.jacobian[unit]))

    @property
    def summary(self) -> str:
        """The main results in a few sentences."""
        units, flips = len(self.sampled), self.flips
        dropped = sum(self.sampled[unit] for unit in flips)
        guesses = [max(range(len(p)), key=lambda c: p[c]) for p in (self.before, self.after)]
        pairs = zip(guesses, (self.before, self.after), strict=True)
        old, new = (f"{self.classes[guess]} ({100 * p[guess]:.1f} %)" for guess, p in pairs)
        same = guesses[0] == guesses[1]
        change = f"The prediction stays {old}, now {new}." if same else f"The prediction changes from {old} to {new}."
        return (
            f"{units} units, {sum(self.sampled)} of them kept by the sampled mask. Of {self.budget} flips allowed, "
            f"{len(flips)} were made: {dropped} dropped, {len(flips) - dropped} revived. The divergence from "
            f"{self.target} goes from {self.divergence[0]:.4g} to {self.divergence[1]:.4g}. {change}"
        )


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
    """Return the sampled mask, the Jacobian, the flips and the class probabilities of one example.

    Only the AdversarialDropout layer is in training mode, so nothing but the sampled mask is random.

    Args:
        model: a network with one AdversarialDropout layer that returns logits.
        x: one example, ``(...)`` without a batch dimension.
        label: its class, for the target ``"label"``.
        target: what the divergence is measured from: the network's own clean ``"output"`` (VAdD) or the ``"label"``
            (SAdD). The default is the output, or the label if there is one and the layer has p = 0: without dropout the
            Jacobian of VAdD is zero.
        delta: δ; the layer's own if not given.
        term: an AdD term with its own target, divergence, search and δ. Then ``delta`` is ignored, and ``target`` only
            sets the text of ``Explanation.target``.
        seed: seeds the sampled mask.
        classes: the names of the classes; numbers if not given.
        title: the title of the example.
    """
    layers = adversarial_layers(model)
    if len(layers) != 1:
        raise ValueError(
            f"explain needs a network with one AdversarialDropout layer, got {len(layers)} in {type(model).__name__}; "
            "advdrop.insert(model, after=...) puts one after any module"
        )
    checks.floating("x", x)
    if target is not None:
        checks.choice("target", target, ("output", "label"))
    other = term is not None and target is None and term.target is not labels and term.target is not clean_output
    if term is not None and target is None:
        target = "label" if term.target is labels else "output"
    target = target or ("output" if layers[0].p > 0 or label is None else "label")
    if target == "label" and label is None:
        raise ValueError("the target 'label' needs the label of the example")
    chosen = term or (VAdD(delta=delta, noise="shared") if target == "output" else SAdD(delta=delta))
    # An average of the weights moves in every search, so a copy of it is used.
    own = copy.deepcopy(chosen.target) if isinstance(chosen.target, EMA) else chosen.target
    chosen = replace(chosen, rows="labeled", target=own)
    batch = Batch(x[None], torch.tensor([label or 0], device=x.device))
    with unnoticed(x.device), eval_mode(model), _training(layers[0]), torch.enable_grad():
        generator = derived_generator(seed, "explain", device=x.device)
        passes = Step(model, chosen, updating=()).passes(batch, (chosen,), generator, measure=True)
        way = "wrap the network in a module that returns the logits of one place"
        with batch.unchanged("explain"):
            checks.no_places("explain", passes.clean("labeled").logits, way)
        found = chosen.searched(passes)
        if len(found.masks) != 1:
            raise ValueError(f"explain needs a layer that runs once in a pass; it ran {len(found.masks)} times")
        with torch.no_grad():
            outputs = [
                passes.masked(found.lower, found.clean, masks, "search", repeat=True) for masks in _scaled_masks(found)
            ]
            divergences = [float(chosen.divergence(found.target, logits, given=chosen.given)) for logits in outputs[1:]]
    jacobian = found.jacobians[0][0] if found.jacobians else torch.zeros_like(found.masks[0])
    names = [str(number) for number in range(outputs[0].shape[1])] if classes is None else list(classes)
    if len(names) != outputs[0].shape[1]:
        raise ValueError(f"classes must name the {outputs[0].shape[1]} outputs of the network, got {len(names)} names")
    whole, before, after = (logits[0].softmax(0).tolist() for logits in outputs)
    budget = found.problem.budget
    own_output = "the target of the term" if other else "the network's own clean output"
    return Explanation(
        title=title,
        image=_image(x),
        shape=tuple(found.masks[0].shape[1:]),
        sampled=[int(value) for value in found.problem.sampled[0].flatten().tolist()],
        jacobian=jacobian.flatten().tolist(),
        adversarial=[int(value) for value in found.masks[0].flatten().tolist()],
        budget=sum(budget) if isinstance(budget, tuple) else budget,
        target=own_output if target == "output" else f"the label {names[label or 0]}",
        classes=names,
        whole=whole,
        before=before,
        after=after,
        divergence=(divergences[0], divergences[1]),
    )


def _scaled_masks(found: Searched) -> Iterator[Masks]:
    """Yield ε = 1, εs and εadv, scaled as the layer applies them."""
    yield tuple(torch.ones_like(mask) for mask in found.masks)
    yield found.clean.scale(found.problem.sampled)
    yield found.clean.scale(found.masks)


@contextmanager
def _training(layer: AdversarialDropout) -> Iterator[None]:
    """Keep the layer in training mode, also an inserted one, which takes the mode of its module in every pass."""

    def train(module: nn.Module, args: Any) -> None:
        del args
        module.train()

    before, hook = layer.training, layer.register_forward_pre_hook(train)
    try:
        yield
    finally:
        hook.remove()
        layer.train(before)


def _image(x: Tensor) -> list[list[float]]:
    """Return the brightness of an image, from 0 to 1 over its own range; empty for a row of a table."""
    if x.dim() not in (2, 3):
        return []
    gray = x.detach().float().cpu()
    gray = gray.mean(0) if gray.dim() == 3 else gray
    low, high = float(gray.min()), float(gray.max())
    scaled: list[list[float]] = ((gray - low) / (high - low or 1.0)).tolist()
    return scaled
