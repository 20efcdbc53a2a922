"""The forward passes of one training step.

Clean passes run once, and all terms share them. If the network treats each row by itself, all passes that are known to
be needed run as one batch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from advdrop.choices import Noise, PassName
from advdrop.eval_mode import eval_mode
from advdrop.hidden import Place, modules_at, watched
from advdrop.masks import AdversarialDropout, Masks, sample_mask, scale_mask, use_masks
from advdrop.randomness import borrowed_noise, mask_generator
from advdrop.step.batch import Batch, Rows
from advdrop.step.comparison import Comparison
from advdrop.step.inputs import Inputs, Weights, call
from advdrop.step.mask_sources import GivenMasks, Layers, SampledMasks, all_kept
from advdrop.step.network import Lower, Network
from advdrop.step.outputs import Outputs, counting
from advdrop.step.perturbation import Change, Perturbation
from advdrop.step.sequential_network import SequentialLower, SequentialNetwork
from advdrop.step.together import rowwise, still

View = Literal["clean", "second", "further", "adversarial"]
"""A pass that does not depend on another pass. ``"clean"``: the clean pass. ``"second"``: a pass with new noise on the
second view. ``"further"``: the same on the next view of the batch. ``"adversarial"``: only the lower part of such a
pass, for the adversarial mask."""

Repeated = Literal["nothing", "upper", "all"]
"""The part of the network that a term runs again with the noise of the clean pass."""


Needed = tuple[Rows, View, int]
"""A pass on some rows that a term needs. Each term has further passes of its own, with the number of the term."""


@dataclass(frozen=True)
class Plan:
    """What the terms of a step are known to need.

    Args:
        views: the passes that they will ask for.
        repeated: the part of the network that they will run again with the noise of the clean pass.
        input_gradient: whether one of them needs the gradient of the labeled clean pass with respect to its input.
        searched: the rows whose clean pass will run again with other masks.
        hidden: the modules whose outputs they will ask for.
    """

    views: tuple[Needed, ...] = ()
    repeated: Repeated = "nothing"
    input_gradient: bool = False
    searched: frozenset[Rows] = frozenset()
    hidden: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Pass:
    """f(x, εs): the result of one pass with sampled masks.

    Args:
        lower: the lower part of the pass.
        layers: the AdversarialDropout layers in the order in which they ran; one that ran twice is there twice.
        p: the DROP probability of each mask.
        masks: εs, one for each run of a layer.
        shapes: the shape of the units of each mask without the first dimension, ``(*H)``.
        logits: the output, ``(B, C)``; ``(B, C, *D)`` with places.
    """

    lower: Lower
    layers: Layers
    p: tuple[float, ...]
    masks: Masks
    shapes: tuple[torch.Size, ...]
    logits: Tensor

    def scale(self, masks: Masks) -> Masks:
        """Scale masks of 0 and 1 as the layers apply them."""
        given = zip(masks, self.p, self.layers, strict=True)
        return tuple(scale_mask(mask, p, layer.scale) for mask, p, layer in given)


class Passes:
    """The passes that the terms of an objective ask for.

    Args:
        network: how the model is run.
        batch: the rows.
        outputs: how to read what the model returns.
        generator: the randomness of masks and perturbations.
        updating: the passes that may update running statistics.
        plan: what the terms will ask for.
        measure: whether terms should put measurements into ``measures``.
    """

    def __init__(
        self,
        network: Network,
        batch: Batch,
        outputs: Outputs,
        generator: torch.Generator | None,
        updating: Collection[PassName],
        plan: Plan,
        measure: bool = False,
    ) -> None:
        self.network, self.batch, self.measure = network, batch, measure
        self.generator = generator if generator is not None else mask_generator(batch.device)
        self.measures: dict[str, Tensor] = {}
        self.outputs, self._updating, self._plan = outputs, updating, plan
        self.compare = Comparison(batch, outputs)
        self._inputs: dict[Rows, Inputs] = {}
        self._clean: dict[Rows, Pass] = {}
        self._steady: dict[Rows, Tensor] = {}
        self._hidden: dict[Rows, dict[str, Tensor]] = {}
        # By the id of an input: the input, what ``begin`` made of it, and the version of that tensor.
        self._begun: dict[int, tuple[Tensor, Tensor, int]] = {}
        # Passes and lower parts that ran as one batch, and that no term has asked for yet.
        self._ready: defaultdict[Needed, list[Any]] = defaultdict(list)
        self._joined = False
        self._returns_tensor = False
        self._term = 0
        self._views_seen: Counter[Rows] = Counter()

    def inputs(self, rows: Rows) -> Inputs:
        """Return the inputs of the clean pass; they require a gradient if a term needs it."""
        rows = self.batch.rows(rows)
        if rows not in self._inputs:
            x = self.batch.inputs(rows)
            differentiated = self._plan.input_gradient and rows == "labeled" and isinstance(x, Tensor)
            if differentiated and x.is_floating_point() and not x.requires_grad:
                x = x.detach().requires_grad_()
            self._inputs[rows] = x
        return self._inputs[rows]

    def clean(self, rows: Rows) -> Pass:
        """Return f(x, εs), the pass that all terms on these rows share."""
        rows = self.batch.rows(rows)
        if rows not in self._clean:
            ready = self._joint((rows, "clean", 0))
            name: PassName = "labeled" if rows == "labeled" else "clean"
            again = rows in map(self.batch.rows, self._plan.searched)
            with self.watching(self._plan.hidden) as self._hidden[rows]:
                self._clean[rows] = ready if ready is not None else self._sampled(self.inputs(rows), name, again=again)
        return self._clean[rows]

    def layers(self) -> set[AdversarialDropout]:
        """Return the layers that ran in the clean passes."""
        return {layer for clean in self._clean.values() for layer in clean.layers}

    def hidden(self, rows: Rows, places: Collection[Place]) -> dict[str, Tensor]:
        """Return the outputs of modules in the clean pass, by their names; the term must have named them ``hidden``."""
        self.clean(rows)
        names = modules_at(self.network.model, places)
        return {name: h for name, h in self._hidden[self.batch.rows(rows)].items() if name in names}

    @contextmanager
    def watching(self, places: Collection[Place]) -> Iterator[dict[str, Tensor]]:
        """Return a ``with`` block that collects the outputs of modules in the passes inside it."""
        if not places:
            yield {}
            return
        self._begun.clear()  # a pass that continued from there would not run all modules
        with watched(self.network.model, places) as found:
            yield found

    def without_noise(self, rows: Rows) -> Tensor:
        """Return the logits of a pass without noise and masks, with gradients, ``(B, C)``.

        Batch norm uses the statistics of the batch, and does not update its running statistics.
        """
        model, statistics = self.network.model, self.network.statistics
        training = [layer.training for layer in statistics.layers]
        with eval_mode(model):
            for layer, mode in zip(statistics.layers, training, strict=True):
                layer.training = mode
            # A layer that is inserted after a norm would be in training mode, too.
            with statistics.updates(False), use_masks(all_kept):
                return self.outputs.find(call(model, self.inputs(rows)))

    def again(self, rows: Rows) -> Pass:
        """Return another pass with new noise and new masks, on the second view if there is one."""
        ready = self._joint((self.batch.rows(rows), "second", 0))
        return ready if ready is not None else self._sampled(self.batch.second(rows), "second")

    def further(self, rows: Rows) -> Pass:
        """Return another pass with new noise and new masks, on the next of the views after the second."""
        ready = self._joint((self.batch.rows(rows), "further", self._term))
        number = self._views_seen[self.batch.rows(rows)]
        self._views_seen[self.batch.rows(rows)] += 1
        return ready if ready is not None else self._sampled(self.batch.further(rows, number), "second")

    def lower_again(self, rows: Rows) -> Lower:
        """Return another lower part with new noise, on the second view if there is one."""
        ready = self._joint((self.batch.rows(rows), "adversarial", 0))
        if isinstance(ready, SequentialLower):
            ready.noise = ready.network.noise()  # the upper part continues with the present noise
            return ready
        update = "adversarial" in self._updating
        if isinstance(self.network, SequentialNetwork):
            return self.network.lower_from(self._begin(self.batch.second(rows)), update=update)
        return self.network.lower(self.batch.second(rows), update=update)

    def masked(self, lower: Lower, clean: Pass, masks: Masks, name: PassName, *, repeat: bool) -> Tensor:
        """Return the logits of the upper part with these scaled masks, ``(B, C)``.

        Args:
            lower: the lower part.
            clean: the pass whose layers the masks belong to.
            masks: the scaled masks.
            name: the pass, which decides whether running statistics are updated.
            repeat: whether the upper part runs with the noise that it had the first time.
        """
        given, update = GivenMasks(clean.layers, masks), name in self._updating
        output = lower.output(given, update=update, repeat=repeat)
        given.finish()
        return self.outputs.find(output)

    def labels(self) -> Tensor:
        """Return the labels ``(B, *D)``, with 0 in the places that have none; soft labels ``(B, C, *D)``."""
        return self.outputs.labels(self.batch.labels())

    def steady(self, rows: Rows, weights: Weights | None = None) -> Tensor:
        """Return the logits of a pass in evaluation mode, as a constant; if given, with other weights."""
        rows, model = self.batch.rows(rows), self.network.model
        if rows in self._steady and weights is None:
            return self._steady[rows]
        with eval_mode(model), torch.no_grad():
            logits = self.outputs.find(call(model, self.batch.inputs(rows), weights))
        if weights is None:
            self._steady[rows] = logits
        return logits

    @torch.no_grad()
    def noisy(self, rows: Rows, weights: Weights) -> Tensor:
        """Return the logits of a pass with other weights and its own noise, on the second view, as a constant."""
        masks = SampledMasks(self.generator)
        return self.outputs.find(self.network.full(self.batch.second(rows), masks, update=False, weights=weights))

    @torch.no_grad()
    def taught(self, teacher: nn.Module, rows: Rows) -> Tensor:
        """Return the logits of another network in evaluation mode, as a constant."""
        with eval_mode(teacher):
            output = call(teacher, self.batch.inputs(rows))
        # A tensor is logits, unless a function makes logits of the tensors that the network returns, too.
        if isinstance(output, Tensor) and not (self._returns_tensor and callable(self.outputs.logits)):
            return self.outputs.classes_second(output)
        return self.outputs.find(output)

    def sample(self, clean: Pass) -> Masks:
        """Return another εs for the layers of a pass."""
        given = zip(clean.masks, clean.p, clean.layers, strict=True)
        return tuple(sample_mask(mask, p, self.generator, layer.granularity) for mask, p, layer in given)

    def perturbable(self, rows: Rows) -> Tensor:
        """Return the input of these rows, or raise an error if it is not one dense floating-point tensor."""
        x = self.inputs(rows)
        shown: object = type(x).__name__
        if isinstance(x, Tensor):
            dense = x.layout is torch.strided and not x.is_nested
            if dense and x.is_floating_point():
                return x
            shown = x.dtype if dense else x.layout
        raise TypeError(
            f"AT and VAT change the input, which must be one dense floating-point tensor, got {shown}; say which "
            "module's output they should change instead, VAT(at='embedding'), or use VAdD with a layer after the "
            "embedding, advdrop.insert(model, after=...)"
        )

    def perturbed(self, x: Tensor, rows: Rows, noise: Noise) -> Tensor:
        """Return the logits of a whole pass on other inputs.

        Args:
            x: the inputs.
            rows: the rows that they were made from.
            noise: whether noise and masks are those of the clean pass (``"shared"``) or new ones.
        """
        if noise == "independent":
            return self._sampled(x, "input", begun=False).logits
        return self._repeated(x, self.clean(rows))

    def perturbed_at(self, name: str, change: Change, rows: Rows, noise: Noise) -> Tensor:
        """Return the logits of a whole pass in which h, the output of a module, is replaced by h + r.

        No part of another pass is reused: the module may be anywhere in the network.

        Args:
            name: the module; if its output is not a tensor, h is the first tensor in it.
            change: returns h + r.
            rows: the rows.
            noise: as for :meth:`perturbed`.
        """
        inputs, update = self.batch.inputs(rows), "input" in self._updating
        clean = self.clean(rows) if noise == "shared" else None
        with Perturbation(self.network.model, name, change):
            if clean is None:
                return self.outputs.find(self.network.full(inputs, SampledMasks(self.generator), update=update))
            return self._repeated(inputs, clean)

    def _repeated(self, inputs: Inputs, clean: Pass) -> Tensor:
        """Return the logits of a whole pass on other inputs, with the noise and the masks of the clean pass."""
        given = GivenMasks(clean.layers, clean.scale(clean.masks))
        output = self.network.repeat(inputs, given, clean.lower, update="input" in self._updating)
        given.finish()
        return self.outputs.find(output)

    def token_mask(self, rows: Rows, h: Tensor) -> Tensor | None:
        """Return which tokens of ``(B, T, ...)`` are no padding, ``(B, T)``; None if no mask of this shape is known."""
        mask = self.outputs.places(self.batch.inputs(rows)) if h.dim() > 2 else None
        return counting(mask) if mask is not None and mask.shape == h.shape[:2] else None

    def unnoticed(self) -> AbstractContextManager[None]:
        """Return a ``with`` block that restores the global generators of torch at its end."""
        return borrowed_noise(self.network.device)

    def end_term(self) -> dict[str, Tensor]:
        """Return what a term has measured. The next term begins with the first of the further views."""
        taken, self.measures = self.measures, {}
        self._term += 1
        self._views_seen.clear()
        return taken

    def _begin(self, x: Tensor) -> Tensor:
        """Run what comes before the first noise, once for all passes of these rows."""
        assert isinstance(self.network, SequentialNetwork)
        kept = self._begun.get(id(x))
        if kept is None or kept[1]._version != kept[2]:  # a pass may have changed it in place
            begun = self.network.begin(x)
            kept = self._begun[id(x)] = x, begun, begun._version
        return kept[1]

    def _sampled(self, inputs: Inputs, name: PassName, *, again: bool = False, begun: bool = True) -> Pass:
        masks, update = SampledMasks(self.generator), name in self._updating
        if isinstance(self.network, SequentialNetwork):
            start = self._begin(inputs) if begun else self.network.begin(inputs)
            lower, output = self.network.run_from(start, masks, update=update)
        else:
            lower, output = self.network.run(inputs, masks, update=update, again=again)
        made = tuple(masks.layers), tuple(masks.p), tuple(masks.masks), tuple(masks.shapes)
        return Pass(lower, *made, self._find(output))

    def _find(self, output: Any) -> Tensor:
        """Return the logits in what the network returned, and remember whether that was a tensor."""
        self._returns_tensor = isinstance(output, Tensor)
        return self.outputs.find(output)

    def _joint(self, view: Needed) -> Any:
        """Return a pass that ran as one batch with others, or None if this one did not."""
        if not self._joined:
            self._joined = True
            self._run_together()
        ready = self._ready[view]
        return ready.pop() if ready else None

    def _run_together(self) -> None:
        """Run the passes that are known to be needed as one batch, if that gives the same results."""
        network = self.network
        if not isinstance(network, SequentialNetwork):
            return
        whole, under = network.remember((self._plan, self.batch.unlabeled is None), lambda: self._separable(network))
        if len(whole) + len(under) < 2:
            return
        needed = (*whole, *under)
        inputs = [self._inputs_of(key, needed[:i].count(key)) for i, key in enumerate(needed)]
        if len({(x.shape[1:], x.dtype) for x in inputs}) > 1:
            return
        sizes = [len(x) for x in inputs]
        rows_above = sum(sizes[: len(whole)])
        masks = SampledMasks(self.generator)
        if network.rest or len(set(map(id, inputs))) < len(inputs):  # passes of the same rows share their beginning
            begun = torch.cat([self._begin(x) for x in inputs])
        else:
            begun = network.begin(torch.cat(inputs))
        start = network.lower_from(begun, update=True)
        assert isinstance(start, SequentialLower)
        h, *lowers = start.h.split([rows_above, *sizes[len(whole) :]])
        joint = SequentialLower(network, h, start.start, start.noise)
        output = joint.output(masks, update=True, repeat=False)
        own = sizes[: len(whole)]
        # A function that makes logits of a tensor may mix rows, so it gets those of one pass.
        alone = isinstance(output, Tensor)
        logits = [self._find(part) for part in output.split(own)] if alone else self._find(output).split(own)
        parts = [logits, *(tensor.split(own) for tensor in (h, *masks.masks))]
        for key, (own_logits, own_h, *own_masks) in zip(whole, zip(*parts, strict=True), strict=True):
            lower = SequentialLower(network, own_h, start.start, start.noise)
            made = tuple(masks.layers), tuple(masks.p), tuple(own_masks), tuple(masks.shapes)
            self._ready[key].append(Pass(lower, *made, own_logits))
        for key, own_h in zip(under, lowers, strict=True):
            self._ready[key].append(SequentialLower(network, own_h, start.start, start.noise))

    def _inputs_of(self, needed: Needed, number: int) -> Inputs:
        rows, view, _ = needed
        if view == "further":
            return self.batch.further(rows, number)
        return self.inputs(rows) if view == "clean" else self.batch.second(rows)

    def _separable(self, network: SequentialNetwork) -> tuple[list[Needed], list[Needed]]:
        """Return the passes that can run as one batch: the whole passes, and those of which only the lower part runs.

        There are none if a module may mix rows, or if a pass has to repeat the noise of another.
        """
        plan, upper = self._plan, network.upper
        if plan.input_gradient or plan.repeated == "all" or (plan.repeated == "upper" and not still(upper)):
            return [], []
        if plan.hidden or not rowwise([*network.rest, *upper]):
            return [], []
        known = [(self.batch.rows(rows), view, number) for rows, view, number in plan.views]
        cleans = dict.fromkeys(key for key in known if key[1] == "clean")
        whole = [*cleans, *(key for key in known if key[1] in ("second", "further"))]
        return whole, [key for key in known if key[1] == "adversarial"]
