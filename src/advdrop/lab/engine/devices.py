"""The device, the precision and the memory format of a run. They depend on the machine, never on a clock."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from advdrop.lab.config.config import Engine, RunConfig
from advdrop.lab.config.values import ConfigError

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def resolve_auto(config: RunConfig) -> RunConfig:
    """Return the configuration with each ``auto`` of the engine replaced by the choice for this machine.

    The run directory stores the result, so a resumed run continues with it on any machine.
    """
    engine, device = config.engine, device_of(config.engine)
    precision, memory_format = engine.precision, engine.memory_format
    if precision == "auto":  # all machines must agree, and each of them only knows itself
        precision = "bf16" if engine.nodes == 1 and has_fast_bf16(device) else "32"
    if memory_format == "auto":
        # CPUs convolve faster with the channels last. GPUs do so only in half precision.
        faster = device == "cpu" or (device == "cuda" and precision != "32")
        memory_format = "channels_last" if faster and config.network.name != "mlp" else "contiguous"
    resolved = engine.model_copy(update={"precision": precision, "memory_format": memory_format})
    return config.model_copy(update={"engine": resolved})


def resumed_config(config: RunConfig, started: RunConfig) -> RunConfig:
    """Return the configuration with each ``auto`` of the engine as it is in a run that was started before."""
    names = [name for name in ("memory_format", "precision") if getattr(config.engine, name) == "auto"]
    engine = config.engine.model_copy(update={name: getattr(started.engine, name) for name in names})
    return config.model_copy(update={"engine": engine})


def device_of(engine: Engine) -> str:
    """Return the type of device that Fabric will use: cpu, cuda or mps."""
    found = None if engine.accelerator == "cpu" else torch.accelerator.current_accelerator(check_available=True)
    return found.type if found is not None and found.type in ("cuda", "mps") else "cpu"


def has_fast_bf16(device: str) -> bool:
    """Return True if the device has instructions for bfloat16."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device == "cpu" and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def set_memory_format(network: nn.Module, memory_format: str) -> nn.Module:
    """Convert the weights of the convolutions. Their outputs will have the same memory format."""
    chosen = torch.channels_last if memory_format == "channels_last" else torch.contiguous_format
    return network.to(memory_format=chosen)  # type: ignore[call-overload, no-any-return]


@contextmanager
def _without(module: str) -> Iterator[None]:
    """Hide a module inside the block: Fabric imports torchmetrics, for seconds, only to look up its version."""
    hidden = module not in sys.modules
    if hidden:
        sys.modules[module] = None  # type: ignore[assignment]  # how Python marks a module that cannot be imported
    try:
        yield
    finally:
        if hidden:
            del sys.modules[module]


def fabric_of(engine: Engine) -> Fabric:
    """Return the Fabric of a run: its devices, its processes and its precision."""
    started, expected = int(os.environ.get("WORLD_SIZE", "1")), engine.devices * engine.nodes
    if started not in (1, expected):
        raise ConfigError(f"{started} processes were started for {expected}; say so with --devices and --nodes")
    with _without("torchmetrics"):
        from lightning_fabric import Fabric
        from lightning_fabric.plugins import MixedPrecision, Precision

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)

    class Mixed(MixedPrecision):
        """Mixed precision that converts a weight for each pass, so that the gradients of all passes add up in float32.

        It is given to Fabric as an object, because Fabric would replace the name of fp16 by that of bf16 on a CPU.
        """

        def forward_context(self) -> torch.autocast:
            dtype = torch.bfloat16 if self.precision == "bf16-mixed" else torch.float16
            return torch.autocast(self.device, dtype=dtype, cache_enabled=False)

    names: dict[str, Any] = {"bf16": "bf16-mixed", "fp16": "16-mixed"}
    mixed = names.get(engine.precision)
    try:
        return Fabric(
            accelerator=engine.accelerator,
            devices=engine.devices,
            num_nodes=engine.nodes,
            strategy="ddp" if expected > 1 else "auto",
            plugins=Mixed(mixed, device_of(engine)) if mixed else Precision(),
        )
    except Exception as error:  # Fabric has many ways to say that a device is not there
        raise ConfigError(f"engine: {error}") from None
