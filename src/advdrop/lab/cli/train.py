"""``advdrop train``."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from advdrop.lab.choices import DATASETS
from advdrop.lab.cli.options import Train
from advdrop.lab.cli.prepare import config_of, dataset_of, values_of
from advdrop.lab.config.terms import METHODS
from advdrop.lab.engine.progress import duration
from advdrop.lab.engine.run import estimate, split_of, train
from advdrop.lab.engine.rundir import RunDirectory


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
            split_of(config, data)  # complains about labels that are not there
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
    """Refuse what is not the name of a folder in ``runs/``."""
    if name in (*DATASETS, "dropout", *METHODS):
        option = "--dataset" if name in DATASETS else "--method"
        raise ValueError(f"{name} would be the name of the run; did you mean {option} {name}?")
    if not name or name.startswith(".") or {*name} & {*"/\\"} or not name.isprintable():
        raise ValueError(
            f"{name!r} is not a name for a run: it must not be empty, begin with a dot or contain / or \\; "
            "use --out for a path"
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
