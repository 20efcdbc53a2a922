"""The data of a run, and a finished run with its data: its network, and its test error measured again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from advdrop.lab.choices import DATASETS
from advdrop.lab.config.config import RunConfig
from advdrop.lab.data.examples import DataSet, reading
from advdrop.lab.data.preprocess import Preprocess
from advdrop.lab.data.sources import load
from advdrop.lab.engine.evaluate import outputs
from advdrop.lab.engine.model import load as load_model
from advdrop.lab.engine.rundir import DAMAGED, RunDirectory, RunError


def load_data(config: RunConfig, data_dir: Path | None = None, dataset: str | None = None, **options: bool) -> DataSet:
    """Load the data of a run as it was configured, or from another place; ``options`` are those of ``load``."""
    how = {"size": config.data.size, "color": config.data.color, "unlabeled": config.unlabeled}
    return load(dataset or config.dataset, data_dir or config.data_dir, **how, **options)  # type: ignore[arg-type]


def trained(
    path: Path, data_dir: Path | None = None, dataset: str | None = None
) -> tuple[nn.Module, DataSet, Preprocess]:
    """Return the network of a finished run, the data that it was trained on, and their preprocessing.

    ``data_dir`` and ``dataset`` are needed if the data are not where they were.
    """
    run = RunDirectory.open(path)
    config, model = run.config, load_model(path)
    if dataset is None:
        refuse_moved(run)
    data = load_data(config, data_dir, dataset, download=False)
    refuse_other_data(run, data)
    return model.network, data, model.preprocess


def evaluate_run(path: Path, data_dir: Path | None = None, dataset: str | None = None) -> dict[str, Any]:
    """Measure the test error of a finished run again, and that of each class. For the arguments see ``trained``."""
    recorded = RunDirectory.open(path).result
    network, data, preprocess = trained(path, data_dir, dataset)
    wrong = outputs(network, data.test.x, preprocess).argmax(1) != data.test.y
    rows = {name: data.test.y == number for number, name in enumerate(data.classes)}
    return {
        "test_error_percent": 100.0 * int(wrong.sum()) / len(wrong),
        "recorded_test_error_percent": recorded["test_error_percent"],
        "images": len(wrong),
        "class_error_percent": {name: 100.0 * float(wrong[y].float().mean()) for name, y in rows.items() if y.any()},
    }


def refuse_moved(run: RunDirectory) -> None:
    """Raise an error if the data of the run are the user's own, and not where they were."""
    place = run.config.dataset
    if place not in DATASETS and not Path(place).expanduser().exists():
        raise RunError(
            f"{run.path} was trained on {place}, which is not there anymore; put it back, or give its new place with "
            "--dataset, an option of evaluate, explain and audit"
        )


def refuse_other_data(run: RunDirectory, data: DataSet) -> None:
    """Raise an error if these are not the data of the run: its training images may be among their test images."""
    if run.split.dataset != data.checksum:
        raise RunError(f"{run.path} was trained on other data than this {data.name}: their checksums differ")
    with reading(run.path / "split.npz", RunError, DAMAGED):
        run.split.refuse_others(data.train.y)
