"""From a configuration to a finished run directory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from advdrop.lab.config.config import RunConfig
from advdrop.lab.config.methods import objective_of
from advdrop.lab.config.terms import Setup
from advdrop.lab.data.batches import Augment, Batches, LabelSplit, split_labels
from advdrop.lab.data.examples import DataSet, Examples, reading
from advdrop.lab.data.preprocess import Preprocess, fit
from advdrop.lab.engine.checks import refuse_single_rows, refuse_stale_statistics, refuse_too_large
from advdrop.lab.engine.companion import Blend, Companion, blended, main_network
from advdrop.lab.engine.continuing import extended, load_start
from advdrop.lab.engine.devices import fabric_of, resolve_auto, resumed_config, set_memory_format
from advdrop.lab.engine.evaluate import error_percent
from advdrop.lab.engine.failures import enough_memory, resumable
from advdrop.lab.engine.finished import load_data, refuse_moved, refuse_other_data
from advdrop.lab.engine.loop import History, Loop
from advdrop.lab.engine.malloc import keep_freed_memory
from advdrop.lab.engine.model import write_model
from advdrop.lab.engine.opponent import sheet
from advdrop.lab.engine.progress import Progress
from advdrop.lab.engine.rundir import BEFORE, RESTART, RunDirectory, RunError
from advdrop.lab.engine.signals import StoppedError
from advdrop.lab.engine.training import Training
from advdrop.lab.environment import commit, machine, versions
from advdrop.lab.files import written
from advdrop.lab.models.ladder import DenoisingCost, ladder_in
from advdrop.randomness import borrowed_noise, derived_seed
from advdrop.schedules import Factor

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def train(
    config: RunConfig,
    path: Path | str,
    *,
    resume: bool = False,
    force: bool = False,
    data: DataSet | None = None,
    progress: bool = True,
    name: str | None = None,
    updates: int | None = None,
    tell: Callable[[int], bool | None] | None = None,
) -> dict[str, Any]:
    """Train to the end and return the content of ``result.json``.

    Args:
        config: the run, see ``advdrop.lab.config.recipes.resolve``.
        path: the run directory.
        resume: continue the run in that directory. A finished one needs ``updates``.
        updates: extend the run that is resumed to this many updates, see ``continuing.extended``.
        force: replace the run in that directory.
        data: the examples, if they are not those that ``config.dataset`` names.
        progress: whether to show the progress.
        name: the name that the progress shows.
        tell: called with the number of updates done, at the start and after each update; True asks to save and stop.
    """
    if resume:
        run = RunDirectory.open(Path(path))
        if run.finished and updates is None:
            raise RunError(
                f"{run.path} is finished; see it with: advdrop show {run.path}, or extend it with: {run.how_to_resume} "
                f"--updates {2 * config.training.updates}"
            )
        run.refuse_edited()
        config = resumed_config(config, run.config)
    else:
        run, config = RunDirectory.at(path), resolve_auto(config)
    fabric = fabric_of(config.engine)
    main, show = fabric.is_global_zero, progress and fabric.is_global_zero
    state, longer = None, False
    if resume:
        if data is None:
            refuse_moved(run)
            data = load_data(config, download=False, progress=show)
        split, state = run.split, run.load_checkpoint()
        _refuse_to_mix(run, config, data)
        if updates is not None and (longer := run.finished or updates != config.training.updates):
            config = extended(run, config, updates, state)
    else:
        data = load_data(config, progress=show) if data is None else data
        split = split_of(config, data)
        if main:
            run.refuse_to_replace(force)
    if config.engine.tensorboard and find_spec("tensorboard") is None:
        raise RunError("engine.tensorboard needs a package that is not installed: pip install tensorboard")
    keep_freed_memory()
    # All errors in a configuration are found here, before anything is written.
    with borrowed_noise(torch.device("cpu")):
        preprocess = preprocess_of(config, data, split, show)
        if show and preprocess.whitening is not None:
            print("whitening the images ...", file=sys.stderr, flush=True)
        with enough_memory():
            training = training_of(config, data, split, preprocess, fabric)
            training.batches.at(0)
        if config.start is not None and state is None:
            said = load_start(training.network, config, data)
            if show:
                print(said, file=sys.stderr, flush=True)
        history = History(**{key: state[key] for key in History.__annotations__}) if state else History()
        origin = {"versions": versions(), "commit": commit(), "machine": machine()}
        history.origins += [origin] if origin not in history.origins[-1:] else []
        if main and not resume:
            run = RunDirectory.create(run.path, config, split, force)
        elif main and longer:
            if show and run.finished:
                said = f"the result of {history.update:,} updates stays in {run.path / BEFORE} until there is a new one"
                print(said, file=sys.stderr, flush=True)
            run.extend(config, state)
        shown = Progress(config.training.updates, history.update, name or run.path.name, show=show, tell=tell)
        evaluate = partial(_errors, training.network, data, split, preprocess)
        with run.locked() if main else nullcontext(), resumable(run, fabric.world_size):
            training.start()
            if state:
                with reading(run.checkpoint, RunError, RESTART):
                    training.load_state(state)
            Loop(training, history, run, shown, evaluate).fit()
            return _finish(training, history, run, data) if main else {}


def training_of(
    config: RunConfig, data: DataSet, split: LabelSplit, preprocess: Preprocess, fabric: Fabric
) -> Training:
    """Return the training of the configured network."""
    refuse_too_large(config, data)
    torch.manual_seed(derived_seed(config.seed, "initialisation"))  # spelled as in the committed records
    network = set_memory_format(blended(config, data.shape, len(data.classes)), config.engine.memory_format)
    refuse_stale_statistics(config, network)
    companion = None
    if isinstance(network, Blend):
        companion = Companion(network, data.train, split, preprocess, config.seed)
    trust = Factor(1.0 if companion is None else 0.0)
    stored = data.train.x.dtype == torch.uint8
    to_input = preprocess.to(fabric.device)
    setup = Setup(main_network(network), len(data.classes), len(data.train), data.shape, stored, to_input)
    objective = objective_of(config, setup, trust)
    if any(isinstance(term, DenoisingCost) for _, term in objective.parts):
        ladder_in(setup.network)  # an error about another network before anything is written
    uses_unlabeled = any(term.rows == "unlabeled" for _, term in objective.parts)
    sizes = (config.training.labeled, config.training.unlabeled if uses_unlabeled else 0)
    views = 2 + max(term.views.count("further") for _, term in objective.parts)
    options = config.data
    augment = Augment(options.pad_crop, options.padding, options.flip, options.noise)
    updates = config.training.updates
    batches = Batches(data.train, split, *sizes, preprocess, augment, config.seed, fabric.device, views, updates)
    refuse_single_rows(config, main_network(network), batches)
    return Training(config, fabric, network, objective, batches, trust, companion)


@dataclass(frozen=True)
class Estimate:
    """The cost of a run on this machine, without the evaluations."""

    parameters: int
    milliseconds_per_update: float
    seconds: float


def estimate(config: RunConfig, data: DataSet) -> Estimate:
    """Time four updates in one process on the CPU, without whitening. The first one warms up and does not count."""
    print(f"timing 4 updates of {config.method} ...", file=sys.stderr, flush=True)
    one = {"accelerator": "cpu", "devices": 1, "nodes": 1}
    config = resolve_auto(config.model_copy(update={"engine": config.engine.model_copy(update=one)}))
    keep_freed_memory()
    with borrowed_noise(torch.device("cpu")), enough_memory():
        preprocess = Preprocess("unit" if data.train.x.dtype == torch.uint8 else "none")
        training = training_of(config, data, split_of(config, data), preprocess, fabric_of(config.engine))
        training.trust.value = 1.0
        training.start()
        times = []
        for _ in range(4):
            start = time.perf_counter()
            training.update(config.training.updates - 1)  # at the end of the training all terms have their weights
            times.append(time.perf_counter() - start)
    each = fmean(times[1:])
    parameters = sum(p.numel() for p in training.network.parameters())
    return Estimate(parameters, 1000 * each, each * config.training.updates)


def _errors(network: nn.Module, data: DataSet, split: LabelSplit, preprocess: Preprocess) -> dict[str, float]:
    held_out = Examples(data.train.x[split.validation], data.train.y[split.validation])
    sets = {"validation/error_percent": held_out, "test/error_percent": data.test}
    return {key: error_percent(network, examples, preprocess) for key, examples in sets.items() if len(examples)}


def _finish(training: Training, history: History, run: RunDirectory, data: DataSet) -> dict[str, Any]:
    """Write the model and then the result: a run that has a result is complete."""
    config, network, updates = training.config, training.network, training.config.training.updates
    if history.update < updates:
        raise StoppedError(f"stopped after update {history.update} of {updates}; resume with: {run.how_to_resume}")
    write_model(run, config, network, training.batches.preprocess, data)
    if training.opponent is not None and (pictures := training.opponent.samples()) is not None:
        with written(run.samples) as file:
            file.write(sheet(pictures))
    errors = {key: value for key, value in history.rows[-1].items() if key.endswith("/error_percent")}
    result = {
        **{key.replace("/", "_"): errors[key] for key in sorted(errors)},
        "method": config.method,
        "dataset": data.name,
        "labels": config.labels,
        "seed": config.seed,
        "preset": config.preset,
        "network": config.network.name,
        "parameters": sum(p.numel() for p in network.parameters()),
        "updates": updates,
        "precision": config.engine.precision,
        "memory_format": config.engine.memory_format,
        "seconds": round(history.seconds, 3),
        "milliseconds_per_update": round(1000 * history.training_seconds / updates, 3),
        "dataset_checksum": data.checksum,
        "shape": list(data.shape),
        "examples": len(data.train),
        "test_images": len(data.test),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **history.origins[-1],
        **({"earlier": history.origins[:-1]} if len(history.origins) > 1 else {}),
    }
    return run.write_result(result)


def split_of(config: RunConfig, data: DataSet) -> LabelSplit:
    """Return which rows are labeled, unlabeled and held out."""
    y, names, options = data.train.y, data.classes, config.data
    split = split_labels(y, config.labels, config.seed, options.validation, options.overlap, len(names), names)
    return replace(split, dataset=data.checksum)


def preprocess_of(config: RunConfig, data: DataSet, split: LabelSplit, progress: bool = False) -> Preprocess:
    """Return the preprocessing, fitted on the training images without those held out."""
    options, images = config.data, data.train.x
    if len(split.validation):
        seen = torch.ones(len(images), dtype=torch.bool)
        seen[split.validation] = False
        images = images[seen]

    def whitens() -> None:
        if progress:
            said = f"fitting the whitening to {len(images):,} images (half a minute for CIFAR-10; then it is kept) ..."
            print(said, file=sys.stderr, flush=True)

    scaling = options.scaling if images.dtype == torch.uint8 else "none"
    return fit(
        images,
        scaling=scaling,
        standardize=options.standardize,
        zca=options.zca,
        regularizer=options.zca_regularizer,
        whitens=whitens,
    )


def _refuse_to_mix(run: RunDirectory, config: RunConfig, data: DataSet) -> None:
    if different := run.config.differences(config):
        raise RunError(f"{run.path} was started with another {', '.join(different)}; resume it as it was")
    refuse_other_data(run, data)
