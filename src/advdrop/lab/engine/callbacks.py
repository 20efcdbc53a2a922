"""What happens between updates: rows of metrics, checkpoints, Ctrl-C, a loss that is not finite."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from advdrop.lab.engine.module import DivergedError, Training
from advdrop.lab.engine.progress import Progress
from advdrop.lab.engine.rundir import Row, RunDirectory

FORMAT = 1
AGREE_EVERY = 20
"""Updates between which several processes ask each other whether one of them wants to save or to stop."""


class Recorder(Callback):
    """Writes the run down as it goes.

    Args:
        run: where to.
        progress: what the user sees.
        evaluate: the errors to measure at the end of an epoch: names and values.
        state: the checkpoint to go on from, if any.
        origin: the versions, the commit and the machine of now.
        own: what was given from Python and stands in no configuration.

    A checkpoint is our own dictionary and not Lightning's: it is taken between two updates, at any of them, and what it
    must hold is little, because everything else is a function of the update's number.
    """

    def __init__(
        self,
        run: RunDirectory,
        progress: Progress,
        evaluate: Callable[[], dict[str, float]],
        state: dict[str, Any] | None,
        origin: dict[str, Any],
        own: list[str],
    ) -> None:
        self.run, self.progress, self.evaluate, self.state = run, progress, evaluate, state
        self.done: int = state["update"] if state else 0
        self.rows: list[Row] = state["rows"] if state else []
        self.seconds: float = state["seconds"] if state else 0.0
        self.training_seconds: float = state["training_seconds"] if state else 0.0
        # Where each part of the run was computed; a run may be gone on with under another version or commit.
        self.origins: list[dict[str, Any]] = state["origins"] if state else []
        if not self.origins or self.origins[-1] != origin:
            self.origins.append(origin)
        self.own = own
        self.interrupted = False
        self._mark = self._saved_at = time.monotonic()
        self._handlers: dict[int, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take up the checkpoint, listen for Ctrl-C."""
        assert isinstance(pl_module, Training)
        if self.state is not None:
            pl_module.load_state(self.state)
            pl_module.tally.load_state_dict(self.state["tallies"][trainer.global_rank])
            self.state = None
        if threading.current_thread() is threading.main_thread():  # only there may signals be caught
            self._handlers = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        self._mark = self._saved_at = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: int, batch_idx: int
    ) -> None:
        """After an update: look whether all is well, close the epoch, save, stop."""
        del outputs, batch_idx
        assert isinstance(pl_module, Training)
        config = pl_module.config
        if (batch + 1) % config.engine.accumulate:
            return
        self.done = (batch + 1) // config.engine.accumulate
        self.progress.advance()
        last = self.done == config.training.updates
        epoch_ends = last or self.done % config.training.epoch_updates == 0
        found = pl_module.tally.blown_up() if pl_module.device.type == "cpu" or epoch_ends else None
        due = time.monotonic() - self._saved_at >= config.engine.checkpoint_seconds
        bad, stop, due = self._agreed(trainer, epoch_ends, found is not None, self.interrupted, due)
        if bad:
            self._refuse(found)
        if epoch_ends:
            self._close_epoch(trainer, pl_module, last)
        if due or last or stop:
            self._save(trainer, pl_module)
        if stop and not last:
            trainer.should_stop = True

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the terminal and the signals as they were."""
        del trainer, pl_module, exception
        self._release()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the terminal and the signals as they were."""
        del trainer, pl_module
        self._release()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """The first signal asks for a checkpoint after this update; a second one is obeyed at once."""
        del frame
        self.interrupted = True
        self.progress.say("finishing this update, then saving; once more stops at once")
        signal.signal(number, self._handlers[number])

    def _agreed(self, trainer: Trainer, epoch_ends: bool, *wishes: bool) -> list[bool]:
        """Each wish of any of the processes; several of them ask each other only now and then."""
        if trainer.world_size == 1:
            return list(wishes)
        if not epoch_ends and self.done % AGREE_EVERY:
            return [False for _ in wishes]
        return [trainer.strategy.reduce_boolean_decision(wish, all=False) for wish in wishes]

    def _close_epoch(self, trainer: Trainer, module: Training, last: bool) -> None:
        """A row of metrics: means over the epoch and over the devices, and the errors if they are due."""
        config, means = module.config, module.tally.means()
        if trainer.world_size > 1:
            means = {name: trainer.strategy.reduce(value, reduce_op="mean") for name, value in means.items()}
        group = trainer.optimizers[0].param_groups[0]
        epoch = -(-self.done // config.training.epoch_updates)
        row: Row = {"epoch": epoch, "update": self.done, "learning_rate": group["lr"], "beta1": group["betas"][0]}
        row |= {name: float(value) for name, value in means.items()}
        row |= {f"weight/{name}": weight for name, weight in module.tally.weights.items()}
        module.measure_trust()
        self._count_time(training=True)
        every = config.training.evaluate_every
        if trainer.is_global_zero and (last or (every > 0 and epoch % every == 0)):
            self.progress.evaluating()
            row |= self.evaluate()
            self._count_time(training=False)
        row["seconds"] = round(self.seconds, 3)
        self.rows.append(row)
        module.tally = type(module.tally)()
        if trainer.is_global_zero:
            self.run.write_metrics(self.rows)
            for logger in trainer.loggers:
                logger.log_metrics(row, step=self.done)
            self.progress.epoch(self.done, row)

    def _count_time(self, training: bool) -> None:
        now = time.monotonic()
        self.seconds += now - self._mark
        self.training_seconds += (now - self._mark) * training
        self._mark = now

    def _save(self, trainer: Trainer, module: Training) -> None:
        self._count_time(training=True)
        if (found := module.tally.blown_up()) is not None:
            self._refuse(found)
        finite = torch.stack([parameter.isfinite().all() for parameter in module.network.parameters()])
        if not finite.all():
            raise DivergedError(self.done, "a weight is not finite")
        state = module.state() | {"tallies": _of_all_ranks(trainer, module.tally.state_dict())}
        numbers = {"seconds": self.seconds, "training_seconds": self.training_seconds}
        state |= {"origins": self.origins, "own": self.own}
        if trainer.is_global_zero:
            self.run.save_checkpoint({"format": FORMAT, "update": self.done, "rows": self.rows, **numbers, **state})
        self._count_time(training=False)
        self._saved_at = self._mark

    def _refuse(self, found: tuple[int, str] | None) -> None:
        update, term = found or (self.done, "a loss of another process")
        raise DivergedError(update, f"{term} is not finite")

    def _release(self) -> None:
        self.progress.close()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}


def _of_all_ranks(trainer: Trainer, state: dict[str, Any]) -> list[dict[str, Any]]:
    """What each process has added up; everything else is the same in all of them."""
    if trainer.world_size == 1:
        return [state]
    states: list[Any] = [None] * trainer.world_size
    torch.distributed.all_gather_object(states, state)
    return states
