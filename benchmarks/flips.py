"""How much do the flips add? The divergence that VAdD sees, from the noise alone up to the worst units.

    python benchmarks/flips.py RUN... [--data-dir DIR] [--json results/flips.json]

For each finished run: the mean divergence (KL) between the clean pass and a second one on the same 1,000 test images,
in training mode, when the second one has

- other noise in the lower layers, and the same mask;
- the same with int(δH) random units flipped, and with the worst ones, for some δ;
- other noise and another mask, as in the Π model.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from advdrop import FirstOrder, PiModel, RandomFlips, Step, VAdD, kl
from advdrop.lab.engine import RunDirectory
from advdrop.lab.engine.finished import trained
from advdrop.lab.report.text_table import table as text_table
from advdrop.objectives.base import Objective
from measure import parser_of, progress, record

IMAGES = 1000
DRAWS = 5
DELTAS = (0.005, 0.02, 0.05)


def kinds() -> dict[str, Objective]:
    """The second passes, by their names."""
    found: dict[str, Objective] = {"other noise": VAdD(delta=0.0)}
    for delta in DELTAS:
        found[f"random flips, δ = {delta}"] = VAdD(delta=delta, search=RandomFlips())
        found[f"worst flips, δ = {delta}"] = VAdD(delta=delta, search=FirstOrder())
    return found | {"other noise and mask (Π)": PiModel(divergence=kl)}


def measure(path: Path, data_dir: Path | None) -> dict[str, Any]:
    """A row: the divergences of one run."""
    network, data, preprocess = trained(path, data_dir)
    config = RunDirectory.open(path).config
    x = preprocess(data.test.x[:IMAGES])
    network.train()
    found = {}
    for name, objective in kinds().items():
        step, values = Step(network, objective, updating=()), []
        for draw in range(DRAWS):
            torch.manual_seed(draw)
            generator = torch.Generator().manual_seed(draw)
            values.append(float(step(unlabeled=x, generator=generator).loss.detach()))
        found[name] = float(f"{fmean(values):.4g}")
        progress(f"{path.name}: {name}")
    return {"method": config.method, "labels": config.labels, "seed": config.seed, "divergence": found}


def table(rows: list[dict[str, Any]]) -> str:
    """As the page of the reproduction shows it: means over seeds, and each relative to the noise alone."""
    columns = list(dict.fromkeys((row["method"], row["labels"]) for row in rows))
    means: dict[tuple[str, Any], dict[str, float]] = {}
    for column in columns:
        same = [row["divergence"] for row in rows if (row["method"], row["labels"]) == column]
        means[column] = {name: fmean(row[name] for row in same) for name in same[0]}
    lines = []
    for name in rows[0]["divergence"]:
        ratios = [f"{mean[name]:.3f} ({mean[name] / mean['other noise']:.2f}x)" for mean in means.values()]
        lines.append([name, *ratios])
    counts = {column: sum((row["method"], row["labels"]) == column for row in rows) for column in columns}
    head = [f"{method}, {labels} labels, n = {counts[method, labels]}" for method, labels in columns]
    return text_table(["the second pass has", *head], lines) + "\n"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="finished run directories")
    parser.add_argument("--data-dir", type=Path, help="where the data are now")
    arguments = parser.parse_args()
    rows = [measure(run, arguments.data_dir) for run in arguments.runs]
    rows.sort(key=lambda row: (str(row["labels"]), row["method"], row["seed"]))
    print(table(rows))
    if arguments.json:
        record(arguments.json, rows, f"python benchmarks/flips.py RUN... --json results/{arguments.json.name}")


if __name__ == "__main__":
    main()
