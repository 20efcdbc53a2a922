"""``advdrop evaluate``, ``audit`` and ``explain``: commands that load trained networks."""

from __future__ import annotations

import json
from pathlib import Path

from tqdm import tqdm

from advdrop.analysis.audit import Audit as Audited
from advdrop.analysis.audit import audit
from advdrop.analysis.explain import explain
from advdrop.lab.cli.options import Audit, Evaluate, Explain
from advdrop.lab.cli.show import runs_in
from advdrop.lab.engine.companion import main_network
from advdrop.lab.engine.run import evaluate_run, trained
from advdrop.lab.engine.rundir import RunDirectory
from advdrop.lab.files import write_text
from advdrop.lab.report import audited, explanation
from advdrop.lab.report.charts import standalone
from advdrop.lab.report.text_table import table

BATCH = 100
SHOWN = 20
"""How many of the flipped units are listed."""


def run_evaluate(options: Evaluate) -> int:
    """Measure the test error of a finished run again."""
    found = evaluate_run(options.run, options.data_dir, options.dataset)
    if options.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return 0
    print(f"test error {found['test_error_percent']:.2f} % of {found['images']:,} images ", end="")
    print(f"(recorded: {found['recorded_test_error_percent']:.2f} %)")
    width = max(map(len, found["class_error_percent"]))
    for name, error in found["class_error_percent"].items():
        print(f"  {name:<{width}}  {error:6.2f} %")
    return 0


def run_audit(options: Audit) -> int:
    """Audit the networks of some runs and compare them in a table and a figure."""
    if not all(part.strip().isdecimal() for part in options.budgets.split(",")):
        raise ValueError(f"--budgets takes numbers of units, separated by commas, got {options.budgets!r}")
    paths = [path for given in options.runs for path in runs_in(given)]
    methods = [RunDirectory.open(path).config.method for path in paths]
    names = methods if len({*methods}) == len(paths) else [path.name for path in paths]
    found = [audit_run(path, name, options) for path, name in zip(paths, names, strict=True)]
    if options.json:
        print(json.dumps([one.json() for one in found], indent=1))
        return 0
    print(table(audited.head(found), audited.rows(found)))
    for one in found:
        print(f"\n{one.summary}")
    drawn = audited.figure(found)
    print(f"\n{drawn.note}")
    write_figure(options.out, standalone(drawn))
    return 0


def audit_run(path: Path, name: str, options: Audit) -> Audited:
    """Audit the network of one run on the first test images."""
    network, data, preprocess = trained(path, options.data_dir)
    x, y = data.test.x[: options.images], data.test.y[: options.images]
    batches = ((preprocess(part), labels) for part, labels in zip(x.split(BATCH), y.split(BATCH), strict=True))
    budgets = [int(part) for part in options.budgets.split(",")]
    with tqdm(total=len(x), desc=name, unit="image", leave=False, disable=None) as bar:
        tell = lambda done: bar.update(done - bar.n)  # noqa: E731
        return audit(main_network(network), batches, budgets=budgets, draws=options.draws, name=name, progress=tell)


def run_explain(options: Explain) -> int:
    """Draw what the mask search does with one test image."""
    network, data, preprocess = trained(options.run, options.data_dir, options.dataset)
    if not 0 <= options.image < len(data.test):
        raise ValueError(f"--image must be from 0 to {len(data.test) - 1}, got {options.image}")
    x, label = preprocess(data.test.x[options.image : options.image + 1])[0], int(data.test.y[options.image])
    found = explain(
        main_network(network),
        x,
        label,
        target=options.target,
        delta=options.delta,
        seed=options.seed,
        classes=data.classes,
        title=f"Test image {options.image} of {data.name}: {data.classes[label]}",
    )
    drawn = explanation.figure(found)
    units = ", ".join(map(str, found.flips[:SHOWN])) or "none"
    more = f" and {len(found.flips) - SHOWN} more" if len(found.flips) > SHOWN else ""
    print(f"{found.title}. {found.summary}\nflipped units, the largest gain first: {units}{more}")
    write_figure(options.out or Path(f"explain-{options.image}.svg"), standalone(drawn))
    return 0


def write_figure(path: Path, svg: str) -> None:
    """Write a figure and print where it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, svg)
    print(f"the figure is {path}")
