"""``advdrop compare``, and what it shares with ``advdrop reproduce``."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from advdrop.lab.cli.answer import answer_of, is_fair, is_own, uses_unlabeled
from advdrop.lab.cli.options import Compare
from advdrop.lab.cli.report import refuse_foreign, write_page
from advdrop.lab.cli.train import config_of, dataset_of, values_of
from advdrop.lab.config.config import RunConfig, parse_method
from advdrop.lab.config.values import ConfigError, overrides
from advdrop.lab.data.examples import DataSet
from advdrop.lab.engine.devices import resolve_auto, resumed_config
from advdrop.lab.engine.jobs import Cell, Jobs, Outcome, Result, jobs_of, run_cells
from advdrop.lab.engine.progress import duration, makespan
from advdrop.lab.engine.run import estimate, split_of
from advdrop.lab.engine.rundir import RunDirectory, RunError
from advdrop.lab.engine.signals import StoppedError
from advdrop.lab.files import read_json, write_text
from advdrop.lab.records.record import RecordError, record_of
from advdrop.lab.report.answer import BASELINE, FILE, Answer, other_differences, read_answer, with_answers
from advdrop.lab.report.collect import results_of
from advdrop.lab.report.formats import page
from advdrop.lab.report.text_table import table

Key = tuple[str, int]
"""The method and the seed of a run."""


def run_compare(options: Compare) -> int:
    """Train several methods on the same splits."""
    values = values_of(options)
    data = dataset_of(values, options)
    cells = cells_of(options, values, data)
    jobs = jobs_of(options.jobs or "auto", cells.values())
    folder = next(iter(cells.values())).path.parent
    refuse_foreign(folder / "report.html", ".html")
    refuse_foreign_results(folder)
    if options.dry_run:
        print_plan(["method", "seed"], cells, jobs, dict.fromkeys(cells, data))
        return 0
    try:
        outcomes = dict(run_cells(cells, jobs, data, progress=not options.quiet))
    except StoppedError as error:
        raise StoppedError(f"{str(error).split(';')[0]}; the same command continues") from None
    errors = {key: outcomes[key] for key in cells if isinstance(outcomes[key], Exception)}
    if all(isinstance(errors.get(key), ValueError | TypeError) for key in cells):
        raise errors[next(iter(cells))]  # type: ignore[misc]  # nothing was trained
    print_not_compared(cells)
    write_results(cells, outcomes, answer_of_cells(cells, data, not options.quiet))
    for number, (key, cell) in enumerate(cells.items(), start=1):
        if key in errors:
            print(f"advdrop: [{number}/{len(cells)}] {cell.name}: {errors[key]}", file=sys.stderr)
    return 1 if errors else 0


def refuse_foreign_results(folder: Path) -> None:
    """Raise an error if ``compare.json`` or ``answer.json`` is there and is not of this program."""
    for name, is_own_file in (("compare.json", _holds_results), (FILE, _holds_answer)):
        path = folder / name
        if path.exists() and not is_own_file(path):
            raise ValueError(f"{path} was not written by advdrop and is left as it is; choose another --out")


def _holds_results(path: Path) -> bool:
    values = read_json(path)
    if not isinstance(values, dict) or not all(isinstance(runs, list) for runs in values.values()):
        return False
    return all(isinstance(run, dict) and "test_error_percent" in run for runs in values.values() for run in runs)


def _holds_answer(path: Path) -> bool:
    try:
        return bool(read_answer(path))
    except RecordError:
        return False


def cells_of(options: Compare, values: Mapping[str, Any], data: DataSet) -> dict[Key, Cell]:
    """Return the runs. All of them get the engine of the first run that exists, else the best one for this machine."""
    methods = ["+".join(parse_method(method)) for method in options.methods]
    if len({*methods}) < len(methods):
        raise ValueError(f"--methods has a method twice: {', '.join(methods)}")
    if doubled := {"method", "seed"} & overrides(options.set).keys():
        raise ConfigError(f"compare does not take --set {min(doubled)}; use --{min(doubled)}s")
    if is_own(str(values["dataset"])) and BASELINE not in methods:
        methods = [BASELINE, *methods]
        print(f"{BASELINE}, which learns from the labels alone, is added to the methods", file=sys.stderr)
    configs: dict[Key, RunConfig] = {}
    for seed in range(options.seeds):
        for method in methods:
            own = only_terms(values, method, methods) | {"method": method, "seed": seed}
            configs[method, seed] = config = config_of(own, data)
            split_of(config, data)  # an error before anything is trained
            if config.engine.devices * config.engine.nodes > 1:
                raise ValueError(
                    "each run of a comparison is one process; use --devices and --nodes with advdrop train"
                )
    first = next(iter(configs.values()))
    folder = options.out or Path("runs") / f"compare-{Path(first.dataset).stem}-{first.labels}"
    paths = {(method, seed): folder / f"{method}-{seed}" for method, seed in configs}
    existing = [RunDirectory.open(path).config for path in paths.values() if path.exists()]
    engine = (resumed_config(first, existing[0]) if existing else resolve_auto(first)).engine
    cells = {}
    for (method, seed), config in configs.items():
        cell = Cell(f"{method} seed {seed}", config.model_copy(update={"engine": engine}), paths[method, seed])
        cells[method, seed] = checked(cell, data)
    return cells


def only_terms(values: Mapping[str, Any], method: str, methods: Sequence[str]) -> dict[str, Any]:
    """Return the values without the options of terms that only the other methods have."""
    others = {term for other in methods for term in parse_method(other)} - {*parse_method(method)}
    match values:
        case {"objective": {"terms": {**terms}, **objective}}:
            own = {term: options for term, options in terms.items() if term not in others}
            return {**values, "objective": {**objective, "terms": own}}
    return dict(values)


def checked(cell: Cell, data: DataSet) -> Cell:
    """Return the cell, or raise an error if its directory has a run of another configuration or on other data."""
    if not cell.there:
        return cell
    run = RunDirectory.open(cell.path)
    if different := run.config.differences(cell.config):
        raise RunError(f"{cell.path} is a run with another {', '.join(different)}; delete it or choose another --out")
    if run.split.dataset != data.checksum:
        raise RunError(
            f"{cell.path} is a run on other data: {cell.config.dataset} has changed since; delete it or choose another "
            "--out"
        )
    return cell


def print_plan(
    head: Sequence[str], cells: Mapping[Any, Cell], jobs: Jobs, data: Mapping[Any, DataSet], recorded: int = 0
) -> None:
    """Print the runs, and estimate the time that they take.

    Args:
        head: the names of the parts of a key.
        cells: the runs. The last part of a key is the seed, which makes no difference to the time.
        jobs: how many run at a time.
        data: the data of each run.
        recorded: the number of other runs, which have a record.
    """
    left = {key: cell for key, cell in cells.items() if not cell.finished}
    kinds = {key[:-1]: key for key in left}
    torch.set_num_threads(jobs.threads)
    seconds = {kind: estimate(left[key].config, data[key]).seconds for kind, key in kinds.items()}
    rows = []
    for key, cell in cells.items():
        about = duration(seconds[key[:-1]]) if key in left else "done"
        rows.append([*map(str, key), f"{cell.updates:,}", about, str(cell.path)])
    if rows:
        print(table([*head, "updates", "about", "run"], rows))
    if recorded:
        print(f"{recorded} runs have a record and are left out")
    total = duration(makespan([seconds[key[:-1]] for key in left], jobs.count))
    print(f"{len(left)} of {len(cells) + recorded} runs are left, {jobs}: about {total} in all")


def answer_of_cells(cells: Mapping[Key, Cell], data: DataSet, progress: bool = True) -> Answer | None:
    """Return whether the unlabeled images helped, from the seeds that a method and the baseline finished.

    The method is the last one that differs from the baseline in nothing else, see ``advdrop.lab.report.answer``.
    """
    configs = {method: cell.config for (method, _), cell in cells.items()}
    alone = configs.get(BASELINE)
    methods = [method for method, config in configs.items() if alone is not None and is_fair(alone, config)]
    if not methods:
        return None
    seeds = sorted({seed for _, seed in cells})
    runs = [[cells[name, seed] for name in (BASELINE, methods[-1])] for seed in seeds]
    pairs = [[RunDirectory.open(cell.path) for cell in pair] for pair in runs if all(cell.finished for cell in pair)]
    return answer_of([(one, other) for one, other in pairs], data, progress)


def print_not_compared(cells: Mapping[Key, Cell]) -> None:
    """Print which methods that use unlabeled images are not compared with the baseline, and how they can be."""
    configs = {method: cell.config for (method, _), cell in cells.items()}
    if BASELINE not in configs:
        return
    for method, config in configs.items():
        if uses_unlabeled(config) and (different := other_differences(configs[BASELINE], config)):
            sections = ", ".join(dict.fromkeys(key.split(".")[0] for key in different))
            print(
                f"{method} has other settings of {sections} than {BASELINE}, so they do not tell whether the unlabeled "
                f"examples help; advdrop train --method {method} --baseline does",
                file=sys.stderr,
            )


def write_results(cells: Mapping[Key, Cell], outcomes: Mapping[Key, Outcome], answer: Answer | None = None) -> None:
    """Write and print the table and the answer, and write the page of the finished runs."""
    results: dict[str, list[Result]] = {method: [] for method, _ in cells}
    for key in cells:
        if not isinstance(outcome := outcomes[key], Exception):
            results[key[0]].append(outcome)
    first = next(iter(cells.values()))
    folder, config, seeds = first.path.parent, first.config, len(cells) // len(results)
    write_text(folder / "compare.json", json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    written = "compare.json"
    if answer:
        write_text(folder / FILE, answer.model_dump_json(indent=1) + "\n")
        written += f", {FILE}"
    if done := [record_of(RunDirectory.open(cell.path)) for cell in cells.values() if cell.finished]:
        write_page(folder / "report.html", page(with_answers(results_of(done), [answer] if answer else [])))
        written += ", report.html"
    print(f"\n{Path(config.dataset).name}, {config.labels} labels, {seeds} seed{'s' if seeds > 1 else ''}\n")
    for cell in cells.values():
        if cell.finished and RunDirectory.open(cell.path).metrics()[-1].get("companion/collapsed"):
            print(f"{cell.name}: predictions for unlabeled examples collapsed; from there only the labels were used")
    print(f"{results_table(results)}\n\nwritten to {folder}: {written} and a run directory for each run")
    if answer:
        print(f"\n{answer.text}")


def results_table(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return a row for each method: mean ± standard deviation over the seeds, and the time of an update."""
    rows = []
    for method, runs in results.items():
        if not runs:
            rows.append([method, "failed", "0", ""])
            continue
        errors = [run["test_error_percent"] for run in runs]
        spread = f" ± {statistics.stdev(errors):.2f}" if len(errors) > 1 else ""
        times = statistics.mean(run["milliseconds_per_update"] for run in runs)
        rows.append([method, f"{statistics.mean(errors):.2f}{spread}", str(len(errors)), f"{times:.0f}"])
    return table(["method", "test error %", "seeds", "ms per update"], rows)
