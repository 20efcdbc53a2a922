"""``advdrop audit``."""

from __future__ import annotations

import json
from pathlib import Path

from tqdm import tqdm

from advdrop.analysis.audit import Audit, audit
from advdrop.lab.cli.options import Audit as Options
from advdrop.lab.cli.show import inside
from advdrop.lab.engine.companion import main_network
from advdrop.lab.engine.run import trained
from advdrop.lab.engine.rundir import RunDirectory
from advdrop.lab.files import write_text
from advdrop.lab.report.audited import figure, head, rows
from advdrop.lab.report.charts import standalone
from advdrop.lab.report.text_table import table

BATCH = 100


def run(options: Options) -> int:
    """Audit the networks of some runs and compare them in a table and a figure."""
    if options.images < 1:
        raise ValueError(f"--images must be at least 1, got {options.images}")
    paths = [path for given in options.runs for path in inside(given)]
    methods = [RunDirectory.open(path).config.method for path in paths]
    names = methods if len(set(methods)) == len(paths) else [path.name for path in paths]
    found = [audited(path, name, options) for path, name in zip(paths, names, strict=True)]
    if options.json_:
        print(json.dumps([one.json() for one in found], indent=1))
        return 0
    print(table(head(found), rows(found)))
    for one in found:
        print(f"\n{one.summary}")
    drawn, out = figure(found), options.out or Path("audit.svg")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, standalone(drawn))
    print(f"\n{drawn.note}\nthe figure is {out}")
    return 0


def audited(path: Path, name: str, options: Options) -> Audit:
    """Audit the network of one run on the first test images."""
    network, data, preprocess = trained(path, options.data_dir)
    x, y = data.test.x[: options.images], data.test.y[: options.images]
    batches = ((preprocess(part), labels) for part, labels in zip(x.split(BATCH), y.split(BATCH), strict=True))
    with tqdm(total=len(x), desc=name, unit="image", leave=False, disable=None) as bar:
        return audit(
            main_network(network),
            batches,
            budgets=options.budgets,
            draws=options.draws,
            name=name,
            progress=lambda done: bar.update(done - bar.n),
        )
