"""``advdrop reproduce``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from advdrop.lab.choices import AVX2
from advdrop.lab.cli.compare import checked, print_plan
from advdrop.lab.cli.options import Reproduce
from advdrop.lab.cli.report import write_page
from advdrop.lab.cli.train import dataset_of, how_to_read
from advdrop.lab.config.config import RunConfig
from advdrop.lab.config.recipes import facts
from advdrop.lab.data.examples import DataSet
from advdrop.lab.engine.cluster import places
from advdrop.lab.engine.devices import resolve_auto
from advdrop.lab.engine.jobs import Cell, Jobs, jobs_of, run_cells
from advdrop.lab.engine.run import split_of
from advdrop.lab.engine.rundir import RunDirectory
from advdrop.lab.records.measurement import Measurement
from advdrop.lab.records.record import Ledger, Record, RecordError, record_of
from advdrop.lab.report.collect import check, results_of
from advdrop.lab.report.formats import main_table, page
from advdrop.lab.report.results import Results
from advdrop.lab.report.sections import gaps, orders, sentences
from advdrop.lab.suites.suite import Key, Suite, fingerprint, suites

STUDIES = {
    "figure2": "figure2: features of autoencoders; rows none, dropout, adversarial, virtual; columns mnist5k, mnist",
    "figure3": "figure3: sparsity of the same autoencoders",
    "theory": "theory: what is regularized in linear regression",
}
THREADS = 1
"""The threads of each run, for any number of jobs. Another number rounds differently, and no record would repeat."""


def run_reproduce(options: Reproduce) -> int:
    """Run a table or a figure of the paper, or list them."""
    if options.suite is None:
        print("\n".join([*(Suite.load(name).summary for name in suites()), *STUDIES.values()]))
        return 0
    if options.instructions == "avx2":
        check_avx2(options.scheduler)
    if options.data_dir is not None:
        options.data_dir = options.data_dir.absolute()  # workers may be in another folder
    if options.suite in STUDIES:
        from advdrop.lab.cli.studies import run_study

        return run_study(options.suite, options)
    suite, ledger, progress = Suite.load(options.suite), Ledger(options.results), not options.quiet
    tables_of(ledger, suite)  # an error before anything is trained, if there are records of an older suite
    keys = list(suite.cells(options.protocol, options.only, options.columns, options.seeds))
    data, configs = data_of(suite, keys, options), {}
    for key in keys:
        known = facts(data[key]) | {"data_dir": options.data_dir}
        configs[key] = suite.config(key, options.protocol, options.preset, **known)
        split_of(configs[key], data[key])  # an error before anything is trained
    refuse_other_records(ledger, suite, data)
    left = without_record(configs, options, suite, ledger, data) if options.missing else configs
    cells = {key: cell_of(key, config, options.out, data[key]) for key, config in left.items()}
    most = places(options.scheduler) if options.scheduler else jobs_of(options.jobs or "auto", cells.values()).count
    jobs = Jobs(options.jobs or most, THREADS)
    if options.dry_run:
        print_plan(["column", "row", "seed"], cells, jobs, data, recorded=len(configs) - len(cells))
        return 0

    failed = {}
    torch.set_num_threads(THREADS)
    for key, outcome in run_cells(cells, jobs, progress=progress, scheduler=options.scheduler):
        if isinstance(outcome, Exception):
            failed[key] = outcome
            continue
        record = record_of(RunDirectory.open(cells[key].path), **place_of(key, options, suite))
        check(record, suite)
        add(ledger, record, f"{record.name}: {record.test_error_percent:.2f} %")
    show_tables(options, suite, ledger)
    for key, error in failed.items():
        print(f"advdrop: {key}: {error}", file=sys.stderr)
    if failed:
        print(f"advdrop: {len(failed)} runs failed; the same command tries them again", file=sys.stderr)
    return 1 if failed else 0


def check_avx2(scheduler: str | None) -> None:
    """Raise an error if the runs would use other instructions than AVX2."""
    if scheduler:
        variables = " ".join(f"{name}={value}" for name, value in AVX2.items())
        raise ValueError(f"--instructions does not reach the workers of a --scheduler; start them with {variables}")
    if (used := torch.backends.cpu.get_cpu_capability()) != "AVX2":
        raise ValueError(f"--instructions avx2: torch uses the instructions {used} on this processor")


def data_of(suite: Suite, keys: Iterable[Key], options: Reproduce) -> dict[Key, DataSet]:
    """Load the data of each run. Runs that read the same files in the same way share them."""
    read: dict[tuple[Any, ...], DataSet] = {}
    found = {}
    for key in keys:
        what = {"dataset": suite.columns[key.column].dataset, "data_dir": options.data_dir, "unlabeled": None}
        values = {**suite.settings(key, options.protocol), **what}
        how = (what["dataset"], *how_to_read(values).values())
        if how not in read:
            read[how] = dataset_of(values, options)
        found[key] = read[how]
    return found


def tables_of(ledger: Ledger, suite: Suite) -> list[Results]:
    """Return the results of a suite that are in the ledger."""
    return results_of((record for record in ledger.records() if record.suite == suite.key), {suite.key: suite})


def cell_of(key: Key, config: RunConfig, folder: Path, data: DataSet) -> Cell:
    """Return a run with its directory. Suites that have a run in common share it."""
    name = f"{Path(config.dataset).stem}-{config.labels}-{config.method}-{config.seed}-{fingerprint(config)}"
    return checked(Cell(str(key), resolve_auto(config), folder / name), data)


def place_of(key: Key, options: Reproduce, suite: Suite) -> dict[str, str]:
    """Return where the record of a run belongs."""
    names = {"suite": suite.key, "protocol": options.protocol, "preset": options.preset}
    return {**names, "column": key.column, "row": key.row}


def refuse_other_records(ledger: Ledger, suite: Suite, data: Mapping[Key, DataSet]) -> None:
    """Raise an error if a record of the suite is of other data than those of its column now."""
    now = {key.column: examples.checksum for key, examples in data.items()}
    for record in ledger.records():
        if record.suite == suite.key and now.get(record.column or "") not in (None, record.dataset_checksum):
            raise RecordError(
                f"{ledger.path(record)} is the record of a run on other data: {record.dataset} has changed since; "
                "delete it or choose another --results"
            )


def without_record(
    configs: Mapping[Key, RunConfig], options: Reproduce, suite: Suite, ledger: Ledger, data: Mapping[Key, DataSet]
) -> dict[Key, RunConfig]:
    """Return the runs that have no record. One of another suite with the same configuration is copied when they run."""
    records = {
        (fingerprint(RunConfig.of({**record.config, "data_dir": None})), record.dataset_checksum): record
        for record in ledger.records()
    }
    left = {}
    for key, config in configs.items():
        if (record := records.get((fingerprint(resolve_auto(config)), data[key].checksum))) is None:
            left[key] = config
        elif not options.dry_run:
            ledger.add(record.model_copy(update=place_of(key, options, suite)))
    return left


def add(ledger: Ledger, found: Record | Measurement, text: str) -> None:
    """Add a record or a measurement to the ledger, and print whether it is new, the same as before, or different."""
    outcome, path = ledger.add(found), ledger.path(found)
    told = {
        "added": f"recorded in {path}",
        "repeated": f"the same as in {path}",
        "other": f"not the same as in {path}, which is left as it is",
    }
    print(f"{text}, {told[outcome]}")
    if outcome == "other":
        then = type(found).read(path).machine
        if different := [key for key, value in found.machine.items() if then.get(key) != value]:
            names = ", ".join(f"{key} {then.get(key, 'unknown')}, now {found.machine[key]}" for key in different)
            print(f"  It was made on another machine ({names}), and another machine can round differently.")
            used = (then.get("instructions"), found.machine.get("instructions"))
            if used in ((None, "AVX512"), ("AVX2", "AVX512")):
                print("  With --instructions avx2, this machine rounds like one without AVX-512.")
            if used == ("AVX512", "AVX2"):
                print("  Without --instructions avx2, a machine with AVX-512 rounds like that of the record.")


def show_tables(options: Reproduce, suite: Suite, ledger: Ledger) -> None:
    """Print the table of all records, and write its page."""
    for results in tables_of(ledger, suite):
        if (results.protocol, results.preset) == (options.protocol, options.preset):
            title, report = f"{suite.title}, protocol {options.protocol}", options.out / f"{results.name}.html"
            write_page(report, page([results], title=title))
            print(f"\n{title}, preset {options.preset}\n\n{main_table(results)}\n")
            beside = orders(results) if results.only_order else gaps(results)
            print("\n".join([*beside, *sentences(results)]))
            print(f"\nrecords in {ledger.folder}, run directories in {options.out}, the page is {report}")
