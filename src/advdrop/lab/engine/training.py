"""The training loop: batch, step, backward, update, record.

Everything random or scheduled is a function of the seed and the number of the update: the batch, the augmentation, the
noise, λ, the learning rate and β1. So a checkpoint holds only the network, the optimizer, the objective and metrics.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from advdrop import schedules
from advdrop.checks import NonFiniteError, value_checks
from advdrop.lab.config.config import RunConfig
from advdrop.lab.data.batches import Batches
from advdrop.lab.engine.companion import Companion, main_network
from advdrop.lab.engine.progress import Progress
from advdrop.lab.engine.rundir import Row, RunDirectory
from advdrop.lab.engine.signals import StopSignals
from advdrop.objectives import Objective
from advdrop.randomness import derived_seed, seed_noise
from advdrop.schedules import Trust
from advdrop.step.step import Loss, Step

if TYPE_CHECKING:
    from lightning_fabric import Fabric

FORMAT = 1
"""The format of the checkpoints."""

AGREE_EVERY = 20
"""The number of updates after which several processes ask each other whether one of them wants to save or to stop."""


@dataclass(frozen=True)
class Parts:
    """What a training consists of.

    Args:
        network: everything that is trained: the network, or a blend of it and its companion.
        objective: the loss of the network.
        batches: the data.
        trust: the factor of the terms for unlabeled images.
        companion: the training of the companion, if there is one. Its skill decides the trust.
    """

    network: nn.Module
    objective: Objective
    batches: Batches
    trust: Trust
    companion: Companion | None = None


class PartialLoss(nn.Module):
    """The loss of one part of an update: one module, so that DDP distributes the whole step.

    Args:
        config: the run.
        parts: the network, the objective and the data.
        rank: the number of this process.
        processes: the number of all processes.
    """

    def __init__(self, config: RunConfig, parts: Parts, rank: int, processes: int) -> None:
        super().__init__()
        self.config, self.parts, self.rank, self.processes = config, parts, rank, processes
        self.network = parts.network
        self.step = Step(main_network(parts.network), parts.objective, updating=config.objective.updating)
        self.metrics = Metrics()

    def forward(self, update: int, turn: int) -> Tensor:
        """Make the batch of this process and return its loss.

        Args:
            update: the number of the update.
            turn: which of the accumulated parts of the update.
        """
        config, batches, companion = self.config, self.parts.batches, self.parts.companion
        count, part = config.engine.accumulate * self.processes, turn * self.processes + self.rank
        seed_noise(batches.device, derived_seed(config.seed, "noise", update, part))
        batch = batches.at(update, part, count)
        every = config.training.measure_every
        result: Loss = self.step(
            **batch.arguments(),
            progress=update / config.training.updates,
            measure=every > 0 and update % every == 0,
        )
        self.metrics.add(update, result)
        if companion is None:
            return result.loss
        return result.loss + companion.loss(batch.x, batch.labels(), batches.labeled_rows(update, part, count))


class Metrics:
    """The mean losses and measures of an epoch, and the first update at which a term was not finite.

    They are added up on the device, so that no step waits for a number.
    """

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        state = state or {"sums": {}, "counts": {}, "bad": None, "weights": {}}
        self._sums: dict[str, Tensor] = dict(state["sums"])
        self._counts: dict[str, int] = dict(state["counts"])
        self._bad: Tensor | None = state["bad"]
        self.weights: dict[str, float] = dict(state["weights"])

    def add(self, update: int, loss: Loss) -> None:
        """Add the loss of one step."""
        self.weights = loss.weights
        values = {"train/loss": loss.loss.detach()}
        values |= {f"train/{name}": value for name, value in loss.terms.items()}
        values |= {f"search/{name}": value for name, value in loss.measures.items()}
        for name, value in values.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value.clone()
            self._counts[name] = self._counts.get(name, 0) + 1
        # A term of weight 0 did not run.
        finite = torch.stack([loss.terms.get(name, loss.loss.new_zeros(())).isfinite() for name in loss.weights])
        bad = torch.full_like(finite, -1, dtype=torch.int64) if self._bad is None else self._bad
        self._bad = torch.where(finite | (bad >= 0), bad, update)

    def first_not_finite(self) -> tuple[int, str] | None:
        """Return the first update and term that were not finite, if any. This waits for the device."""
        if self._bad is None:
            return None
        found = zip(self._bad.tolist(), self.weights, strict=True)
        return min(((update, name) for update, name in found if update >= 0), default=None)

    def means(self) -> dict[str, Tensor]:
        """Return the means, on the device."""
        return {name: total / self._counts[name] for name, total in self._sums.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training needs."""
        return {"sums": self._sums, "counts": self._counts, "bad": self._bad, "weights": self.weights}


class Training:
    """A run while it trains.

    Args:
        config: the run.
        parts: what is trained, and with what.
        fabric: devices, processes and precision.
    """

    def __init__(self, config: RunConfig, parts: Parts, fabric: Fabric) -> None:
        self.config, self.parts, self.fabric = config, parts, fabric
        self.network = parts.network.to(fabric.device)
        self.loss = PartialLoss(config, parts, fabric.global_rank, fabric.world_size)
        options = config.optimizer
        self.adam = torch.optim.Adam(
            self.network.parameters(),
            options.learning_rate,
            betas=(options.beta1, options.beta2),
            eps=options.epsilon,
            fused=config.engine.precision != "fp16",  # a fused Adam cannot clip scaled gradients
        )

    def start(self) -> None:
        """Start the other processes and let Fabric set up the loss and the optimizer."""
        self.fabric.launch()
        self.model, self.optimizer = self.fabric.setup(self.loss, self.adam)

    def update(self, update: int) -> None:
        """Do one update: batch, step, backward, update."""
        engine = self.config.engine
        self._set_schedules(update / self.config.training.updates)
        self.adam.zero_grad()
        # One process must not leave alone: several of them find a loss that is not finite when all look for it.
        with value_checks("never") if self.fabric.world_size > 1 else nullcontext():
            for turn in range(engine.accumulate):
                with self.fabric.no_backward_sync(self.model, enabled=turn < engine.accumulate - 1):
                    loss = self.model(update, turn)
                    self.fabric.backward(loss / engine.accumulate)
        if engine.clip:
            self.fabric.clip_gradients(self.model, self.optimizer, max_norm=engine.clip, error_if_nonfinite=False)
        self.optimizer.step()

    def _set_schedules(self, progress: float) -> None:
        options = self.config.optimizer
        rate = schedules.learning_rate(progress, options.learning_rate, options.ramp_up, options.ramp_down)
        beta1 = schedules.adam_beta1(progress, options.ramp_down, options.beta1, options.beta1_end)
        for group in self.adam.param_groups:
            group["lr"], group["betas"] = rate, (beta1, options.beta2)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold of this training; all processes must call it."""
        metrics = [self.loss.metrics.state_dict()]
        if self.fabric.world_size > 1:
            metrics *= self.fabric.world_size
            torch.distributed.all_gather_object(metrics, self.loss.metrics.state_dict())
        return {
            "network": self.network.state_dict(),
            "optimizer": self.adam.state_dict(),
            "objective": self.parts.objective.state_dict(),
            "trust": self.parts.trust.value,
            "precision": self.fabric.strategy.precision.state_dict(),
            "metrics": metrics,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Load what ``state`` returned."""
        self.network.load_state_dict(state["network"])
        self.adam.load_state_dict(state["optimizer"])
        self.parts.objective.load_state_dict(state["objective"])
        self.parts.trust.value = state["trust"]
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        self.loss.metrics = Metrics(state["metrics"][self.fabric.global_rank])


class Recorder:
    """Runs a training and writes its run directory.

    Args:
        training: what is run.
        run: the directory.
        progress: what the user sees.
        evaluate: measures errors: names and values.
        state: the checkpoint to resume from, if any.
        origin: the present versions, commit and machine.
        own: what was given from Python and is not in the configuration.
    """

    def __init__(
        self,
        training: Training,
        run: RunDirectory,
        progress: Progress,
        evaluate: Callable[[], dict[str, float]],
        state: dict[str, Any] | None,
        origin: dict[str, Any],
        own: list[str],
    ) -> None:
        self.training, self.run, self.progress, self.evaluate = training, run, progress, evaluate
        self.config, self.fabric, self.own = training.config, training.fabric, own
        self.state = state or {"update": 0, "rows": [], "seconds": 0.0, "training_seconds": 0.0, "origins": []}
        self.done: int = self.state["update"]
        self.rows: list[Row] = self.state["rows"]
        self.seconds: float = self.state["seconds"]
        self.training_seconds: float = self.state["training_seconds"]
        # A run may be resumed with another version or on another machine.
        self.origins: list[dict[str, Any]] = self.state["origins"]
        if not self.origins or self.origins[-1] != origin:
            self.origins.append(origin)
        self._tensorboard: Any = None
        self._mark = self._saved_at = time.monotonic()

    def fit(self) -> None:
        """Train until the last update, or until a signal asks to stop."""
        training, updates = self.training, self.config.training.updates
        if self.done == updates:  # the run was stopped after its last update, before its result was written
            training.network.load_state_dict(self.state["network"])
            return
        training.start()
        if self.done:
            training.load_state(self.state)
        self.state = {}  # its memory is free now
        if self.config.engine.tensorboard and self.fabric.is_global_zero:
            from torch.utils.tensorboard import SummaryWriter

            self._tensorboard = SummaryWriter(self.run.path / "tensorboard", purge_step=self.done + 1)
        self._mark = self._saved_at = time.monotonic()
        with self.progress, StopSignals(self.progress) as signals:
            for update in range(self.done, updates):
                try:
                    training.update(update)
                except NonFiniteError as error:
                    raise self._diverged(update, str(error)) from None
                self.done = update + 1
                self.progress.advance()
                if self.record(stop=signals.received):
                    return

    def record(self, stop: bool) -> bool:
        """Look at the losses, finish the epoch and save, each if it is time for it. Return True to stop."""
        config, metrics = self.config, self.training.loss.metrics
        last = self.done == config.training.updates
        epoch_ends = last or self.done % config.training.epoch_updates == 0
        due = time.monotonic() - self._saved_at >= config.engine.checkpoint_seconds
        # To look at the losses means to wait for an accelerator. On a CPU it costs nothing.
        look = epoch_ends or due or stop or self.fabric.device.type == "cpu"
        bad = metrics.first_not_finite() if look else None
        any_bad, stop, due = self._agree(bad is not None, stop, due, now=epoch_ends)
        if any_bad:
            number, term = bad or (self.done, "a loss of another process")
            raise self._diverged(number, f"{term} is not finite")
        if epoch_ends:
            self._finish_epoch(last)
        if due or last or stop:
            self._save()
        return stop

    def _agree(self, *wishes: bool, now: bool) -> list[bool]:
        """Return which of the wishes at least one process has. Several processes ask each other now and then."""
        if self.fabric.world_size == 1:
            return list(wishes)
        if not now and self.done % AGREE_EVERY:
            return [False for _ in wishes]
        votes = torch.tensor(wishes, dtype=torch.float32, device=self.fabric.device)
        return [vote > 0 for vote in self.fabric.all_reduce(votes, reduce_op="sum").tolist()]  # type: ignore[union-attr]

    def _finish_epoch(self, last: bool) -> None:
        """Add a row of metrics: means over the epoch and over the processes, and the errors if they are due."""
        training, metrics, config = self.training, self.training.loss.metrics, self.config.training
        group = training.adam.param_groups[0]
        epoch = -(-self.done // config.epoch_updates)
        row: Row = {"epoch": epoch, "update": self.done, "learning_rate": group["lr"], "beta1": group["betas"][0]}
        row |= {name: float(self.fabric.all_reduce(mean)) for name, mean in metrics.means().items()}  # type: ignore[arg-type]
        row |= {f"weight/{name}": weight for name, weight in metrics.weights.items()}
        training.loss.metrics = Metrics()
        if training.parts.companion is not None:
            training.parts.trust.value = training.parts.companion.skill() ** 2
        self._count_time(training=True)
        if self.fabric.is_global_zero and (last or (config.evaluate_every > 0 and epoch % config.evaluate_every == 0)):
            self.progress.evaluating()
            row |= self.evaluate()
            self._count_time(training=False)
        row["seconds"] = round(self.seconds, 3)
        self.rows.append(row)
        if self.fabric.is_global_zero:
            self.run.write_metrics(self.rows)
            self.progress.epoch(self.done, row)
        if self._tensorboard is not None:
            for name, value in row.items():
                self._tensorboard.add_scalar(name, value, self.done)
            self._tensorboard.flush()

    def _save(self) -> None:
        """Write a checkpoint, unless a weight is not finite."""
        self._count_time(training=True)
        finite = torch.stack([parameter.isfinite().all() for parameter in self.training.network.parameters()])
        if not finite.all():
            raise self._diverged(self.done, "a weight is not finite")
        state = {
            "format": FORMAT,
            "update": self.done,
            "rows": self.rows,
            "seconds": self.seconds,
            "training_seconds": self.training_seconds,
            "origins": self.origins,
            "own": self.own,
            **self.training.state(),
        }
        if self.fabric.is_global_zero:
            self.run.save_checkpoint(state)
        self._count_time(training=False)
        self._saved_at = self._mark

    def _count_time(self, training: bool) -> None:
        """Add the time since the last call to the sums."""
        now = time.monotonic()
        self.seconds += now - self._mark
        self.training_seconds += (now - self._mark) * training
        self._mark = now

    def _diverged(self, update: int, reason: str) -> DivergedError:
        saved = self.run.checkpoint
        return DivergedError(update, reason, f"the last good checkpoint is {saved}" if saved.is_file() else "")


class DivergedError(RuntimeError):
    """A loss or a weight is not finite: the update, the reason and the last good checkpoint."""

    def __init__(self, update: int, reason: str, checkpoint: str = "") -> None:
        self.update, self.reason, self.checkpoint = update, reason, checkpoint
        advice = "lower the learning rate (--set optimizer.learning_rate=...) or clip gradients (--set engine.clip=1)"
        super().__init__(f"update {update}: {reason}; {checkpoint + '; ' if checkpoint else ''}{advice}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to make it again in another process."""
        return type(self), (self.update, self.reason, self.checkpoint)
