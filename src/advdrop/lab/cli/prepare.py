"""From the options of ``train`` and ``compare`` to configurations."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from advdrop.lab.choices import DATASETS
from advdrop.lab.cli.options import Recipe
from advdrop.lab.config.config import ConfigError, RunConfig, expanded, merged, overrides, read_yaml
from advdrop.lab.config.recipes import recipe
from advdrop.lab.data.examples import DataSet
from advdrop.lab.data.sources import load

DEFAULTS = {"dataset": "mnist5k", "data_dir": None, "labels": 100, "method": "vadd-qe", "preset": "auto", "seed": 0}
LARGE_BATCH = 10_000
"""A batch may be larger than the data, so that small data sets can be used, but not larger than this."""


def values_of(options: Recipe) -> dict[str, Any]:
    """Return the nested values of the file, the options and ``--set``; later ones win over earlier ones."""
    file = expanded(read_yaml(options.config, "configuration")) if options.config is not None else {}
    typed = {key: getattr(options, key, None) for key in DEFAULTS}
    engine = {key: getattr(options, key) for key in ("devices", "nodes", "precision")}
    layers: list[dict[str, Any]] = [typed, {"engine": engine}, {"training": {"updates": options.updates}}]
    values = merged(DEFAULTS, file, *map(_given, layers), overrides(options.set))
    for key in ("dataset", "method", "preset", "data_dir"):
        if not isinstance(values[key], str | type(DEFAULTS[key]) | Path):
            raise ConfigError(f"{key} must be a text, got {reprlib.repr(values[key])}")
    return values


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values without those that are None."""
    inner = {key: _given(value) if isinstance(value, dict) else value for key, value in values.items()}
    return {key: value for key, value in inner.items() if value is not None}


def dataset_of(values: Mapping[str, Any], options: Recipe) -> DataSet:
    """Load the data set. A dry run downloads nothing."""
    return load(values["dataset"], values["data_dir"], download=not options.dry_run, progress=not options.quiet)


def config_of(values: Mapping[str, Any], data: DataSet) -> RunConfig:
    """Return the whole configuration of one run."""
    given = {key: values[key] for key in DEFAULTS}
    if given["dataset"] not in DATASETS:
        given["dataset"] = str(Path(given["dataset"]).expanduser().absolute())
    if given["data_dir"] is not None:
        given["data_dir"] = Path(given["data_dir"]).expanduser().absolute()
    settings = {key: value for key, value in values.items() if key not in DEFAULTS}
    config = recipe(data, **given, settings=settings)
    for stream in ("labeled", "unlabeled"):
        size, most = getattr(config.training, stream), max(len(data.train), LARGE_BATCH)
        if size > most:
            raise ConfigError(
                f"training.{stream}={size} is too large for {len(data.train):,} examples; use up to {most}"
            )
    return config
