"""The global random generators: save, restore and seed them.

Layers such as ``nn.Dropout`` draw their noise from global generators. Two passes have the same noise if both start from
the same state. A pass that must not change the random numbers of the caller restores the state afterwards.
"""

from __future__ import annotations

import hashlib
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class NoiseState(NamedTuple):
    """The state of the CPU's global torch generator and, on an accelerator, of that device's."""

    device: torch.device
    cpu: Tensor | None
    accelerator: Tensor | None

    def restore(self) -> None:
        """Set the global torch generators to this state."""
        if self.cpu is not None:
            torch.set_rng_state(self.cpu)
        if self.accelerator is not None:
            torch.get_device_module(self.device).set_rng_state(self.accelerator, self.device)

    def equals(self, other: NoiseState) -> bool:
        """Return True if both would draw the same numbers."""
        assert self.cpu is not None
        assert other.cpu is not None
        if not torch.equal(self.cpu, other.cpu) or (self.accelerator is None) != (other.accelerator is None):
            return False
        return self.accelerator is None or torch.equal(self.accelerator, other.accelerator)  # type: ignore[arg-type]


NO_NOISE = NoiseState(torch.device("cpu"), None, None)
"""The state of a network that draws no noise: there is nothing to restore."""


def noise_state(device: torch.device) -> NoiseState:
    """Return the present state of the global torch generators."""
    on_device = None if device.type in ("cpu", "meta") else torch.get_device_module(device).get_rng_state(device)
    return NoiseState(device, torch.get_rng_state(), on_device)


class PythonState(NamedTuple):
    """The state of Python's ``random`` and of numpy's legacy generator, if numpy is imported."""

    python: Any
    numpy: Any

    def restore(self) -> None:
        """Set both generators to this state."""
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)


def python_state() -> PythonState:
    """Return the present state of Python's ``random`` and of numpy's legacy generator."""
    numpy = sys.modules.get("numpy")
    legacy = None if numpy is None or not hasattr(numpy, "random") else numpy.random.get_state()
    return PythonState(random.getstate(), legacy)


ONE_THREAD = threading.RLock()
"""Held by whatever saves and restores the global generators: all threads of a program share them."""


@contextmanager
def borrowed_noise(device: torch.device, start: NoiseState | None = None) -> Iterator[None]:
    """Start the noise from ``start`` (or from the present state); on exit, restore the state from before the block.

    Only one thread at a time can be in such a block.

    >>> cpu = torch.device("cpu")
    >>> with borrowed_noise(cpu):
    ...     first = torch.rand(())
    >>> bool(torch.rand(()) == first)
    True
    """
    with ONE_THREAD:
        before = noise_state(device)
        try:
            if start is not None:
                start.restore()
            yield
        finally:
            before.restore()


@contextmanager
def unnoticed(device: torch.device) -> Iterator[None]:
    """Restore all global generators on exit: those of torch, of Python and of numpy.

    For passes that are not part of a training; some networks draw noise in evaluation mode, too.

    >>> before = random.getstate()
    >>> with unnoticed(torch.device("cpu")):
    ...     _ = random.random()
    >>> random.getstate() == before
    True
    """
    with borrowed_noise(device):
        before = python_state()
        try:
            yield
        finally:
            before.restore()


def device_of(network: nn.Module) -> torch.device:
    """Return the device of the weights of a network; the CPU if it has none."""
    first = next(network.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def mask_generator(device: torch.device) -> torch.Generator:
    """Return a generator for masks, seeded by one draw from the global generator.

    Masks have their own generator, so that drawing a mask does not change the noise of the layers above. Ranks with the
    same global seed get different masks.
    """
    seed = int(torch.randint(2**62, ()))
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        seed += torch.distributed.get_rank()
    return torch.Generator(device).manual_seed(seed)


def derived_seed(*parts: int | str) -> int:
    """Return a seed in 0..2⁶² − 1 for a sequence of parts, such as ``(seed, "noise", update, rank)``.

    It is the same on every machine.

    >>> derived_seed(0, "noise", 1) != derived_seed(0, "noise", 2)
    True
    """
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()) >> 2


def derived_generator(*parts: int | str, device: torch.device | None = None) -> torch.Generator:
    """Return a generator seeded by ``derived_seed(*parts)``, on the CPU or on ``device``."""
    return torch.Generator(device or "cpu").manual_seed(derived_seed(*parts))


def seed_noise(device: torch.device, seed: int) -> None:
    """Seed the global generators of the CPU and of ``device``.

    ``torch.manual_seed`` also queues the seed for every device that is not in use, which takes a millisecond.
    """
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)
