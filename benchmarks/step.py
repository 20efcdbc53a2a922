"""What a training step costs, relative to one of plain dropout.

All methods take turns in one process, so that whatever else the machine does hits them alike; medians are compared.

    python benchmarks/step.py [--json FILE] [--repeats 15] [--networks mnist_cnn conv_large]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from advdrop import VAT, Batch, CrossEntropy, PiModel, Ramp, VAdD, flip_mask, kl, qe
from advdrop.models import Split, adversarial_layers, conv_large, mnist_cnn
from advdrop.objectives import Objective
from naive import naive_vadd_step

NETWORKS: dict[str, tuple[Callable[[], Split], int, tuple[int, ...]]] = {
    "mnist_cnn": (mnist_cnn, 128, (1, 28, 28)),
    "conv_large": (conv_large, 32, (3, 32, 32)),
}
METHODS: dict[str, Objective] = {
    "plain": CrossEntropy(),
    "vadd shared": CrossEntropy() + Ramp(1.0) * VAdD(divergence=kl, noise="shared"),
    "vadd independent": CrossEntropy() + Ramp(1.0) * VAdD(divergence=kl, noise="independent"),
    "pi": CrossEntropy() + Ramp(30.0) * PiModel(divergence=qe),
    "vat": CrossEntropy() + VAT(),
}


def median_times(steps: Mapping[str, Callable[[], object]], repeats: int, label: str) -> dict[str, list[float]]:
    """Milliseconds of each step, taking turns; the first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(repeats + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append((time.perf_counter() - start) * 1e3)
        print(f"\r{label}: round {turn} of {repeats}", end="", file=sys.stderr, flush=True)
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    return {name: values[1:] for name, values in times.items()}


def training_steps(network: str, precision: str) -> dict[str, Callable[[], None]]:
    """One training step of each method, each on a network of its own."""
    make, examples, shape = NETWORKS[network]
    x, y = torch.randn(examples, *shape), torch.randint(10, (examples,))
    if precision == "bf16":
        x = x.to(memory_format=torch.channels_last)

    def prepared() -> tuple[Split, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = make()
        if precision == "bf16":
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model, torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step_of(objective: Objective) -> Callable[[], None]:
        model, optimiser = prepared()

        def step() -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                loss = objective(model, Batch(x, y))
            optimiser.zero_grad()
            loss.total.backward()
            optimiser.step()

        return step

    steps = {name: step_of(objective) for name, objective in METHODS.items()}
    model, optimiser = prepared()
    delta = adversarial_layers(model)[0].delta

    def naive() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            naive_vadd_step(model, x, y, optimiser, delta)

    steps["vadd naive, three passes"] = naive
    return steps


def measure(network: str, precision: str, repeats: int) -> list[dict[str, Any]]:
    """The rows of one network."""
    times = median_times(training_steps(network, precision), repeats, f"{network} {precision}")
    plain = statistics.median(times["plain"])
    return [
        {
            "network": network,
            "method": method,
            "precision": precision,
            "batch": NETWORKS[network][1],
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "median_ms": round(statistics.median(values), 3),
            "quartiles_ms": [round(q, 3) for q in statistics.quantiles(values, n=4)[::2]],
            "ratio_to_plain": round(statistics.median(values) / plain, 3),
        }
        for method, values in times.items()
    ]


def measure_search(mnist_step_ms: float, repeats: int) -> list[dict[str, Any]]:
    """``flip_mask`` alone: its share of the MNIST step, and how its time grows with B·H."""
    rows = []
    for examples, units in [(128, 2048), (512, 2048), (128, 65_536), (512, 65_536)]:
        mask, jacobian = torch.bernoulli(torch.full((examples, units), 0.5)), torch.randn(examples, units)
        budget = max(1, int(0.005 * units))
        step = partial(flip_mask, mask, jacobian, budget)
        (times,) = median_times({"flip": step}, repeats, f"flip_mask {examples} x {units}").values()
        median = statistics.median(times)
        row: dict[str, Any] = {"network": f"{examples} x {units}", "method": f"flip_mask, {budget} flips"}
        row |= {"precision": "32", "median_ms": round(median, 3), "ns_per_entry": round(median * 1e6 / mask.numel(), 3)}
        rows.append(row)
    rows[0]["share_of_mnist_step_percent"] = round(100 * rows[0]["median_ms"] / mnist_step_ms, 2)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The step times as the README shows them."""
    methods = dict.fromkeys(row["method"] for row in rows if "ratio_to_plain" in row)
    networks = dict.fromkeys(row["network"] for row in rows if "ratio_to_plain" in row)
    heads = {name: f"{name}, batch {NETWORKS[name][1]}" for name in networks}
    text = "| step | " + " | ".join(heads.values()) + " |\n|---|" + "---|" * len(heads) + "\n"
    for method in methods:
        cells = (row for name in networks for row in rows if (row["network"], row["method"]) == (name, method))
        times = (f"{row['ratio_to_plain']:.2f}x ({row['median_ms']:.0f} ms)" for row in cells)
        text += f"| {method} | " + " | ".join(times) + " |\n"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    parser.add_argument("--repeats", type=int, default=15, help="rounds to take the median of (15)")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--precisions", nargs="+", choices=["32", "bf16"], default=["32"])
    arguments = parser.parse_args()

    print(f"{'network':<14}{'method':<28}{'precision':<11}{'median ms':>10}{'ratio':>8}")
    rows: list[dict[str, Any]] = []
    for network in arguments.networks:
        for precision in arguments.precisions:
            for row in measure(network, precision, arguments.repeats):
                print("{network:<14}{method:<28}{precision:<11}{median_ms:>10.1f}{ratio_to_plain:>7.2f}x".format(**row))
                rows.append(row)
    plain = [row["median_ms"] for row in rows if row["network"] == "mnist_cnn" and row["method"] == "plain"]
    if plain:
        for row in measure_search(plain[0], arguments.repeats):
            share = row.get("share_of_mnist_step_percent")
            note = f"{row['ns_per_entry']:.2f} ns an entry" + (f", {share:.1f} % of the MNIST step" if share else "")
            print(f"{row['network']:<14}{row['method']:<28}{row['precision']:<11}{row['median_ms']:>10.2f}  {note}")
            rows.append(row)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
        print(f"wrote {arguments.json}")


if __name__ == "__main__":
    main()
