"""Where the AdversarialDropout layers get their masks from in a pass."""

from __future__ import annotations

import torch
from torch import Tensor

from advdrop.masks import AdversarialDropout, Masks, mask_shape, sample_mask, scale_mask

Layers = tuple[AdversarialDropout, ...]


def all_kept(layer: AdversarialDropout, h: Tensor) -> Tensor:
    """Return a mask of ones: a mask source for a pass without masks."""
    return h.new_ones(mask_shape(h.shape, layer.granularity))


class SampledMasks:
    """A mask source that samples εs and remembers it. A layer in evaluation mode drops nothing.

    Args:
        generator: where the randomness comes from.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.layers: list[AdversarialDropout] = []
        self.p: list[float] = []
        self.masks: list[Tensor] = []
        self.shapes: list[torch.Size] = []

    def __call__(self, layer: AdversarialDropout, h: Tensor) -> Tensor:
        """Return a new mask, scaled."""
        p = layer.p if layer.training else 0.0
        mask = sample_mask(h, p, self.generator, layer.granularity)
        self.layers.append(layer)
        self.p.append(p)
        self.masks.append(mask)
        self.shapes.append(h.shape[1:])
        return scale_mask(mask, p, layer.scale)


class GivenMasks:
    """A mask source that supplies the given scaled masks, in order.

    Args:
        layers: the layers, in the order in which they are expected to run.
        masks: a mask for each run.
    """

    def __init__(self, layers: Layers, masks: Masks) -> None:
        self.given = list(zip(layers, masks, strict=True))
        self.position = 0

    def rewind(self) -> None:
        """Start again from the first mask, because the pass starts again."""
        self.position = 0

    def __call__(self, layer: AdversarialDropout, h: Tensor) -> Tensor:
        """Return the next mask."""
        del h
        if self.position == len(self.given) or self.given[self.position][0] is not layer:
            raise self._wrong_order()
        self.position += 1
        return self.given[self.position - 1][1]

    def finish(self) -> None:
        """Raise an error if a layer has not run."""
        if self.position < len(self.given):
            raise self._wrong_order()

    def _wrong_order(self) -> ValueError:
        return ValueError(
            "the AdversarialDropout layers did not run in the order of the clean pass; every pass of a step must run "
            "the same layers in the same order"
        )
