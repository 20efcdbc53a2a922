"""``advdrop train``: from options to a configuration, and from there to a run."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from advdrop.lab.choices import DATASETS
from advdrop.lab.cli.options import Recipe, Train
from advdrop.lab.config.config import ConfigError, RunConfig, expanded, merged, overrides, read_yaml
from advdrop.lab.config.recipes import recipe
from advdrop.lab.config.terms import METHODS
from advdrop.lab.data.examples import DataSet
from advdrop.lab.data.sources import load
from advdrop.lab.engine.progress import duration
from advdrop.lab.engine.run import estimate, split_of, train
from advdrop.lab.engine.rundir import RunDirectory

DEFAULTS = {"dataset": "mnist5k", "data_dir": None, "labels": 100, "method": "vadd-qe", "preset": "auto", "seed": 0}
SECTIONS = {"engine": ("devices", "nodes", "precision"), "training": ("updates",)}
"""The options that set a value in a section of the configuration."""
LARGE_BATCH = 10_000
"""A batch may be larger than a small data set, but not larger than this."""


def run_train(options: Train) -> int:
    """Train one network, or continue a run."""
    if options.resume is not None:
        path, result = options.resume, resume(options.resume, options)
    else:
        if options.name is not None:
            check_name(options.name)
        values = values_of(options)
        data = dataset_of(values, options)
        config = config_of(values, data)
        name = f"{Path(config.dataset).stem}-{config.labels}-{config.method}-{config.seed}"
        path = options.out or Path("runs") / (options.name or name)
        if options.dry_run:
            split_of(config, data)  # an error if there are too few labels
            guess = estimate(config, data)
            print(config.dump(), end="")
            print(
                f"# {guess.parameters:,} parameters; {config.training.updates:,} updates of "
                f"{guess.milliseconds_per_update:.0f} ms: about {duration(guess.seconds)}; to be written to {path}"
            )
            return 0
        result = train(config, path, force=options.force, data=data, progress=not options.quiet)
    if result:  # only the first of several processes has one
        print(
            f"test error {result['test_error_percent']:.2f} %  ({result['method']}, {result['labels']} labels of "
            f"{result['dataset']}, {result['updates']:,} updates in {duration(result['seconds'])})\nwritten to {path}"
        )
    return 0


def check_name(name: str) -> None:
    """Raise an error if this cannot be the name of a folder in ``runs/``."""
    if name in DATASETS or {*name.split("+")} <= {"dropout", *METHODS}:
        option = "--dataset" if name in DATASETS else "--method"
        raise ValueError(f"{name} would be the name of the run; did you mean {option} {name}?")
    if not re.fullmatch(r"\w([\w .-]*[\w.-])?", name):
        raise ValueError(
            f"{name!r} is not a name for a run: use letters, digits, '_', '-', '.' and spaces, and begin with one "
            "of the first three; use --out for a path"
        )


def resume(path: Path, options: Train) -> dict[str, Any]:
    """Continue a run with the configuration that it was started with."""
    given = [field.name for field in fields(options) if getattr(options, field.name) != field.default.default]  # type: ignore[union-attr]
    if ignored := sorted({*given} - {"resume", "quiet", "data_dir"}):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in ignored)
        raise ValueError(f"--resume uses the configuration of the run; leave out {names}")
    config = RunDirectory.open(path).config
    if options.data_dir is not None:
        config = config.model_copy(update={"data_dir": options.data_dir})
    return train(config, path, resume=True, progress=not options.quiet)


def values_of(options: Recipe) -> dict[str, Any]:
    """Return the nested values of the file, the options and ``--set``; later ones win over earlier ones."""
    file = expanded(read_yaml(options.config, "configuration")) if options.config is not None else {}
    sections = {section: found for section, names in SECTIONS.items() if (found := _given(options, names))}
    values = merged(DEFAULTS, file, _given(options, DEFAULTS), sections, overrides(options.set))
    for key in ("dataset", "method", "preset", "data_dir"):
        if not isinstance(values[key], str | type(DEFAULTS[key]) | Path):
            raise ConfigError(f"{key} must be a text, got {reprlib.repr(values[key])}")
    return values


def _given(options: Recipe, names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(options, name, None)) is not None}


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
    most = max(len(data.train), LARGE_BATCH)
    for stream in ("labeled", "unlabeled"):
        if (size := getattr(config.training, stream)) > most:
            raise ConfigError(
                f"training.{stream}={size} is too large for {len(data.train):,} examples; use up to {most}"
            )
    return config
