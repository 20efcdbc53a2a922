"""The mask search alone, compared with the search of the public ports and with one read and write of its tensors.

python benchmarks/search.py [--json FILE] [--repeats 41]
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from advdrop import flip_mask
from advdrop.lab.engine.malloc import keep_freed_memory
from advdrop.masks import sample_mask
from measure import parser_of, record, summary, taking_turns
from naive import naive_search

SIZES = [(128, 128), (32, 2048), (128, 2048), (512, 2048), (128, 16_384), (128, 65_536), (512, 65_536)]
DELTAS = (0.001, 0.01, 0.05, 0.1, 0.3)
PAPER = {128: 0.05, 2048: 0.005}
"""δ of the paper for the layers that it has; 0.01 for the others."""


def measure(examples: int, units: int, delta: float, repeats: int) -> dict[str, Any]:
    """One size: ours, the ports' kind, and one read of both tensors with one write."""
    mask, jacobian, budget = sample_mask((examples, units), 0.5), torch.randn(examples, units), int(delta * units)
    steps = {
        "flip_mask": partial(flip_mask, mask, jacobian, budget),
        "naive": partial(naive_search, mask, jacobian, budget),
        "read and write": partial(torch.mul, mask, jacobian),
    }
    # Among millions of random gains some are equal, and the ports leave those out.
    assert torch.equal(flip_mask(mask, jacobian, budget, ties="dropped"), steps["naive"]())
    large = examples * units > 2**22
    times = taking_turns(steps, repeats // 4 if large else repeats, f"{examples} x {units}, {budget} flips")
    found = {name: summary(values) for name, values in times.items()}
    ours = found["flip_mask"]["median_ms"]
    return {
        "examples": examples,
        "units": units,
        "delta": delta,
        "budget": budget,
        **found["flip_mask"],
        "naive_ms": found["naive"]["median_ms"],
        "read_and_write_ms": found["read and write"]["median_ms"],
        "times_faster_than_naive": round(found["naive"]["median_ms"] / ours, 2),
        "times_a_read_and_write": round(ours / found["read and write"]["median_ms"], 1),
        "ns_per_entry": round(ours * 1e6 / (examples * units), 3),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """As the performance page shows it."""
    text = "| B x H | δ | flips | flip_mask | naive search | naive / ours | one read and write | ns per entry |\n"
    text += "|---|---|---|---|---|---|---|---|\n"
    for row in rows:
        size = f"{row['examples']} x {row['units']:,} | {row['delta']:g} | {row['budget']}"
        times = f"{row['median_ms']:.2f} ms | {row['naive_ms']:.2f} ms | {row['times_faster_than_naive']:.1f}x"
        text += f"| {size} | {times} | {row['read_and_write_ms']:.2f} ms | {row['ns_per_entry']:.2f} |\n"
    return text


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=41, help="rounds to take the median of (41; a quarter if large)")
    arguments = parser.parse_args()
    keep_freed_memory()
    cases = [(examples, units, PAPER.get(units, 0.01)) for examples, units in SIZES]
    cases += [(128, 2048, delta) for delta in DELTAS]
    rows = [measure(*case, arguments.repeats) for case in cases]
    print(table(rows))
    if arguments.json:
        record(arguments.json, rows, "python benchmarks/search.py --json results/search.json")


if __name__ == "__main__":
    main()
