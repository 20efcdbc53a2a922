"""Two cores: one run with two threads, two runs side by side with one thread each, or one run over two processes.

    python benchmarks/scaling.py [--json FILE] [--updates 30]

Each way makes the same updates of vadd-kl on the included digits with the engine, 128 + 128 rows each. The updates per
second are compared. The ways take turns.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from advdrop.lab.engine.rundir import RunDirectory
from measure import parser_of, progress, record

WAYS = {
    "one run, one thread": (1, 1, 1),
    "one run, two threads": (1, 2, 1),
    "two runs side by side, one thread each": (2, 1, 1),
    "one run, two gloo ranks of one thread each": (1, 1, 2),
}
"""Runs, threads of each process, processes of each run."""

SETTINGS = ["training.labeled=128", "training.unlabeled=128", "training.evaluate_every=0", "training.epoch_updates=5"]


def start(path: Path, seed: int, threads: int, devices: int, updates: int) -> subprocess.Popen[bytes]:
    """One training in a process of its own."""
    command = [sys.executable, "-m", "advdrop", "train", "--updates", str(updates), "--seed", str(seed), "--quiet"]
    command += ["--out", str(path), "--devices", str(devices)]
    command += [word for setting in SETTINGS for word in ("--set", setting)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def milliseconds(way: str, updates: int) -> float:
    """The time of an update in the second half of the run, divided by the number of runs side by side."""
    runs, threads, devices = WAYS[way]
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / str(seed) for seed in range(runs)]
        started = [start(path, seed, threads, devices, updates) for seed, path in enumerate(paths)]
        for process in started:
            _, complaint = process.communicate()
            if process.returncode:
                raise RuntimeError(complaint.decode())
        return statistics.mean(_second_half(path) for path in paths) / runs


def _second_half(path: Path) -> float:
    rows = RunDirectory.open(path).metrics()
    middle = rows[len(rows) // 2 - 1]
    return 1000 * (rows[-1]["seconds"] - middle["seconds"]) / (rows[-1]["update"] - middle["update"])


def measure(updates: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each way."""
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(rounds):
        for way in WAYS:
            progress(f"round {turn + 1} of {rounds}: {way}")
            times[way].append(milliseconds(way, updates))
    progress("")
    one = statistics.median(times["one run, two threads"])
    return [
        {
            "way": way,
            "ms_per_update": round(statistics.median(values), 1),
            "rounds": [round(value, 1) for value in values],
            "work_per_second": round(one / statistics.median(values), 2),
        }
        for way, values in times.items()
    ]


def table(rows: list[dict[str, Any]]) -> str:
    """As the performance page shows it."""
    text = "| way | ms per update, over all runs | work per second |\n|---|---|---|\n"
    for row in rows:
        text += f"| {row['way']} | {row['ms_per_update']:.0f} | {row['work_per_second']:.2f}x |\n"
    return text


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--updates", type=int, default=40, help="of each run (40)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds to take the median of (3)")
    arguments = parser.parse_args()
    rows = measure(arguments.updates, arguments.rounds)
    print(table(rows))
    if arguments.json:
        record(arguments.json, rows, "python benchmarks/scaling.py --json results/scaling.json")


if __name__ == "__main__":
    main()
