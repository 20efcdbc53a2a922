"""Faults of hardware: of the units that a layer returns, and of the weights of a layer.

A fault is drawn at random and is the same for all examples. An output that is not finite counts as wrong.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor, nn

from advdrop.choices import Granularity
from advdrop.masks import mask_shape
from advdrop.outputs import Part, part_of, replaced
from advdrop.randomness import device_of, unnoticed
from advdrop.step.inputs import Inputs, call
from advdrop.suggest import did_you_mean

BITS = {"sign": (31,), "exponent": tuple(range(23, 31)), "mantissa": tuple(range(23)), "any": tuple(range(32))}
"""The bits of a float32 by their names; bit 31 is the sign, 30 to 23 are the exponent, 22 to 0 are the mantissa."""


class Fault(ABC):
    """What happens to some values of a layer."""

    of: ClassVar[Literal["units", "weights"]]

    @abstractmethod
    def broken(self, values: Tensor, hit: Tensor, generator: torch.Generator) -> Tensor:
        """Return the values with a fault where ``hit`` is True; ``hit`` can be broadcast."""


@final
@dataclass(frozen=True)
class StuckAt(Fault):
    """A unit has the same value for every input: h → value. With 0 it is lost.

    Args:
        value: the value.

    >>> StuckAt(2.0).broken(torch.tensor([[1.0, 5.0]]), torch.tensor([False, True]), torch.Generator())
    tensor([[1., 2.]])
    """

    value: float = 0.0
    of = "units"

    def broken(self, values: Tensor, hit: Tensor, generator: torch.Generator) -> Tensor:
        """Return h with the value in the places that are hit."""
        del generator
        return torch.where(hit, torch.as_tensor(self.value, dtype=values.dtype, device=values.device), values)

    def __str__(self) -> str:
        """Return the name in tables."""
        return f"stuck at {self.value:g}"


@final
@dataclass(frozen=True)
class SignFlip(Fault):
    """A weight changes its sign: w → −w.

    >>> SignFlip().broken(torch.tensor([1.0, 5.0]), torch.tensor([False, True]), torch.Generator())
    tensor([ 1., -5.])
    """

    of = "weights"

    def broken(self, values: Tensor, hit: Tensor, generator: torch.Generator) -> Tensor:
        """Return −w in the places that are hit."""
        del generator
        return torch.where(hit, -values, values)

    def __str__(self) -> str:
        """Return the name in tables."""
        return "sign flip"


@final
@dataclass(frozen=True)
class BitFlip(Fault):
    """One random bit of a float32 weight changes.

    Args:
        bits: which bits may change: ``"any"``, ``"sign"``, ``"exponent"`` or ``"mantissa"``. A flip of a high bit of
            the exponent can make a weight of 0.5 larger than 1e38, infinite or NaN.

    >>> BitFlip("sign").broken(torch.tensor([1.0, 5.0]), torch.tensor([False, True]), torch.Generator())
    tensor([ 1., -5.])
    """

    bits: Literal["any", "sign", "exponent", "mantissa"] = "any"
    of = "weights"

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ValueError(f"bits must be one of {', '.join(BITS)}, got {self.bits!r}{did_you_mean(self.bits, BITS)}")

    def broken(self, values: Tensor, hit: Tensor, generator: torch.Generator) -> Tensor:
        """Return the weights with one bit changed in the places that are hit."""
        if values.dtype != torch.float32:
            raise TypeError(f"bit flips are those of float32 weights, got {values.dtype}")
        bits = torch.tensor(BITS[self.bits])
        chosen = bits[torch.randint(len(bits), values.shape, generator=generator)].to(values.device)
        flipped = values.view(torch.int32) ^ (torch.ones_like(chosen) << chosen).to(torch.int32)
        return torch.where(hit, flipped.view(torch.float32), values)

    def __str__(self) -> str:
        """Return the name in tables."""
        return "bit flip" if self.bits == "any" else f"bit flip ({self.bits})"


def fault(text: str | Fault) -> Fault:
    """Return a fault from its name: ``"stuck"``, ``"stuck:VALUE"``, ``"sign"``, ``"bit"`` or ``"bit:PART"``.

    >>> fault("stuck:1.5"), fault("bit:exponent")
    (StuckAt(value=1.5), BitFlip(bits='exponent'))
    """
    if isinstance(text, Fault):
        return text
    name, _, rest = text.partition(":")
    makers: dict[str, Callable[[], Fault]] = {
        "stuck": lambda: StuckAt(float(rest or 0)),
        "sign": SignFlip,
        "bit": lambda: BitFlip(rest or "any"),  # type: ignore[arg-type]
    }
    if name not in makers or (name == "sign" and rest):
        known = "stuck:VALUE, sign, bit, bit:sign, bit:exponent, bit:mantissa"
        raise ValueError(f"there is no fault {text!r}{did_you_mean(name, makers)}; there are {known}")
    try:
        return makers[name]()
    except ValueError as error:
        raise ValueError(f"the fault {text!r}: {error}") from None


@dataclass(frozen=True)
class FaultResult:
    """The accuracy of a network with a fault in one layer.

    Args:
        fault: its name.
        count: how many units or weights have it.
        accuracy: in percent, averaged over the draws.
        lowest: in percent, of the worst draw.
    """

    fault: str
    count: int
    accuracy: float
    lowest: float


def measure(
    model: nn.Module,
    module: nn.Module,
    batches: Sequence[tuple[Inputs, Tensor]],
    fault: Fault,
    counts: Sequence[int],
    *,
    logits: Callable[[Any], Tensor],
    part: Part = None,
    granularity: Granularity = "unit",
    draws: int = 10,
    seed: int = 0,
) -> list[FaultResult]:
    """Measure the accuracy with random faults in one layer.

    Args:
        model: a network in evaluation mode.
        module: the layer.
        batches: inputs and labels.
        fault: of its units, or of its own weights. A layer without weights gives no results.
        counts: how many units or weights have the fault.
        logits: finds the logits in what the model returns.
        part: which part of the layer's output has the units.
        granularity: what a unit is; ``"channel"`` for whole channels.
        draws: how often the fault is drawn for each count.
        seed: of the draws.
    """
    weights = [p for p in module.parameters(recurse=False) if p.is_floating_point() and p.dim() > 1]
    if fault.of == "weights" and not weights:
        return []
    generator, found = torch.Generator().manual_seed(seed), []
    examples = sum(len(y) for _, y in batches)
    for count in counts:
        accuracies = []
        for _ in range(draws):
            changed = (
                _broken_weights(weights, fault, count, generator)
                if fault.of == "weights"
                else _broken_units(module, fault, count, generator, part, granularity)
            )
            with unnoticed(device_of(model)), changed, torch.no_grad():
                hits = sum(int(right(logits(call(model, x)), y).sum()) for x, y in batches)
            accuracies.append(100 * hits / examples)
        found.append(FaultResult(str(fault), count, sum(accuracies) / draws, min(accuracies)))
    return found


def right(logits: Tensor, y: Tensor) -> Tensor:
    """Return which predictions are right, ``(B,)``; an output with NaN or infinity is wrong."""
    return (logits.argmax(1) == y.to(logits.device)) & logits.isfinite().all(1)


def chosen(size: int, count: int, generator: torch.Generator) -> Tensor:
    """Return True in ``count`` random places of ``size``."""
    hit = torch.zeros(size, dtype=torch.bool)
    hit[torch.randperm(size, generator=generator)[:count]] = True
    return hit


@contextmanager
def _broken_units(
    module: nn.Module, fault: Fault, count: int, generator: torch.Generator, part: Part, granularity: Granularity
) -> Iterator[None]:
    """Give the units that a module returns a fault inside the block; every pass has the same."""
    drawn: list[Tensor] = []

    def change(_: nn.Module, given: Any, output: Any) -> Any:
        del given
        h = output if part is None else part_of(output, part)
        shape = mask_shape(h.shape, granularity)[1:]
        if not drawn:
            drawn.append(chosen(torch.Size(shape).numel(), count, generator).view(1, *shape).to(h.device))
        faulty = fault.broken(h, drawn[0], generator)
        return faulty if part is None else replaced(output, part, faulty)

    with module.register_forward_hook(change):
        yield


@contextmanager
def _broken_weights(weights: Sequence[Tensor], fault: Fault, count: int, generator: torch.Generator) -> Iterator[None]:
    """Give some weights a fault inside the block."""
    before = [weight.detach().clone() for weight in weights]
    hits = chosen(sum(weight.numel() for weight in weights), count, generator).split([w.numel() for w in weights])
    try:
        with torch.no_grad():
            for weight, hit in zip(weights, hits, strict=True):
                weight.copy_(fault.broken(weight.detach(), hit.view(weight.shape).to(weight.device), generator))
        yield
    finally:
        with torch.no_grad():
            for weight, old in zip(weights, before, strict=True):
                weight.copy_(old)
