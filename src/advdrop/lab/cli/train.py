"""``advdrop train``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from advdrop.lab.cli.options import Train
from advdrop.lab.cli.prepare import config_of, dataset_of, run_name
from advdrop.lab.config.terms import HELP
from advdrop.lab.data.sources import SOURCES
from advdrop.lab.engine.estimate import estimate
from advdrop.lab.engine.progress import duration
from advdrop.lab.engine.run import split_of, train
from advdrop.lab.engine.rundir import RunDirectory


def run(options: Train) -> int:
    """Train one network."""
    if options.resume is not None:
        result = resume(options)
        path = options.resume
    else:
        if options.name in (*SOURCES, *HELP):
            kind = "--dataset" if options.name in SOURCES else "--method"
            raise ValueError(f"{options.name} would be the name of the run; did you mean {kind} {options.name}?")
        data = dataset_of(options, download=not options.dry_run)
        config = config_of(options, data, options.method, options.seed)
        path = options.out or Path("runs") / (options.name or run_name(config))
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


def resume(options: Train) -> dict[str, Any]:
    """Go on with a run, with the configuration it was started with."""
    assert options.resume is not None
    ignored = sorted(options.model_fields_set - {"resume", "debug", "quiet", "data_dir"})
    if ignored:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in ignored)
        raise ValueError(f"--resume goes on with the configuration of the run; leave out {names}")
    config = RunDirectory.open(options.resume).config
    if options.data_dir is not None:
        config = config.model_copy(update={"data_dir": options.data_dir})
    return train(config, options.resume, resume=True, progress=not options.quiet)
