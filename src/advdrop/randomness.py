"""The global generators, borrowed and put back.

torch's own noise layers draw from the global generators. Two passes see the same noise when both start from the same
state; a pass that nobody should notice puts the state back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor


class NoiseState(NamedTuple):
    """The state of the CPU's global generator and, on an accelerator, of that device's."""

    device: torch.device
    cpu: Tensor
    accelerator: Tensor | None


def noise_state(device: torch.device) -> NoiseState:
    """Where the global generators stand now."""
    on_device = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)
    return NoiseState(device, torch.get_rng_state(), on_device)


@contextmanager
def borrowed_noise(device: torch.device, start: NoiseState | None = None) -> Iterator[None]:
    """Inside the block the noise starts from ``start`` (or from here); afterwards it is as if nothing had been drawn.

    >>> cpu = torch.device("cpu")
    >>> with borrowed_noise(cpu):
    ...     first = torch.rand(())
    >>> bool(torch.rand(()) == first)
    True
    """
    before = noise_state(device)
    try:
        if start is not None:
            _restore(start)
        yield
    finally:
        _restore(before)


def mask_generator(device: torch.device) -> torch.Generator:
    """A generator for masks, seeded by one draw from the global one.

    Masks have a stream of their own, so that handing a layer a mask does not shift the noise of the layers behind it.
    Ranks that were seeded alike get different masks.
    """
    seed = int(torch.randint(2**62, ()))
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        seed += torch.distributed.get_rank()
    return torch.Generator(device).manual_seed(seed)


def derived_seed(*parts: int | str) -> int:
    """A seed in 0..2⁶² − 1 for whatever the parts name, such as ``(seed, "noise", update, rank)``; the same everywhere.

    >>> derived_seed(0, "noise", 1) != derived_seed(0, "noise", 2)
    True
    """
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()) >> 2


def derived_generator(*parts: int | str, device: torch.device | None = None) -> torch.Generator:
    """A generator seeded by ``derived_seed(*parts)``, on the CPU or on ``device``."""
    return torch.Generator(device or "cpu").manual_seed(derived_seed(*parts))


def seed_noise(device: torch.device, seed: int) -> None:
    """Start the global generators of the CPU and of ``device`` from ``seed``.

    ``torch.manual_seed`` does so for every device there could be, and takes a millisecond to remember it for those
    that are not in use.
    """
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def _restore(state: NoiseState) -> None:
    torch.set_rng_state(state.cpu)
    if state.accelerator is not None:
        torch.get_device_module(state.device).set_rng_state(state.accelerator, state.device)
