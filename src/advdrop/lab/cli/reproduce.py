"""``advdrop reproduce``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from advdrop.lab.cli.grid import guessed, refuse_others, threads_of
from advdrop.lab.cli.options import Reproduce
from advdrop.lab.config.config import RunConfig
from advdrop.lab.data.examples import DataSet
from advdrop.lab.data.sources import load
from advdrop.lab.engine.cluster import places
from advdrop.lab.engine.jobs import Jobs, jobs_of, run_cells
from advdrop.lab.engine.progress import duration, makespan
from advdrop.lab.engine.run import split_of
from advdrop.lab.engine.rundir import RunDirectory
from advdrop.lab.engine.speed import usual
from advdrop.lab.engine.worker import Cell
from advdrop.lab.files import write_text
from advdrop.lab.records.from_run import Place, record_of
from advdrop.lab.records.record import Ledger, Record
from advdrop.lab.report.collect import Results, check, results_of
from advdrop.lab.report.formats import main_table
from advdrop.lab.report.html import page
from advdrop.lab.report.text_table import table
from advdrop.lab.report.verdicts import gaps, sentences
from advdrop.lab.suites.suite import Key, Suite, described, fingerprint, suites

STUDIES = {
    "figure2": "figure2: features of autoencoders; rows none, dropout, adversarial, virtual; columns mnist5k, mnist",
    "figure3": "figure3: sparsity of the same autoencoders",
    "theory": "theory: what is regularized in linear regression",
}
THREADS = 1
"""Of each cell, however many run at a time: another number would round otherwise, and no record could be repeated."""


@dataclass(frozen=True)
class Grid:
    """The cells that were asked for, and what is there of them.

    Args:
        suite: the table.
        cells: the runs that have to be made, gone on with or read.
        recorded: cells that are left out, because the ledger has them.
        failed: cells that are left out, because they failed before, and how.
    """

    suite: Suite
    cells: Mapping[Key, Cell]
    recorded: int
    failed: Mapping[Key, str]


def run(options: Reproduce) -> int:
    """Run a table of the paper and set it beside the paper's."""
    if options.suite is None:
        print("\n".join([*(described(Suite.load(name)) for name in suites()), *STUDIES.values()]))
        return 0
    if options.suite in STUDIES:
        from advdrop.lab.cli.studies import run as run_study

        return run_study(options)
    if options.seeds is not None and options.seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {options.seeds}")
    suite, ledger = Suite.load(options.suite), Ledger(options.results)
    tables_of(ledger, suite)  # complains about records that do not belong there before anything is trained
    keys = list(suite.cells(options.protocol, options.only, options.columns, options.seeds))
    names = dict.fromkeys(suite.columns[key.column].dataset for key in keys)
    data = {
        name: load(name, options.data_dir, download=not options.dry_run, progress=not options.quiet) for name in names
    }
    grid = grid_of(options, suite, ledger, keys, data)
    most = places(options.scheduler) if options.scheduler else jobs_of(options.jobs, grid.cells.values()).count
    jobs = Jobs(most if options.jobs == "auto" else options.jobs, THREADS)
    if options.dry_run:
        print(plan(grid, jobs, data))
        return 0

    failed = dict(grid.failed)
    with threads_of(THREADS):
        for key, outcome in run_cells(grid.cells, jobs, progress=not options.quiet, scheduler=options.scheduler):
            cell = grid.cells[key]
            if isinstance(outcome, Exception):
                failed[key] = str(outcome)
                write_text(failure(cell.path), f"{outcome}\n")
                continue
            failure(cell.path).unlink(missing_ok=True)
            record = record_of(RunDirectory.open(cell.path), Place(suite.key, options.protocol, options.preset, key))
            check(record, suite)
            tell(ledger, record)
    return finish(options, grid, ledger, failed)


def tables_of(ledger: Ledger, suite: Suite) -> list[Results]:
    """What the ledger has of a suite."""
    return results_of((record for record in ledger.records() if record.suite == suite.key), {suite.key: suite})


def grid_of(options: Reproduce, suite: Suite, ledger: Ledger, keys: Iterable[Key], data: Mapping[str, DataSet]) -> Grid:
    """The cells with their configurations, without those that are recorded or failed before."""
    configs: dict[Key, RunConfig] = {}
    for key in keys:
        examples = data[suite.columns[key.column].dataset]
        configs[key] = suite.config(
            key,
            options.protocol,
            options.preset,
            shape=examples.shape,
            examples=len(examples.train),
            data_dir=options.data_dir.absolute() if options.data_dir else None,
        )
        split_of(configs[key], examples)  # complains before anything is trained
    recorded = adopt(options, suite, ledger, configs) if options.missing else set()
    paths = {key: options.out / run_name(config) for key, config in configs.items()}
    before = {key: failure(path).read_text().strip() for key, path in paths.items() if failure(path).is_file()}
    skipped = {key: text for key, text in before.items() if not options.retry and key not in recorded}
    left = [key for key in configs if key not in recorded and key not in skipped]
    cells: dict[Key, Cell] = {}
    for key in left:
        config = usual(configs[key], data[configs[key].dataset].shape)
        refuse_others(paths[key], config)
        cells[key] = Cell(str(key), config, paths[key])
    return Grid(suite, cells, len(recorded), skipped)


def adopt(options: Reproduce, suite: Suite, ledger: Ledger, configs: Mapping[Key, RunConfig]) -> set[Key]:
    """The cells that the ledger has a record of; one of another suite with the same configuration is taken over."""
    records = {fingerprint(RunConfig.of({**record.config, "data_dir": None})): record for record in ledger.records()}
    found = set()
    for key, config in configs.items():
        if (record := records.get(fingerprint(config))) is not None:
            place = {"suite": suite.key, "protocol": options.protocol, "preset": options.preset}
            ledger.add(record.model_copy(update={**place, "column": key.column, "row": key.row}).sealed())
            found.add(key)
    return found


def run_name(config: RunConfig) -> str:
    """The name of a cell's run directory; suites that have a cell in common share the run."""
    return f"{config.dataset}-{config.labels}-{config.method}-{config.seed}-{fingerprint(config)}"


def failure(path: Path) -> Path:
    """Where it is written down how a cell failed."""
    return path.with_name(f"{path.name}.failed")


def tell(ledger: Ledger, record: Record) -> None:
    """Put a record into the ledger; say so if there is one that it repeats or contradicts."""
    outcome = ledger.add(record)
    path, error = ledger.path(record), f"{record.test_error_percent:.2f} %"
    if outcome == "added":
        print(f"{record.name}: {error}, recorded in {path}")
    elif outcome == "repeated":
        print(f"{record.name}: {error}, which repeats {path} at every evaluation")
    else:
        print(f"{record.name}: {error}, not as in {path}, which is left as it is")


def plan(grid: Grid, jobs: Jobs, data: Mapping[str, DataSet]) -> str:
    """The cells and how long they will take; what is there of an unfinished one is not counted."""
    left = {key: cell for key, cell in grid.cells.items() if not cell.finished}
    seconds = guessed({(key.column, key.row): cell.config for key, cell in left.items()}, data, jobs.threads)
    rows = []
    for key, cell in grid.cells.items():
        about = duration(seconds[key.column, key.row]) if key in left else "done"
        rows.append([key.column, key.row, str(key.seed), f"{cell.config.training.updates:,}", about, str(cell.path)])
    shown = table(["column", "row", "seed", "updates", "about", "run"], rows) + "\n" if rows else ""
    total = duration(makespan([seconds[key.column, key.row] for key in left], jobs.count))
    lines = [
        f"{len(left)} of {len(rows) + grid.recorded + len(grid.failed)} cells to run, {jobs}: about {total} in all"
    ]
    if grid.recorded:
        lines.append(f"{grid.recorded} cells have a record and are left out")
    if grid.failed:
        lines.append(f"{len(grid.failed)} cells failed before and are left out; --retry tries them again")
    return shown + "\n".join(lines)


def finish(options: Reproduce, grid: Grid, ledger: Ledger, failed: Mapping[Key, str]) -> int:
    """Print the table, write the page, and say what failed."""
    suite, asked = grid.suite, (options.protocol, options.preset)
    found = [results for results in tables_of(ledger, suite) if (results.protocol, results.preset) == asked]
    if found:
        results = found[0]
        report = options.out / f"{results.name}.html"
        report.parent.mkdir(parents=True, exist_ok=True)
        write_text(report, page(found, title=f"{suite.title}, protocol {options.protocol}"))
        print(f"\n{suite.title}, protocol {options.protocol}, preset {options.preset}\n\n{main_table(results)}\n")
        print("\n".join([*gaps(results), *sentences(results)]))
        print(f"\nrecords in {ledger.folder}, run directories in {options.out}, the page is {report}")
    for key, error in failed.items():
        print(f"advdrop: {key}: {error}", file=sys.stderr)
    if failed:
        print(f"advdrop: {len(failed)} cells failed; --retry tries them again", file=sys.stderr)
    return 1 if failed else 0
