"""The autoencoders of Figures 2 and 3: one hidden layer of 256 ReLU units, four ways to train it.

L = QE[x, f(x, εs)] + λ QE[g, f(x, εadv)]

The paper gives p = 0.5, λ = 0.2 and δ = 0.3 and leaves open what g is: the image itself, which an autoencoder has in
the place of a label (``adversarial``), or its own clean output, as in VAdD (``virtual``). Both are trained. It gives
no optimiser, no length, no loss and no initialisation: Adam at 0.001, 128 images an update, the quadratic error and
Glorot's initialisation are our choices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from advdrop import checks
from advdrop.batch import Batch, Rows
from advdrop.data.batches import Stream
from advdrop.divergences import mse
from advdrop.masks import AdversarialDropout
from advdrop.models.autoencoder import Initialisation, autoencoder
from advdrop.models.split import Split
from advdrop.objectives import AdD
from advdrop.objectives.adversarial_dropout import clean_output
from advdrop.objectives.base import Objective, Term
from advdrop.objectives.passes import Passes
from advdrop.randomness import derived_generator, derived_seed, seed_noise

ROWS: Rows = "unlabelled"


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
        initialisation: see :func:`advdrop.models.autoencoder`.
    """

    p: float = 0.5
    target: Literal["input", "output"] | None = None
    delta: float = 0.3
    weight: float = 0.2
    hidden: int = 256
    updates: int = 10_000
    batch: int = 128
    rate: float = 1e-3
    initialisation: Initialisation = "glorot"


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
    """g(x) = x, flattened as the output is."""
    return passes.images(rows).flatten(1)


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
) -> Split:
    """An autoencoder of these images, in evaluation mode; the same for the same seed and number of threads.

    Args:
        settings: how.
        images: ``(N, ...)`` of uint8, or of floats.
        seed: of the initialisation, the order and the masks; variants of one seed start alike.
        progress: is told how many updates are done.
    """
    checks.count("updates", settings.updates)
    device = images.device
    seed_noise(device, derived_seed(seed, "initialisation"))
    layer = AdversarialDropout(p=settings.p, delta=settings.delta if settings.target else 0.0)
    shape, chosen = tuple(images.shape[1:]), settings.initialisation
    model = autoencoder(layer, shape, hidden=settings.hidden, initialisation=chosen).to(device).train()
    objective, optimiser = objective_of(settings), torch.optim.Adam(model.parameters(), lr=settings.rate)
    stream = Stream(torch.arange(len(images)), settings.batch, seed, "autoencoder")
    for update in range(settings.updates):
        masks = derived_generator(seed, "masks", update, device=device)
        loss = objective(model, Batch(u=unit_range(images[stream.at(update)])), generator=masks)
        optimiser.zero_grad()
        loss.total.backward()
        optimiser.step()
        progress(update + 1)
    return model.eval()


def unit_range(images: Tensor) -> Tensor:
    """Bytes as numbers from 0 to 1; floats as they are."""
    return images.float() / 255 if images.dtype == torch.uint8 else images


@torch.no_grad()
def hidden_activations(model: Split, images: Tensor) -> Tensor:
    """What the hidden layer makes of images, ``(N, H)``."""
    return torch.cat([encoder(model)(unit_range(part)) for part in images.split(1000)])


@torch.no_grad()
def reconstruction_error(model: Split, images: Tensor) -> float:
    """The mean of (x − x̂)² over all values of all images, nothing dropped."""
    parts = [(mse(unit_range(x).flatten(1), model(unit_range(x))).sum()) for x in images.split(1000)]
    return float(sum(parts)) / len(images)


def encoder(model: torch.nn.Module) -> torch.nn.Module:
    """The part of an autoencoder below its mask; anything else is refused."""
    layers = list(model.under) if isinstance(model, Split) and isinstance(model.under, torch.nn.Sequential) else []
    kinds = [type(layer) for layer in layers]
    if kinds != [torch.nn.Flatten, torch.nn.Linear, torch.nn.ReLU]:
        raise ValueError(
            f"this needs an autoencoder (advdrop.models.autoencoder), which has one hidden layer of ReLU units, "
            f"got a {type(model).__name__}" + (f" of {', '.join(k.__name__ for k in kinds)}" if kinds else "")
        )
    assert isinstance(model, Split)
    return model.under
