"""``advdrop reproduce``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from advdrop.lab.cli.grid import parse_jobs, plan, refuse_others, threads_of
from advdrop.lab.cli.options import MOST_SEEDS, Reproduce
from advdrop.lab.config.config import ConfigError, RunConfig
from advdrop.lab.data.examples import DataSet
from advdrop.lab.data.sources import load
from advdrop.lab.engine.cluster import places
from advdrop.lab.engine.devices import resolve_auto
from advdrop.lab.engine.jobs import Cell, Jobs, jobs_of, run_cells
from advdrop.lab.engine.run import split_of
from advdrop.lab.engine.rundir import RunDirectory
from advdrop.lab.files import write_text
from advdrop.lab.records.record import Ledger, Place, Record, record_of
from advdrop.lab.report.collect import Results, check, results_of
from advdrop.lab.report.formats import main_table
from advdrop.lab.report.html import page
from advdrop.lab.report.verdicts import gaps, sentences
from advdrop.lab.suites.suite import Key, Suite, described, fingerprint, suites

STUDIES = {
    "figure2": "figure2: features of autoencoders; rows none, dropout, adversarial, virtual; columns mnist5k, mnist",
    "figure3": "figure3: sparsity of the same autoencoders",
    "theory": "theory: what is regularized in linear regression",
}
THREADS = 1
"""The threads of each cell, for any number of jobs: another number rounds differently, and no record could repeat."""


class Grid(NamedTuple):
    """The cells of a suite that were asked for.

    Args:
        cells: the runs to make, continue or read.
        recorded: the number of cells that are skipped because they have a record.
        failed: the cells that are skipped because they failed before, with their errors.
    """

    cells: Mapping[Key, Cell]
    recorded: int
    failed: Mapping[Key, str]


def run_reproduce(options: Reproduce) -> int:
    """Run a table or a figure of the paper, or list them."""
    if options.suite is None:
        print("\n".join([*(described(Suite.load(name)) for name in suites()), *STUDIES.values()]))
        return 0
    if options.suite in STUDIES:
        from advdrop.lab.cli.studies import run_study

        return run_study(options.suite, options)
    jobs_wanted, suite, ledger = parse_jobs(options.jobs), Suite.load(options.suite), Ledger(options.results)
    tables_of(ledger, suite)  # complains about records of another suite before anything is trained
    if suite.protocol(options.protocol).seeds > MOST_SEEDS:
        raise ConfigError(f"protocol {options.protocol} has more than {MOST_SEEDS} seeds; use fewer in {options.suite}")
    keys = list(suite.cells(options.protocol, options.only, options.columns, options.seeds))
    download, progress = not options.dry_run, not options.quiet
    names = dict.fromkeys(suite.columns[key.column].dataset for key in keys)
    data = {name: load(name, options.data_dir, download=download, progress=progress) for name in names}
    grid = grid_of(options, suite, ledger, keys, data)
    most = places(options.scheduler) if options.scheduler else jobs_of(jobs_wanted, grid.cells.values()).count
    jobs = Jobs(most if jobs_wanted == "auto" else jobs_wanted, THREADS)
    if options.dry_run:
        print_plan(grid, jobs, data)
        return 0

    failed = dict(grid.failed)
    with threads_of(THREADS):
        for key, outcome in run_cells(grid.cells, jobs, progress=progress, scheduler=options.scheduler):
            path = grid.cells[key].path
            if isinstance(outcome, Exception):
                failed[key] = str(outcome)
                write_text(failure(path), f"{outcome}\n")
                continue
            failure(path).unlink(missing_ok=True)
            record = record_of(RunDirectory.open(path), Place(suite.key, options.protocol, options.preset, key))
            check(record, suite)
            add(ledger, record)
    return finish(options, suite, ledger, failed)


def tables_of(ledger: Ledger, suite: Suite) -> list[Results]:
    """Return the results of a suite that are in the ledger."""
    return results_of((record for record in ledger.records() if record.suite == suite.key), {suite.key: suite})


def grid_of(options: Reproduce, suite: Suite, ledger: Ledger, keys: Iterable[Key], data: Mapping[str, DataSet]) -> Grid:
    """Return the cells with their configurations, without those that are recorded or failed before."""
    data_dir = options.data_dir.absolute() if options.data_dir else None
    configs: dict[Key, RunConfig] = {}
    for key in keys:
        examples = data[suite.columns[key.column].dataset]
        shape, count = examples.shape, len(examples.train)
        configs[key] = suite.config(
            key, options.protocol, options.preset, shape=shape, examples=count, data_dir=data_dir
        )
        split_of(configs[key], examples)  # complains before anything is trained
    recorded = adopt(options, suite, ledger, configs) if options.missing else set()
    cells, failed = {}, {}
    for key in (key for key in configs if key not in recorded):
        config = configs[key]
        # Suites that have a cell in common share its run directory.
        name = f"{config.dataset}-{config.labels}-{config.method}-{config.seed}-{fingerprint(config)}"
        config = resolve_auto(config)
        cell = Cell(str(key), config, options.out / name)
        if failure(cell.path).is_file() and not options.retry:
            failed[key] = failure(cell.path).read_text().strip()
        else:
            refuse_others(cell.path, config)
            cells[key] = cell
    return Grid(cells, len(recorded), failed)


def adopt(options: Reproduce, suite: Suite, ledger: Ledger, configs: Mapping[Key, RunConfig]) -> set[Key]:
    """Return the cells with a record. A record of another suite with the same configuration is copied."""
    records = {fingerprint(RunConfig.of({**record.config, "data_dir": None})): record for record in ledger.records()}
    found = set()
    for key, config in configs.items():
        if (record := records.get(fingerprint(config))) is not None:
            place = {"suite": suite.key, "protocol": options.protocol, "preset": options.preset}
            ledger.add(record.model_copy(update={**place, "column": key.column, "row": key.row}).sealed())
            found.add(key)
    return found


def failure(path: Path) -> Path:
    """Return the file that holds the error of a failed cell."""
    return path.with_name(f"{path.name}.failed")


def add(ledger: Ledger, record: Record) -> None:
    """Add a record to the ledger, and print whether it repeats or contradicts one that is there."""
    outcome, path = ledger.add(record), ledger.path(record)
    told = {
        "added": f"recorded in {path}",
        "repeated": f"which repeats {path} at every evaluation",
        "other": f"not as in {path}, which is left as it is",
    }
    print(f"{record.name}: {record.test_error_percent:.2f} %, {told[outcome]}")


def print_plan(grid: Grid, jobs: Jobs, data: Mapping[str, DataSet]) -> None:
    """Print the cells and how long they take."""
    cells: dict[tuple[str, ...], Cell]
    cells = {(key.column, key.row, str(key.seed)): cell for key, cell in grid.cells.items()}
    shown, time = plan(["column", "row", "seed"], cells, jobs, data)
    if cells:
        print(shown)
    left = sum(not cell.finished for cell in cells.values())
    print(f"{left} of {len(cells) + grid.recorded + len(grid.failed)} cells to run, {time}")
    if grid.recorded:
        print(f"{grid.recorded} cells have a record and are left out")
    if grid.failed:
        print(f"{len(grid.failed)} cells failed before and are left out; --retry runs them again")


def finish(options: Reproduce, suite: Suite, ledger: Ledger, failed: Mapping[Key, str]) -> int:
    """Print the table and the failed cells, and write the page."""
    for results in tables_of(ledger, suite):
        if (results.protocol, results.preset) == (options.protocol, options.preset):
            report = options.out / f"{results.name}.html"
            report.parent.mkdir(parents=True, exist_ok=True)
            write_text(report, page([results], title=f"{suite.title}, protocol {options.protocol}"))
            print(f"\n{suite.title}, protocol {options.protocol}, preset {options.preset}\n\n{main_table(results)}\n")
            print("\n".join([*gaps(results), *sentences(results)]))
            print(f"\nrecords in {ledger.folder}, run directories in {options.out}, the page is {report}")
    for key, error in failed.items():
        print(f"advdrop: {key}: {error}", file=sys.stderr)
    if failed:
        print(f"advdrop: {len(failed)} cells failed; --retry runs them again", file=sys.stderr)
    return 1 if failed else 0
