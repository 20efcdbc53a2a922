"""What the paper's tables cost at full size: each row's arithmetic counted, a few of its updates timed here.

    python benchmarks/full_size.py [--json FILE] [--updates 2] [--tables table1 table2] [--columns cifar10-4000 ...]

The arithmetic of an update is torch's count; times are of random images on this machine. The hours on a GPU are
computed from the count and an assumed speed: nobody has run them.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch

from advdrop.lab.config.config import RunConfig
from advdrop.lab.config.methods import network_of, objective_of
from advdrop.lab.config.terms import Setup
from advdrop.lab.engine.devices import resolve_auto, set_memory_format
from advdrop.lab.engine.malloc import keep_freed_memory
from advdrop.lab.report.text_table import table as text_table
from advdrop.lab.suites.suite import Key, Suite
from advdrop.step.batch import Batch
from advdrop.step.step import Step
from measure import flops, parser_of, progress, record

DATA = {"mnist": ((1, 28, 28), 60_000), "svhn": ((3, 32, 32), 73_257), "cifar10": ((3, 32, 32), 50_000)}
TABLES = ("table1", "table2")
GPUS = {"V100": 15.7e12, "A100": 19.5e12, "L4": 30.3e12, "H100": 67e12, "RTX 4090": 82.6e12}
"""Multiplications and additions a second in float32, without tensor cores, by NVIDIA's data sheets."""
SUSTAINED = 0.4
"""The share of them that is assumed for these networks."""


def batch_of(config: RunConfig, shape: tuple[int, ...]) -> Batch:
    """Random images in the numbers of an update."""
    size, more = config.training.labeled, config.training.unlabeled
    u = torch.rand(more, *shape) if more else None
    return Batch(torch.rand(size, *shape), torch.randint(10, (size,)), u, index=torch.arange(more or size))


def cost(config: RunConfig, shape: tuple[int, ...], examples: int, updates: int) -> tuple[int, float]:
    """The arithmetic of an update, counted at the first one, and the median time of a few more."""
    config = resolve_auto(config)
    network = set_memory_format(network_of(config, shape, 10), config.engine.memory_format)
    step = Step(network, objective_of(config, Setup(network, 10, examples, shape, True, lambda x: x)))
    optimizer = torch.optim.Adam(network.parameters(), fused=True)

    def update() -> float:
        batch = batch_of(config, shape)
        start = time.perf_counter()
        optimizer.zero_grad()
        step(**vars(batch), progress=1.0).loss.backward()
        optimizer.step()
        return time.perf_counter() - start

    counted = flops(update)
    return counted, statistics.median(update() for _ in range(updates))


def measure(suite: Suite, key: Key, updates: int) -> dict[str, Any]:
    """One row of one column at the paper's length."""
    shape, examples = DATA[suite.columns[key.column].dataset]
    config = suite.config(key, "paper", "paper", shape=shape, examples=examples)
    progress(f"{suite.key} {key.column} {key.row}")
    counted, seconds = cost(config, shape, examples, updates)
    length, seeds = config.training.updates, suite.protocols["paper"].seeds
    return {
        "suite": suite.key,
        "column": key.column,
        "row": key.row,
        "updates": length,
        "seeds": seeds,
        "gflop_per_update": round(counted / 1e9, 2),
        "seconds_per_update": round(seconds, 4),
        "hours_here": round(seconds * length * seeds / 3600, 1),
        "gpu_hours_computed": {
            name: round(counted * length * seeds / (speed * SUSTAINED) / 3600, 2) for name, speed in GPUS.items()
        },
    }


def table(rows: list[dict[str, Any]]) -> str:
    """As the page on the reproduction shows it: hours on a GPU are computed, for all seeds."""
    head = ["table", "column", "row", "updates × seeds", "GFLOP per update", "s per update here", *GPUS]
    lines = [
        [
            row["suite"],
            row["column"],
            row["row"],
            f"{row['updates']:,} × {row['seeds']}",
            f"{row['gflop_per_update']:,.1f}",
            f"{row['seconds_per_update']:.2f}",
            *(f"{row['gpu_hours_computed'][name]:,.1f} h" for name in GPUS),
        ]
        for row in rows
    ]
    for name in dict.fromkeys(row["suite"] for row in rows):
        mine = [row for row in rows if row["suite"] == name]
        here = sum(row["hours_here"] for row in mine)
        totals = (sum(row["gpu_hours_computed"][gpu] for row in mine) for gpu in GPUS)
        lines.append(
            [name, "all of these", "", "", "", f"{here:,.0f} h in all", *(f"{total:,.0f} h" for total in totals)]
        )
    return text_table(head, lines) + "\n"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--updates", type=int, default=2, help="updates of each row to time (2), after the one that is counted"
    )
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--columns", nargs="+", default=[], help="only these columns (all)")
    arguments = parser.parse_args()
    keep_freed_memory()
    suites = [Suite.load(name) for name in arguments.tables]
    cells = [
        (suite, key)
        for suite in suites
        for key in suite.cells("paper", seeds=1)
        if not arguments.columns or key.column in arguments.columns
    ]
    rows = [measure(suite, key, arguments.updates) for suite, key in cells]
    progress("")
    print(table(rows))
    if arguments.json:
        record(arguments.json, rows, f"python benchmarks/full_size.py {' '.join(sys.argv[1:])}")


if __name__ == "__main__":
    main()
