"""One training step of any network."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from advdrop import checks
from advdrop.choices import PassName
from advdrop.hidden import modules_at
from advdrop.masks import AdversarialDropout
from advdrop.objectives.base import Objective, Term, Weight
from advdrop.objectives.supervised import Supervised
from advdrop.randomness import ONE_THREAD
from advdrop.step.batch import Batch
from advdrop.step.batch_norm import PASSES, UPDATING, RunningStatistics
from advdrop.step.divide import network_of
from advdrop.step.inputs import Inputs
from advdrop.step.network import Network
from advdrop.step.outputs import ATTENTION_MASK, Classes, Logits, Mask, Outputs
from advdrop.step.passes import Passes, Plan
from advdrop.step.together import all_modules


@dataclass(frozen=True)
class Loss:
    """The result of one training step.

    Args:
        loss: Σ λ·term, a scalar; call ``backward()`` on it.
        terms: the mean of each term before its weight, detached. A term of weight 0 does not run and is not listed.
        weights: λ of each term at this progress.
        measures: what the terms measured, such as ``vadd_kl/flips``, detached; empty unless the step measures.
    """

    loss: Tensor
    terms: dict[str, Tensor]
    weights: dict[str, float]
    measures: dict[str, Tensor]


@final
class Step(nn.Module):
    """A network and its objective: call it with a batch and get the loss.

    It is one module, so ``DistributedDataParallel(step)`` distributes the whole step. Its ``state_dict`` has everything
    that is needed to resume the training, such as the table of temporal ensembling.

    Modules that a term trains with the network, such as the heads of deep supervision, are in ``step.trained``. Give an
    optimizer ``step.parameters()``, so that it trains them too.

    Args:
        model: the network. Terms such as VAdD need an AdversarialDropout layer in it, see :func:`advdrop.insert`.
        objective: a weighted sum of terms.
        logits: how to get the logits from what the network returns; not needed for a tensor, nor for an output with an
            attribute or a key ``logits``.
        classes: the dimension of the classes if the output has places: 1 for ``(B, C, *D)``, as in segmentation, or -1
            for ``(B, *D, C)``, as in token classification with Hugging Face models.
        ignore_index: the label that means "no label", such as -100. The cross-entropy leaves such places out, and so do
            the other terms; the losses of values leave out single outputs. An example without any label is an unlabeled
            example: the other terms use all its places.
        mask: which places count, ``(B, *D)``: the name of one of the inputs, its position, or a function of the inputs.
            The places of padding do not count in any term, and AT and VAT do not move padded tokens. The default is the
            input of the name ``attention_mask``, if there is one.
        updating: the passes that may update the running statistics of batch norm.
        reuse: whether the part of the network below the layer is computed once and reused. False makes every pass a
            full pass. The results are the same, except where passes would run as one batch: they then draw other random
            numbers.

    >>> from advdrop import CrossEntropy
    >>> step = Step(nn.Linear(3, 2), CrossEntropy())
    >>> step(torch.ones(1, 3), torch.tensor([1])).loss.shape
    torch.Size([])
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        *,
        logits: Logits = None,
        classes: Classes = 1,
        ignore_index: int | None = None,
        mask: Mask = ATTENTION_MASK,
        updating: Collection[PassName] = UPDATING,
        reuse: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module) or not isinstance(objective, Objective):
            raise TypeError(
                f"a Step takes a network and an objective, got {type(model).__name__} and {type(objective).__name__}"
            )
        if isinstance(model, nn.parallel.DistributedDataParallel):
            raise TypeError(
                "DistributedDataParallel must wrap the whole step, not the network: several passes share one backward "
                "pass. Write DistributedDataParallel(Step(network, objective)) and call it with the batch."
            )
        if unknown := set(updating) - set(PASSES):
            raise ValueError(f"updating must be a subset of {PASSES}, got {sorted(unknown)}")
        self.model = model
        self.objective = objective
        trained = {name: term.trained for name, (_, term) in objective.named_parts().items()}
        self.trained = nn.ModuleDict({name: module for name, module in trained.items() if module is not None})
        self.outputs = Outputs(logits, classes, ignore_index, mask)
        self.updating = frozenset(updating)
        self.reuse = reuse
        self._known: tuple[object, Network] | None = None
        self._warnings: set[str] = set()
        self._ran = False
        for _, term in objective.parts:
            term.attach(model)

    def forward(
        self,
        x: Inputs = None,
        y: Tensor | None = None,
        *,
        unlabeled: Inputs = None,
        second_view: Inputs = None,
        index: Tensor | None = None,
        more_views: Sequence[Inputs] = (),
        progress: float | None = None,
        generator: torch.Generator | None = None,
        measure: bool = False,
    ) -> Loss:
        """Run the passes and add up the terms.

        Args:
            x: labeled inputs: a tensor, a tuple of arguments, a dict of keyword arguments, or an object that the
                network takes.
            y: their labels, ``(B,)`` integers; ``(B, *D)`` if the output has places. Or the targets of another loss:
                probabilities for the cross-entropy, zeros and ones of :class:`BinaryCrossEntropy`, values of
                :class:`SquaredError`.
            unlabeled: unlabeled inputs. Without them, terms for unlabeled rows run on ``x``.
            second_view: the same rows as ``unlabeled`` (or ``x``), augmented independently.
            index: the positions of those rows in the data set, for temporal ensembling.
            more_views: more views of the same rows, for terms that compare more than two.
            progress: the share of the training that is done, in [0, 1]. Needed if a weight is a schedule.
            generator: the randomness of masks and perturbations, on the device of the batch. Without it, one draw from
                the global generator seeds them.
            measure: whether terms measure things such as the number of flips of a mask search, for ``Loss.measures``.
        """
        if not isinstance(generator, torch.Generator | None):
            raise TypeError(f"generator must be a torch.Generator, got {generator!r}; torch.Generator().manual_seed(0)")
        checks.differentiable("a step")
        batch = Batch(x, y, unlabeled, second_view, index, more_views)
        parts = self.objective.named_parts()
        weights = {name: weight_at(name, factors, progress) for name, (factors, _) in parts.items()}
        active = {name: term for name, (_, term) in parts.items() if weights[name] != 0.0}
        if not active:
            raise ValueError(f"every term of the objective has weight 0: {', '.join(weights)}")
        with ONE_THREAD, checks.warnings_once(self._warnings):
            return self._loss(batch, active, weights, generator, measure)

    def _loss(
        self,
        batch: Batch,
        active: dict[str, Term],
        weights: dict[str, float],
        generator: torch.Generator | None,
        measure: bool,
    ) -> Loss:
        passes = self.passes(batch, tuple(active.values()), generator, measure)
        versions = batch.versions()
        terms, measures, total = {}, {}, None
        for name, term in active.items():
            try:
                values = term.per_example(passes)
            except checks.NonFiniteError as error:
                raise checks.NonFiniteError(f"{name}: {error}") from None
            checks.one_each(f"{name} and its divergence", values)
            value = values.mean()
            part = value if weights[name] == 1.0 else weights[name] * value
            total = part if total is None else total + part
            terms[name] = value.detach()
            measures.update({f"{name}/{key}": measured for key, measured in passes.end_term().items()})
        if not self._ran and (layers := passes.layers()):
            self._ran = True
            self._warn_if_idle(layers)
        if batch.versions() != versions and not all(isinstance(term, Supervised) for term in active.values()):
            checks.warn_once(
                f"{type(self.model).__name__} changes its input in place, and a step runs it several times: each pass "
                "gets what the pass before has left, so the passes have different inputs. Change a copy, "
                "x = x / 255 instead of x.div_(255)"
            )
        assert total is not None
        return Loss(total, terms, weights, measures)

    def _warn_if_idle(self, layers: Collection[AdversarialDropout]) -> None:
        """Warn about inserted layers that did not run, if others did. Without any, a term raises an error."""
        hooks: list[Any] = [hook for module in all_modules(self.model) for hook in module._forward_hooks.values()]
        inserted = [hook for hook in hooks if isinstance(getattr(hook, "layer", None), AdversarialDropout)]
        if idle := [hook.place for hook in inserted if hook.layer not in layers]:
            warnings.warn(
                f"no AdversarialDropout layer ran after {', '.join(map(repr, idle))} in the first step, so nothing was "
                "flipped there: the network did not call the module (torch.nn.MultiheadAttention uses the weights of "
                "its out_proj and does not call it). advdrop.places(network, x) lists the modules that run",
                stacklevel=3,
            )

    def passes(
        self, batch: Batch, terms: tuple[Term, ...], generator: torch.Generator | None = None, measure: bool = False
    ) -> Passes:
        """Return the passes of one step for these terms; :meth:`forward` calls this."""
        plan = plan_of(terms)
        network = self._network(batch, tuple(modules_at(self.model, plan.hidden).values()))
        return Passes(network, batch, self.outputs, generator, self.updating, plan, measure)

    def _network(self, batch: Batch, watched: tuple[nn.Module, ...]) -> Network:
        """Return how to run the model. The network of the last step is used again if nothing has changed since."""
        modules = all_modules(self.model)
        given = [inputs for inputs in (batch.x, batch.unlabeled, batch.second_view) if inputs is not None]
        example = given[0] if all(isinstance(inputs, Tensor) for inputs in given) else ()
        surroundings = type(example), batch.device, self.reuse, _has_any_global_hook(), watched
        state = modules, [_signature(module) for module in modules], surroundings
        if self._known is None or self._known[0] != state:
            statistics = RunningStatistics(modules)
            self._known = state, network_of(self.model, example, batch.device, statistics, self.reuse, watched)
        return self._known[1]

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, state in self.objective.state_dict().items():
            destination.update({f"{prefix}objective.{name}.{key}": value for key, value in state.items()})

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        metadata, strict, missing, unexpected, errors = args
        found: dict[str, dict[str, Tensor]] = {}
        lost: list[str] = []
        for name, state in self.objective.state_dict().items():
            keys = {key: f"{prefix}objective.{name}.{key}" for key in state}
            lost.extend(key for key in keys.values() if key not in state_dict)
            found[name] = {key: state_dict[full] for key, full in keys.items() if full in state_dict}
        if found and not lost:
            try:
                self.objective.load_state_dict(found)
            except ValueError as error:
                errors.append(str(error))
        missing.extend(lost)
        own = {f"{prefix}objective.{name}.{key}" for name, state in found.items() for key in state}
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)
        unexpected[:] = [key for key in unexpected if key not in own]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the cached network; the next step makes it again."""
        return {**self.__dict__, "_known": None}


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _signature(module: nn.Module) -> tuple[object, ...]:
    """Return all that decides how a module is run. If it changes, the next step does not use the cached network."""
    own = module.__dict__
    return (
        type(module),
        tuple(own["_modules"].values()),  # a module may be there twice
        module.training,
        *[_comparable(own.get(option)) for option in ("p", "sigma", "inplace", "start_dim")],
        own.get("forward"),
        own.get("_compiled_call_impl"),
        *[tuple(own[hooks]) if own[hooks] else () for hooks in _HOOKS],
    )


def _comparable(value: object) -> object:
    """Return a number as it is, and the type of anything else: arrays cannot be compared with one answer."""
    return value if isinstance(value, int | float | None) else type(value)


def plan_of(terms: tuple[Term, ...]) -> Plan:
    """Return what these terms will need."""
    for term in terms:
        checks.choice("rows", term.rows, ("labeled", "unlabeled"))
    return Plan(
        views=tuple(
            (term.rows, view, number * (view == "further")) for number, term in enumerate(terms) for view in term.views
        ),
        repeated=max((term.repeated for term in terms), key=("nothing", "upper", "all").index),
        input_gradient=any(term.input_gradient for term in terms),
        searched=frozenset(term.rows for term in terms if term.searches_clean),
        hidden=tuple(dict.fromkeys(place for term in terms for place in term.hidden)),
    )


def weight_at(name: str, factors: tuple[Weight, ...], progress: float | None) -> float:
    """Return λ, the product of its factors, at this progress."""
    if progress is not None:
        checks.fraction("progress", progress)
    elif any(callable(factor) for factor in factors):
        raise ValueError(
            f"the weight of {name} is a schedule, so the step needs to know how far the training is: call it with "
            "progress=update / updates, a number from 0 to 1"
        )
    at = 0.0 if progress is None else progress
    weight = 1.0
    for factor in factors:
        value = factor(at) if callable(factor) else factor
        if not isinstance(value, numbers.Real | Tensor) or (isinstance(value, Tensor) and value.numel() != 1):
            raise TypeError(f"a schedule of {name} must return a number, got {value!r} at progress={progress}")
        try:
            number = float(value)
        except OverflowError:  # an int that is too large for a float
            number = math.inf
        weight *= number
        # Each factor is checked: -3 times -3 is positive, and 0 times -3 is 0.
        if not 0.0 <= number < math.inf or weight == math.inf:
            raise ValueError(
                f"the weight of {name} must be finite and not negative, got {value!r} at progress={progress}"
            )
    return weight
