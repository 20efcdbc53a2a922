"""What the engine adds to an update: `advdrop train` against the same updates in a plain loop; and the input alone.

The two take turns: whenever the engine asks for a batch, one update of the plain loop runs first, so other work on the
machine slows both alike. An update of the engine is timed from one batch to the next. This includes Lightning, the
schedules, the measurements of the search and everything between updates. Medians are compared, and means too: a mean
also includes the rows of metrics that are written at the end of an epoch. Neither side evaluates.

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

from advdrop.lab.config.config import RunConfig
from advdrop.lab.config.methods import network_of, objective_of
from advdrop.lab.config.recipes import resolve
from advdrop.lab.data.batches import Batches
from advdrop.lab.data.examples import DataSet
from advdrop.lab.data.sources import load
from advdrop.lab.engine.malloc import keep_freed_memory
from advdrop.lab.engine.module import batches_of
from advdrop.lab.engine.run import augments_of, preprocess_of, split_of, train
from advdrop.lab.engine.speed import chosen, laid_out
from advdrop.step.batch import Batch
from advdrop.step.step import Step
from measure import progress, record

METHODS = ("vadd-kl", "pi", "dropout")
WARM_UP = 10


def configured(data: DataSet, method: str, updates: int) -> RunConfig:
    """The default run with epochs of twenty updates."""
    length = {"updates": updates, "epoch_updates": 20, "evaluate_every": 0}
    return resolve("mnist5k", shape=data.shape, examples=len(data.train), method=method, settings={"training": length})


def bare(config: RunConfig, data: DataSet) -> Iterator[None]:
    """The same updates in a plain loop, one at a time."""
    config = chosen(config, data.shape)
    network = laid_out(network_of(config, data.shape, len(data.classes)), config.engine.memory_format)
    objective = objective_of(config, len(data.train), len(data.classes))
    split = split_of(config, data)
    preprocess = preprocess_of(config, data, split)
    batches = batches_of(config, objective, data.train, split, preprocess, augments_of(config))
    step, optimizer = Step(network, objective), torch.optim.Adam(network.parameters(), fused=True)
    at = Batches.at  # before it is replaced by the one that measures the engine
    for update in range(config.training.updates):
        yield
        optimizer.zero_grad()
        step(**vars(at(batches, update)), progress=update / config.training.updates).loss.backward()
        optimizer.step()
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
    text = "| method | a plain loop | the engine | difference | difference of the means | its input alone |\n"
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
