"""Continue from a run: extend it to more updates, or start another one with its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from advdrop.lab.config.config import Earlier, RunConfig, Start
from advdrop.lab.config.methods import network_of
from advdrop.lab.data.examples import DataSet
from advdrop.lab.engine.companion import Blend
from advdrop.lab.engine.model import load
from advdrop.lab.engine.rundir import RunDirectory, RunError

Weights = dict[str, Tensor]


def extended(run: RunDirectory, config: RunConfig, updates: int, state: dict[str, Any] | None) -> RunConfig:
    """Return the configuration of a run that is extended to this many updates.

    What is done was done with the schedules of the old length, and stays as it is. From there on, the schedules are
    those of a run of the new length. So the learning rate of a finished run is large again before it falls.

    Args:
        run: the run.
        config: its configuration.
        updates: the new length, larger than the old one.
        state: its checkpoint, if there is one.
    """
    training = config.training
    if updates <= training.updates:
        raise RunError(f"{run.path} has {training.updates:,} updates; to extend it, --updates must be larger")
    if run.finished and state is None:
        raise RunError(f"{run.checkpoint} is missing; start another run with --from {run.path}")
    done = Earlier(until=state["update"], updates=training.updates) if state else None
    longer = {"updates": updates, "earlier": (*training.earlier, *([done] if done else []))}
    return config.model_copy(update={"training": training.model_copy(update=longer)})


def start_of(path: Path) -> Start:
    """Return what the configuration of a run says about the finished run whose weights it starts with."""
    run = RunDirectory.open(path)
    return Start(run=path.absolute(), sha256=run.result["sha256"][run.model.name])


def load_start(network: nn.Module, config: RunConfig, data: DataSet) -> str:
    """Load the weights of the run that a training starts with, and return in one line what was taken.

    The classifier is new if the classes are others. If the data are the same, a companion is new: it must not have seen
    the labels that are held out to measure its skill.

    Args:
        network: the network, or a blend of it and its companion; it is changed.
        config: its configuration, which names the run.
        data: what it will be trained on.
    """
    assert config.start is not None
    run = RunDirectory.open(config.start.run)
    if run.result["sha256"].get(run.model.name) != config.start.sha256:
        raise RunError(f"{run.path} has other weights than those that this run starts with; put them back")
    old, model = run.config, load(run.path)
    if old.network.name != config.network.name:
        raise RunError(
            f"{run.path} has the network {old.network.name}, not {config.network.name}; --from needs the same network"
        )
    head = set() if model.classes == data.classes else names_of_head(config, data)
    same_data = old.dataset == config.dataset or run.result["dataset_checksum"] == data.checksum
    weights = model.network.state_dict()
    found = _parts(weights) if old.objective.blend else {"main": weights}
    mine = {"main": network.main, "companion": network.companion} if isinstance(network, Blend) else {"main": network}
    taken = [part for part in mine if part in found and not (part == "companion" and same_data)]
    for part in taken:
        _copy(run, found[part], mine[part], head)
    said = [f"starts with the weights of {run.path}"]
    said += [f"the last layer is new, for {len(data.classes)} classes"] if head else []
    said += ["the companion is new"] if "companion" in mine and "companion" not in taken else []
    if old.dataset == config.dataset and run.result["dataset_checksum"] != data.checksum:
        said += ["the data have changed since then: what is for testing now may have been for training"]
    return "; ".join(said)


def names_of_head(config: RunConfig, data: DataSet) -> set[str]:
    """Return the names of the tensors whose shapes depend on the number of classes."""
    with torch.device("meta"):  # takes no memory
        one, more = (network_of(config, data.shape, len(data.classes) + extra).state_dict() for extra in (0, 1))
    return {name for name in one if one[name].shape != more[name].shape}


def _parts(weights: Weights) -> dict[str, Weights]:
    parts: dict[str, Weights] = {"main": {}, "companion": {}}
    for name, tensor in weights.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = tensor
    return parts


def _copy(run: RunDirectory, weights: Weights, network: nn.Module, head: set[str]) -> None:
    """Copy all weights but those of the head, or raise an error about the first that does not fit."""
    mine = network.state_dict()
    for name in sorted((mine.keys() | weights.keys()) - head):
        there, here = (tuple(some[name].shape) if name in some else "not there" for some in (weights, mine))
        if there != here:
            shape = run.result["shape"]
            raise RunError(
                f"{run.path} has a network for examples of shape {tuple(shape)}, whose {name} is {there}, here it is "
                f"{here}; --from needs the same settings of the network and examples of the same size"
            )
    with torch.no_grad():
        for name in mine.keys() - head:
            mine[name].copy_(weights[name])
