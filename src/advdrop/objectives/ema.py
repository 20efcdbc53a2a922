"""An exponential moving average of the weights of a network: a teacher that follows its student."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from advdrop import checks
from advdrop.divergences import full_precision
from advdrop.objectives.same import Same

if TYPE_CHECKING:
    from advdrop.step.batch import Rows
    from advdrop.step.passes import Passes

Model = TypeVar("Model", bound=nn.Module)


class EMA:
    """An exponential moving average of parameters and buffers, θ' ← αθ' + (1 − α)θ.

    As the target of a term, ``VAdD(target=EMA())``, it gives g(x) = f(x, θ') in evaluation mode and without gradients.
    The step then updates it at the beginning of each training step, when θ has the last update of the optimizer, and
    saves it in its ``state_dict``. All ranks of ``torch.distributed`` have the same weights, so they compute the same
    average without communication. You can also use it by itself: call :meth:`update` after ``optimizer.step()``.

    α is min(1 − 1/(t + 1), decay) after t updates, so the first ones are a plain mean and the initial weights are soon
    forgotten. Floating-point buffers, such as the running statistics of batch norm, are averaged as well; integers are
    copied, and so is a buffer that is new or has another shape than before. Averages of half-precision weights are kept
    in float32. The average belongs to one network: a step with another network starts it again.

    Args:
        decay: α in the long run.
        every: how many training steps of a :class:`Step` belong to one update. With gradient accumulation, the number
            of steps for each update of the optimizer.

    References: Tarvainen and Valpola, "Mean teachers are better role models", NIPS 2017; the first α are those of their
    released code.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> ema = EMA(decay=0.9)
    >>> for weight in (1.0, 2.0):
    ...     _ = nn.init.constant_(model.weight, weight)
    ...     ema.update(model)
    >>> ema.network(model).weight.item()
    1.5
    """

    def __init__(self, decay: float = 0.999, every: int = 1) -> None:
        if checks.fraction("decay", decay) == 1.0:
            raise ValueError("decay must be below 1: with 1.0 the average never changes")
        self.decay, self.every = decay, checks.count("every", every)
        self.updates = self.steps = 0
        self.average: dict[str, Tensor] = {}
        self._network, self._passes = Same(), Same()

    def __repr__(self) -> str:
        """Return the options as they would be typed."""
        return f"EMA(decay={self.decay}, every={self.every})"

    def start(self, model: nn.Module) -> None:
        """Begin the training of a network, or continue it: the average of another network is forgotten."""
        if self._network.differs(model):
            self.updates, self.steps, self.average = 0, 0, {}
        self.attach(model)

    def attach(self, model: nn.Module) -> None:
        """Start from the weights of a network, unless this is the average of such weights already."""
        if any(is_lazy(tensor) for tensor in model.parameters()):
            raise ValueError("an EMA needs weights that exist: run the network once, or replace its lazy modules")
        if not all(self._has(name, tensor) for name, tensor in model.named_parameters()):
            self.updates = self.steps = 0
            self.average = {}
        now = _tensors(model)
        if len(now) != len(self.average) or not all(self._has(name, tensor) for name, tensor in now):
            averages = self.average
            self.average = {
                name: averages[name] if self._has(name, tensor) else _wide(tensor).clone() for name, tensor in now
            }

    def _has(self, name: str, tensor: Tensor) -> bool:
        return name in self.average and self.average[name].shape == tensor.shape

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average toward the weights that the network has now."""
        self.attach(model)
        weight = max(1.0 / (self.updates + 1), 1.0 - self.decay)
        for name, tensor in _tensors(model):
            now = _wide(tensor)
            if self.updates == 0 or not _averaged(tensor):
                self.average[name] = now.clone()
                continue
            average = self.average[name].to(now)
            if isinstance(tensor, nn.Parameter):
                self.average[name] = average.lerp_(now, weight)
            else:  # a buffer may have infinities, as a mask of attention; the average of two infinities would be NaN
                self.average[name] = torch.where(average.isfinite(), average.lerp(now, weight), now)
        self.updates += 1

    def follow(self, model: nn.Module) -> None:
        """Count a training step of a network, and update the average if ``every`` steps have passed."""
        if self.steps % self.every == 0:
            self.update(model)
        self.steps += 1

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the averages in the precision of the network; without integers.

        Buffers are copies, because a pass may write into them.
        """
        parameters = dict(model.named_parameters())
        averaged = [(name, tensor) for name, tensor in _tensors(model) if _averaged(tensor)]
        return {name: self.average[name].to(tensor, copy=name not in parameters) for name, tensor in averaged}

    def network(self, model: Model) -> Model:
        """Return a copy of the network with the averaged weights, in evaluation mode."""
        missing = next((name for name, tensor in model.named_parameters() if not self._has(name, tensor)), None)
        if self.average and missing is not None:
            raise ValueError(
                f"this is the average of another network, with {', '.join(list(self.average)[:3])}, ...: it has no "
                f"{missing!r} of this shape. Pass the network that update() gets, both with or both without a wrapper "
                "such as torch.compile"
            )
        self.attach(model)
        averaged = copy.deepcopy(model).eval()
        with torch.no_grad():
            for name, tensor in _tensors(averaged):
                tensor.copy_(self.average[name])
        return averaged

    def __call__(self, passes: Passes, rows: Rows) -> Tensor:
        """Return g(x) = f(x, θ') as logits, after an update if this is a training step."""
        model = passes.network.model
        # A validation loss is computed without gradients. Several terms of a step may have the same target.
        if torch.is_grad_enabled() and self._passes.changes(passes):
            self.follow(model)
        return passes.steady(rows, self.weights(model))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averages and the counts."""
        counts = torch.tensor([self.updates, self.steps])
        return {"counts": counts, **{f"average.{name}": tensor for name, tensor in self.average.items()}}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Load what ``state_dict`` returned."""
        found = {name.removeprefix("average."): tensor for name, tensor in state.items() if name != "counts"}
        for name, tensor in self.average.items():
            if name in found:
                checks.same_shape(f"the saved average of {name}", found[name], "this one", tensor)
        self.updates, self.steps = map(int, state["counts"])
        self.average = {name: tensor.clone() for name, tensor in found.items()}
        self._network = Same()


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _averaged(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _wide(tensor: Tensor) -> Tensor:
    return full_precision(tensor.detach())
