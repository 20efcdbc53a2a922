"""What a training step costs: its time relative to a step with plain dropout, its arithmetic, its memory.

    python benchmarks/step.py [--json FILE] [--repeats 21] [--cases mnist_cnn-128-channels_last ...]

"vadd naive" is the three-pass VAdD of the public ports (``naive.py``), and "plain torch" is dropout as one would write
it. "by hand" are hand-written loops with the same passes as ours: the difference is the cost of the library.
The floor of a step is its arithmetic (torch's count) at the speed of one large matrix product, which is measured too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from advdrop import VAT, AdversarialDropout, CrossEntropy, PiModel, Ramp, Step, VAdD, insert, kl, qe
from advdrop.lab.engine.malloc import keep_freed_memory
from advdrop.lab.models import conv_large, mnist_cnn
from advdrop.objectives import Objective
from measure import (
    PEAK_SIZE,
    flops,
    gflops_per_second,
    matrix_product,
    parser_of,
    peak_memory,
    record,
    summary,
    taking_turns,
)
from naive import naive_step, naive_vadd_step, plain_by_hand, plain_torch, vadd_by_hand

METHODS: dict[str, Objective] = {
    "plain": CrossEntropy(),
    "vadd shared": CrossEntropy() + Ramp(1.0) * VAdD(divergence=kl, noise="shared"),
    "vadd independent": CrossEntropy() + Ramp(1.0) * VAdD(divergence=kl, noise="independent"),
    "pi": CrossEntropy() + Ramp(30.0) * PiModel(divergence=qe),
    "vat": CrossEntropy() + VAT(),
}
NAIVE: dict[str, Callable[..., None]] = {"plain torch": naive_step, "vadd naive": naive_vadd_step}
HAND: dict[str, Callable[..., Callable[[], None]]] = {"plain by hand": plain_by_hand, "vadd by hand": vadd_by_hand}


def mlp() -> nn.Sequential:
    """A network so small that the cost of the library shows: 64, 128 and 10 units."""
    layer = AdversarialDropout(0.5, delta=0.05)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), layer, nn.Linear(128, 10))


class Mean(nn.Module):
    """The mean over the tokens."""

    def forward(self, x: Tensor) -> Tensor:
        """``(B, T, F) -> (B, F)``."""
        return x.mean(1)


class Transformer(nn.Module):
    """Six encoder layers on 64 tokens, their mean, and a linear classifier: a network that is not an nn.Sequential."""

    def __init__(self, vocabulary: int = 1000, tokens: int = 64, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(tokens, width))
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(block, 6, enable_nested_tensor=False)
        self.pool = Mean()
        self.classifier = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, T) -> (B, C)``."""
        return cast(Tensor, self.classifier(self.pool(self.encoder(self.embedding(x) + self.position))))


def transformer() -> Transformer:
    """The transformer with a layer inserted behind its pooled output."""
    return insert(Transformer(), after="pool", p=0.5, delta=0.05)


def transformer_frozen() -> Transformer:
    """The same with only its classifier trained, so that nothing below has to be kept for the backward pass."""
    network = transformer()
    network.requires_grad_(False)
    network.classifier.requires_grad_(True)
    return network


class Network(NamedTuple):
    """A network, one of its inputs, and the methods that it is timed with."""

    make: Callable[[], Any]
    inputs: Callable[[int], Tensor]
    methods: tuple[str, ...]


NETWORKS = {
    "mnist_cnn": Network(mnist_cnn, lambda rows: torch.randn(rows, 1, 28, 28), (*METHODS, *NAIVE)),
    "conv_large": Network(conv_large, lambda rows: torch.randn(rows, 3, 32, 32), (*METHODS, *NAIVE)),
    "mlp": Network(mlp, lambda rows: torch.randn(rows, 64), ("plain", "vadd shared", "vadd independent", "pi", *HAND)),
    "transformer": Network(
        transformer,
        lambda rows: torch.randint(1000, (rows, 64)),
        ("plain", "vadd shared", "vadd independent", "pi", "plain by hand"),
    ),
    "transformer_frozen": Network(
        transformer_frozen, lambda rows: torch.randint(1000, (rows, 64)), ("plain", "vadd shared", "vadd independent")
    ),
}


class Case(NamedTuple):
    """What is timed: a network, the rows of a batch, and the memory layout or the precision."""

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
    Case("mlp", 64, "contiguous"),
    Case("transformer", 16, "contiguous"),
    Case("transformer_frozen", 16, "contiguous"),
]
SHOWN = [CASES[0], CASES[3]]
"""The cases of the README's table: what the engine chooses by itself here."""
IN_A_TURN = {"mlp": 50}
"""Steps in a turn, where one step is too short to be timed alone."""


def step_of(case: Case, method: str) -> Callable[[], None]:
    """One training step on a network of its own."""
    network = NETWORKS[case.network]
    torch.manual_seed(0)
    x, y, model = network.inputs(case.batch), torch.randint(10, (case.batch,)), network.make()
    if method in NAIVE:
        model = plain_torch(model)
        return partial(NAIVE[method], model, x, y, torch.optim.Adam(model.parameters()))
    if case.layout in ("channels_last", "bf16"):
        model.to(memory_format=torch.channels_last)
    adam = torch.optim.Adam(model.parameters(), fused=True)
    if method in HAND:
        return HAND[method](model, x, y, adam)
    step = Step(model, METHODS[method])

    def update() -> None:
        adam.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=case.layout == "bf16"):
            loss = step(x, y, progress=1.0).loss
        loss.backward()
        adam.step()

    return update


def several(step: Callable[[], None], number: int) -> None:
    """Some steps, one after the other."""
    for _ in range(number):
        step()


def measure(case: Case, repeats: int, memory: bool) -> list[dict[str, Any]]:
    """The rows of one case."""
    methods = ("plain", "vadd independent", "pi") if case.layout == "bf16" else NETWORKS[case.network].methods
    steps = {method: step_of(case, method) for method in methods}
    counted = {method: flops(step) for method, step in steps.items()}
    product = "matrix product"
    number = IN_A_TURN.get(case.network, 1)
    turns = {method: partial(several, step, number) for method, step in steps.items()}
    times = taking_turns({product: matrix_product(), **turns}, repeats, str(case))
    found = {name: summary([t / (1 if name == product else number) for t in values]) for name, values in times.items()}
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
        if memory and (case in SHOWN or case.network.startswith("transformer")):
            ratios["peak_memory_mb"] = peak_memory(step_of, case, method)
        rows.append({**case._asdict(), "method": method, **row, **ratios})
    return rows


def table(rows: list[dict[str, Any]], cases: list[Case] = SHOWN) -> str:
    """The table of the README."""
    cells = {(Case(r["network"], r["batch"], r["layout"]), r["method"]): r for r in rows}
    shown = [case for case in cases if any(case == known for known, _ in cells)]
    text = "| step | can use unlabeled images | "
    text += " | ".join(f"{case.network}, batch {case.batch}" for case in shown) + " |\n"
    text += "|---|---|" + "---|" * len(shown) + "\n"
    for method in dict.fromkeys(row["method"] for row in rows):
        if any((case, method) not in cells for case in shown):
            continue
        found = (cells[case, method] for case in shown)
        times = (f"{row['ratio_to_plain']:.2f}x ({row['median_ms']:.0f} ms)" for row in found)
        text += f"| {method} | {'no' if method.startswith('plain') else 'yes'} | " + " | ".join(times) + " |\n"
    return text


def whole_table(rows: list[dict[str, Any]]) -> str:
    """The whole table of the performance page."""
    text = "| network | batch | layout | method | ms (quartiles) | plain = 1 | GFLOP | of the peak | memory |\n"
    text += "|---|---|---|---|---|---|---|---|---|\n"
    for row in rows:
        low, high = row["quartiles_ms"]
        digits = 1 if row["median_ms"] >= 10 else 2
        memory = f"{row['peak_memory_mb']:.0f} MB" if "peak_memory_mb" in row else ""
        text += (
            f"| {row['network']} | {row['batch']} | {row['layout']} | {row['method']} | {row['median_ms']:.{digits}f} "
            f"({low:.{digits}f} to {high:.{digits}f}) | {row['ratio_to_plain']:.2f}x | "
            f"{row['gflop']:.{2 if row['gflop'] >= 0.1 else 3}f} | {row['share_of_peak_percent']:.0f} % | {memory} |\n"
        )
    return text


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=21, help="rounds to take the median of (21; fewer if slow)")
    parser.add_argument("--cases", nargs="+", choices=list(map(str, CASES)), default=list(map(str, CASES)))
    parser.add_argument("--memory", action="store_true", help="also measure the memory, in processes of their own")
    arguments = parser.parse_args()
    keep_freed_memory()
    warnings.filterwarnings("ignore", "the mask search .* all-zero")  # Conv-Large with shared noise: only a time
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
