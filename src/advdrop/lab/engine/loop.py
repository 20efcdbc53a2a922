"""The training loop: update, look at the losses, finish the epoch, save, stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from advdrop.checks import NonFiniteError
from advdrop.lab.engine.progress import Progress
from advdrop.lab.engine.rundir import Row, RunDirectory
from advdrop.lab.engine.signals import stop_signals
from advdrop.lab.engine.training import Metrics, Training

AGREE_EVERY = 20
"""The number of updates after which several processes ask each other whether one of them wants to save or to stop."""


class DivergedError(RuntimeError):
    """A loss or a weight is not finite. The message names the update, the reason and the last good checkpoint."""


@dataclass
class History:
    """What a checkpoint holds of a run, in addition to the state of its training."""

    update: int = 0  # the number of updates done
    rows: list[Row] = field(default_factory=list)  # the metrics of each epoch
    seconds: float = 0.0
    training_seconds: float = 0.0  # without evaluations and checkpoints
    origins: list[dict[str, Any]] = field(default_factory=list)  # versions, commit and machine, of each resumption


@dataclass(eq=False)
class Loop:
    """Runs a training update by update and writes its run directory."""

    training: Training
    history: History
    run: RunDirectory
    progress: Progress
    evaluate: Callable[[], dict[str, float]]  # returns the errors by their names

    def fit(self) -> None:
        """Train until the last update, or until a signal or the progress asks to stop."""
        self._mark = self._saved_at = time.monotonic()
        with self.progress, stop_signals(self.progress.say) as signaled:
            for update in range(self.history.update, self.training.config.training.updates):
                try:
                    self.training.update(update)
                except NonFiniteError as error:
                    raise self._diverged(update, str(error)) from None
                self.history.update = update + 1
                asked = self.progress.advance()
                if self.record(stop=asked or signaled()):
                    return

    def record(self, stop: bool) -> bool:
        """Look at the losses, finish the epoch and save, each if it is time for it. Return True to stop."""
        config, done, fabric = self.training.config, self.history.update, self.training.fabric
        last = done == config.training.updates
        epoch_ends = last or done % config.training.epoch_updates == 0
        due = time.monotonic() - self._saved_at >= config.engine.checkpoint_seconds
        # To look at the losses means to wait for an accelerator. On a CPU it costs nothing.
        look = epoch_ends or due or stop or fabric.device.type == "cpu"
        bad = self.training.metrics.first_not_finite() if look else None
        any_bad = bad is not None
        if fabric.world_size > 1 and (epoch_ends or done % AGREE_EVERY == 0):
            wishes = torch.tensor([any_bad, stop, due], dtype=torch.float32, device=fabric.device)
            any_bad, stop, due = (fabric.all_reduce(wishes, reduce_op="sum") > 0).tolist()  # type: ignore[operator, union-attr]
        elif fabric.world_size > 1:
            any_bad = stop = due = False  # until the next time that all processes ask each other
        if any_bad:
            number, term = bad or (done, "a loss of another process")
            raise self._diverged(number, f"{term} is not finite")
        if epoch_ends:
            self._finish_epoch(last)
        if due or last or stop:
            self._save()
        return stop

    def _finish_epoch(self, last: bool) -> None:
        """Add a row of metrics: means over the epoch and over the processes, and the errors if they are due."""
        training, history, fabric = self.training, self.history, self.training.fabric
        options, metrics, group = training.config.training, training.metrics, training.adam.param_groups[0]
        epoch = -(-history.update // options.epoch_updates)
        row: Row = {"epoch": epoch, "update": history.update}
        row |= {"learning_rate": group["lr"], "beta1": group["betas"][0]}
        row |= {name: float(fabric.all_reduce(mean)) for name, mean in metrics.means().items()}  # type: ignore[arg-type]
        row |= {f"weight/{name}": weight for name, weight in metrics.weights.items()}
        training.metrics = Metrics()
        if training.companion is not None:
            if training.trust.value:
                training.companion.watch()
            skill = training.companion.skill()
            training.trust.value = training.companion.trust(skill)
            row |= {"companion/skill": skill, "companion/trust": training.trust.value}
            row |= {"companion/collapsed": float(training.companion.collapsed)}
        self._count_time(training=True)
        if fabric.is_global_zero and (last or (options.evaluate_every > 0 and epoch % options.evaluate_every == 0)):
            row |= self.evaluate()
            self._count_time(training=False)
        row["seconds"] = round(history.seconds, 3)
        history.rows.append(row)
        if fabric.is_global_zero:
            self.run.write_metrics(history.rows)
            self.progress.epoch(row)
            if training.config.engine.tensorboard:
                for name, value in row.items():
                    self._tensorboard.add_scalar(name, value, history.update)
                self._tensorboard.flush()

    @cached_property
    def _tensorboard(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        # A resumed run may compute an epoch again, which then replaces the old one.
        return SummaryWriter(str(self.run.path / "tensorboard"), purge_step=self.history.update)

    def _save(self) -> None:
        """Write a checkpoint, unless a weight is not finite."""
        self._count_time(training=True)
        finite = torch.stack([parameter.isfinite().all() for parameter in self.training.parameters()])
        if not finite.all():
            raise self._diverged(self.history.update, "a weight is not finite")
        state = {**vars(self.history), **self.training.state()}
        if self.training.fabric.is_global_zero:
            self.run.save_checkpoint(state)
        self._count_time(training=False)
        self._saved_at = self._mark

    def _count_time(self, training: bool) -> None:
        """Add the time since the last call to the sums."""
        now = time.monotonic()
        self.history.seconds += now - self._mark
        self.history.training_seconds += (now - self._mark) * training
        self._mark = now

    def _diverged(self, update: int, reason: str) -> DivergedError:
        saved = f"the last good checkpoint is {self.run.checkpoint}; " if self.run.checkpoint.is_file() else ""
        advice = "lower the learning rate (--set optimizer.learning_rate=...) or clip gradients (--set engine.clip=1)"
        return DivergedError(f"update {update}: {reason}; {saved}{advice}")
