"""How much of the true divergence each mask search finds, compared with trying every mask.

The networks are small, so that the exhaustive search is possible: a lower network, a layer of 12 units, and an upper
network with a hidden layer. Half of them were trained for a while, half have their initial weights. Every search gets
the same sampled mask, target and budget.

    python benchmarks/search_quality.py [--output docs/search-quality.md] [--networks 20]
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from advdrop import (
    AdversarialDropout,
    CrossEntropy,
    Exhaustive,
    FirstOrder,
    Iterated,
    MaskProblem,
    Probe,
    RandomFlips,
    SAdD,
    Search,
    Step,
    VAdD,
)
from advdrop.masks import Masks
from advdrop.objectives import AdD

UNITS, CLASSES, FEATURES, EXAMPLES = 12, 4, 8, 16
LAYER = 5
"""The position of the AdversarialDropout layer in a network."""
SEARCHES: dict[str, Search] = {
    "first order (the paper)": FirstOrder(),
    "first order, ascending as printed": FirstOrder(order="smallest"),
    "iterated, 2 Jacobians": Iterated(steps=2),
    "iterated, 4 Jacobians": Iterated(steps=4),
    "probe, 1 iteration": Probe(),
    "probe, 3 iterations": Probe(iterations=3),
    "random flips": RandomFlips(),
}
SETTINGS: dict[str, tuple[float, AdD]] = {
    "SAdD, p = 0.5": (0.5, SAdD()),
    "VAdD (KL), p = 0.5, shared noise": (0.5, VAdD(noise="shared")),
    "VAdD (KL), p = 0, independent noise": (0.0, VAdD(noise="independent")),
    "VAdD (KL), p = 0, shared noise (the trap)": (0.0, VAdD(noise="shared")),
}
DELTAS = (0.1, 0.25, 0.5)

Results = dict[tuple[str, float], dict[str, tuple[float, float]]]
"""For each setting and δ, for each search: its share of the optimum, and how often it finds the optimum."""


class Recorded(Search):
    """Remembers the problem of an objective."""

    def __call__(self, problem: MaskProblem) -> Masks:
        """Changes nothing."""
        self.problem = problem
        return problem.sampled


def networks(count: int) -> Iterator[tuple[nn.Sequential, Tensor, Tensor]]:
    """Seeded networks with rows to perturb; every second one was trained on blobs."""
    for seed in range(count):
        torch.manual_seed(seed)
        lower = [nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, UNITS), nn.ReLU()]
        upper = [AdversarialDropout(0.5), nn.Linear(UNITS, 10), nn.ReLU(), nn.Linear(10, CLASSES)]
        model = nn.Sequential(*lower, *upper)
        centers = 1.5 * torch.randn(CLASSES, FEATURES)
        if seed % 2:
            step, optimizer = Step(model, CrossEntropy()), torch.optim.Adam(model.parameters(), lr=1e-2)
            for _ in range(200):
                y = torch.randint(CLASSES, (64,))
                out = step(centers[y] + torch.randn(64, FEATURES), y)
                optimizer.zero_grad()
                out.loss.backward()
                optimizer.step()
        y = torch.randint(CLASSES, (EXAMPLES,))
        yield model, centers[y] + torch.randn(EXAMPLES, FEATURES), y


def found(problem: MaskProblem, search: Search) -> Tensor:
    """The true divergence of each example at the mask that a search finds."""
    return problem.divergence(problem.scale(search(problem))).detach()


def measure(count: int) -> Results:
    """Every search on every network, setting and δ."""
    best: dict[tuple[str, float], list[Tensor]] = defaultdict(list)
    reached: dict[tuple[str, float], dict[str, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
    for number, (model, x, y) in enumerate(networks(count), 1):
        print(f"\rnetwork {number} of {count}", end="", file=sys.stderr, flush=True)
        for setting, (p, term) in SETTINGS.items():
            cast(AdversarialDropout, model[LAYER]).p = p
            for delta in DELTAS:
                recorded = Recorded()
                term.search, term.delta = recorded, delta
                Step(model, term)(x, y, generator=torch.Generator().manual_seed(number))
                best[setting, delta].append(found(recorded.problem, Exhaustive()))
                for name, search in SEARCHES.items():
                    reached[setting, delta][name].append(found(recorded.problem, search))
    print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    results: Results = defaultdict(dict)
    for key, values in best.items():
        optimum = torch.cat(values)
        for name, parts in reached[key].items():
            value = torch.cat(parts)
            hits = (value >= optimum * (1 - 1e-4) - 1e-7).float().mean()
            results[key][name] = (float(value.sum() / optimum.sum()), float(hits))
    return results


def page(results: Results, count: int) -> str:
    """The results as Markdown."""
    text = INTRODUCTION.format(count=count, units=UNITS, examples=EXAMPLES)
    for setting in SETTINGS:
        text += f"\n## {setting}\n\n| search | " + " | ".join(
            f"δ = {delta} (at most {int(delta * UNITS)})" for delta in DELTAS
        )
        text += " |\n|---|" + "---|" * len(DELTAS) + "\n"
        for name in SEARCHES:
            cells = (results[setting, delta][name] for delta in DELTAS)
            text += f"| {name} | " + " | ".join(f"{share:.3f} ({hits:.0%})" for share, hits in cells) + " |\n"
    return text


INTRODUCTION = """# How good is the mask search?

Algorithm 1 linearizes the divergence once and flips the units with the largest gains. How much of the true maximum does
it find? On small layers every mask within the budget can be tried, so this can be measured.

`python benchmarks/search_quality.py --output docs/search-quality.md` made this page with {count} seeded networks (half
of them trained), a layer of {units} units below a hidden layer of 10, and {examples} examples each. Each number is the
divergence that the search found, summed over all examples, as a share of the best value that the exhaustive search
found. The number in brackets is the share of the examples for which the search found the best mask.
"""

READING = """
## What the tables show

- Except in the trap, the paper's search with one Jacobian finds most of the maximum if one unit may be flipped. If six
  units may be flipped, it can find less than half of it, because one Jacobian does not show how flips act together.
- The search that linearizes again (`Iterated`) never finds less than the paper's search, by construction. It finds more
  if several units may be flipped. Each further Jacobian costs one forward and one backward pass of the upper network,
  and comparing the two masks costs two forward passes.
- The ascending order that Algorithm 1 prints uses the budget for the units that matter least. If the budget is large
  enough for all candidates, the order does not matter.
- In the trap (p = 0, and the same noise in both passes) the Jacobian at ε0 = 1 is only rounding error, so the
  first-order search warns. What it finds is still better than random flips, because rounding errors are larger for
  larger units. The probe works there. It is also the better search for VAdD with p = 0, and the worse one for VAdD with
  p = 0.5 and small budgets.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the page here instead of printing it")
    parser.add_argument("--networks", type=int, default=20, help="how many networks (20)")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="the mask search .* all-zero Jacobian")
    torch.set_num_threads(1)
    text = page(measure(arguments.networks), arguments.networks) + READING
    if arguments.output:
        arguments.output.write_text(text)
        print(f"wrote {arguments.output}")
    else:
        print(text)


if __name__ == "__main__":
    main()
