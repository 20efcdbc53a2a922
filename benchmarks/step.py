"""What a training step costs: the time of each method relative to one of plain dropout, its arithmetic, its memory.

    python benchmarks/step.py [--json FILE] [--repeats 21] [--cases mnist_cnn-128-channels_last ...]

"naive" is the three-pass VAdD of the public ports (``naive.py``), "plain torch" is dropout as one would write it.
The floor of a step is its arithmetic (torch's count) at the speed of one large matrix product, measured in turn.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from advdrop import VAT, Batch, CrossEntropy, PiModel, Ramp, VAdD, kl, qe
from advdrop.memory import keep_freed_memory
from advdrop.models import Split, conv_large, mnist_cnn
from advdrop.objectives import Objective
from measure import PEAK_SIZE, gflops_per_second, matrix_product, record, summary, taking_turns
from naive import naive_step, naive_vadd_step, plain_torch

NETWORKS: dict[str, tuple[Callable[[], Split], tuple[int, ...]]] = {
    "mnist_cnn": (mnist_cnn, (1, 28, 28)),
    "conv_large": (conv_large, (3, 32, 32)),
}
METHODS: dict[str, Objective] = {
    "plain": CrossEntropy(),
    "vadd shared": CrossEntropy() + Ramp(1.0) * VAdD(divergence=kl, noise="shared"),
    "vadd independent": CrossEntropy() + Ramp(1.0) * VAdD(divergence=kl, noise="independent"),
    "pi": CrossEntropy() + Ramp(30.0) * PiModel(divergence=qe),
    "vat": CrossEntropy() + VAT(),
}
NAIVE = {"plain torch": naive_step, "vadd naive": naive_vadd_step}


class Case(NamedTuple):
    """What is timed: a network, rows of a batch, and how its numbers lie and how long they are."""

    network: str
    batch: int
    layout: str

    def __str__(self) -> str:
        return "-".join(map(str, self))


CASES = [
    Case("mnist_cnn", 128, "channels_last"),
    Case("mnist_cnn", 128, "contiguous"),
    Case("mnist_cnn", 32, "channels_last"),
    Case("conv_large", 32, "channels_last"),
    Case("mnist_cnn", 128, "bf16"),
]
SHOWN = [CASES[0], CASES[3]]
"""The cases of the README's table: what the engine chooses by itself here."""


def step_of(case: Case, method: str) -> Callable[[], None]:
    """One training step on a network of its own."""
    make, shape = NETWORKS[case.network]
    torch.manual_seed(0)
    x, y, model = torch.randn(case.batch, *shape), torch.randint(10, (case.batch,)), make()
    if method in NAIVE:
        model, one = plain_torch(model), NAIVE[method]
        adam = torch.optim.Adam(model.parameters())
        return lambda: one(model, x, y, adam)
    if case.layout != "contiguous":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    objective, adam = METHODS[method], torch.optim.Adam(model.parameters(), fused=True)

    def step() -> None:
        adam.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=case.layout == "bf16"):
            loss = objective(model, Batch(x, y)).total
        loss.backward()
        adam.step()

    return step


def flops(step: Callable[[], None]) -> int:
    """The multiplications and additions of one step, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())


def peak_memory(case: Case, method: str) -> float:
    """Megabytes that three steps need at most, in a process of their own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_memory, (case, method))


def _peak_memory(case: Case, method: str) -> float:
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = _status("VmRSS")
    step = step_of(case, method)
    for _ in range(3):
        step()
    return round((_status("VmHWM") - before) / 1024, 1)


def _status(key: str) -> int:
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


def measure(case: Case, repeats: int, memory: bool) -> list[dict[str, Any]]:
    """The rows of one case."""
    steps = {method: step_of(case, method) for method in (*METHODS, *NAIVE)}
    if case.layout == "bf16":
        steps = {method: steps[method] for method in ("plain", "vadd independent")}
    counted = {method: flops(step) for method, step in steps.items()}
    product = "matrix product"
    times = taking_turns({product: matrix_product(), **steps}, repeats, str(case))
    found = {name: summary(values) for name, values in times.items()}
    peak = gflops_per_second(2 * PEAK_SIZE**3, found.pop(product)["median_ms"])
    plain = found["plain"]["median_ms"]
    rows = []
    for method, row in found.items():
        rate = gflops_per_second(counted[method], row["median_ms"])
        ratios = {
            "ratio_to_plain": round(row["median_ms"] / plain, 3),
            "gflop": round(counted[method] / 1e9, 3),
            "peak_gflops_per_second": round(peak, 1),
            "share_of_peak_percent": round(100 * rate / peak, 1),
            "threads": torch.get_num_threads(),
        }
        if memory and case in SHOWN:
            ratios["peak_memory_mb"] = peak_memory(case, method)
        rows.append({**case._asdict(), "method": method, **row, **ratios})
    return rows


def table(rows: list[dict[str, Any]], cases: list[Case] = SHOWN) -> str:
    """The step times as the README shows them."""
    cells = {(Case(r["network"], r["batch"], r["layout"]), r["method"]): r for r in rows}
    shown = [case for case in cases if any(case == known for known, _ in cells)]
    text = "| step | " + " | ".join(f"{case.network}, batch {case.batch}" for case in shown) + " |\n"
    text += "|---|" + "---|" * len(shown) + "\n"
    for method in dict.fromkeys(row["method"] for row in rows):
        found = (cells[case, method] for case in shown)
        times = (f"{row['ratio_to_plain']:.2f}x ({row['median_ms']:.0f} ms)" for row in found)
        text += f"| {method} | " + " | ".join(times) + " |\n"
    return text


def whole_table(rows: list[dict[str, Any]]) -> str:
    """Everything, as the performance page shows it."""
    text = "| network | batch | layout | method | ms (quartiles) | plain = 1 | GFLOP | of the peak | memory |\n"
    text += "|---|---|---|---|---|---|---|---|---|\n"
    for row in rows:
        low, high = row["quartiles_ms"]
        memory = f"{row['peak_memory_mb']:.0f} MB" if "peak_memory_mb" in row else ""
        text += (
            f"| {row['network']} | {row['batch']} | {row['layout']} | {row['method']} | {row['median_ms']:.1f} "
            f"({low:.1f} to {high:.1f}) | {row['ratio_to_plain']:.2f}x | {row['gflop']:.2f} | "
            f"{row['share_of_peak_percent']:.0f} % | {memory} |\n"
        )
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    parser.add_argument("--repeats", type=int, default=21, help="rounds to take the median of (21; fewer if slow)")
    parser.add_argument("--cases", nargs="+", choices=list(map(str, CASES)), default=list(map(str, CASES)))
    parser.add_argument("--memory", action="store_true", help="also measure the memory, in processes of their own")
    arguments = parser.parse_args()
    keep_freed_memory()
    warnings.filterwarnings("ignore", "the mask search met an all-zero")  # Conv-Large with shared noise: only a time
    rows: list[dict[str, Any]] = []
    for case in CASES:
        if str(case) in arguments.cases:
            slowness = 7 if case.layout == "bf16" else 4 if case.network == "conv_large" else 1
            rows += measure(case, max(1, arguments.repeats // slowness), arguments.memory)
    print(whole_table(rows))
    if arguments.json:
        record(arguments.json, rows, "python benchmarks/step.py --memory --json results/step.json")


if __name__ == "__main__":
    main()
