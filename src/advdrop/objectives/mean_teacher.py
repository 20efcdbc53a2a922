"""Mean teacher: the output should agree with that of an average of the network's earlier weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, nn

from advdrop import checks
from advdrop.divergences import Divergence, qe
from advdrop.objectives.base import Term
from advdrop.objectives.ema import EMA

if TYPE_CHECKING:
    from advdrop.step.batch import Rows
    from advdrop.step.passes import Passes


@final
@dataclass(eq=False)
class MeanTeacher(Term):
    """Mean teacher, J(θ) = E ‖f(x, θ', η') − f(x, θ, η)‖² with θ' ← αθ' + (1 − α)θ (Eq. 1).

    θ' is an :class:`EMA` of the weights and buffers. η and η' are independent noise, masks and augmentation: the
    teacher runs in the mode of the network, with dropout of its own, on the second view if the batch has one. It gets
    no gradient and does not update running statistics. Its pass runs apart from the passes of the network.

    The teacher is part of the ``state_dict`` of the step. ``DistributedDataParallel(step)`` works: every rank averages
    the same weights.

    Args:
        decay: α. The first updates have a smaller one, see :class:`EMA`.
        every: the number of training steps for each update of the optimizer, see :class:`EMA`.
        divergence: D; the original uses the squared error of probabilities. Here it is the mean over the classes.

    References: Tarvainen and Valpola, "Mean teachers are better role models: Weight-averaged consistency targets
    improve semi-supervised deep learning results", NIPS 2017.

    Deviations: the running statistics of the teacher are averages of those of the network, and θ' is updated at the
    beginning of the next step instead of at the end of this one.
    """

    decay: float = 0.999
    every: int = 1
    divergence: Divergence = qe
    rows: Rows = "unlabeled"
    teacher: EMA = field(init=False, repr=False)

    def __post_init__(self) -> None:
        checks.function("divergence", self.divergence)
        self.teacher = EMA(self.decay, self.every)

    def per_example(self, passes: Passes) -> Tensor:
        """Return D of the outputs of teacher and network, ``(B,)``."""
        model = passes.network.model
        if torch.is_grad_enabled():
            self.teacher.follow(model)
        target = passes.noisy(self.rows, self.teacher.weights(model))
        return passes.compare(self.divergence, target, passes.clean(self.rows).logits, self.rows)

    def attach(self, model: nn.Module) -> None:
        """Let the teacher start from this network."""
        self.teacher.start(model)

    def term_state(self) -> dict[str, Tensor]:
        """Return the weights of the teacher."""
        return self.teacher.state_dict()

    def load_term_state(self, state: dict[str, Tensor]) -> None:
        """Load the weights of the teacher."""
        self.teacher.load_state_dict(state)
