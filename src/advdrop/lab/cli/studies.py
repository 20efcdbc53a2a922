"""``advdrop reproduce figure2``, ``figure3`` and ``theory``."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from advdrop.lab.cli.grid import parse_jobs
from advdrop.lab.cli.options import Reproduce
from advdrop.lab.config.config import unknown_name
from advdrop.lab.data.sources import load
from advdrop.lab.engine.progress import Line, overall
from advdrop.lab.files import write_text
from advdrop.lab.records.measurement import Measurement, read_measurement
from advdrop.lab.records.record import Ledger
from advdrop.lab.report.charts import standalone
from advdrop.lab.report.html import page
from advdrop.lab.report.studies import Study, studies_of
from advdrop.lab.report.text_table import table
from advdrop.lab.studies import pool
from advdrop.lab.studies.autoencoders import VARIANTS
from advdrop.lab.studies.measure import theory_measurement

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
    line = Line(show=not options.quiet)
    try:
        measurement = theory_measurement(lambda text: line.rewrite(f"done: {text}"))
    finally:
        line.close()
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
    for name in names:
        load(name, options.data_dir, download=not options.dry_run, progress=not options.quiet)  # complains at once
        for seed in range(options.seeds or SEEDS):
            tasks += [pool.Task(row, VARIANTS[row], name, options.data_dir, seed) for row in rows]
    found = {task: kept(options, task) for task in tasks}
    left = [task for task in tasks if found[task] is None]
    if options.dry_run:
        print(f"{len(left)} of {len(tasks)} autoencoders to train: {', '.join(map(str, left)) or 'none'}")
        return []
    count = min(os.cpu_count() or 1 if jobs == "auto" else jobs, len(left))
    line, began = Line(show=not options.quiet), time.monotonic()
    try:
        show = lambda updates: line.rewrite(progress(left, updates, time.monotonic() - began))  # noqa: E731
        for task, measurement in pool.run(left, count, show) if left else ():
            keep(result_path(options, task), measurement)
            found[task] = measurement
    finally:
        line.close()
    return [measurement for measurement in found.values() if measurement is not None]


def result_path(options: Reproduce, task: pool.Task) -> Path:
    """Return the file of a trained autoencoder's measurement. Other settings have another name."""
    settings = hashlib.sha256(json.dumps(asdict(task.settings), sort_keys=True).encode()).hexdigest()[:8]
    return options.out / f"autoencoder-{task.dataset}-{task.row}-{task.seed}-{settings}.json"


def kept(options: Reproduce, task: pool.Task) -> Measurement | None:
    """Return the measurement of an earlier command, or with ``--missing`` that of the records."""
    record = options.results / "autoencoder" / task.dataset / f"{task.row}-{task.seed}.json"
    paths = [result_path(options, task), *([record] if options.missing else [])]
    return next((read_measurement(path) for path in paths if path.is_file()), None)


def keep(path: Path, measurement: Measurement) -> None:
    """Write a measurement where the next command finds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, measurement.dump())


def progress(tasks: Sequence[pool.Task], updates: Sequence[int], seconds: float) -> str:
    """Return a line about how far the autoencoders are."""
    shares = {str(task): done / task.settings.updates for task, done in zip(tasks, updates, strict=True)}
    running = {name: share for name, share in shares.items() if 0 < share < 1}
    share = sum(updates) / sum(task.settings.updates for task in tasks)
    over = sum(share == 1 for share in shares.values())
    return overall(over, len(tasks), running, seconds / share - seconds if share else None)


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
