"""``advdrop reproduce figure2``, ``figure3`` and ``theory``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from advdrop.lab.cli.options import Reproduce
from advdrop.lab.config.config import unknown_name
from advdrop.lab.data.sources import load
from advdrop.lab.engine.cluster import places, side_by_side
from advdrop.lab.engine.jobs import available_cores
from advdrop.lab.files import write_text
from advdrop.lab.records.measurement import Measurement, add, place, read_measurement
from advdrop.lab.report.html import page
from advdrop.lab.report.studies import Study, studies_of
from advdrop.lab.report.svg import standalone
from advdrop.lab.report.text_table import table
from advdrop.lab.studies import pool
from advdrop.lab.studies.autoencoders import VARIANTS
from advdrop.lab.studies.measure import theory_measurement

SEEDS = 3
DATASETS = ("mnist5k", "mnist", "fashion-mnist")
SHOWN = {"figure2": "Figure 2", "figure3": "Figure 3", "theory": ""}
"""The figures of a study that a command is about, by the beginning of their titles."""


def run(options: Reproduce) -> int:
    """Measure what is missing, then print the table and the claims and write the figures and the page."""
    if options.seeds is not None and options.seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {options.seeds}")
    found = theory(options) if options.suite == "theory" else autoencoders(options)
    if options.dry_run:
        return 0
    for measurement in found:
        tell(options.results, measurement)
    for study in studies_of(found):
        print(f"\n{shown(study)}")
    return finish(options, studies_of(found))


def theory(options: Reproduce) -> list[Measurement]:
    """The one measurement of the theorem."""
    path = options.out / "linear-regression-diabetes.json"
    if options.dry_run:
        print("the theorem: 1,000 random problems and 32 fits to 442 examples, about a minute")
        return []
    if (there := kept([path])) is not None:
        return [there]
    with Console(stderr=True, quiet=options.quiet).status("measuring ...") as status:
        measurement = theory_measurement(lambda text: status.update(f"done: {text}"))
    keep(path, measurement)
    return [measurement]


def autoencoders(options: Reproduce) -> list[Measurement]:
    """The measurements of all models and seeds that were asked for."""
    names = options.columns or ["mnist5k"]
    if unknown := [name for name in names if name not in DATASETS]:
        raise ValueError(f"--columns has {unknown_name(unknown[0], DATASETS)}")
    if unknown := [row for row in options.only if row not in VARIANTS]:
        raise ValueError(f"--only has {unknown_name(unknown[0], VARIANTS)}")
    for name in names:
        load(name, options.data_dir, download=not options.dry_run, progress=not options.quiet)  # complains at once
    data_dir = options.data_dir.absolute() if options.data_dir else None
    tasks = [
        pool.Task(row, VARIANTS[row], name, data_dir, seed)
        for name in names
        for seed in range(options.seeds or SEEDS)
        for row in options.only or VARIANTS
    ]
    there = {task: kept([result(options, task), *recorded(options, task)]) for task in tasks}
    left = [task for task in tasks if there[task] is None]
    if options.dry_run:
        print(f"{len(left)} of {len(tasks)} autoencoders to train: {', '.join(task.name for task in left) or 'none'}")
        return []
    if left:
        train(options, left, there)
    return [measurement for measurement in there.values() if measurement is not None]


def train(options: Reproduce, tasks: Sequence[pool.Task], there: dict[pool.Task, Measurement | None]) -> None:
    """Train autoencoders with one thread each, so that no number depends on how many there are at a time."""
    most = places(options.scheduler) if options.scheduler else available_cores()
    count = most if options.jobs == "auto" else options.jobs
    errors = []
    trained = side_by_side({task: task for task in tasks}, count, 1, options.scheduler, progress=not options.quiet)
    for task, outcome in trained:
        if isinstance(outcome, Exception):
            errors.append(outcome)
        else:
            keep(result(options, task), outcome)
            there[task] = outcome
    if errors:
        raise errors[0]


def result(options: Reproduce, task: pool.Task) -> Path:
    """Where a trained autoencoder's measurement is kept; another name for other settings."""
    settings = hashlib.sha256(json.dumps(asdict(task.settings), sort_keys=True).encode()).hexdigest()[:8]
    return options.out / f"autoencoder-{task.dataset}-{task.row}-{task.seed}-{settings}.json"


def recorded(options: Reproduce, task: pool.Task) -> list[Path]:
    """Where the ledger would have it, if that is to be taken."""
    return [options.results / "autoencoder" / task.dataset / f"{task.row}-{task.seed}.json"] if options.missing else []


def kept(paths: Sequence[Path]) -> Measurement | None:
    """The first of these files that is there."""
    return next((read_measurement(path) for path in paths if path.is_file()), None)


def keep(path: Path, measurement: Measurement) -> None:
    """Write a measurement where the next command looks for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, measurement.dump())


def tell(folder: Path, measurement: Measurement) -> None:
    """Put a measurement into the ledger; say so if there is one that it repeats or contradicts."""
    outcome, path = add(folder, measurement), place(folder, measurement)
    said = {
        "added": f"recorded in {path}",
        "repeated": f"as in {path}",
        "other": f"not as in {path}, which is left as it is",
    }
    print(f"{measurement.name}: {said[outcome]}")


def shown(study: Study) -> str:
    """A study in a terminal."""
    parts = [study.title, study.about, table(study.head, study.rows), *study.notes, *map(str, study.claims)]
    return "\n\n".join(parts[:3]) + "\n\n" + "\n".join(parts[3:])


def finish(options: Reproduce, studies: Sequence[Study]) -> int:
    """Write the figures and the page."""
    wanted = SHOWN[str(options.suite)]
    for study in studies:
        for number, figure in enumerate(study.figures):
            if figure.title.startswith(wanted):
                path = options.out / f"{options.suite}-{study.measurements[0].dataset}-{number}.svg"
                write_text(path, standalone(figure.svg, figure.title, figure.legend))
                print(f"{figure.title}: {path}")
    report = options.out / f"{options.suite}.html"
    write_text(report, page([], studies, title=f"Adversarial dropout: {options.suite}"))
    print(f"the page is {report}")
    return 0
