"""``advdrop reproduce figure2``, ``figure3`` and ``theory``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from advdrop.lab.cli.options import Reproduce
from advdrop.lab.cli.report import write_page
from advdrop.lab.cli.reproduce import add
from advdrop.lab.config.values import check_known
from advdrop.lab.data.sources import load
from advdrop.lab.engine.cluster import places, side_by_side
from advdrop.lab.engine.jobs import available_cores
from advdrop.lab.files import write_text
from advdrop.lab.records.measurement import Measurement
from advdrop.lab.records.record import Ledger
from advdrop.lab.report.charts import standalone
from advdrop.lab.report.formats import page
from advdrop.lab.report.studies import studies_of
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
        add(Ledger(options.results), measurement, measurement.name)
    studies = studies_of(found)
    for study in studies:
        print(f"\n{study.title}\n\n{study.about}\n\n{table(study.head, study.rows)}\n")
        print("\n".join([*study.notes, *map(str, study.claims)]))
    for study in studies:
        for number, figure in enumerate(study.figures):
            if figure.title.startswith(SHOWN[name]):
                path = options.out / f"{name}-{study.measurements[0].dataset}-{number}.svg"
                write_page(path, standalone(figure))
                print(f"{figure.title}: {path}")
    report = options.out / f"{name}.html"
    write_page(report, page([], studies, title=f"Adversarial dropout: {name}"))
    print(f"the page is {report}")
    return 0


def theory(options: Reproduce) -> list[Measurement]:
    """Return the measurement of the theorem."""
    path = options.out / "linear-regression-diabetes.json"
    if options.dry_run:
        print("the theorem: 1,000 random problems and 32 fits to 442 examples, about a minute")
        return []
    if not path.is_file():
        with Console(stderr=True, quiet=options.quiet).status("measuring ...") as status:
            measurement = theory_measurement(lambda text: status.update(f"done: {text}"))
        write_text(path, measurement.dump(), parents=True)
    return [Measurement.read(path)]


def autoencoders(options: Reproduce) -> list[Measurement]:
    """Return the measurements of the autoencoders that were asked for, and train those that are missing."""
    names, rows = options.columns or ["mnist5k"], options.only or list(VARIANTS)
    check_known("--columns has", names, DATASETS)
    check_known("--only has", rows, VARIANTS)
    tasks = []
    for name in names:
        load(name, options.data_dir, download=not options.dry_run, progress=not options.quiet)  # an error comes first
        for seed in range(options.seeds or SEEDS):
            tasks += [AutoencoderTask(row, VARIANTS[row], name, options.data_dir, seed) for row in rows]
    left = [task for task in tasks if not file_of(task, options).is_file()]
    if options.dry_run:
        print(f"{len(left)} of {len(tasks)} autoencoders to train: {', '.join(task.name for task in left) or 'none'}")
        return []
    if left:
        train(left, options)
    return [Measurement.read(file_of(task, options)) for task in tasks]


def train(tasks: Sequence[AutoencoderTask], options: Reproduce) -> None:
    """Train autoencoders with one thread each, so that no number depends on how many there are at a time."""
    jobs = options.jobs or (places(options.scheduler) if options.scheduler else available_cores())
    errors = []
    trained = side_by_side({task: task for task in tasks}, jobs, 1, options.scheduler, progress=not options.quiet)
    for task, outcome in trained:
        if isinstance(outcome, Exception):
            errors.append(outcome)
        else:
            write_text(file_of(task, options), outcome.dump(), parents=True)
    if errors:
        raise errors[0]


def file_of(task: AutoencoderTask, options: Reproduce) -> Path:
    """Return the file of a measurement: its record with ``--missing``, else one of the run directories.

    The name there depends on the settings, so that a measurement with other settings is not taken for this one.
    """
    record = options.results / "autoencoder" / task.dataset / f"{task.row}-{task.seed}.json"
    if options.missing and record.is_file():
        return record
    settings = hashlib.sha256(json.dumps(asdict(task.settings), sort_keys=True).encode()).hexdigest()[:8]
    return options.out / f"autoencoder-{task.dataset}-{task.row}-{task.seed}-{settings}.json"
