"""``advdrop show``, ``evaluate``, ``audit`` and ``explain``: commands that read run directories."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn
from tqdm import tqdm

from advdrop.analysis import audit, explain
from advdrop.analysis.faults import Fault, fault
from advdrop.analysis.layers import Chosen
from advdrop.analysis.ranking import Ranking
from advdrop.analysis.sample import Batches, balanced
from advdrop.lab.cli.options import Audit, Evaluate, Explain, Show
from advdrop.lab.cli.report import refuse_foreign, write_page
from advdrop.lab.engine.companion import main_network
from advdrop.lab.engine.finished import evaluate_run, trained
from advdrop.lab.engine.progress import duration
from advdrop.lab.engine.rundir import RunDirectory
from advdrop.lab.report import audited, explanation
from advdrop.lab.report.charts import standalone
from advdrop.lab.report.text_table import table

CURVES = ("train/loss", "validation/error_percent", "test/error_percent", "companion/skill", "companion/trust")
"""The metrics that ``advdrop show`` draws, with those of the mask search."""
BATCH = 100
LISTED = 20
"""How many of the flipped units are listed."""


def runs_in(paths: Sequence[Path]) -> list[RunDirectory]:
    """Return the runs. A path is a run, or a folder of runs such as that of ``advdrop compare``."""
    runs = []
    for path in paths:
        found = sorted(config.parent for config in path.glob("*/config.yaml"))
        runs += [path] if (path / "config.yaml").is_file() or not found else found
    return [RunDirectory.open(path) for path in runs]


def names_of(runs: Sequence[RunDirectory]) -> list[str]:
    """Return a name for each run: its method, or as many of the last parts of its path as tell the runs apart."""
    names, paths = [run.config.method for run in runs], [run.path.resolve().parts for run in runs]
    for parts in range(1, max(map(len, paths)) + 1):
        if len({*names}) == len(runs):
            break
        names = ["/".join(path[-parts:]) for path in paths]
    return names


def run_show(options: Show) -> int:
    """Show the details of one run, or a table of several."""
    runs = runs_in(options.runs)
    print(details(runs[0]) if len(runs) == 1 else overview(runs))
    return 0


def overview(runs: Sequence[RunDirectory]) -> str:
    """Return a row for each run."""
    lines = []
    for run in runs:
        config, rows = run.config, run.metrics()
        errors = [f"{row['test/error_percent']:.2f}" for row in rows if "test/error_percent" in row]
        done = int(rows[-1]["update"]) if rows else 0
        state = "finished" if run.finished else f"{done}/{config.training.updates} updates"
        what = [run.path.name, config.dataset, str(config.labels), config.method, str(config.seed)]
        lines.append([*what, errors[-1] if errors else "", state])
    return table(["run", "dataset", "labels", "method", "seed", "test error %", "state"], lines)


def details(run: RunDirectory) -> str:
    """Return the configuration, the curves and the result of a run."""
    config, rows = run.config, run.metrics()
    lines = [
        f"{run.path}",
        f"  {config.method} on {config.dataset}, {config.labels} labels, seed {config.seed}, preset {config.preset}",
        f"  {config.network.name}, {config.training.updates:,} updates",
    ]
    searches = sorted({key for row in rows for key in row if key.startswith("search/")})
    curves = {key: [row[key] for row in rows if key in row] for key in (*CURVES, *searches)}
    width = max(map(len, curves))
    for key, curve in curves.items():
        if curve:
            lines.append(f"  {key:<{width}}  {sparkline(curve)}  {curve[0]:.4g} → {curve[-1]:.4g}")
    if run.finished:
        result = run.result
        lines.append(f"  test error {result['test_error_percent']:.2f} % after the last update")
        lines.append(f"  {result['milliseconds_per_update']:.1f} ms per update, {duration(result['seconds'])} in all")
        lines.append(f"  weights: {run.model}")
    else:
        lines.append(f"  not finished; continue with: {run.how_to_resume}")
    return "\n".join(lines)


def sparkline(values: Sequence[float]) -> str:
    """Return a curve in one line of at most 40 characters.

    >>> sparkline([0.0, 1.0, 2.0, 7.0])
    '▁▂▃█'
    """
    values = [value for value in values if math.isfinite(value)] or [0.0]
    shown = values[:: -max(1, -(-len(values) // 40))][::-1]
    low, high = min(shown), max(shown)
    span = (high - low) or 1.0
    return "".join("▁▂▃▄▅▆▇█"[int(7 * (value - low) / span)] for value in shown)


def run_evaluate(options: Evaluate) -> int:
    """Measure the test error of a finished run again."""
    found = evaluate_run(options.run, options.data_dir, options.dataset)
    print(f"test error {found['test_error_percent']:.2f} % of {found['images']:,} test examples ", end="")
    print(f"(recorded: {found['recorded_test_error_percent']:.2f} %)")
    width = max(map(len, found["class_error_percent"]))
    for name, error in found["class_error_percent"].items():
        print(f"  {name:<{width}}  {error:6.2f} %")
    return 0


def run_audit(options: Audit) -> int:
    """Audit the networks of some runs and compare them in a table and a figure."""
    refuse_foreign(options.out, ".svg")
    runs = runs_in(options.runs)
    names = names_of(runs)
    if options.faults and not options.layers:
        raise ValueError("--faults are measured in layers: add --layers all, or the names of layers")
    faults = [fault(text) for text in options.faults]
    if options.layers:
        return rank_layers(
            [rank_run(run, name, options, faults) for run, name in zip(runs, names, strict=True)], options
        )
    found = [audit_run(run, name, options) for run, name in zip(runs, names, strict=True)]
    if options.json:
        print(json.dumps([one.json() for one in found], indent=1))
        return 0
    print(table(audited.head(found), audited.rows(found)))
    for one in found:
        print(f"\n{one.summary}")
    drawn = audited.figure(found)
    write_page(options.out, standalone(drawn))
    print(f"\n{drawn.note}\nthe figure is {options.out}")
    return 0


def audit_run(run: RunDirectory, name: str, options: Audit) -> audit.Audit:
    """Audit the network of one run on a sample of test images."""
    network, batches, positions = sample_of(run, options)
    with tqdm(total=len(positions), desc=name, unit="image", leave=False, disable=None) as bar:
        found = audit.audit(
            network, batches, name=name, seed=options.seed, progress=lambda done: bar.update(done - bar.n)
        )
    return found.of_sample(positions)


def rank_run(run: RunDirectory, name: str, options: Audit, faults: Sequence[Fault]) -> Ranking:
    """Rank the layers of the network of one run on a sample of test images."""
    network, batches, positions = sample_of(run, options)
    layers: Chosen = "all" if options.layers == ["all"] else options.layers
    with tqdm(desc=f"{name}, images in all layers", unit="image", leave=False, disable=None) as bar:
        found = audit.audit(
            network,
            batches,
            layers=layers,
            faults=faults,
            name=name,
            seed=options.seed,
            progress=lambda done: bar.update(done - bar.n),
        )
    return replace(found, layers=[replace(each, audit=each.audit.of_sample(positions)) for each in found.layers])


def sample_of(run: RunDirectory, options: Audit) -> tuple[nn.Module, Batches, list[int]]:
    """Return the network of a run, a class-balanced random sample of test images in batches, and their numbers."""
    network, data, preprocess = trained(run.path, options.data_dir, options.dataset)
    positions = balanced(data.test.y, options.images, options.seed)
    x, y = data.test.x[positions], data.test.y[positions]
    batches = ((preprocess(part), labels) for part, labels in zip(x.split(BATCH), y.split(BATCH), strict=True))
    return main_network(network), batches, positions


def rank_layers(found: Sequence[Ranking], options: Audit) -> int:
    """Print the ranking of each network, and draw its most sensitive layers."""
    if options.json:
        print(json.dumps([one.json() for one in found], indent=1))
        return 0
    for ranking in found:
        stem = f"{options.out.stem}-{ranking.name.replace('/', '-')}"
        out = options.out if len(found) == 1 else options.out.with_stem(stem)
        print(f"{ranking.name}\n\n{table(*audited.ranking_table(ranking))}\n")
        if options.faults:
            print(f"with this number of random faults:\n\n{table(*audited.fault_table(ranking))}\n")
        print(audited.RANKED)
        drawn = audited.ranking_figure(ranking)
        write_page(out, standalone(drawn))
        print(f"the figure is {out}\n")
    return 0


def run_explain(options: Explain) -> int:
    """Draw what the mask search does with one test image."""
    out = options.out or Path(f"explain-{options.image}.svg")
    refuse_foreign(out, ".svg")
    network, data, preprocess = trained(options.run, options.data_dir, options.dataset)
    if not 0 <= options.image < len(data.test):
        raise ValueError(f"--image must be from 0 to {len(data.test) - 1}, got {options.image}")
    x, label = preprocess(data.test.x[options.image : options.image + 1])[0], int(data.test.y[options.image])
    title = f"Test image {options.image} of {data.name}: {data.classes[label]}"
    found = explain.explain(main_network(network), x, label, classes=data.classes, title=title)
    units = ", ".join(map(str, found.flips[:LISTED])) or "none"
    more = f" and {len(found.flips) - LISTED} more" if len(found.flips) > LISTED else ""
    write_page(out, standalone(explanation.figure(found)))
    print(f"{found.title}. {found.summary}")
    print(f"flipped units, the largest gain first: {units}{more}\nthe figure is {out}")
    return 0
