"""How long a run will take: a few of its own updates, timed."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import torch

from advdrop.lab.config.config import RunConfig
from advdrop.lab.data.examples import DataSet
from advdrop.lab.data.preprocess import Preprocess
from advdrop.lab.engine.devices import fabric_of, resolve_auto
from advdrop.lab.engine.malloc import keep_freed_memory
from advdrop.lab.engine.run import split_of, training_of
from advdrop.randomness import borrowed_noise


@dataclass(frozen=True)
class Estimate:
    """The cost of a run on this machine, without the evaluations."""

    parameters: int
    milliseconds_per_update: float
    seconds: float


def estimate(config: RunConfig, data: DataSet, updates: int = 3) -> Estimate:
    """Time a few updates in one process on the CPU, without whitening."""
    print(f"timing {updates + 1} updates of {config.method} ...", file=sys.stderr, flush=True)
    one = {"accelerator": "cpu", "devices": 1, "nodes": 1}
    config = resolve_auto(config.model_copy(update={"engine": config.engine.model_copy(update=one)}))
    keep_freed_memory()
    with borrowed_noise(torch.device("cpu")):
        preprocess = Preprocess("unit" if data.train.x.dtype == torch.uint8 else "none")
        training = training_of(config, data, split_of(config, data), preprocess, fabric_of(config.engine))
        training.trust.value = 1.0
        training.start()
        times = []
        for _ in range(updates + 1):
            start = time.perf_counter()
            training.update(config.training.updates - 1)  # at the end of the training all terms have their weights
            times.append(time.perf_counter() - start)
    each = sum(times[1:]) / updates  # the first one warms up
    parameters = sum(p.numel() for p in training.network.parameters())
    return Estimate(parameters, 1000 * each, each * config.training.updates)
