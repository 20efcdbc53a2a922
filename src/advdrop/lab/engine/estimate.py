"""How long a run will take: a few of its own updates, timed."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import torch

from advdrop.lab.config.config import RunConfig
from advdrop.lab.config.methods import objective_of
from advdrop.lab.data.examples import DataSet
from advdrop.lab.data.preprocess import Preprocess
from advdrop.lab.engine.companion import Blend
from advdrop.lab.engine.malloc import keep_freed_memory
from advdrop.lab.engine.module import batches_of
from advdrop.lab.engine.run import augments_of, blended, split_of
from advdrop.lab.engine.speed import chosen, laid_out
from advdrop.randomness import borrowed_noise
from advdrop.step.step import Step


@dataclass(frozen=True)
class Estimate:
    """What a run will cost on this machine, the evaluations not counted."""

    parameters: int
    milliseconds_per_update: float
    seconds: float


def estimate(config: RunConfig, data: DataSet, updates: int = 3) -> Estimate:
    """Time a few updates on one CPU process, whitening left out."""
    print(f"timing {updates + 1} updates of {config.method} ...", file=sys.stderr, flush=True)
    training = config.training
    with borrowed_noise(torch.device("cpu")):
        config = chosen(config, data.shape)
        keep_freed_memory()
        network = laid_out(blended(config, data.shape, len(data.classes)), config.engine.memory_format)
        main, companion = (network.main, network.companion) if isinstance(network, Blend) else (network, None)
        objective = objective_of(config, len(data.train), len(data.classes))
        preprocess = Preprocess("unit" if data.train.x.dtype == torch.uint8 else "none")
        split = split_of(config, data)
        batches = batches_of(config, objective, data.train, split, preprocess, augments_of(config))
        step, optimizer = Step(main, objective), torch.optim.Adam(network.parameters(), fused=True)
        times = []
        for update in range(updates + 1):  # the first one warms up
            start = time.perf_counter()
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=config.engine.precision == "bf16"):
                batch = batches.at(update)
                loss = step(**batch.arguments(), progress=1.0).loss
                if companion is not None:
                    loss = loss + torch.nn.functional.cross_entropy(companion(batch.x), batch.labels())
            loss.backward()
            optimizer.step()
            times.append(time.perf_counter() - start)
    each = sum(times[1:]) / updates
    return Estimate(sum(p.numel() for p in network.parameters()), 1000 * each, each * training.updates)
