"""``advdrop compare``."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from advdrop.lab.cli.grid import parse_jobs, plan, refuse_others
from advdrop.lab.cli.options import Compare
from advdrop.lab.cli.prepare import config_of, dataset_of, values_of
from advdrop.lab.config.config import ConfigError, RunConfig, overrides, parse_method
from advdrop.lab.data.examples import DataSet
from advdrop.lab.engine.devices import resolve_auto, resumed_config
from advdrop.lab.engine.jobs import Cell, Outcome, Result, jobs_of, run_cells
from advdrop.lab.engine.run import StoppedError, split_of
from advdrop.lab.engine.rundir import RunDirectory
from advdrop.lab.engine.training import DivergedError
from advdrop.lab.files import write_text
from advdrop.lab.records.record import record_of
from advdrop.lab.report.collect import results_of
from advdrop.lab.report.html import page
from advdrop.lab.report.text_table import table

Key = tuple[str, ...]
"""The method and the seed of a run."""


def run_compare(options: Compare) -> int:
    """Train several methods on the same splits."""
    jobs_wanted, values = parse_jobs(options.jobs), values_of(options)
    data = dataset_of(values, options)
    cells = cells_of(options, values, data)
    jobs = jobs_of(jobs_wanted, cells.values())
    if options.dry_run:
        print("\n".join(plan(["method", "seed"], cells, jobs, {cell.config.dataset: data for cell in cells.values()})))
        return 0
    try:
        outcomes = dict(run_cells(cells, jobs, data, progress=not options.quiet))
    except StoppedError as error:
        again = "the same command without --force" if options.force else "the same command"
        raise StoppedError(f"{str(error).split(';')[0]}; {again} continues") from None
    errors = {key: outcomes[key] for key in cells if isinstance(outcomes[key], Exception)}
    if all(isinstance(errors.get(key), ValueError | TypeError) for key in cells):
        raise errors[next(iter(cells))]  # type: ignore[misc]  # nothing was trained
    write_results(options, cells, outcomes)
    for number, (key, cell) in enumerate(cells.items(), start=1):
        if key in errors:
            print(f"advdrop: [{number}/{len(cells)}] {cell.name}: {errors[key]}", file=sys.stderr)
    return 1 if errors else 0


def cells_of(options: Compare, values: Mapping[str, Any], data: DataSet) -> dict[Key, Cell]:
    """Return the runs. They all get the same engine: that of a run that exists, else the best one for this machine."""
    methods = ["+".join(parse_method(method)) for method in options.methods]
    if len({*methods}) < len(methods):
        raise ValueError(f"--methods names one of them twice: {', '.join(methods)}")
    if doubled := {"method", "seed"} & overrides(options.set).keys():
        raise ConfigError(f"--set {min(doubled)} is not for a comparison; use --{min(doubled)}s")
    configs: dict[Key, RunConfig] = {}
    for seed in range(options.seeds):
        for method in methods:
            own = only_terms(values, method, methods) | {"method": method, "seed": seed}
            configs[method, str(seed)] = config = config_of(own, data)
            split_of(config, data)  # complains before anything is trained
            if config.engine.devices * config.engine.nodes > 1:
                raise ValueError(
                    "each run of a comparison is one process; use --devices and --nodes with advdrop train"
                )
    first = next(iter(configs.values()))
    folder = options.out or Path("runs") / f"compare-{Path(first.dataset).stem}-{first.labels}"
    paths = {key: folder / "-".join(key) for key in configs}
    existing = [] if options.force else [path for path in paths.values() if path.exists()]
    if existing:
        engine = resumed_config(first, RunDirectory.open(existing[0]).config).engine
    else:
        engine = resolve_auto(first).engine
    cells = {}
    for key, config in configs.items():
        config = config.model_copy(update={"engine": engine})
        if not options.force:
            refuse_others(paths[key], config)
        cells[key] = Cell(" seed ".join(key), config, paths[key], options.force)
    return cells


def only_terms(values: Mapping[str, Any], method: str, methods: Sequence[str]) -> dict[str, Any]:
    """Return the values without the options of terms that only the other methods have."""
    others = {term for other in methods for term in parse_method(other)} - {*parse_method(method)}
    match values:
        case {"objective": {"terms": {**terms}, **objective}}:
            own = {term: options for term, options in terms.items() if term not in others}
            return {**values, "objective": {**objective, "terms": own}}
    return dict(values)


def write_results(options: Compare, cells: Mapping[Key, Cell], outcomes: Mapping[Key, Outcome]) -> None:
    """Write and print the table, and write the page of the finished runs."""
    results: dict[str, list[Result]] = {method: [] for method, _ in cells}
    failed = set()
    for method, seed in cells:
        outcome = outcomes[method, seed]
        if not isinstance(outcome, Exception):
            results[method].append(outcome)
        elif not isinstance(outcome, DivergedError):
            failed.add(method)
    cell = next(iter(cells.values()))
    title = f"{Path(cell.config.dataset).name}, {cell.config.labels} labels, {options.seeds} seed(s)"
    summary, folder = f"{title}\n\n{results_table(results, failed)}\n", cell.path.parent
    write_text(folder / "compare.md", summary)
    write_text(folder / "compare.json", json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    written = "compare.md, compare.json"
    if done := [record_of(RunDirectory.open(cell.path)) for cell in cells.values() if cell.finished]:
        write_text(folder / "report.html", page(results_of(done)))
        written += ", report.html"
    print(f"\n{summary}\nwritten to {folder}: {written} and a run directory for each run")


def results_table(results: Mapping[str, Sequence[Mapping[str, Any]]], failed: Collection[str] = ()) -> str:
    """Return a row for each method: mean ± standard deviation over the seeds, and the time of an update.

    Args:
        results: those of the runs of each method.
        failed: methods with a run that failed for another reason than a loss that is not finite.
    """
    rows = []
    for method, runs in results.items():
        if not runs:
            rows.append([method, "failed" if method in failed else "diverged", "0", ""])
            continue
        errors = [run["test_error_percent"] for run in runs]
        spread = f" ± {statistics.stdev(errors):.2f}" if len(errors) > 1 else ""
        times = statistics.mean(run["milliseconds_per_update"] for run in runs)
        rows.append([method, f"{statistics.mean(errors):.2f}{spread}", str(len(errors)), f"{times:.0f}"])
    return table(["method", "test error %", "seeds", "ms per update"], rows)
