"""``advdrop train``: from options to a configuration, and from there to a run."""

from __future__ import annotations

import re
import reprlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from advdrop.lab.choices import DATASETS
from advdrop.lab.cli.answer import answer_of_run, is_own, whole_run, why_unanswered
from advdrop.lab.cli.options import Recipe, Reproduce, Train
from advdrop.lab.config.config import Data, RunConfig, explain
from advdrop.lab.config.recipes import recipe
from advdrop.lab.config.terms import METHODS
from advdrop.lab.config.values import ConfigError, expanded, merged, overrides, read_yaml
from advdrop.lab.data.examples import DataSet
from advdrop.lab.data.sources import load, of_pictures
from advdrop.lab.engine.continuing import start_of
from advdrop.lab.engine.progress import duration
from advdrop.lab.engine.run import estimate, split_of, train
from advdrop.lab.engine.rundir import RunDirectory

DEFAULTS = {
    "dataset": "mnist5k",
    "data_dir": None,
    "unlabeled": None,
    "labels": None,
    "method": "vadd-qe",
    "preset": "auto",
    "seed": 0,
}
SECTIONS = {"data": ("size", "color"), "engine": ("devices", "nodes", "precision"), "training": ("updates",)}
"""The options that set a value in a section of the configuration."""
LARGE_BATCH = 10_000
"""A batch may be larger than a small data set, but not larger than this."""


def run_train(options: Train) -> int:
    """Train one network, or continue a run."""
    data = None
    if options.resume is not None:
        path, result = resume(options.resume, options)
    else:
        if options.name is not None:
            check_name(options.name)
        values = values_of(options)
        if options.from_ is not None:
            values = started_from(options.from_, values)
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
            f"{result['dataset']}, {result['updates']:,} updates in {duration(result['seconds'])})\nwritten to {path}",
            flush=True,
        )
        run = RunDirectory.open(path)
        wanted = is_own(run.config.dataset) if options.baseline is None else options.baseline
        if options.resume is not None:
            run = whole_run(run)
        if wanted and (answer := answer_of_run(run, data, not options.quiet)):
            print(answer.text)
        elif options.baseline:
            print(f"{path} has no second run for --baseline: {why_unanswered(run)}", file=sys.stderr)
    return 0


def check_name(name: str) -> None:
    """Raise an error if this cannot be the name of a folder in ``runs/``."""
    if name in DATASETS or {*name.split("+")} <= {"dropout", *METHODS}:
        option = "--dataset" if name in DATASETS else "--method"
        raise ValueError(f"{name} would be the name of the run; did you mean {option} {name}?")
    if not re.fullmatch(r"\w([\w .+-]*[\w.+-])?", name):
        raise ValueError(
            f"{name!r} is not a name for a run: begin with a letter, a digit or '_', and go on with these, '-', '+', "
            "'.' or spaces; use --out for a path"
        )


def resume(path: Path, options: Train) -> tuple[Path, dict[str, Any]]:
    """Continue a run with the configuration that it was started with, or extend it. Return its path and its result."""
    given = [field.name for field in fields(options) if getattr(options, field.name) != field.default.default]  # type: ignore[union-attr]
    if ignored := sorted({*given} - {"resume", "updates", "quiet", "data_dir", "baseline"}):
        names = ", ".join(f"--{name.replace('_', '-').strip('-')}" for name in ignored)
        raise ValueError(f"--resume uses the configuration of the run; leave out {names}")
    run = RunDirectory.open(path)
    config = run.config
    if options.data_dir is not None:
        config = config.model_copy(update={"data_dir": options.data_dir})
    # An extended run takes the place of the old one, so that a relative path such as "." may be of neither.
    return run.path, train(config, run.path, resume=True, updates=options.updates, progress=not options.quiet)


def started_from(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with the network of a finished run, and with its size and color for pictures, unless given."""
    run, start = RunDirectory.open(path), start_of(path)
    network, shape = run.config.network, run.result["shape"]
    wanted = values.get("network")
    if isinstance(wanted, Mapping) and wanted.get("name", network.name) != network.name:
        raise ConfigError(f"{path} has the network {network.name}, so --from cannot start {wanted['name']} with it")
    taken: dict[str, Any] = {"network": network.model_dump(), "start": start.model_dump()}
    if of_pictures(values["dataset"]) and len(shape) == 3:
        taken["data"] = {"size": shape[1:], "color": "gray" if shape[0] == 1 else "rgb"}
    return merged(taken, values)


def values_of(options: Recipe) -> dict[str, Any]:
    """Return the nested values of the file, the options and ``--set``; later ones win over earlier ones."""
    file = expanded(read_yaml(options.config, "configuration")) if options.config is not None else {}
    sections = {section: found for section, names in SECTIONS.items() if (found := _given(options, names))}
    values = merged(DEFAULTS, file, _given(options, DEFAULTS), sections, overrides(options.set))
    for key in ("dataset", "method", "preset", "data_dir", "unlabeled"):
        if not isinstance(values[key], str | type(DEFAULTS[key]) | Path):
            raise ConfigError(f"{key} must be a text, got {reprlib.repr(values[key])}")
    return values


def _given(options: Recipe, names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(options, name, None)) is not None}


def how_to_read(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the size and the color that pictures are to have, None where nothing is asked for."""
    section = values.get("data")
    how = {key: section[key] for key in ("size", "color") if key in section} if isinstance(section, Mapping) else {}
    try:
        return Data.model_validate(how).model_dump(include={"size", "color"})
    except ValidationError as error:
        raise ConfigError(f"data.{explain(error)}") from None


def dataset_of(values: Mapping[str, Any], options: Recipe | Reproduce) -> DataSet:
    """Load the data set and print the notes about it. A dry run downloads nothing."""
    data = load(
        values["dataset"],
        values["data_dir"],
        **how_to_read(values),
        unlabeled=values["unlabeled"],
        download=not options.dry_run,
        progress=not options.quiet,
    )
    for note in (*data.notes, *([data.classes_in_words] if is_own(values["dataset"]) else [])):
        print(note, file=sys.stderr)
    return data


def config_of(values: Mapping[str, Any], data: DataSet) -> RunConfig:
    """Return the whole configuration of one run."""
    given = {key: values[key] for key in DEFAULTS}
    if given["dataset"] not in DATASETS:
        given["dataset"] = str(Path(given["dataset"]).expanduser().absolute())
    for key in ("data_dir", "unlabeled"):
        if given[key] is not None:
            given[key] = Path(given[key]).expanduser().absolute()
    settings = {key: value for key, value in values.items() if key not in DEFAULTS}
    config = recipe(data, **given, settings=settings)
    most = max(len(data.train), LARGE_BATCH)
    for stream in ("labeled", "unlabeled"):
        if (size := getattr(config.training, stream)) > most:
            raise ConfigError(
                f"training.{stream}={size} is too large for {len(data.train):,} examples; use up to {most}"
            )
    return config
