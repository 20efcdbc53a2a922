"""``advdrop data list``, ``get`` and ``check``."""

from __future__ import annotations

from pathlib import Path

from advdrop.lab.cli.options import DataCheck, DataGet, DataList
from advdrop.lab.data.sources import SOURCES, check, data_folder, get, load, missing
from advdrop.lab.report.text_table import table


def run(options: DataList | DataGet | DataCheck) -> int:
    """Look at, download or check data sets."""
    if isinstance(options, DataList):
        print(overview(options.data_dir))
    elif isinstance(options, DataGet):
        folder = get(options.dataset, options.data_dir, progress=True)
        where = f"is in {folder}" if SOURCES[options.dataset].files else "comes with a package: nothing to get"
        print(f"{options.dataset} {where}")
    else:
        print(inspect(options.dataset, options.data_dir))
    return 0


def overview(data_dir: Path | None) -> str:
    """A row for each source, and where its files are looked for."""
    rows, notes = [], []
    for source in SOURCES.values():
        lacking = missing(source.name, data_dir)
        state = "comes with it" if not source.files else "here" if not lacking else f"advdrop data get {source.name}"
        train, test = (f"{count:,}" for count in source.counts)
        rows.append([source.name, "x".join(map(str, source.shape)), train, test, state])
        notes.append(f"{source.name}: {source.description}. Terms: {source.license}.")
    where = f"Looked for in {data_folder(data_dir)} (--data-dir, ADVDROP_DATA)."
    return "\n".join([table(["name", "shape", "training", "test", "state"], rows), where, "", *notes])


def inspect(dataset: str, data_dir: Path | None) -> str:
    """What a data set holds, the user's own included."""
    if dataset in SOURCES:
        return check(dataset, data_dir)
    data = load(dataset, data_dir, download=False)
    labeled = int((data.train.y >= 0).sum())
    return (
        f"{dataset}: {len(data.train):,} training examples of {data.shape}, {labeled:,} of them labeled, "
        f"{len(data.test):,} test examples, classes {', '.join(data.classes)}"
    )
