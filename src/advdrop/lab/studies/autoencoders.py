"""The autoencoders of Figures 2 and 3: one hidden layer of 256 ReLU units, four ways to train it.

L = QE[x, f(x, εs)] + λ QE[g, f(x, εadv)]

The paper gives p = 0.5, λ = 0.2 and δ = 0.3. It does not say what g is: the image itself, which takes the place of a
label (``adversarial``), or the clean output, as in VAdD (``virtual``). Both are trained. It gives no optimizer, no
length, no loss and no initialization: Adam at 0.001, 128 images an update, the quadratic error and Glorot's
initialization are our choices.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor, nn

from advdrop.divergences import mse
from advdrop.lab.data.batches import Stream
from advdrop.lab.models.networks import Initialization, autoencoder
from advdrop.lab.records.measurement import LEVELS
from advdrop.masks import AdversarialDropout
from advdrop.objectives import AdD
from advdrop.objectives.base import Objective, Term
from advdrop.objectives.targets import clean_output
from advdrop.randomness import derived_generator, derived_seed, seed_noise
from advdrop.step.batch import Rows
from advdrop.step.passes import Passes
from advdrop.step.step import Step

ROWS: Rows = "unlabeled"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a training.

    Args:
        p: the probability to drop a hidden unit.
        target: the target g of the adversarial output; None for no adversarial dropout.
        delta: the share of the units whose mask may be flipped.
        weight: λ.
        hidden: the number of hidden units.
        updates: of Adam.
        batch: the number of images in an update.
        rate: the learning rate.
        initialization: see :func:`advdrop.lab.models.autoencoder`.
    """

    p: float = 0.5
    target: Literal["input", "output"] | None = None
    delta: float = 0.3
    weight: float = 0.2
    hidden: int = 256
    updates: int = 10_000
    batch: int = 128
    rate: float = 1e-3
    initialization: Initialization = "glorot"


VARIANTS: dict[str, Settings] = {
    "none": Settings(p=0.0),
    "dropout": Settings(),
    "adversarial": Settings(target="input"),
    "virtual": Settings(target="output"),
}


@final
@dataclass(kw_only=True)
class Reconstruction(Term):
    """QE[x, f(x, εs)]: the reconstruction error under the sampled mask."""

    rows: Rows = ROWS

    def per_example(self, passes: Passes) -> Tensor:
        """``(B,)``."""
        return mse(image(passes, self.rows), passes.clean(self.rows).logits)


def image(passes: Passes, rows: Rows) -> Tensor:
    """Return g(x) = x, flattened like the output."""
    x: Tensor = passes.batch.inputs(rows)
    return x.flatten(1)


def objective_of(settings: Settings) -> Objective:
    """The loss of a variant.

    >>> list(objective_of(VARIANTS["virtual"]).named_parts())
    ['reconstruction', 'add_mse']
    """
    if settings.target is None:
        return Reconstruction()
    target = image if settings.target == "input" else clean_output
    return Reconstruction() + settings.weight * AdD(target=target, divergence=mse, rows=ROWS, noise="shared")


def trained(
    settings: Settings, images: Tensor, seed: int, *, progress: Callable[[int], None] = lambda _: None
) -> nn.Sequential:
    """Train an autoencoder; it depends on the seed and the number of threads alone, and is in evaluation mode.

    Args:
        settings: of the training.
        images: ``(N, ...)`` of uint8, or of floats.
        seed: of the initialization, the order and the masks; variants of one seed have the same initial weights.
        progress: called with the number of updates done.
    """
    device = images.device
    seed_noise(device, derived_seed(seed, "initialisation"))  # spelled as in the committed records
    layer = AdversarialDropout(p=settings.p, delta=settings.delta if settings.target else 0.0)
    model = autoencoder(
        layer, tuple(images.shape[1:]), hidden=settings.hidden, initialization=settings.initialization
    ).to(device)
    step, optimizer = Step(model, objective_of(settings)), torch.optim.Adam(model.parameters(), lr=settings.rate)
    stream = Stream(torch.arange(len(images)), settings.batch, seed, "autoencoder")
    for update in range(settings.updates):
        masks = derived_generator(seed, "masks", update, device=device)
        result = step(unlabeled=unit_range(images[stream.at(update)]), generator=masks)
        optimizer.zero_grad()
        result.loss.backward()
        optimizer.step()
        progress(update + 1)
    return model.eval()


def unit_range(images: Tensor) -> Tensor:
    """Bytes as numbers from 0 to 1; floats unchanged."""
    return images.float() / 255 if images.dtype == torch.uint8 else images


@torch.no_grad()
def hidden_activations(model: nn.Sequential, images: Tensor) -> Tensor:
    """The activations of the hidden layer, ``(N, H)``."""
    return torch.cat([model[:3](unit_range(part)) for part in images.split(1000)])


@torch.no_grad()
def reconstruction_error(model: nn.Sequential, images: Tensor) -> float:
    """The mean of (x − x̂)² over all values of all images, without dropout."""
    parts = [mse(unit_range(x).flatten(1), model(unit_range(x))).sum() for x in images.split(1000)]
    return float(sum(parts)) / len(images)


def by_activation(activations: Tensor) -> Tensor:
    """The units sorted by mean activation, the largest first, ``(H,)``; dead units are last."""
    return activations.mean(0).argsort(descending=True, stable=True)


def packed(weights: Tensor) -> tuple[str, float]:
    """Weights ``(H, D)`` as a short text for Figure 2, and the weight that its highest level stands for.

    One weight in 1,000 may be larger and is clipped, so that a single weight does not determine the scale.
    """
    flat = weights.abs().flatten()
    scale = float(flat.kthvalue(max(1, round(0.999 * len(flat))))[0]) or 1.0
    levels = (weights / scale * LEVELS).round().clamp(-LEVELS, LEVELS).to(torch.int8)
    return base64.b85encode(zlib.compress(levels.numpy().tobytes(), 9)).decode(), scale
