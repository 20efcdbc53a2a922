"""What the engine adds to an update: `advdrop train` against the same updates in a bare loop.

Both take turns in one process. An update is timed from one batch to the next, so that Lightning, the schedules, the
measurements of the search and all that happens between updates is in it. Medians are compared, and means beside them:
a mean also has the row of metrics that ends an epoch in it, and whatever else the machine did. Neither side evaluates.

    python benchmarks/engine.py [--json FILE] [--rounds 5] [--updates 20]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from advdrop.batch import Batch
from advdrop.data.batches import Batches
from advdrop.data.examples import DataSet
from advdrop.data.sources import load
from advdrop.engine.module import batches_of
from advdrop.engine.run import augments_of, preprocess_of, split_of, train
from advdrop.experiments.config import RunConfig
from advdrop.experiments.methods import network_of, objective_of
from advdrop.experiments.recipes import resolve

METHODS = ("vadd-kl", "pi", "dropout")


def configured(data: DataSet, method: str, updates: int) -> RunConfig:
    """The default run, three epochs long; the first warms up."""
    length = {"updates": 3 * updates, "epoch_updates": updates, "evaluate_every": 0}
    return resolve("mnist5k", shape=data.shape, examples=len(data.train), method=method, settings={"training": length})


def periods(training: Callable[[], object], updates: int) -> list[float]:
    """Seconds from each update to the next, in the second and third third of a training."""
    begun: list[float] = []
    at = Batches.at

    def watched(self: Batches, update: int, part: int = 0, parts: int = 1) -> Batch:
        begun.append(time.perf_counter())
        return at(self, update, part, parts)

    Batches.at = watched  # type: ignore[method-assign]
    try:
        training()
    finally:
        Batches.at = at  # type: ignore[method-assign]
    begun = begun[-3 * updates :]  # the engine also looks at the first batch before it begins
    return [after - before for before, after in pairwise(begun[updates:])]


def bare(config: RunConfig, data: DataSet) -> None:
    """The same updates in a loop of three lines."""
    network = network_of(config, data.shape, len(data.classes))
    objective = objective_of(config, len(data.train), len(data.classes))
    split = split_of(config, data)
    preprocess = preprocess_of(config, data, split)
    batches = batches_of(config, objective, data.train, split, preprocess, augments_of(config))
    optimiser = torch.optim.Adam(network.parameters())
    for update in range(config.training.updates):
        optimiser.zero_grad()
        objective(network, batches.at(update), progress=update / config.training.updates).total.backward()
        optimiser.step()


def measure(method: str, rounds: int, updates: int) -> dict[str, Any]:
    """The medians of both, taking turns."""
    data = load("mnist5k")
    config = configured(data, method, updates)
    times: dict[str, list[float]] = {"bare": [], "engine": []}
    with tempfile.TemporaryDirectory() as folder:
        run = partial(train, config, Path(folder) / "run", force=True, data=data, progress=False)
        for turn in range(rounds):
            times["bare"] += periods(partial(bare, config, data), updates)
            times["engine"] += periods(run, updates)
            print(f"\r{method}: round {turn + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    medians = {name: statistics.median(values) for name, values in times.items()}
    means = {name: statistics.mean(values) for name, values in times.items()}
    return {
        "method": method,
        "updates": len(times["engine"]),
        "threads": torch.get_num_threads(),
        **{f"{name}_ms_per_update": round(1000 * median, 2) for name, median in medians.items()},
        "overhead_percent": round(100 * (medians["engine"] / medians["bare"] - 1), 2),
        "overhead_of_the_mean_percent": round(100 * (means["engine"] / means["bare"] - 1), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="write the record here")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=20, help="updates of an epoch")
    options = parser.parse_args()
    rows = [measure(method, options.rounds, options.updates) for method in METHODS]
    for row in rows:
        print(
            f"{row['method']:<8}  bare {row['bare_ms_per_update']:7.1f} ms an update, engine "
            f"{row['engine_ms_per_update']:7.1f} ms: {row['overhead_percent']:+.1f} % "
            f"(means {row['overhead_of_the_mean_percent']:+.1f} %)"
        )
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
