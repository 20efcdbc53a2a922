"""How everything here is measured: the candidates take turns in one process, and the median counts."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

PEAK_SIZE = 2048


class Flops(TorchDispatchMode):
    """Counts multiplications and additions by torch's formulas.

    torch's own ``FlopCounterMode`` registers hooks on tensors, which makes a step compute lower parts again.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute the call and count it."""
        del types
        output = func(*args, **kwargs or {})
        if func._overloadpacket in flop_registry:
            self.total += int(flop_registry[func._overloadpacket](*args, **kwargs or {}, out_val=output))
        return output


def flops(step: Callable[[], object]) -> int:
    """The multiplications and additions of one step, as torch counts them."""
    counter = Flops()
    with counter:
        step()
    return counter.total


def taking_turns(
    steps: Mapping[str, Callable[[], object]], repeats: int, label: str, warm_up: int = 2
) -> dict[str, list[float]]:
    """Milliseconds of each step. All take turns, so other work on the machine slows all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(repeats + warm_up):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append((time.perf_counter() - start) * 1e3)
        progress(f"{label}: round {turn + 1} of {repeats + warm_up}")
    progress("")
    return {name: values[warm_up:] for name, values in times.items()}


def peak_memory(make: Callable[..., Callable[[], object]], *arguments: Any) -> float:
    """Megabytes that three steps need at most, in a process of their own that makes the step."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_memory, (make, arguments))


def _peak_memory(make: Callable[..., Callable[[], object]], arguments: tuple[Any, ...]) -> float:
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = _status("VmRSS")
    step = make(*arguments)
    for _ in range(3):
        step()
    return round((_status("VmHWM") - before) / 1024, 1)


def _status(key: str) -> int:
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


def progress(text: str) -> None:
    """A line on the terminal that the next one replaces."""
    if sys.stderr.isatty():
        print(f"\r{text:<70}\r", end="", file=sys.stderr, flush=True)


def summary(milliseconds: list[float]) -> dict[str, Any]:
    """The median and the quartiles."""
    quartiles = statistics.quantiles(milliseconds, n=4) if len(milliseconds) > 1 else milliseconds * 3
    return {
        "median_ms": round(statistics.median(milliseconds), 4),
        "quartiles_ms": [round(quartiles[0], 4), round(quartiles[2], 4)],
        "rounds": len(milliseconds),
    }


def matrix_product() -> Callable[[], object]:
    """One product of two square matrices: what the machine can do at best."""
    a, b = torch.randn(PEAK_SIZE, PEAK_SIZE), torch.randn(PEAK_SIZE, PEAK_SIZE)
    return lambda: a @ b


def gflops_per_second(flops: float, milliseconds: float) -> float:
    """A rate."""
    return flops / milliseconds / 1e6


def record(path: Path, rows: list[dict[str, Any]], command: str, quiet: bool = False) -> None:
    """Write the rows, each on a line of its own, and what they were measured with."""
    from advdrop.lab.environment import machine, versions  # which takes a while
    from advdrop.lab.files import written

    head = {"command": command, "machine": machine(), "versions": versions()}
    lines = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows)
    text = json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n{lines}\n ]\n}}\n'
    with written(path) as file:
        file.write(text.encode())
    if not quiet:
        print(f"wrote {path}")


def parser_of(about: str) -> argparse.ArgumentParser:
    """A parser of the options of a benchmark, with the file of its record."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    return parser


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a record."""
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows
