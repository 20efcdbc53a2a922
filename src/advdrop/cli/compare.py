"""``advdrop compare``."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from advdrop.cli.options import Compare
from advdrop.cli.prepare import config_of, dataset_of
from advdrop.cli.table import table
from advdrop.data.examples import DataSet
from advdrop.engine.estimate import estimate
from advdrop.engine.module import DivergedError
from advdrop.engine.progress import duration
from advdrop.engine.run import StoppedError, split_of, train
from advdrop.engine.rundir import RunDirectory, RunError
from advdrop.experiments.config import RunConfig, parse_method
from advdrop.files import write_text

Results = Mapping[str, Sequence[Mapping[str, Any]]]


def run(options: Compare) -> int:
    """Train several methods on the same splits."""
    if options.seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {options.seeds}")
    if (options.devices or 1) * (options.nodes or 1) > 1:
        raise ValueError("compare runs in one process; use --devices and --nodes with advdrop train")
    methods = ["+".join(parse_method(method)) for method in options.methods]
    if len(set(methods)) < len(methods):
        raise ValueError(f"--methods has one of them twice: {', '.join(methods)}")
    data = dataset_of(options, download=not options.dry_run)
    configs = {
        (method, seed): config_of(options, data, method, seed) for seed in range(options.seeds) for method in methods
    }
    for config in configs.values():
        split_of(config, data)  # complains before anything is trained
    folder = options.out or Path("runs") / f"compare-{Path(options.dataset).stem}-{options.labels}"
    paths = {(method, seed): folder / f"{method}-{seed}" for method, seed in configs}
    if not options.force:
        for key, config in configs.items():
            refuse_others(paths[key], config)
    if options.dry_run:
        print(plan(configs, paths, data))
        return 0

    results: dict[str, list[dict[str, Any]]] = {method: [] for method in methods}
    diverged = []
    for number, ((method, seed), config) in enumerate(configs.items(), start=1):
        path = paths[method, seed]
        name = f"[{number}/{len(configs)}] {config.method}, seed {seed}"
        there = path.exists() and not options.force
        if there and RunDirectory.open(path).finished:
            result = RunDirectory.open(path).result
        else:
            try:
                result = train(
                    config, path, resume=there, force=options.force, data=data, progress=not options.quiet, name=name
                )
            except DivergedError as error:
                diverged.append(f"{name}: {error}")
                continue
            except StoppedError as error:
                raise StoppedError(f"{str(error).split(';')[0]}; the same command goes on") from None
        results[method].append(result)
    summary = f"{options.dataset}, {options.labels} labels, {options.seeds} seed(s)\n\n{results_table(results)}\n"
    write_text(folder / "compare.md", summary)
    write_text(folder / "compare.json", json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    print(f"\n{summary}\nwritten to {folder}: compare.md, compare.json and a run directory for each run")
    for complaint in diverged:
        print(f"advdrop: {complaint}", file=sys.stderr)
    return 1 if diverged else 0


def refuse_others(path: Path, config: RunConfig) -> None:
    """An error if there is a run of another configuration."""
    if path.exists() and (different := RunDirectory.open(path).config.differences(config)):
        raise RunError(
            f"{path} is a run with another {', '.join(different)}; replace it (--force) or choose another --out"
        )


def plan(configs: Mapping[tuple[str, int], RunConfig], paths: Mapping[tuple[str, int], Path], data: DataSet) -> str:
    """The runs and how long they will take."""
    guesses = {method: estimate(config, data) for (method, seed), config in configs.items() if seed == 0}
    seconds = {(method, seed): guesses[method].seconds for method, seed in configs}
    rows = [
        [config.method, str(key[1]), f"{config.training.updates:,}", duration(seconds[key]), str(paths[key])]
        for key, config in configs.items()
    ]
    total = sum(seconds.values())
    return f"{table(['method', 'seed', 'updates', 'about', 'run'], rows)}\nabout {duration(total)} in all"


def results_table(results: Results) -> str:
    """A row for each method: mean ± standard deviation over the seeds, and the time of an update."""
    rows = []
    for method, runs in results.items():
        if not runs:
            rows.append([method, "diverged", "0", ""])
            continue
        errors = [run["test_error_percent"] for run in runs]
        spread = f" ± {statistics.stdev(errors):.2f}" if len(errors) > 1 else ""
        times = statistics.mean(run["milliseconds_per_update"] for run in runs)
        rows.append([method, f"{statistics.mean(errors):.2f}{spread}", str(len(errors)), f"{times:.0f}"])
    return table(["method", "test error %", "seeds", "ms per update"], rows)
