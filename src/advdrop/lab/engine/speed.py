"""What makes a training fast on the machine that it runs on: the order of pixels in memory, and the precision."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from functools import cache
from itertools import islice
from typing import Literal

import torch
from torch import nn

from advdrop.lab.config.config import Engine, RunConfig
from advdrop.randomness import borrowed_noise

Format = Literal["contiguous", "channels_last"]

FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}

WORTH_IT = 1.15
"""How many times as fast bfloat16 must be to be chosen: it changes the numbers beyond their rounding."""


def chosen(config: RunConfig, shape: Sequence[int], progress: bool = False) -> RunConfig:
    """The configuration with what is ``auto`` about speed replaced by what is fastest here.

    The run directory holds the result, so a resumed run goes on as it began. Several processes have to agree, and
    cannot, each with its own clock: they take what is usual for their device.

    Args:
        config: the run.
        shape: of one example; only images have an order of pixels.
        progress: whether to say which precision was chosen.
    """
    engine = config.engine
    memory_format = _format(engine, images=len(shape) == 3) if engine.memory_format == "auto" else engine.memory_format
    precision = engine.precision
    if precision == "auto":
        precision = "32"
        if engine.devices * engine.nodes == 1:
            plain, half = (probe(device_of(engine), memory_format, name) for name in ("32", "bf16"))
            precision = "bf16" if plain > WORTH_IT * half else "32"
            if progress:
                said = f"precision {precision}: bfloat16 has {plain / half:.2g} times the speed of float32 here"
                print(said, file=sys.stderr, flush=True)
    changed = engine.model_copy(update={"memory_format": memory_format, "precision": precision})
    return config.model_copy(update={"engine": changed})


def usual(config: RunConfig, shape: Sequence[int]) -> RunConfig:
    """The configuration with what is ``auto`` about speed as is usual for its device.

    No clock has a part in it, so the same suite computes the same numbers again.
    """
    engine = config.engine
    left: dict[str, str] = {}
    if engine.memory_format == "auto":
        left["memory_format"] = _usual_format(engine) if len(shape) == 3 else "contiguous"
    if engine.precision == "auto":
        left["precision"] = "32"
    return config.model_copy(update={"engine": engine.model_copy(update=left)})


def as_begun(config: RunConfig, begun: RunConfig) -> RunConfig:
    """The configuration with what is ``auto`` about speed as in a run that has begun."""
    left = [name for name in ("memory_format", "precision") if getattr(config.engine, name) == "auto"]
    engine = config.engine.model_copy(update={name: getattr(begun.engine, name) for name in left})
    return config.model_copy(update={"engine": engine})


def _format(engine: Engine, images: bool) -> Format:
    if not images:
        return "contiguous"
    if engine.devices * engine.nodes > 1:
        return _usual_format(engine)
    device = device_of(engine)
    # Only the rounding changes, so the usual winner stays unless it clearly loses.
    lost = probe(device, "contiguous", "32") < 0.9 * probe(device, "channels_last", "32")
    return "contiguous" if lost else "channels_last"


def _usual_format(engine: Engine) -> Format:
    return "channels_last" if device_of(engine) == "cpu" else "contiguous"


def device_of(engine: Engine) -> str:
    """The kind of device that Lightning will take."""
    if engine.accelerator == "cpu":
        return "cpu"
    found = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if found is None else found.type


@cache
def probe(device: str, memory_format: Format, precision: str) -> float:
    """Seconds of a small convolution, its pooling and their backward pass: the median of five.

    What takes far too long is found out at once.
    """
    with borrowed_noise(torch.device(device)), torch.random.fork_rng(devices=[]):
        layers = nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.MaxPool2d(2), nn.ReLU())
        layers.to(device, memory_format=FORMATS[memory_format])  # type: ignore[call-overload]
        x = torch.ones(32, 32, 14, 14, device=device, requires_grad=True)
        times: list[float] = []
        for _ in range(7):
            start = time.perf_counter()
            with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
                loss = layers(x).float().sum()
            loss.backward()
            if device != "cpu":
                torch.accelerator.synchronize()
            times.append(time.perf_counter() - start)
            if sum(times) > 0.5:
                break
    return statistics.median(islice(times, len(times) // 3, None))


def laid_out(network: nn.Module, memory_format: str) -> nn.Module:
    """The network with its convolutions' weights in this order; they pass it on to whatever comes through."""
    return network.to(memory_format=FORMATS[memory_format])  # type: ignore[call-overload, no-any-return]
