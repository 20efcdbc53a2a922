"""``advdrop data list``, ``get`` and ``check``."""

from __future__ import annotations

from advdrop.lab.cli.options import DataCheck, DataGet, DataList
from advdrop.lab.data.sources import SOURCES, check, data_folder, get, load, missing
from advdrop.lab.report.text_table import table


def run_list(options: DataList) -> int:
    """Print a row for each data set, and the folder of the files."""
    rows, notes = [], []
    for name, source in SOURCES.items():
        to_get = f"advdrop data get {name}" if missing(name, options.data_dir) else "here"
        train, test = (f"{count:,}" for count in source.counts)
        shape = "x".join(map(str, source.shape))
        rows.append([name, shape, train, test, to_get if source.files else "included"])
        notes.append(f"{name}: {source.description}. Terms: {source.license}.")
    print(table(["name", "shape", "training", "test", "state"], rows))
    print(f"The folder is {data_folder(options.data_dir)} (set it with --data-dir or ADVDROP_DATA).\n")
    print("\n".join(notes))
    return 0


def run_get(options: DataGet) -> int:
    """Download a data set."""
    folder = get(options.dataset, options.data_dir, progress=True)
    where = f"is in {folder}" if SOURCES[options.dataset].files else "is part of a package: nothing to download"
    print(f"{options.dataset} {where}")
    return 0


def run_check(options: DataCheck) -> int:
    """Print what a data set contains, also the user's own."""
    if options.dataset in SOURCES:
        print(check(options.dataset, options.data_dir))
        return 0
    data = load(options.dataset, options.data_dir, download=False)
    for note in data.notes:
        print(note)
    labeled = int((data.train.y >= 0).sum())
    print(
        f"{options.dataset}: {len(data.train):,} training examples of {data.shape}, {labeled:,} of them labeled, "
        f"{len(data.test):,} test examples, {data.classes_in_words}"
    )
    return 0
