"""The forward passes of one training step; the clean ones are made once and shared by all terms."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from advdrop.batch import Batch, Rows
from advdrop.masks import AdversarialDropout, Masks, handing, sample_mask, scale_mask
from advdrop.masks.layer import Hand
from advdrop.models.split import Hidden, cut
from advdrop.randomness import NoiseState, borrowed_noise, mask_generator, noise_state
from advdrop.statistics import MOVING, PASSES, frozen_statistics
from advdrop.vocabulary import PassName

Layers = tuple[AdversarialDropout, ...]


@dataclass(frozen=True)
class Pass:
    """f(x, εs): what one pass with sampled masks computed, and how to see its noise again.

    Args:
        h: what crosses the cut.
        layers: the AdversarialDropout layers, in the order in which they ran.
        masks: εs, one for each layer.
        logits: the output, ``(B, C)``.
        noise: the state of the noise at the start.
        upper_noise: the state of the noise at the start of the upper network.
    """

    h: Hidden
    layers: Layers
    masks: Masks
    logits: Tensor
    noise: NoiseState
    upper_noise: NoiseState

    def scale(self, masks: Masks) -> Masks:
        """Masks of 0 and 1 as the layers apply them."""
        return tuple(scale_mask(m, _p(layer), layer.scale) for layer, m in zip(self.layers, masks, strict=True))


class Passes:
    """The passes that the terms of an objective ask for.

    Args:
        model: any network; it is cut below its AdversarialDropout layers where that can be done.
        batch: the rows.
        generator: the randomness of masks and perturbations.
        moving: the passes that may move running batch-norm statistics.
        input_gradient: whether a term will want ∂/∂x of the labelled clean pass.
        measure: whether terms should measure themselves, into ``measures``.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        generator: torch.Generator | None = None,
        moving: Collection[PassName] = MOVING,
        input_gradient: bool = False,
        measure: bool = False,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"an objective takes a model and a Batch, got a {type(model).__name__} as model")
        if not isinstance(generator, torch.Generator | None):
            raise TypeError(f"generator must be a torch.Generator, got {generator!r}; torch.Generator().manual_seed(0)")
        if not isinstance(batch, Batch):
            raise TypeError(f"an objective takes a Batch, got {type(batch).__name__}; write Batch(x, y, u)")
        if isinstance(model, nn.parallel.DistributedDataParallel):
            raise TypeError(
                "DistributedDataParallel must wrap the whole step, not the network: several passes share one backward. "
                "Use DistributedDataParallel(TrainingStep(network, objective)) and call it with the batch."
            )
        if unknown := set(moving) - set(PASSES):
            raise ValueError(f"moving must be a subset of {PASSES}, got {sorted(unknown)}")
        self.model = model
        self.split = cut(model)
        self.batch = batch
        self.device = (batch.x if batch.x is not None else batch.images("unlabelled")).device
        self.generator = generator if generator is not None else mask_generator(self.device)
        self.moving = moving
        self.measure = measure
        self.measures: dict[str, Tensor] = {}
        self._input_gradient = input_gradient
        self._images: dict[str, Tensor] = {}
        self._clean: dict[str, Pass] = {}
        self._norms = [module for module in model.modules() if hasattr(module, "track_running_stats")]

    def images(self, rows: Rows) -> Tensor:
        """The input of the clean pass; a leaf that requires a gradient if a term asked for one."""
        rows = self._own(rows)
        if rows not in self._images:
            x = self.batch.images(rows)
            self._images[rows] = x.detach().requires_grad_() if self._input_gradient and rows == "labelled" else x
        return self._images[rows]

    def clean(self, rows: Rows) -> Pass:
        """f(x, εs), the pass that all terms on these rows share."""
        rows = self._own(rows)
        if rows not in self._clean:
            name: PassName = "labelled" if rows == "labelled" else "clean"
            self._clean[rows] = self._sampled(self.images(rows), name)
        return self._clean[rows]

    def again(self, rows: Rows) -> Pass:
        """f(x', ε's): another pass with other noise and other masks, on the second view where there is one."""
        return self._sampled(self._second_view(rows), "second")

    def under_again(self, rows: Rows) -> Hidden:
        """h': another pass of the under network alone, with other noise, on the second view where there is one."""
        with self._statistics("adversarial"):
            return self.split.under(self._second_view(rows))

    def upper(self, h: Hidden, layers: Layers, masks: Masks, name: PassName) -> Tensor:
        """f^upper(h ⊙ ε) for these (scaled) masks, ``(B, C)``."""
        with self._statistics(name), handing(_given(dict(zip(layers, masks, strict=True)))):
            return _logits(self.split.upper(h))

    def perturbed(self, x: Tensor, rows: Rows, noise: str) -> Tensor:
        """f(x + r) of a whole pass, with the noise and the masks of the clean pass (``"shared"``) or with others."""
        if noise == "independent":
            return self._sampled(x, "input").logits
        clean = self.clean(rows)
        masks = dict(zip(clean.layers, clean.scale(clean.masks), strict=True))
        with self.unnoticed(clean.noise), self._statistics("input"), handing(_given(masks)):
            return _logits(self.split(x))

    def take_measures(self) -> dict[str, Tensor]:
        """What was measured since the last time."""
        taken, self.measures = self.measures, {}
        return taken

    def noise(self) -> NoiseState:
        """Where the global noise stands now."""
        return noise_state(self.device)

    def unnoticed(self, start: NoiseState | None = None) -> AbstractContextManager[None]:
        """A block that leaves the global noise as it was; inside, the noise starts from ``start`` or from here."""
        return borrowed_noise(self.device, start)

    def _sampled(self, x: Tensor, name: PassName) -> Pass:
        masks: dict[AdversarialDropout, Tensor] = {}

        def sample(layer: AdversarialDropout, h: Tensor) -> Tensor:
            if layer not in masks:
                masks[layer] = sample_mask(h, _p(layer), self.generator, layer.granularity)
            return scale_mask(masks[layer], _p(layer), layer.scale)

        with self._statistics(name):
            noise = self.noise()
            h = self.split.under(x)
            upper_noise = self.noise()
            versions = _versions(h)
            with handing(sample):
                logits = _logits(self.split.upper(h))
        if masks and versions != _versions(h):
            raise ValueError(
                "the upper network changes its input in place, so it cannot run again on the same h; use inplace=False "
                "in its first layer"
            )
        return Pass(h, tuple(masks), tuple(masks.values()), logits, noise, upper_noise)

    def _own(self, rows: Rows) -> Rows:
        return "labelled" if self.batch.u is None else rows

    def _second_view(self, rows: Rows) -> Tensor:
        seen_twice = self._own(rows) == self._own("unlabelled")
        return self.batch.v if seen_twice and self.batch.v is not None else self.batch.images(rows)

    def _statistics(self, name: PassName) -> AbstractContextManager[None]:
        return nullcontext() if name in self.moving else frozen_statistics(*self._norms)


def _p(layer: AdversarialDropout) -> float:
    """The drop probability in force: none in evaluation."""
    return layer.p if layer.training else 0.0


def _given(masks: Mapping[AdversarialDropout, Tensor]) -> Hand:
    def hand(layer: AdversarialDropout, h: Tensor) -> Tensor:
        del h
        if layer not in masks:
            raise ValueError(
                "an AdversarialDropout layer ran that did not run in the clean pass; each pass must run all"
            )
        return masks[layer]

    return hand


def _versions(h: Hidden) -> list[int]:
    return [tensor._version for tensor in (h if isinstance(h, tuple | list) else [h]) if isinstance(tensor, Tensor)]


def _logits(output: object) -> Tensor:
    if not isinstance(output, Tensor) or output.dim() != 2:
        shown = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(f"the network must return logits (B, C), got {shown}")
    return output
