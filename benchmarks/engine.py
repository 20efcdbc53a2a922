"""The cost of the engine: updates of `advdrop train` against the same updates in a bare loop; and of the input alone.

Both take turns: when the engine asks for a batch, one update of the bare loop runs first, so that other work on the
machine slows both. An update of the engine is timed from one batch to the next. This includes Fabric, the schedules,
the measurements of the search and everything between updates. Medians are compared, and means too: a mean also includes
the rows of metrics that are written after each epoch. Neither side evaluates.

    python benchmarks/engine.py [--json FILE] [--updates 200]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from advdrop.lab.config.config import RunConfig
from advdrop.lab.config.recipes import resolve
from advdrop.lab.data.batches import Batches
from advdrop.lab.data.examples import DataSet
from advdrop.lab.data.sources import load
from advdrop.lab.engine.devices import fabric_of, resolve_auto
from advdrop.lab.engine.malloc import keep_freed_memory
from advdrop.lab.engine.run import preprocess_of, split_of, train, training_of
from advdrop.lab.engine.training import Training
from advdrop.step.batch import Batch
from advdrop.step.step import Step
from measure import parser_of, progress, record

METHODS = ("vadd-kl", "pi", "dropout")
WARM_UP = 10


def configured(data: DataSet, method: str, updates: int) -> RunConfig:
    """Return a run of the paper with epochs of twenty updates. It has no companion, so a bare loop does the same."""
    length = {"updates": updates, "epoch_updates": 20, "evaluate_every": 0}
    settings, shape, examples = {"training": length, "engine": {"accelerator": "cpu"}}, data.shape, len(data.train)
    config = resolve("mnist5k", shape=shape, examples=examples, method=method, preset="paper", settings=settings)
    return resolve_auto(config)


def built(config: RunConfig, data: DataSet) -> Training:
    """Return the network, the objective and the batches of the run."""
    split = split_of(config, data)
    return training_of(config, data, split, preprocess_of(config, data, split), fabric_of(config.engine))


def bare(run: Training, updates: int) -> Iterator[None]:
    """Do the same updates in a bare loop, one at a time."""
    step, optimizer = Step(run.network, run.objective), torch.optim.Adam(run.network.parameters(), fused=True)
    at = Batches.at  # before it is replaced by the one that measures the engine
    for update in range(updates):
        yield
        optimizer.zero_grad()
        step(**vars(at(run.batches, update)), progress=update / updates).loss.backward()
        optimizer.step()
    yield


def in_turns(config: RunConfig, data: DataSet) -> dict[str, list[float]]:
    """Return the seconds of each update of the bare loop and of the engine."""
    times: dict[str, list[float]] = {"bare": [], "engine": []}
    loop, at = bare(built(config, data), config.training.updates), Batches.at
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
        with tempfile.TemporaryDirectory() as folder:
            train(config, Path(folder) / "run", data=data, progress=False)
    finally:
        Batches.at = at  # type: ignore[method-assign]
    # The engine makes the first batch before it starts, and the first updates warm up.
    return {name: values[WARM_UP:] for name, values in times.items()}


def measure(method: str, updates: int) -> dict[str, Any]:
    """Return the row of the record of one method."""
    data = load("mnist5k")
    config = configured(data, method, updates)
    progress(f"{method}: {updates} updates of each")
    times, batches = in_turns(config, data), built(config, data).batches
    medians = {name: statistics.median(values) for name, values in times.items()}
    means = {name: statistics.mean(values) for name, values in times.items()}
    alone = statistics.median(seconds_of_a_batch(batches, update) for update in range(200))
    progress("")
    return {
        "method": method,
        "updates": len(times["engine"]),
        "threads": torch.get_num_threads(),
        **{f"{name}_ms_per_update": round(1000 * median, 2) for name, median in medians.items()},
        "overhead_percent": round(100 * (medians["engine"] / medians["bare"] - 1), 2),
        "overhead_of_the_mean_percent": round(100 * (means["engine"] / means["bare"] - 1), 2),
        "input_ms": round(1000 * alone, 3),
        "input_percent": round(100 * alone / medians["bare"], 2),
    }


def seconds_of_a_batch(batches: Batches, update: int) -> float:
    """Return the time in which a batch is made."""
    start = time.perf_counter()
    batches.at(update)
    return time.perf_counter() - start


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table of the performance page."""
    text = "| method | a bare loop | the engine | difference | difference of the means | its input alone |\n"
    text += "|---|---|---|---|---|---|\n"
    for row in rows:
        text += (
            f"| {row['method']} | {row['bare_ms_per_update']:.1f} ms | {row['engine_ms_per_update']:.1f} ms | "
            f"{row['overhead_percent']:+.1f} % | {row['overhead_of_the_mean_percent']:+.1f} % | "
            f"{row['input_ms']:.2f} ms, {row['input_percent']:.1f} % |\n"
        )
    return text


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--updates", type=int, default=200, help="updates of each")
    options = parser.parse_args()
    keep_freed_memory()
    rows = [measure(method, options.updates) for method in METHODS]
    print(table(rows))
    if options.json is not None:
        record(options.json, rows, "python benchmarks/engine.py --json results/engine.json")


if __name__ == "__main__":
    main()
