"""From a configuration to a finished run directory, and back."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from advdrop.lab.choices import DATASETS
from advdrop.lab.config.config import RunConfig
from advdrop.lab.config.methods import objective_of
from advdrop.lab.config.terms import Setup
from advdrop.lab.config.values import ConfigError
from advdrop.lab.data.batches import Augment, Batches, LabelSplit, split_labels
from advdrop.lab.data.examples import DataSet, Examples, reading
from advdrop.lab.data.preprocess import Preprocess, fit
from advdrop.lab.data.sources import load
from advdrop.lab.engine.checks import refuse_single_rows, refuse_stale_statistics, refuse_too_large
from advdrop.lab.engine.companion import Blend, Companion, blended, main_network
from advdrop.lab.engine.continuing import extended, load_start
from advdrop.lab.engine.devices import fabric_of, resolve_auto, resumed_config, set_memory_format
from advdrop.lab.engine.evaluate import error_percent, outputs
from advdrop.lab.engine.malloc import keep_freed_memory
from advdrop.lab.engine.model import load as load_model
from advdrop.lab.engine.model import write_model
from advdrop.lab.engine.opponent import sheet
from advdrop.lab.engine.progress import Progress
from advdrop.lab.engine.rundir import BEFORE, DAMAGED, RESTART, RunDirectory, RunError
from advdrop.lab.engine.signals import StoppedError
from advdrop.lab.engine.training import DivergedError, History, Recorder, Training
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
    run = RunDirectory.open(Path(path)) if resume else RunDirectory.at(path)
    if resume and run.finished and updates is None:
        raise RunError(
            f"{run.path} is finished; see it with: advdrop show {run.path}, or extend it with: {run.how_to_resume} "
            f"--updates {2 * config.training.updates}"
        )
    if resume:
        run.refuse_edited()
    config = resumed_config(config, run.config) if resume else resolve_auto(config)
    fabric = fabric_of(config.engine)
    main, show = fabric.is_global_zero, progress and fabric.is_global_zero
    if data is None:
        if resume:
            _refuse_moved(run)
        data = load_data(config, download=not resume, progress=show)
    split, state = (run.split, run.load_checkpoint()) if resume else (split_of(config, data), None)
    longer = False
    if resume:
        _refuse_to_mix(run, config, data)
        if updates is not None and (longer := run.finished or updates != config.training.updates):
            config = extended(run, config, updates, state)
    elif main:
        run.refuse_to_replace(force)
    if config.engine.tensorboard and find_spec("tensorboard") is None:
        raise RunError("engine.tensorboard needs a package that is not installed: pip install tensorboard")
    keep_freed_memory()
    # All errors in a configuration are found here, before anything is written.
    with borrowed_noise(torch.device("cpu")):
        preprocess = preprocess_of(config, data, split, show)
        with _enough_memory():
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
        with run.locked() if main else nullcontext(), _resumable(run, fabric.world_size):
            training.start()
            if state:
                with reading(run.checkpoint, RunError, RESTART):
                    training.load_state(state)
            Recorder(training, history, run, shown, evaluate).fit()
            return _finish(training, history, run, data) if main else {}


@contextmanager
def _resumable(run: RunDirectory, processes: int) -> Iterator[None]:
    """Turn what stops a training before its end into an error that says how to resume it."""
    try:
        yield
    except KeyboardInterrupt:
        raise StoppedError(f"stopped; resume with: {run.how_to_resume}") from None
    except OSError as error:  # a full disk or a lost folder is not a wrong argument
        raise RuntimeError(f"{error}; solve this, then resume with: {run.how_to_resume}") from error
    except RuntimeError as error:
        if missing := memory_in(error):
            raise RuntimeError(f"{missing}; make room, then resume with: {run.how_to_resume}") from error
        if processes == 1 or isinstance(error, DivergedError | StoppedError):
            raise
        raise RuntimeError(f"{_of_another_process(error)}; resume with: {run.how_to_resume}") from None


@contextmanager
def _enough_memory() -> Iterator[None]:
    """Turn torch's error about memory, which names no setting, into one that says what to do."""
    try:
        yield
    except RuntimeError as error:
        if missing := memory_in(error):
            advice = "--set network..., --set training.unlabeled=... or the options of the method"
            raise ConfigError(f"{missing}; make the network, the batches or the method smaller ({advice})") from None
        raise


def memory_in(error: RuntimeError) -> str:
    """Return in words how much memory torch could not get; empty if the error is about something else.

    >>> memory_in(RuntimeError("can't allocate memory: you tried to allocate 3200000000000 bytes. Error code 12"))
    'not enough memory: 3200.0 GB were needed at once'
    """
    found = re.search(r"tried to allocate ([\d.]+) ?(bytes|[KMGT]iB)", str(error), flags=re.IGNORECASE)
    if found is None:
        return ""
    units = {"bytes": 1e-9, "kib": 2**10 / 1e9, "mib": 2**20 / 1e9, "gib": 2**30 / 1e9, "tib": 2**40 / 1e9}
    return f"not enough memory: {float(found[1]) * units[found[2].lower()]:.1f} GB were needed at once"


def _of_another_process(error: RuntimeError) -> str:
    """Return what stopped one of several processes; gloo says in a long text that the connection to another is lost."""
    reason = str(error).split("\n")[0]
    if lost := re.match(r"\[.*gloo.*?\] (?:.*?: )?(.+?)(?:\. |$)", reason):
        return f"another process of this run has died or does not answer ({lost[1]}); what it printed says why"
    return f"a process stopped ({reason})"


def load_data(config: RunConfig, data_dir: Path | None = None, dataset: str | None = None, **options: bool) -> DataSet:
    """Load the data of a run as it was configured, or from another place; ``options`` are those of ``load``."""
    how = {"size": config.data.size, "color": config.data.color, "unlabeled": config.unlabeled}
    return load(dataset or config.dataset, data_dir or config.data_dir, **how, **options)  # type: ignore[arg-type]


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
    batches = Batches(data.train, split, *sizes, preprocess, augment, config.seed, fabric.device, views)
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
    with borrowed_noise(torch.device("cpu")), _enough_memory():
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
    if options.zca and progress:
        said = f"whitening {len(data.train):,} images (half a minute for CIFAR-10; kept for the next run) ..."
        print(said, file=sys.stderr, flush=True)
    scaling = options.scaling if images.dtype == torch.uint8 else "none"
    zca, regularizer = options.zca, options.zca_regularizer
    return fit(images, scaling=scaling, standardize=options.standardize, zca=zca, regularizer=regularizer)


def trained(
    path: Path, data_dir: Path | None = None, dataset: str | None = None
) -> tuple[nn.Module, DataSet, Preprocess]:
    """Return the network of a finished run, the data that it was trained on, and their preprocessing.

    ``data_dir`` and ``dataset`` are needed if the data are not where they were.
    """
    run = RunDirectory.open(path)
    config, model = run.config, load_model(path)
    if dataset is None:
        _refuse_moved(run)
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


def _refuse_moved(run: RunDirectory) -> None:
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


def _refuse_to_mix(run: RunDirectory, config: RunConfig, data: DataSet) -> None:
    if different := run.config.differences(config):
        raise RunError(f"{run.path} was started with another {', '.join(different)}; resume it as it was")
    refuse_other_data(run, data)
