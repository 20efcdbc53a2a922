"""``advdrop reproduce figure2``, ``figure3`` and ``theory``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from advdrop.lab.cli.grid import parse_jobs
from advdrop.lab.cli.options import Reproduce
from advdrop.lab.config.config import unknown_name
from advdrop.lab.data.sources import load
from advdrop.lab.engine.cluster import places, side_by_side
from advdrop.lab.engine.jobs import available_cores
from advdrop.lab.files import write_text
from advdrop.lab.records.measurement import Measurement, read_measurement
from advdrop.lab.records.record import Ledger
from advdrop.lab.report.charts import standalone
from advdrop.lab.report.formats import page
from advdrop.lab.report.studies import Study, studies_of
from advdrop.lab.report.text_table import table
from advdrop.lab.studies.autoencoders import VARIANTS
from advdrop.lab.studies.measure import AutoencoderTask, theory_measurement

SEEDS = 3
DATASETS = ("mnist5k", "mnist", "fashion-mnist")
SHOWN = {"figure2": "Figure 2", "figure3": "Figure 3", "theory": ""}
"""How the titles of the figures begin that each command draws."""


def run_study(name: str, options: Reproduce) -> int:
    """Measure what is missing, print the tables and the claims, and write the figures and the page."""
    found = theory(options) if name == "theory" else autoencoders(options)
    if options.dry_run:
        return 0
    for measurement in found:
        record(options.results, measurement)
    studies = studies_of(found)
    for study in studies:
        print(f"\n{described(study)}")
    for study in studies:
        for number, figure in enumerate(study.figures):
            if figure.title.startswith(SHOWN[name]):
                path = options.out / f"{name}-{study.measurements[0].dataset}-{number}.svg"
                write_text(path, standalone(figure))
                print(f"{figure.title}: {path}")
    report = options.out / f"{name}.html"
    write_text(report, page([], studies, title=f"Adversarial dropout: {name}"))
    print(f"the page is {report}")
    return 0


def theory(options: Reproduce) -> list[Measurement]:
    """Return the measurement of the theorem."""
    path = options.out / "linear-regression-diabetes.json"
    if options.dry_run:
        print("the theorem: 1,000 random problems and 32 fits to 442 examples, about a minute")
        return []
    if path.is_file():
        return [read_measurement(path)]
    with Console(stderr=True, quiet=options.quiet).status("measuring ...") as status:
        measurement = theory_measurement(lambda text: status.update(f"done: {text}"))
    keep(path, measurement)
    return [measurement]


def autoencoders(options: Reproduce) -> list[Measurement]:
    """Return the measurements of the autoencoders that were asked for, and train those that are missing."""
    jobs, names, rows = parse_jobs(options.jobs), options.columns or ["mnist5k"], options.only or list(VARIANTS)
    if unknown := [name for name in names if name not in DATASETS]:
        raise ValueError(f"--columns has {unknown_name(unknown[0], DATASETS)}")
    if unknown := [row for row in rows if row not in VARIANTS]:
        raise ValueError(f"--only has {unknown_name(unknown[0], VARIANTS)}")
    tasks = []
    data_dir = options.data_dir.absolute() if options.data_dir else None
    for name in names:
        load(name, options.data_dir, download=not options.dry_run, progress=not options.quiet)  # complains at once
        for seed in range(options.seeds or SEEDS):
            tasks += [AutoencoderTask(row, VARIANTS[row], name, data_dir, seed) for row in rows]
    found = {task: kept(options, task) for task in tasks}
    left = [task for task in tasks if found[task] is None]
    if options.dry_run:
        print(f"{len(left)} of {len(tasks)} autoencoders to train: {', '.join(task.name for task in left) or 'none'}")
        return []
    if left:
        most = places(options.scheduler) if options.scheduler else available_cores()
        train(options, left, most if jobs == "auto" else jobs, found)
    return [measurement for measurement in found.values() if measurement is not None]


def train(
    options: Reproduce, tasks: Sequence[AutoencoderTask], jobs: int, found: dict[AutoencoderTask, Measurement | None]
) -> None:
    """Train autoencoders with one thread each, so that no number depends on how many there are at a time."""
    errors = []
    trained = side_by_side({task: task for task in tasks}, jobs, 1, options.scheduler, progress=not options.quiet)
    for task, outcome in trained:
        if isinstance(outcome, Exception):
            errors.append(outcome)
        else:
            keep(result_path(options, task), outcome)
            found[task] = outcome
    if errors:
        raise errors[0]


def result_path(options: Reproduce, task: AutoencoderTask) -> Path:
    """Return the file of a trained autoencoder's measurement. Other settings have another name."""
    settings = hashlib.sha256(json.dumps(asdict(task.settings), sort_keys=True).encode()).hexdigest()[:8]
    return options.out / f"autoencoder-{task.dataset}-{task.row}-{task.seed}-{settings}.json"


def kept(options: Reproduce, task: AutoencoderTask) -> Measurement | None:
    """Return the measurement of an earlier command, or with ``--missing`` that of the records."""
    record = options.results / "autoencoder" / task.dataset / f"{task.row}-{task.seed}.json"
    paths = [result_path(options, task), *([record] if options.missing else [])]
    return next((read_measurement(path) for path in paths if path.is_file()), None)


def keep(path: Path, measurement: Measurement) -> None:
    """Write a measurement where the next command finds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, measurement.dump())


def record(folder: Path, measurement: Measurement) -> None:
    """Add a measurement to the records, and print whether it repeats or contradicts one that is there."""
    outcome, path = Ledger(folder).add(measurement), Ledger(folder).path(measurement)
    told = {
        "added": f"recorded in {path}",
        "repeated": f"as in {path}",
        "other": f"not as in {path}, which is left as it is",
    }
    print(f"{measurement.name}: {told[outcome]}")


def described(study: Study) -> str:
    """Return a study as text."""
    parts = [study.title, study.about, table(study.head, study.rows), *study.notes, *map(str, study.claims)]
    return "\n\n".join(parts[:3]) + "\n\n" + "\n".join(parts[3:])
