"""Checks of a configuration with its data, its network and this machine, before anything is written."""

from __future__ import annotations

import psutil  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn

from advdrop.lab.config.config import RunConfig
from advdrop.lab.config.values import ConfigError
from advdrop.lab.data.batches import Batches
from advdrop.lab.data.examples import DataSet
from advdrop.lab.engine.companion import blended
from advdrop.randomness import borrowed_noise
from advdrop.step.batch_norm import PASSES, RunningStatistics, frozen_statistics


def refuse_too_large(config: RunConfig, data: DataSet) -> None:
    """Raise an error if the network cannot be trained in the memory of this machine."""
    with torch.device("meta"):  # takes no memory
        numbers = 4 * sum(p.numel() for p in blended(config, data.shape, len(data.classes)).parameters())
    needed, here = 4 * numbers / 2**30, psutil.virtual_memory().total / 2**30
    if needed > here:
        raise ConfigError(
            f"the network needs {needed:,.0f} GB for its weights, their gradients and the moments of Adam, and this "
            f"machine has {here:,.0f} GB; make it smaller (--set network...)"
        )


def refuse_stale_statistics(config: RunConfig, network: nn.Module) -> None:
    """Raise an error if the network has running statistics for the evaluation, and nothing would ever update them."""
    terms = config.objective.terms.chosen().values()
    made = {*PASSES} if terms or config.objective.entropy else {"labeled"}  # a term may make any pass
    # A companion can turn a term off.
    own = not config.objective.blend and any(term.own_statistics and term.weight for term in terms)
    updated = made.intersection(config.objective.updating) or own
    if not updated and RunningStatistics(network.modules()).layers:
        raise ConfigError(
            f"objective.updating=[{', '.join(config.objective.updating)}] has no pass of the method {config.method}, "
            "so the running statistics of batch norm would stay as they are; add labeled"
        )


def refuse_single_rows(config: RunConfig, network: nn.Module, batches: Batches) -> None:
    """Raise an error if a pass would have one row, and its method or the batch norm of its network needs more."""
    parts = config.engine.devices * config.engine.nodes * config.engine.accumulate
    batch = batches.at(0, 0, parts)
    streams = {"labeled": batch.x} if batch.unlabeled is None else {"labeled": batch.x, "unlabeled": batch.unlabeled}
    several = [name for name, term in config.objective.terms.chosen().items() if term.several_rows]
    for stream, x in streams.items():
        if len(x) > 1:
            continue
        needing = [f"the method {name}" for name in several if stream == [*streams][-1]]
        if needing or _normalizes_rows(network, x):
            raise ConfigError(
                f"training.{stream}={parts}{f' in {parts} parts' if parts > 1 else ''} leaves one row for a pass, and "
                f"{[*needing, 'the batch norm of the network'][0]} needs several; use training.{stream}={2 * parts} or "
                "more"
            )


def _normalizes_rows(network: nn.Module, x: Tensor) -> bool:
    """Return True if the network has a batch norm that cannot be trained with this single row."""
    try:
        with torch.no_grad(), frozen_statistics(network), borrowed_noise(x.device):
            network.to(x.device)(x)
    except ValueError as error:
        if "more than 1 value per channel" in str(error):
            return True
        raise
    return False
