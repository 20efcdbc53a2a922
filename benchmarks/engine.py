"""What the engine adds to an epoch: `advdrop train` against the same updates in a bare loop.

Both take turns in one process. An epoch of the engine is timed from the end of one row of metrics to the end of the
next: Lightning, the schedules, the measurements of the search and the metrics file are in it. Neither side evaluates,
and the epoch is too short for a checkpoint to fall due, of which a run writes one in 30 seconds.

    python benchmarks/engine.py [--json FILE] [--rounds 7] [--updates 20]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from advdrop.data.examples import DataSet
from advdrop.data.sources import load
from advdrop.engine.module import batches_of
from advdrop.engine.run import augments_of, preprocess_of, split_of, train
from advdrop.engine.rundir import RunDirectory
from advdrop.experiments.config import RunConfig
from advdrop.experiments.methods import network_of, objective_of
from advdrop.experiments.recipes import resolve

METHODS = ("vadd-kl", "pi", "dropout")


def configured(data: DataSet, method: str, updates: int) -> RunConfig:
    """The default run, three epochs long: the first warms up, the second is timed, the last is evaluated."""
    length = {"updates": 3 * updates, "epoch_updates": updates, "evaluate_every": 0}
    return resolve("mnist5k", shape=data.shape, examples=len(data.train), method=method, settings={"training": length})


def bare_epoch(config: RunConfig, data: DataSet, updates: int) -> float:
    """Seconds of an epoch in a loop of six lines."""
    network = network_of(config, data.shape, len(data.classes))
    objective = objective_of(config, len(data.train), len(data.classes))
    split = split_of(config, data)
    preprocess = preprocess_of(config, data, split)
    batches = batches_of(config, objective, data.train, split, preprocess, augments_of(config))
    optimiser = torch.optim.Adam(network.parameters())
    start = 0.0
    for update in range(2 * updates):
        if update == updates:
            start = time.perf_counter()
        optimiser.zero_grad()
        objective(network, batches.at(update), progress=update / (2 * updates)).total.backward()
        optimiser.step()
    return time.perf_counter() - start


def engine_epoch(config: RunConfig, data: DataSet, folder: Path) -> float:
    """Seconds of an epoch of ``advdrop train``."""
    train(config, folder / "run", force=True, data=data, progress=False)
    first, second, _ = RunDirectory(folder / "run").metrics()
    return second["seconds"] - first["seconds"]


def measure(method: str, rounds: int, updates: int) -> dict[str, Any]:
    """The ratio of the medians of both, taking turns."""
    data = load("mnist5k")
    config = configured(data, method, updates)
    bare, engine = [], []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds):
            bare.append(bare_epoch(config, data, updates))
            engine.append(engine_epoch(config, data, Path(folder)))
            print(f"\r{method}: round {turn + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    medians = {"bare_ms_per_update": bare, "engine_ms_per_update": engine}
    return {
        "method": method,
        "updates": updates,
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        **{name: round(1000 * statistics.median(times) / updates, 2) for name, times in medians.items()},
        "overhead_percent": round(100 * (statistics.median(engine) / statistics.median(bare) - 1), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="write the record here")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=20, help="updates of an epoch")
    options = parser.parse_args()
    rows = [measure(method, options.rounds, options.updates) for method in METHODS]
    for row in rows:
        print(
            f"{row['method']:<8}  bare {row['bare_ms_per_update']:7.1f} ms an update, engine "
            f"{row['engine_ms_per_update']:7.1f} ms: {row['overhead_percent']:+.1f} %"
        )
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
