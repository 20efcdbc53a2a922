"""The autoencoders of Figures 2 and 3: one hidden layer of 256 ReLU units, four ways to train it.

L = QE[x, f(x, εs)] + λ QE[g, f(x, εadv)]

The paper gives p = 0.5, λ = 0.2 and δ = 0.3 and leaves open what g is: the image itself, which an autoencoder has in
the place of a label (``adversarial``), or its own clean output, as in VAdD (``virtual``). Both are trained. It gives
no optimizer, no length, no loss and no initialization: Adam at 0.001, 128 images an update, the quadratic error and
Glorot's initialization are our choices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor, nn

from advdrop import checks
from advdrop.divergences import mse
from advdrop.lab.data.batches import Stream
from advdrop.lab.models.autoencoder import Initialization, autoencoder
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
    """How an autoencoder is trained.

    Args:
        p: the probability with which a hidden unit is dropped.
        target: what the adversarial output is compared with; None is no adversarial dropout.
        delta: the share of the units whose mask may be flipped.
        weight: λ.
        hidden: the number of hidden units.
        updates: of Adam.
        batch: images of an update.
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
    """An autoencoder of these images, in evaluation mode; the same for the same seed and number of threads.

    Args:
        settings: how.
        images: ``(N, ...)`` of uint8, or of floats.
        seed: of the initialization, the order and the masks; variants of one seed start alike.
        progress: is told how many updates are done.
    """
    checks.count("updates", settings.updates)
    device = images.device
    seed_noise(device, derived_seed(seed, "initialisation"))  # spelled as in the committed records
    layer = AdversarialDropout(p=settings.p, delta=settings.delta if settings.target else 0.0)
    shape, chosen = tuple(images.shape[1:]), settings.initialization
    model = autoencoder(layer, shape, hidden=settings.hidden, initialization=chosen).to(device).train()
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
    """Bytes as numbers from 0 to 1; floats as they are."""
    return images.float() / 255 if images.dtype == torch.uint8 else images


@torch.no_grad()
def hidden_activations(model: nn.Sequential, images: Tensor) -> Tensor:
    """What the hidden layer makes of images, ``(N, H)``."""
    return torch.cat([encoder(model)(unit_range(part)) for part in images.split(1000)])


@torch.no_grad()
def reconstruction_error(model: nn.Sequential, images: Tensor) -> float:
    """The mean of (x − x̂)² over all values of all images, nothing dropped."""
    parts = [(mse(unit_range(x).flatten(1), model(unit_range(x))).sum()) for x in images.split(1000)]
    return float(sum(parts)) / len(images)


def encoder(model: nn.Module) -> nn.Sequential:
    """Return the part of an autoencoder below its mask; refuse any other network."""
    kinds = [type(layer) for layer in model] if type(model) is nn.Sequential else []
    if kinds[:3] != [nn.Flatten, nn.Linear, nn.ReLU] or len(kinds) != 5:
        raise ValueError(
            f"this needs an autoencoder (advdrop.lab.models.autoencoder), which has one hidden layer of ReLU units, "
            f"got a {type(model).__name__}" + (f" of {', '.join(k.__name__ for k in kinds)}" if kinds else "")
        )
    assert isinstance(model, nn.Sequential)
    return nn.Sequential(*list(model)[:3])
