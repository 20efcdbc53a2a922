"""Temporal ensembling: the output should agree with the average of earlier outputs."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, distributed, nn

from advdrop import checks
from advdrop.divergences import Divergence, bernoulli_kl, mse, over_places, qe
from advdrop.objectives.base import Term
from advdrop.objectives.same import Same

if TYPE_CHECKING:
    from advdrop.step.batch import Rows
    from advdrop.step.passes import Passes


@final
@dataclass(eq=False)
class TemporalEnsembling(Term):
    """Temporal ensembling, D[z̃, f(x, εs)] with z̃ = Z / (1 − αᵗ) and Z ← αZ + (1 − α) f(x, εs) each time a row is seen.

    It needs one pass per step; the Π model needs two. The value of a row that is seen for the first time is 0. Under
    ``torch.distributed`` the updates of all ranks are gathered, so every rank has the same table Z. All ranks must have
    batches of the same size.

    Args:
        examples: N, the number of rows of the data set; the ``index`` of a step points into 0..N-1.
        classes: C.
        momentum: α.
        divergence: D. What is averaged is what it compares: the values of :func:`mse`, the yes-or-no probabilities of
            :func:`bernoulli_kl`, the class probabilities of any other.

    References: Laine and Aila, "Temporal Ensembling for Semi-Supervised Learning", ICLR 2017.

    Deviations: t is the number of times the row was seen; in the original it is the number of epochs. The two are equal
    if every row is seen once per epoch. If batches are drawn from two streams, only the first is defined.
    """

    examples: int
    classes: int
    momentum: float = 0.6
    divergence: Divergence = qe
    rows: Rows = "unlabeled"
    ensemble: Tensor = field(init=False, repr=False)
    seen: Tensor = field(init=False, repr=False)
    _network: Same = field(default_factory=Same, init=False, repr=False)

    def __post_init__(self) -> None:
        if checks.fraction("momentum", self.momentum) == 1.0:
            raise ValueError("momentum must be below 1: with 1.0 the ensemble never changes")
        checks.function("divergence", self.divergence)
        self.ensemble = torch.zeros(checks.count("examples", self.examples), checks.count("classes", self.classes))
        self.seen = torch.zeros(self.examples)

    def attach(self, model: nn.Module) -> None:
        """Forget the outputs of another network."""
        if self._network.differs(model):
            self.ensemble, self.seen = torch.zeros_like(self.ensemble), torch.zeros_like(self.seen)

    def per_example(self, passes: Passes) -> Tensor:
        """Return D for each row, ``(B,)``, and record the outputs."""
        logits = passes.clean(self.rows).logits
        if logits.dim() != 2:
            raise ValueError(
                f"temporal ensembling keeps one output (C,) for each example, got outputs of shape "
                f"{tuple(logits.shape)}; use PiModel() or MeanTeacher() for outputs with places"
            )
        index = self._index(passes, logits)
        # A copy: the table changes before backward() needs the target again.
        times, target = self.seen[index], self.ensemble[index]
        target = target / (1.0 - self.momentum ** times.clamp_min(1.0))[:, None]
        if inspect.unwrap(self.divergence) is bernoulli_kl:
            target = target.clamp_max(1.0)  # it may be larger by rounding, which bernoulli_kl refuses
        value = over_places(self.divergence, target, logits, given="probabilities")
        if torch.is_grad_enabled():  # a training step; a validation loss is computed without gradients
            self._record(index, _compared(self.divergence, logits.detach().float()))
        return torch.where(times > 0, value, 0.0)

    def _index(self, passes: Passes, logits: Tensor) -> Tensor:
        index = passes.batch.index
        if index is None:
            raise ValueError("temporal ensembling needs the positions of the rows: call the step with index=")
        index = index.long()
        if self.rows == "labeled" and passes.batch.unlabeled is not None:
            raise ValueError(
                "index= has the positions of the unlabeled rows of this step, and TemporalEnsembling(rows='labeled') "
                "needs those of the labeled ones; leave out rows='labeled', or make a step without unlabeled rows"
            )
        if logits.shape[1] != self.classes:
            raise ValueError(
                f"TemporalEnsembling has classes={self.classes}, but the network has {logits.shape[1]} outputs"
            )
        if checks.due("index", index) and not (int(index.min()) >= 0 and int(index.max()) < self.examples):
            raise ValueError(
                f"index must be in 0..{self.examples - 1}, got values from {int(index.min())} to {int(index.max())}"
            )
        self.ensemble, self.seen = self.ensemble.to(logits.device), self.seen.to(logits.device)
        return index.to(logits.device)

    @torch.no_grad()
    def _record(self, index: Tensor, outputs: Tensor) -> None:
        if distributed.is_available() and distributed.is_initialized():
            index, outputs = _gathered(index), _gathered(outputs)
        old = self.ensemble[index]
        self.ensemble[index] = self.momentum * old + (1.0 - self.momentum) * outputs.to(old.dtype)
        self.seen[index] += 1.0

    def term_state(self) -> dict[str, Tensor]:
        """Return the table and the counts."""
        return {"ensemble": self.ensemble, "seen": self.seen}

    def load_term_state(self, state: dict[str, Tensor]) -> None:
        """Load the table and the counts."""
        checks.same_shape("the saved ensemble", state["ensemble"], "this one", self.ensemble)
        self.ensemble, self.seen = state["ensemble"].clone(), state["seen"].clone()
        self._network = Same()


def _compared(divergence: Divergence, logits: Tensor) -> Tensor:
    """Return what a divergence compares: values, yes-or-no probabilities or class probabilities, ``(B, C)``."""
    divergence = inspect.unwrap(divergence)
    if divergence is mse:
        return logits
    return logits.sigmoid() if divergence is bernoulli_kl else logits.softmax(1)


def _gathered(tensor: Tensor) -> Tensor:
    parts = [torch.empty_like(tensor) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, tensor.contiguous())
    return torch.cat(parts)
