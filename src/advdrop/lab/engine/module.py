"""One training step for Lightning, which brings devices, precision, accumulation and clipping.

Everything random or scheduled in a step is a pure function of (seed, update): the batch, the augmentation, the noise,
λ, the learning rate and β1. What is left to save is the network, Adam's moments and the state of the objective.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from advdrop import schedules
from advdrop.checks import NonFiniteError, value_checks
from advdrop.lab.config.config import RunConfig
from advdrop.lab.data.augment import Augment
from advdrop.lab.data.batches import Batches
from advdrop.lab.data.examples import Examples
from advdrop.lab.data.preprocess import Preprocess
from advdrop.lab.data.splits import LabelSplit
from advdrop.lab.engine.companion import Blend, Companion
from advdrop.lab.engine.tally import Tally
from advdrop.objectives import Objective
from advdrop.randomness import derived_seed, seed_noise
from advdrop.schedules import Trust
from advdrop.step.step import Loss, Step


class Training(LightningModule):
    """A network, its objective and its batches.

    Args:
        config: the run.
        network: what is trained.
        objective: what it is trained for.
        examples: the training set.
        split: which of it is labeled.
        preprocess: applied to each batch.
        augments: applied to each view.
        trust: the factor of the terms for unlabeled images, which the skill of the companion decides.
    """

    def __init__(
        self,
        config: RunConfig,
        network: nn.Module,
        objective: Objective,
        examples: Examples,
        split: LabelSplit,
        preprocess: Preprocess,
        augments: Sequence[Augment] = (),
        trust: Trust | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.network = network  # all that is trained; the step has the part that learns from unlabeled images
        self.trust = trust if trust is not None else Trust()
        self.companion = None
        main = network
        if isinstance(network, Blend):
            main, self.trust.value = network.main, 0.0
            self.companion = Companion(network.companion, examples, split, preprocess, config.seed)
        self.step = Step(main, objective, updating=config.objective.updating)
        self.tally = Tally()
        self._data = (examples, split, preprocess, augments)
        self._batches: Batches | None = None

    @property
    def objective(self) -> Objective:
        """What it is trained for."""
        return self.step.objective

    @property
    def batches(self) -> Batches:
        """The batches, kept on the device of the network."""
        if self._batches is None or self._batches.device != self.device:
            self._batches = batches_of(self.config, self.objective, *self._data, self.device)
        return self._batches

    def progress(self, update: int) -> float:
        """The share of the training that is done."""
        return update / self.config.training.updates

    def on_train_batch_start(self, batch: int, batch_idx: int) -> None:
        """The learning rate and β1 of this update, and gradients that start from nothing."""
        del batch_idx
        update, turn = divmod(batch, self.config.engine.accumulate)
        if turn == 0:
            self.trainer.optimizers[0].zero_grad()
        progress, adam = self.progress(update), self.config.optimizer
        rate = schedules.learning_rate(progress, adam.learning_rate, adam.ramp_up, adam.ramp_down)
        beta1 = schedules.adam_beta1(progress, adam.ramp_down, adam.beta1, adam.beta1_end)
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"], group["betas"] = rate, (beta1, adam.beta2)

    def training_step(self, batch: int, batch_idx: int) -> Tensor:
        """The loss of one part of an update, ``batch`` being its number."""
        del batch_idx
        update, turn = divmod(batch, self.config.engine.accumulate)
        parts = self.config.engine.accumulate * self.trainer.world_size
        part = turn * self.trainer.world_size + self.trainer.global_rank
        seed_noise(self.device, derived_seed(self.config.seed, "noise", update, part))
        every = self.config.training.measure_every
        # One process alone must not leave: what is not finite is found when all of them look.
        alone = self.trainer.world_size == 1
        try:
            with nullcontext() if alone else value_checks("never"):
                rows = self.batches.at(update, part, parts)
                measure = every > 0 and update % every == 0
                result: Loss = self.step(**rows.arguments(), progress=self.progress(update), measure=measure)
            loss = result.loss
            if self.companion is not None:
                positions = self.batches.labeled_rows(update, part, parts)
                loss = loss + self.companion.loss(rows.x, rows.labels(), positions)
        except NonFiniteError as error:
            raise DivergedError(update, str(error)) from None
        self.tally.add(update, result)
        return loss

    def measure_trust(self) -> None:
        """Let the skill of the companion decide how much unlabeled images count from now on."""
        if self.companion is not None:
            self.trust.value = self.companion.skill() ** 2

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: torch.optim.Optimizer) -> None:
        """Nothing: Lightning would do it after the forward pass, which then lacks that memory."""

    def configure_optimizers(self) -> torch.optim.Adam:
        """Adam; what changes is set before each update."""
        adam = self.config.optimizer
        betas = (adam.beta1, adam.beta2)
        fused = self.config.engine.precision != "fp16"  # there Lightning would not clip
        return torch.optim.Adam(
            self.network.parameters(), adam.learning_rate, betas=betas, eps=adam.epsilon, fused=fused
        )

    def state(self) -> dict[str, Any]:
        """What a resumed training needs beside the number of the update."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self.trainer.optimizers[0].state_dict(),
            "objective": self.objective.state_dict(),
            "trust": self.trust.value,
            "precision": self.trainer.precision_plugin.state_dict(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up what ``state`` gave."""
        self.network.load_state_dict(state["network"])
        self.trainer.optimizers[0].load_state_dict(state["optimizer"])
        self.objective.load_state_dict(state["objective"])
        self.trust.value = state["trust"]
        self.trainer.precision_plugin.load_state_dict(state["precision"])


def batches_of(
    config: RunConfig,
    objective: Objective,
    examples: Examples,
    split: LabelSplit,
    preprocess: Preprocess,
    augments: Sequence[Augment] = (),
    device: torch.device | None = None,
) -> Batches:
    """The configured batches; no unlabeled images where no term looks at them."""
    training = config.training
    needed = any(term.rows == "unlabeled" for _, term in objective.parts)
    sizes = (training.labeled, training.unlabeled if needed else 0)
    device = device or torch.device("cpu")
    return Batches(examples, split, *sizes, preprocess, augments, config.seed, device)


class DivergedError(RuntimeError):
    """A loss that is not finite: the update, the term, and what to go back to."""

    def __init__(self, update: int, reason: str, checkpoint: str = "") -> None:
        self.update, self.reason, self.checkpoint = update, reason, checkpoint
        advice = "lower the learning rate (--set optimizer.learning_rate=...) or clip gradients (--set engine.clip=1)"
        super().__init__(f"update {update}: {reason}; {checkpoint + '; ' if checkpoint else ''}{advice}")

    def __reduce__(self) -> tuple[Any, ...]:
        """It survives the way from one process to another."""
        return type(self), (self.update, self.reason, self.checkpoint)
