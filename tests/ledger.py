"""A small suite of the user's own, and records of runs that never were, for the tests of the report."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from advdrop.lab.config.recipes import resolve
from advdrop.lab.config.values import merged
from advdrop.lab.records.record import ERROR, Record, RecordError
from advdrop.lab.report.collect import results_of
from advdrop.lab.report.results import Results
from advdrop.lab.suites.suite import Key, Suite

SHAPE, EXAMPLES, IMAGES = (1, 8, 8), 1500, 10_000
VALUES: dict[str, Any] = {
    "title": "A small table",
    "about": "Digits, so that nothing is downloaded.",
    "source": "Table 9",
    "repeats": 5,
    "columns": {
        "20": {"name": "20 labels", "dataset": "digits", "labels": 20},
        "all": {"name": "All labels", "dataset": "digits", "labels": "all"},
    },
    "rows": {
        "ladder": {"name": "Ladder", "quoted": "Rasmus et al. 2015", "paper": {"20": "1.06 ± 0.37"}},
        "dropout": {"name": "Dropout", "method": "dropout", "paper": {"20": "12.36"}},
        "pi": {"name": "Π model", "method": "pi", "paper": {"20": "**5.10 ± 0.20**"}},
        "vadd": {"name": "VAdD (KL)", "method": "vadd-kl"},
    },
    "compare": [["vadd", "pi"], ["vadd", "dropout"]],
    "protocols": {
        "paper": {"about": "the whole length", "seeds": 3},
        "short": {"about": "40 updates", "seeds": 2, "settings": {"training": {"updates": 40, "epoch_updates": 10}}},
    },
}


def suite_of(folder: Path, name: str = "small", **changes: Any) -> Suite:
    """The suite, written to a YAML file and read from there, with whatever is changed."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(merged(copy.deepcopy(VALUES), changes), sort_keys=False), encoding="utf-8")
    return Suite.load(str(path))


def run_of(
    suite: Suite,
    row: str = "vadd",
    seed: int = 0,
    errors: Sequence[float | None] = (40.0, 20.0, 15.0, 10.0),
    *,
    column: str = "20",
    protocol: str = "short",
    preset: str = "paper",
    **changes: Any,
) -> Record:
    """The record of a run of the suite, whose errors were measured at equal distances."""
    key = Key(column, row, seed)
    config = suite.config(key, protocol, preset, shape=SHAPE, examples=EXAMPLES)  # type: ignore[arg-type]
    place = {"suite": suite.key, "protocol": protocol, "preset": preset, "column": column, "row": row}
    return _record(config, errors, place | changes)


def loose_of(
    method: str = "vadd-kl",
    seed: int = 0,
    errors: Sequence[float | None] = (40.0, 20.0, 15.0, 10.0),
    *,
    dataset: str = "digits",
    labels: int | str = 20,
    **changes: Any,
) -> Record:
    """The record of a run of 40 updates that belongs to no suite."""
    shape = SHAPE if dataset == "digits" else (7,)
    options = {"method": method, "labels": labels, "seed": seed, "updates": 40}
    options["half_labeled"] = changes.get("half_labeled", False)
    config = resolve(dataset, shape=shape, examples=EXAMPLES, **options)  # type: ignore[arg-type]
    return _record(config, errors, {"preset": "paper"} | changes)


def _record(config: Any, errors: Sequence[float | None], given: dict[str, Any]) -> Record:
    updates = config.training.updates
    steps = [updates * place / len(errors) for place in range(1, len(errors) + 1)]
    values = {
        "method": config.method,
        "dataset": config.dataset,
        "labels": config.labels,
        "seed": config.seed,
        "updates": updates,
        "test_error_percent": errors[-1],
        "milliseconds_per_update": 2.0,
        "seconds": 1.5,
        "parameters": 1234,
        "curve": {"update": steps, ERROR: list(errors)},
        "config": config.model_dump(mode="json", exclude={"data_dir"}),
        "shape": SHAPE,
        "examples": EXAMPLES,
        "test_images": IMAGES,
        "dataset_checksum": "d" * 64,
        "split_checksum": "e" * 64,
        "versions": {"advdrop": "0.1.0", "torch": "2.6.0"},
        "commit": "abc123",
        "machine": {"cpu": "a small one", "cores": 2},
        "finished": "2025-01-01T00:00:00+00:00",
    }
    return Record(**values | given).sealed()


def reconfigured(record: Record, settings: dict[str, Any]) -> Record:
    """The same record with other settings in its configuration."""
    return record.model_copy(update={"config": merged(record.config, settings)}).sealed()


def tables(suite: Suite, *records: Record) -> list[Results]:
    """The tables of some records, which may be of this suite."""
    return results_of(records, {suite.key: suite})


def refusal(call: Callable[..., Any], *arguments: Any) -> str:
    """The message with which some records are refused. It has one line."""
    with pytest.raises(RecordError) as error:
        call(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def hostile(folder: Path, text: str) -> Suite:
    """The suite with this text wherever a suite has text of its own."""
    rows = {"ladder": {"name": text, "quoted": text}, "pi": {"name": f"{text} 2"}, "vadd": {"name": f"{text} 3"}}
    columns = {"20": {"name": text}, "all": {"name": f"{text} 2"}}
    about = {"title": text, "about": text, "source": text, "protocols": {"short": {"about": text}}}
    return suite_of(folder, columns=columns, rows=rows, **about)
