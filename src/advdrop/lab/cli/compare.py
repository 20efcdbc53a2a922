"""``advdrop compare``."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from advdrop.lab.cli.grid import engine_of, guessed, refuse_others
from advdrop.lab.cli.options import Compare
from advdrop.lab.cli.prepare import config_of, dataset_of
from advdrop.lab.config.config import parse_method
from advdrop.lab.data.examples import DataSet
from advdrop.lab.engine.jobs import Jobs, Outcome, jobs_of, run_cells
from advdrop.lab.engine.progress import duration, makespan
from advdrop.lab.engine.run import StoppedError, split_of
from advdrop.lab.engine.rundir import RunDirectory
from advdrop.lab.engine.training import DivergedError
from advdrop.lab.engine.worker import Cell, Result
from advdrop.lab.files import write_text
from advdrop.lab.records.from_run import record_of
from advdrop.lab.report.collect import results_of
from advdrop.lab.report.html import page
from advdrop.lab.report.text_table import table

Results = Mapping[str, Sequence[Mapping[str, Any]]]
ONE_PROCESS = "each run of a comparison is one process; use --devices and --nodes with advdrop train"


def run(options: Compare) -> int:
    """Train several methods on the same splits."""
    if options.seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {options.seeds}")
    if (options.devices or 1) * (options.nodes or 1) > 1:
        raise ValueError(ONE_PROCESS)
    methods = ["+".join(parse_method(method)) for method in options.methods]
    if len(set(methods)) < len(methods):
        raise ValueError(f"--methods has one of them twice: {', '.join(methods)}")
    data = dataset_of(options, download=not options.dry_run)
    configs = {
        (method, seed): config_of(options, data, method, seed) for seed in range(options.seeds) for method in methods
    }
    for config in configs.values():
        split_of(config, data)  # complains before anything is trained
    if any(config.engine.devices * config.engine.nodes > 1 for config in configs.values()):
        raise ValueError(ONE_PROCESS)
    folder = options.out or Path("runs") / f"compare-{Path(options.dataset).stem}-{options.labels}"
    paths = {(method, seed): folder / f"{method}-{seed}" for method, seed in configs}
    there = [] if options.force else [path for path in paths.values() if path.exists()]
    engine = engine_of(next(iter(configs.values())), there)
    cells = {
        key: Cell(f"{key[0]} seed {key[1]}", config.model_copy(update={"engine": engine}), paths[key], options.force)
        for key, config in configs.items()
    }
    if not options.force:
        for cell in cells.values():
            refuse_others(cell.path, cell.config)
    jobs = jobs_of(options.jobs, cells.values())
    if options.dry_run:
        print(plan(cells, jobs, data))
        return 0

    outcomes: dict[tuple[str, int], Outcome] = {}
    try:
        outcomes.update(run_cells(cells, jobs, data, progress=not options.quiet))
    except StoppedError as error:
        again = "the same command without --force" if options.force else "the same command"
        raise StoppedError(f"{str(error).split(';')[0]}; {again} goes on") from None
    results: dict[str, list[Result]] = {method: [] for method in methods}
    errors: dict[tuple[str, int], Exception] = {}
    for key in cells:  # in their order, whichever was the first to end
        outcome = outcomes[key]
        if isinstance(outcome, Exception):
            errors[key] = outcome
        else:
            results[key[0]].append(outcome)
    if all(isinstance(errors.get(key), ValueError | TypeError) for key in cells):
        raise errors[next(iter(cells))]  # it was asked for wrongly, and nothing was trained
    failed = {method for (method, _), error in errors.items() if not isinstance(error, DivergedError)}
    shown = results_table(results, failed)
    summary = f"{options.dataset}, {options.labels} labels, {options.seeds} seed(s)\n\n{shown}\n"
    write_text(folder / "compare.md", summary)
    write_text(folder / "compare.json", json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    done = [record_of(RunDirectory.open(cell.path)) for cell in cells.values() if cell.finished]
    if done:
        write_text(folder / "report.html", page(results_of(done)))
    written = "compare.md, compare.json, report.html" if done else "compare.md, compare.json"
    print(f"\n{summary}\nwritten to {folder}: {written} and a run directory for each run")
    for number, (key, cell) in enumerate(cells.items(), start=1):
        if key in errors:
            print(f"advdrop: [{number}/{len(cells)}] {cell.name}: {errors[key]}", file=sys.stderr)
    return 1 if errors else 0


def plan(cells: Mapping[tuple[str, int], Cell], jobs: Jobs, data: DataSet) -> str:
    """The runs and how long they will take; what is there of an unfinished one is not counted."""
    left = {key: cell for key, cell in cells.items() if not cell.finished}
    first = {method: cell.config for (method, _), cell in reversed(left.items())}
    guesses = guessed(first, {config.dataset: data for config in first.values()}, jobs.threads)
    rows = [
        [
            cell.config.method,
            str(seed),
            f"{cell.config.training.updates:,}",
            duration(guesses[method]) if (method, seed) in left else "done",
            str(cell.path),
        ]
        for (method, seed), cell in cells.items()
    ]
    total = duration(makespan([guesses[method] for method, _ in left], jobs.count))
    return f"{table(['method', 'seed', 'updates', 'about', 'run'], rows)}\n{jobs}: about {total} in all"


def results_table(results: Results, failed: Collection[str] = ()) -> str:
    """A row for each method: mean ± standard deviation over the seeds, and the time of an update.

    Args:
        results: of the runs of each method.
        failed: methods of which a run ended for another reason than a loss that is not finite.
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
