"""What the engine adds to an update: `advdrop train` against the same updates in a bare loop; and the input alone.

They take turns update by update: whenever the engine asks for a batch, an update of the bare loop runs first, so that
whatever else the machine does hits both alike. An update of the engine is timed from one batch to the next: Lightning,
the schedules, the measurements of the search and all that happens between updates is in it. Medians are compared, and
means beside them: a mean also has the rows of metrics that end an epoch in it. Neither side evaluates.

    python benchmarks/engine.py [--json FILE] [--updates 200]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from advdrop.batch import Batch
from advdrop.data.batches import Batches
from advdrop.data.examples import DataSet
from advdrop.data.sources import load
from advdrop.engine.module import batches_of
from advdrop.engine.run import augments_of, preprocess_of, split_of, train
from advdrop.engine.speed import chosen, laid_out
from advdrop.experiments.config import RunConfig
from advdrop.experiments.methods import network_of, objective_of
from advdrop.experiments.recipes import resolve
from advdrop.memory import keep_freed_memory
from measure import progress, record

METHODS = ("vadd-kl", "pi", "dropout")
WARM_UP = 10


def configured(data: DataSet, method: str, updates: int) -> RunConfig:
    """The default run with epochs of twenty updates."""
    length = {"updates": updates, "epoch_updates": 20, "evaluate_every": 0}
    return resolve("mnist5k", shape=data.shape, examples=len(data.train), method=method, settings={"training": length})


def bare(config: RunConfig, data: DataSet) -> Iterator[None]:
    """The same updates in a loop of three lines, one at a time."""
    config = chosen(config, data.shape)
    network = laid_out(network_of(config, data.shape, len(data.classes)), config.engine.memory_format)
    objective = objective_of(config, len(data.train), len(data.classes))
    split = split_of(config, data)
    preprocess = preprocess_of(config, data, split)
    batches = batches_of(config, objective, data.train, split, preprocess, augments_of(config))
    optimiser = torch.optim.Adam(network.parameters(), fused=True)
    at = Batches.at  # as it is before the engine's is watched
    for update in range(config.training.updates):
        yield
        optimiser.zero_grad()
        objective(network, at(batches, update), progress=update / config.training.updates).total.backward()
        optimiser.step()
    yield


def in_turns(config: RunConfig, data: DataSet, training: Callable[[], object]) -> dict[str, list[float]]:
    """Seconds of each update of the bare loop and of the training, which take turns."""
    times: dict[str, list[float]] = {"bare": [], "engine": []}
    loop, at = bare(config, data), Batches.at
    next(loop)
    resumed = time.perf_counter()

    def watched(self: Batches, update: int, part: int = 0, parts: int = 1) -> Batch:
        nonlocal resumed
        asked = time.perf_counter()
        times["engine"].append(asked - resumed)
        next(loop, None)
        resumed = time.perf_counter()
        times["bare"].append(resumed - asked)
        return at(self, update, part, parts)

    Batches.at = watched  # type: ignore[method-assign]
    try:
        training()
    finally:
        Batches.at = at  # type: ignore[method-assign]
    # The engine looks at the first batch before it begins, and the first updates warm up.
    return {name: values[WARM_UP:] for name, values in times.items()}


def measure(method: str, updates: int) -> dict[str, Any]:
    """The medians of both, taking turns."""
    data = load("mnist5k")
    config = configured(data, method, updates)
    progress(f"{method}: {updates} updates of each")
    with tempfile.TemporaryDirectory() as folder:
        times = in_turns(config, data, partial(train, config, Path(folder) / "run", data=data, progress=False))
    progress("")
    medians = {name: statistics.median(values) for name, values in times.items()}
    means = {name: statistics.mean(values) for name, values in times.items()}
    alone = input_alone(config, data)
    return {
        "method": method,
        "updates": len(times["engine"]),
        "threads": torch.get_num_threads(),
        **{f"{name}_ms_per_update": round(1000 * median, 2) for name, median in medians.items()},
        "overhead_percent": round(100 * (medians["engine"] / medians["bare"] - 1), 2),
        "overhead_of_the_mean_percent": round(100 * (means["engine"] / means["bare"] - 1), 2),
        "input_ms": round(alone, 3),
        "input_percent": round(100 * alone / (1000 * medians["bare"]), 2),
    }


def input_alone(config: RunConfig, data: DataSet, updates: int = 200) -> float:
    """Milliseconds in which a batch is made, the median."""
    split = split_of(config, data)
    objective = objective_of(config, len(data.train), len(data.classes))
    batches = batches_of(config, objective, data.train, split, preprocess_of(config, data, split), augments_of(config))
    times = []
    for update in range(updates):
        start = time.perf_counter()
        batches.at(update)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def table(rows: list[dict[str, Any]]) -> str:
    """As the performance page shows it."""
    text = "| method | a bare loop | the engine | more | more, of the means | its input alone |\n"
    text += "|---|---|---|---|---|---|\n"
    for row in rows:
        text += (
            f"| {row['method']} | {row['bare_ms_per_update']:.1f} ms | {row['engine_ms_per_update']:.1f} ms | "
            f"{row['overhead_percent']:+.1f} % | {row['overhead_of_the_mean_percent']:+.1f} % | "
            f"{row['input_ms']:.2f} ms, {row['input_percent']:.1f} % |\n"
        )
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="write the record here")
    parser.add_argument("--updates", type=int, default=200, help="updates of each")
    options = parser.parse_args()
    keep_freed_memory()
    rows = [measure(method, options.updates) for method in METHODS]
    print(table(rows))
    if options.json is not None:
        record(options.json, rows, "python benchmarks/engine.py --json results/engine.json")


if __name__ == "__main__":
    main()
