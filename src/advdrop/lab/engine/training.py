"""What is trained, and one update of it: batch, step, backward, optimizer.

Everything random or scheduled is a function of the seed and the number of the update: the batch, the augmentation, the
noise, λ, the learning rate and β1. So a checkpoint holds only the network, the optimizer, the objective and metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import proxy

import torch
from torch import Tensor, nn

from advdrop import schedules
from advdrop.checks import value_checks
from advdrop.lab.config.config import RunConfig
from advdrop.lab.data.batches import Batches
from advdrop.lab.engine.companion import Companion, main_network
from advdrop.lab.engine.opponent import Opponent
from advdrop.lab.models.ladder import LadderNetwork
from advdrop.objectives import Combination, Objective
from advdrop.randomness import derived_seed, seed_noise
from advdrop.schedules import Factor
from advdrop.step.step import Loss, Step

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(eq=False)
class Training:
    """What is trained, and how to do one update."""

    config: RunConfig
    fabric: Fabric  # devices, processes and precision
    network: nn.Module  # or a blend of the network and its companion
    objective: Objective
    batches: Batches
    trust: Factor  # the factor of the terms for unlabeled images; the skill of the companion decides it
    companion: Companion | None = None

    def __post_init__(self) -> None:
        self.network.to(self.fabric.device)
        self.metrics = Metrics()
        self.loss = PartialLoss(self)
        epsilon = self.config.optimizer.epsilon  # the rest is set at each update
        fused = self.config.engine.precision != "fp16"  # a fused Adam cannot clip scaled gradients
        self.trained = self.loss.step.trained.to(self.fabric.device)  # modules of the terms; not part of the classifier
        self.adam = torch.optim.Adam([*self.network.parameters(), *self.trained.parameters()], eps=epsilon, fused=fused)
        others = [part for _, term in self.objective.parts if term.opponent is not None for part in term.opponent.parts]
        self.opponent = Opponent(self, Combination(tuple(others))) if others else None

    def start(self) -> None:
        """Start the other processes and let Fabric set up the loss and the optimizer."""
        self.fabric.launch()
        self.model, self.optimizer = self.fabric.setup(self.loss, self.adam)

    def update(self, update: int) -> None:
        """Do one update: schedules, batch, step, backward, update."""
        engine = self.config.engine
        progress, options = self.config.training.progress(update), self.config.optimizer
        rate = schedules.learning_rate(progress, options.learning_rate, options.ramp_up, options.ramp_down)
        beta1 = schedules.adam_beta1(progress, options.ramp_down, options.beta1, options.beta1_end)
        for group in self.adam.param_groups:
            group["lr"], group["betas"] = rate, (beta1, options.beta2)
        self.adam.zero_grad()
        # One process must not leave alone: several of them find a loss that is not finite when all look for it.
        with value_checks("never") if self.fabric.world_size > 1 else nullcontext():
            for turn in range(engine.accumulate):
                with self.fabric.no_backward_sync(self.model, enabled=turn < engine.accumulate - 1):
                    loss = self.model(update, turn)
                    self.fabric.backward(loss / engine.accumulate)
        self._forget_idle_terms()
        if engine.clip:
            self.fabric.clip_gradients(self.model, self.optimizer, max_norm=engine.clip, error_if_nonfinite=False)
        self.optimizer.step()
        if self.opponent is not None:
            self.metrics.count(self.opponent.update(update, rate / options.learning_rate))

    def _forget_idle_terms(self) -> None:
        """Leave the modules of a term of weight 0 without gradients, in several processes as in one."""
        idle = [module for name, module in self.trained.items() if not self.metrics.weights[name]]
        for parameter in (parameter for module in idle for parameter in module.parameters()):
            parameter.grad = None

    def parameters(self) -> list[nn.Parameter]:
        """Return all that is trained: the network, the modules of its terms and those of an opponent."""
        others = [] if self.opponent is None else self.opponent.step.trained.parameters()
        return [*self.network.parameters(), *self.trained.parameters(), *others]

    def _parts(self) -> dict[str, Any]:
        precision = self.fabric.strategy.precision
        parts = {"network": self.network, "optimizer": self.adam, "objective": self.objective, "precision": precision}
        # The generator itself is part of the state of its term.
        opponent = {} if self.opponent is None else {"opponent": self.opponent.adam}
        return parts | opponent | ({"trained": self.trained} if self.trained else {})

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds of a training. All processes must call it."""
        metrics = [vars(self.metrics)] * self.fabric.world_size
        if self.fabric.world_size > 1:
            torch.distributed.all_gather_object(metrics, vars(self.metrics))
        parts = {name: part.state_dict() for name, part in self._parts().items()}
        collapsed = self.companion is not None and self.companion.collapsed
        return parts | {"trust": self.trust.value, "collapsed": collapsed, "metrics": metrics}

    def load_state(self, state: dict[str, Any]) -> None:
        """Load what ``state`` returned."""
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        self.trust.value = state["trust"]
        if self.companion is not None:
            self.companion.collapsed = state["collapsed"]
        self.metrics = Metrics(**state["metrics"][self.fabric.global_rank])


class PartialLoss(nn.Module):
    """The loss of one part of an update. It is one module, so that DDP distributes the whole step."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.network = training.network
        self.training_run: Training = proxy(training)  # no cycle, so that a finished training leaves the memory at once
        options = training.config.objective
        self.step = Step(main_network(training.network), training.objective, updating=options.updating)

    def forward(self, update: int, turn: int) -> Tensor:
        """Make the batch of this process and return its loss. ``turn`` counts the accumulated parts of the update."""
        run = self.training_run
        config, processes = run.config, run.fabric.world_size
        parts, part = config.engine.accumulate * processes, turn * processes + run.fabric.global_rank
        seed_noise(run.batches.device, derived_seed(config.seed, "noise", update, part))
        batch = run.batches.at(update, part, parts)
        every = config.training.measure_every
        measure = every > 0 and update % every == 0
        progress = config.training.progress(update)
        result: Loss = self.step(**batch.arguments(), progress=progress, measure=measure)
        run.metrics.add(update, result)
        loss = result.loss
        if run.companion is not None:
            loss = loss + run.companion.loss(batch.x, batch.labels(), run.batches.labeled_rows(update, part, parts))
        return loss if processes == 1 else loss + _no_gradient(self.optional())

    def optional(self) -> list[nn.Parameter]:
        """Return the parameters that a loss may leave out: those of single terms, and the decoder of a ladder."""
        decoders = [each for each in self.network.modules() if isinstance(each, LadderNetwork)]
        parts = [self.step.trained, *(part for each in decoders for part in (each.down, each.combinators))]
        return [parameter for part in parts for parameter in part.parameters()]


def _no_gradient(parameters: Sequence[nn.Parameter]) -> Tensor | float:
    """Return 0 with a gradient of 0 for each parameter, because DDP waits for the gradients of all of them."""
    return sum((0.0 * parameter.sum() for parameter in parameters), 0.0)


@dataclass
class Metrics:
    """The losses and measures of an epoch, added up on the device, so that no step waits for a number."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)  # λ of each term at the last update
    bad: Tensor | None = None  # for each term, the first update at which it was not finite, or −1

    def add(self, update: int, loss: Loss) -> None:
        """Add the loss of one step."""
        self.weights = loss.weights
        values = {"train/loss": loss.loss.detach()}
        values |= {f"train/{name}": value for name, value in loss.terms.items()}
        values |= {f"search/{name}": value for name, value in loss.measures.items()}
        self._count(values)
        # A term of weight 0 did not run.
        finite = torch.stack([loss.terms.get(name, loss.loss.new_zeros(())).isfinite() for name in loss.weights])
        bad = torch.full_like(finite, -1, dtype=torch.int64) if self.bad is None else self.bad.to(finite.device)
        self.bad = torch.where(finite | (bad >= 0), bad, update)

    def count(self, terms: dict[str, Tensor]) -> None:
        """Add the values of an opponent's terms."""
        self._count({f"train/{name}": value for name, value in terms.items()})

    def _count(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value.clone()
            self.counts[name] = self.counts.get(name, 0) + 1

    def first_not_finite(self) -> tuple[int, str] | None:
        """Return the first update and term that were not finite, if any. This waits for the device."""
        if self.bad is None:
            return None
        found = zip(self.bad.tolist(), self.weights, strict=True)
        return min(((update, name) for update, name in found if update >= 0), default=None)

    def means(self) -> dict[str, Tensor]:
        """Return the means, on the device."""
        return {name: total / self.counts[name] for name, total in self.sums.items()}
