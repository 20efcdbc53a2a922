"""How the cost grows with the place of the layer and the number of layers, and what that means for large networks.

    python benchmarks/depth.py [--json FILE] [--repeats 15]

With U and V the arithmetic of one forward pass below and above the lowest layer, and B the part of U below the first
noise, one step costs, in forward passes of arithmetic:

    plain               3U + 3V
    VAdD, shared        3U + 3V + 2V + 3V                       clean, search (forward, ∂/∂h), adversarial
    VAdD, independent   3U + 3V + 3(U - B) + 2V + 3V            and the lower network again above its first noise
    three full passes   9U + 9V

The small network is measured. ResNet-50 and ViT-B/16 are only counted: nobody has measured these ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from advdrop import AdversarialDropout, CrossEntropy, Step, VAdD
from advdrop.lab.engine.malloc import keep_freed_memory
from advdrop.lab.models.layers import Dropout
from advdrop.objectives import Objective
from measure import parser_of, record, summary, taking_turns

EXAMPLES = 128


def shared(under: float, upper: float) -> float:
    """VAdD with shared noise, plain = 1."""
    return (3 * under + 8 * upper) / (3 * under + 3 * upper)


def independent(under: float, upper: float, begun: float = 0.0) -> float:
    """VAdD with independent noise, plain = 1; ``begun`` of ``under`` lies below the first noise."""
    return (6 * under - 3 * begun + 8 * upper) / (3 * under + 3 * upper)


def forward_flops(module: nn.Module, x: Tensor) -> tuple[int, Tensor]:
    """The arithmetic of one forward pass, and its output."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        y = module(x)
    return int(counter.get_total_flops()), y


def small_network(places: Sequence[int]) -> nn.Sequential:
    """The MNIST CNN with layers after these of its four blocks, and dropout at the other places."""
    sizes = pairwise((1, 32, 64, 128))
    blocks: list[list[nn.Module]] = [
        [nn.Conv2d(a, b, 3, padding=1), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()] for a, b in sizes
    ]
    blocks[2].append(nn.Flatten())
    blocks.append([nn.Linear(2048, 625), nn.ReLU()])
    noise = [AdversarialDropout(0.5, 0.005) if i in places else Dropout(0.5) for i in range(4)]
    parts = [part for block, drop in zip(blocks, noise, strict=True) for part in (*block, drop)]
    return nn.Sequential(*parts, nn.Linear(625, 10))


def flops_around(model: nn.Sequential, shape: Sequence[int]) -> tuple[int, int, int]:
    """B, U and V of a network: below the first noise, below the lowest layer, above it."""
    x, counts = torch.zeros(EXAMPLES, *shape), []
    for module in model:
        count, x = forward_flops(module, x)
        counts.append(count)
    noisy = next(i for i, m in enumerate(model) if isinstance(m, Dropout | AdversarialDropout))
    layer = next(i for i, m in enumerate(model) if isinstance(m, AdversarialDropout))
    return sum(counts[:noisy]), sum(counts[:layer]), sum(counts[layer:])


def measured(repeats: int) -> list[dict[str, Any]]:
    """The small network with its layer at each place, and with several layers."""
    names: dict[tuple[int, ...], str] = {}
    names |= {(0,): "after block 1", (1,): "after block 2", (2,): "after block 3, as in the paper", (3,): "last"}
    names |= {(1, 2): "two layers, blocks 2 and 3", (0, 1, 2, 3): "four layers, all blocks"}
    methods: dict[str, Objective] = {
        "plain": CrossEntropy(),
        "shared": CrossEntropy() + VAdD(noise="shared"),
        "independent": CrossEntropy() + VAdD(),
    }
    x, y = torch.randn(EXAMPLES, 1, 28, 28), torch.randint(10, (EXAMPLES,))

    def step_of(objective: Objective, places: Sequence[int]) -> Callable[[], None]:
        torch.manual_seed(0)
        model = small_network(places).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        step, adam = Step(model, objective), torch.optim.Adam(model.parameters(), fused=True)

        def update() -> None:
            adam.zero_grad()
            step(x, y).loss.backward()
            adam.step()

        return update

    rows = []
    for places, name in names.items():
        steps = {method: step_of(objective, places) for method, objective in methods.items()}
        found = {method: summary(times) for method, times in taking_turns(steps, repeats, name).items()}
        begun, under, upper = flops_around(small_network(places), (1, 28, 28))
        plain = found["plain"]["median_ms"]
        rows.append(
            {
                "network": "MNIST CNN",
                "place": name,
                "kind": "measured",
                "upper_share_percent": round(100 * upper / (under + upper), 2),
                "shared": round(found["shared"]["median_ms"] / plain, 3),
                "shared_formula": round(shared(under, upper), 3),
                "independent": round(found["independent"]["median_ms"] / plain, 3),
                "independent_formula": round(independent(under, upper, begun), 3),
            }
        )
    return rows


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a skip connection (He et al., 2016)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.Conv2d(width, 4 * width, 1, bias=False),
        )
        same = channels == 4 * width and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(channels, 4 * width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Both ways added up."""
        return cast(Tensor, self.body(x) + self.skip(x))


def resnet50() -> dict[str, nn.Module]:
    """Its stages, norms and activations left out: they count for nothing here."""
    stages: dict[str, nn.Module] = {"stem": nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.MaxPool2d(3, 2, 1))}
    channels = 64
    for number, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=1):
        made = []
        for block in range(blocks):
            made.append(Bottleneck(channels, width, 2 if block == 0 and number > 1 else 1))
            channels = 4 * width
        stages[f"stage {number}"] = nn.Sequential(*made)
    stages["average pooling"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    stages["classifier"] = nn.Linear(2048, 1000)
    return stages


class Patches(nn.Module):
    """196 patches and the class token, 768 numbers each."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, 768, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, 768))

    def forward(self, x: Tensor) -> Tensor:
        """``(B, 3, 224, 224) -> (B, 197, 768)``."""
        tokens = self.project(x).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(len(x), -1, -1), tokens], 1)


class ClassToken(nn.Module):
    """The first token."""

    def forward(self, x: Tensor) -> Tensor:
        """``(B, 197, 768) -> (B, 768)``."""
        return x[:, 0]


def vit_b16() -> dict[str, nn.Module]:
    """Its blocks (Dosovitskiy et al., 2021)."""
    stages: dict[str, nn.Module] = {"patches": Patches()}
    for block in range(1, 13):
        stages[f"block {block}"] = nn.TransformerEncoderLayer(
            768, 12, 3072, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
    stages["class token"] = ClassToken()
    stages["classifier"] = nn.Linear(768, 1000)
    return stages


def counted(name: str, stages: dict[str, nn.Module], places: Sequence[str]) -> list[dict[str, Any]]:
    """The ratios that the formula gives for a layer behind these stages."""
    x, flops = torch.zeros(1, 3, 224, 224, device="meta"), {}
    for stage, module in stages.items():
        flops[stage], x = forward_flops(module.to("meta"), x)
    rows, below = [], 0
    for stage, count in flops.items():
        below += count
        if stage in places:
            above = sum(flops.values()) - below
            rows.append(
                {
                    "network": name,
                    "place": f"behind {stage}",
                    "kind": "computed",
                    "gflop_forward": round(sum(flops.values()) / 1e9, 2),
                    "upper_share_percent": round(100 * above / (below + above), 2),
                    "shared_formula": round(shared(below, above), 3),
                    "independent_formula": round(independent(below, above), 3),
                }
            )
    return rows


def table(rows: list[dict[str, Any]], kind: str) -> str:
    """As the performance page shows it."""
    shown = [row for row in rows if row["kind"] == kind]
    if kind == "computed":
        text = (
            "| network | layer | share above it | shared, computed | independent, computed |\n|---|---|---|---|---|\n"
        )
        for row in shown:
            place = f"{row['network']} | {row['place']} | {row['upper_share_percent']:.2f} %"
            text += f"| {place} | {row['shared_formula']:.3f}x | {row['independent_formula']:.2f}x |\n"
        return text
    text = "| layer | share above it | shared | by the formula | independent | by the formula |\n"
    text += "|---|---|---|---|---|---|\n"
    for row in shown:
        text += f"| {row['place']} | {row['upper_share_percent']:.1f} % | {row['shared']:.2f}x | "
        text += f"{row['shared_formula']:.2f}x | {row['independent']:.2f}x | {row['independent_formula']:.2f}x |\n"
    return text


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=15, help="rounds to take the median of (15)")
    arguments = parser.parse_args()
    keep_freed_memory()
    rows = measured(arguments.repeats)
    rows += counted("ResNet-50", resnet50(), ("average pooling", "stage 3", "stage 2", "stage 1"))
    rows += counted("ViT-B/16", vit_b16(), ("class token", "block 11", "block 9", "block 6"))
    print(table(rows, "measured"))
    print(table(rows, "computed"))
    if arguments.json:
        record(arguments.json, rows, "python benchmarks/depth.py --json results/depth.json")


if __name__ == "__main__":
    main()
