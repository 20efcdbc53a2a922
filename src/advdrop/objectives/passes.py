"""The forward passes of one training step.

The clean ones are made once and shared by all terms. What lies below the first noise is the same in every pass of the
same rows, and is computed once too. Where each row of the network is on its own, all passes that are known to come run
as one batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from advdrop.batch import Batch, Rows
from advdrop.masks import AdversarialDropout, Masks, handing, sample_mask, scale_mask
from advdrop.masks.layer import Hand
from advdrop.models.rowwise import beginning, by_rows, parts, still
from advdrop.models.split import Hidden, cut
from advdrop.randomness import NoiseState, borrowed_noise, mask_generator, noise_state
from advdrop.statistics import MOVING, PASSES, frozen_statistics
from advdrop.vocabulary import PassName

Layers = tuple[AdversarialDropout, ...]

View = Literal["clean", "second", "adversarial"]
"""A pass of some rows that needs nothing of another: the clean one, a second one with other noise and the second view,
or the under network alone, as the second one, for the adversarial mask."""

Ahead = tuple[Rows, View]
"""A pass that will be asked for."""

Replayed = Literal["nothing", "upper", "all"]
"""The part of the network whose noise in the clean pass will be seen again."""


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

    def split(self, sizes: Sequence[int]) -> list[Pass]:
        """The same as several passes of some rows each. Their noise cannot be seen again one by one."""
        h, logits, *masks = (tensor.split(sizes) for tensor in (self.h, self.logits, *self.masks))
        return [
            replace(self, h=h[i], logits=logits[i], masks=tuple(mask[i] for mask in masks)) for i in range(len(sizes))
        ]

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
        ahead: the passes that the terms are known to ask for, so that they can run together.
        replayed: what they will want to see the noise of again, which cannot be had of passes that ran together.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        generator: torch.Generator | None = None,
        moving: Collection[PassName] = MOVING,
        input_gradient: bool = False,
        measure: bool = False,
        ahead: Sequence[Ahead] = (),
        replayed: Replayed = "nothing",
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
        self._first, self._rest = beginning(self.split.under)
        self._begun: dict[Tensor, tuple[Hidden, list[int]]] = {}
        self._ahead = ahead
        self._replayed = replayed
        self._ready: defaultdict[Ahead, list[Pass]] = defaultdict(list)
        self._under_ready: defaultdict[Rows, list[Hidden]] = defaultdict(list)
        self._norms = [module for module in parts(model) if hasattr(module, "track_running_stats")]

    def images(self, rows: Rows) -> Tensor:
        """The input of the clean pass; a leaf that requires a gradient if a term asked for one."""
        rows = self._own(rows)
        if rows not in self._images:
            x = self.batch.images(rows)
            moved = self._input_gradient and rows == "labelled" and x.is_floating_point()
            self._images[rows] = x.detach().requires_grad_() if moved else x
        return self._images[rows]

    def clean(self, rows: Rows) -> Pass:
        """f(x, εs), the pass that all terms on these rows share."""
        rows = self._own(rows)
        if rows not in self._clean:
            self._together()
            ready = self._ready[rows, "clean"]
            name: PassName = "labelled" if rows == "labelled" else "clean"
            self._clean[rows] = ready.pop() if ready else self._sampled(self._begin(self.images(rows)), name)
        return self._clean[rows]

    def perturbable(self, rows: Rows) -> Tensor:
        """The same, if it can be moved by a small step."""
        x = self.images(rows)
        if not x.is_floating_point():
            raise TypeError(
                f"AT and VAT move the input, and {x.dtype} tokens cannot be moved by a little; use VAdD with a layer "
                "behind the embedding, advdrop.wrap(model, after=...), or give the embedded tokens as input"
            )
        return x

    def again(self, rows: Rows) -> Pass:
        """f(x', ε's): another pass with other noise and other masks, on the second view where there is one."""
        self._together()
        ready = self._ready[self._own(rows), "second"]
        return ready.pop() if ready else self._sampled(self._begin(self._second_view(rows)), "second")

    def under_again(self, rows: Rows) -> Hidden:
        """h': another pass of the under network alone, with other noise, on the second view where there is one."""
        self._together()
        ready = self._under_ready[self._own(rows)]
        if ready:
            return ready.pop()
        with self._statistics("adversarial"):
            return self._rest(self._begin(self._second_view(rows)))

    def upper(self, h: Hidden, layers: Layers, masks: Masks, name: PassName) -> Tensor:
        """f^upper(h ⊙ ε) for these (scaled) masks, ``(B, C)``."""
        with self._statistics(name), handing(_given(dict(zip(layers, masks, strict=True)))):
            return _logits(self.split.upper(h))

    def perturbed(self, x: Tensor, rows: Rows, noise: str) -> Tensor:
        """f(x + r) of a whole pass, with the noise and the masks of the clean pass (``"shared"``) or with others."""
        if noise == "independent":
            return self._sampled(self._first(x), "input").logits
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

    def _begin(self, x: Tensor) -> Hidden:
        """What lies below the first noise, once for all passes of these rows; anew if one of them changed it."""
        begun, versions = self._begun.get(x, (None, None))
        if versions is None or versions != _versions(begun):
            begun = self._first(x)
            self._begun[x] = begun, _versions(begun)
        return begun

    def _sampled(self, begun: Hidden, name: PassName) -> Pass:
        with self._statistics(name):
            noise = self.noise()
            return self._upper_sampled(self._rest(begun), noise)

    def _upper_sampled(self, h: Hidden, noise: NoiseState) -> Pass:
        masks: dict[AdversarialDropout, Tensor] = {}

        def sample(layer: AdversarialDropout, h: Tensor) -> Tensor:
            if layer not in masks:
                masks[layer] = sample_mask(h, _p(layer), self.generator, layer.granularity)
            return scale_mask(masks[layer], _p(layer), layer.scale)

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

    def _together(self) -> None:
        """Make the passes that are known to come as one batch, if that comes to the same: the first time only."""
        known, self._ahead = [(self._own(rows), view) for rows, view in self._ahead], ()
        cleans = dict.fromkeys(key for key in known if key[1] == "clean")
        whole = [*cleans, *(key for key in known if key[1] == "second")]
        under = [rows for rows, view in known if view == "adversarial"]
        if len(whole) + len(under) < 2 or not self._on_their_own():
            return
        images = [self.images(rows) if view == "clean" else self._second_view(rows) for rows, view in whole]
        inputs = [self._begin(x) for x in (*images, *(self._second_view(rows) for rows in under))]
        if len({(x.shape[1:], x.dtype) for x in inputs}) > 1:
            return
        sizes = [len(x) for x in inputs]
        noise = self.noise()
        h, *under_h = self._rest(torch.cat(inputs)).split([sum(sizes[: len(whole)]), *sizes[len(whole) :]])
        for key, made in zip(whole, self._upper_sampled(h, noise).split(sizes[: len(whole)]), strict=True):
            self._ready[key].append(made)
        for rows, part in zip(under, under_h, strict=True):
            self._under_ready[rows].append(part)

    def _on_their_own(self) -> bool:
        """Whether the rows of one batch can be those of several passes, and nobody would miss a pass's own noise."""
        upper = self.split.upper
        replays = self._replayed == "all" or (self._replayed == "upper" and not still(upper))
        changes = any(getattr(module, "inplace", False) for module in parts(upper))
        return not (replays or changes or self._input_gradient) and by_rows(self._rest, upper)

    def _own(self, rows: Rows) -> Rows:
        return "labelled" if self.batch.u is None else rows

    def _second_view(self, rows: Rows) -> Tensor:
        seen_twice = self._own(rows) == self._own("unlabelled")
        return self.batch.v if seen_twice and self.batch.v is not None else self.batch.images(rows)

    def _statistics(self, name: PassName) -> AbstractContextManager[None]:
        return frozen_statistics(*self._norms) if self._norms and name not in self.moving else nullcontext()


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
