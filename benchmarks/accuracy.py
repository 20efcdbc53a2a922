"""Whether the fast step costs accuracy: the same runs with it and, at an earlier commit, without any of it.

    python benchmarks/accuracy.py RUN... [--json FILE]

A run is a directory that ``advdrop train --dataset mnist --labels 1000 --updates 2400 --seed S`` has finished. Those
whose result does not name a memory format are from before the step was made fast (commit 89cacef): float32, torch's
own dropout, contiguous images, one pass after the other, Adam with its defaults. Other work on the machine is part of
the times.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from pathlib import Path
from typing import Any

from measure import record

KEPT = (
    *("method", "dataset", "labels", "seed", "updates", "test_error_percent", "milliseconds_per_update"),
    *("precision", "memory_format", "commit", "dataset_checksum"),
)


def row_of(run: Path) -> dict[str, Any]:
    """What is kept of a finished run."""
    result = json.loads((run / "result.json").read_text())
    kind = "fast" if "memory_format" in result else "plain float32"
    with (run / "metrics.csv").open() as file:
        curve = {row["update"]: float(row["test/error_percent"]) for row in csv.DictReader(file)}
    return {"step": kind} | {key: result[key] for key in KEPT if key in result} | {"curve": curve}


def table(rows: list[dict[str, Any]]) -> str:
    """As the performance page shows it: both means with the spread of the seeds, and their difference."""
    text = "| step | seeds | test error %, one by one | mean ± standard deviation |\n|---|---|---|---|\n"
    errors = {
        kind: [row["test_error_percent"] for row in sorted(rows, key=lambda r: r["seed"]) if row["step"] == kind]
        for kind in ("plain float32", "fast")
    }
    for kind, values in errors.items():
        each = ", ".join(f"{value:.2f}" for value in values)
        text += (
            f"| {kind} | {len(values)} | {each} | {statistics.mean(values):.2f} ± {statistics.stdev(values):.2f} |\n"
        )
    difference = statistics.mean(errors["fast"]) - statistics.mean(errors["plain float32"])
    text += f"\nThe difference of the means is {difference:+.2f}. The means on the way there:\n\n"
    updates = list(rows[0]["curve"])
    text += f"| step | {' | '.join(updates)} |\n|---|{'---|' * len(updates)}\n"
    for kind in errors:
        curves = [row["curve"] for row in rows if row["step"] == kind]
        means = (f"{statistics.mean(curve[update] for curve in curves):.2f}" for update in updates)
        text += f"| {kind} | {' | '.join(means)} |\n"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="finished run directories")
    parser.add_argument("--json", type=Path, metavar="FILE", help="a record to add them to")
    arguments = parser.parse_args()
    kept = json.loads(arguments.json.read_text())["rows"] if arguments.json and arguments.json.exists() else []
    found = {(row["step"], row["seed"]): row for row in [*kept, *(row_of(run) for run in arguments.runs)]}
    rows = [found[key] for key in sorted(found)]
    print(table(rows))
    if arguments.json:
        record(arguments.json, rows, "python benchmarks/accuracy.py RUN... --json results/accuracy.json")


if __name__ == "__main__":
    main()
