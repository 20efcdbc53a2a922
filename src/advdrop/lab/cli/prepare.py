"""From what was typed to a resolved configuration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from advdrop.lab.cli.options import Recipe
from advdrop.lab.config.config import ConfigError, RunConfig, merged, overrides
from advdrop.lab.config.recipes import recipe as recipe_of
from advdrop.lab.data.examples import DataSet
from advdrop.lab.data.sources import SOURCES, load


def dataset_of(recipe: Recipe, download: bool = True) -> DataSet:
    """The data set that was asked for."""
    return load(recipe.dataset, recipe.data_dir, download=download, progress=not recipe.quiet)


def config_of(recipe: Recipe, data: DataSet, method: str, seed: int) -> RunConfig:
    """The whole configuration of one run."""
    settings = overrides(joined(recipe.set))
    if recipe.updates is not None and "updates" in (settings.get("training") or {}):
        raise ConfigError("--updates and --set training.updates are the same; give one of them")
    machine = {"devices": recipe.devices, "nodes": recipe.nodes, "precision": recipe.precision}
    engine: dict[str, Any] = {"engine": {key: value for key, value in machine.items() if value is not None}}
    named = recipe.dataset in SOURCES
    return recipe_of(
        data,
        recipe.dataset if named else str(Path(recipe.dataset).expanduser().absolute()),
        labels=recipe.labels,
        method=method,
        preset=recipe.preset,
        seed=seed,
        updates=recipe.updates,
        data_dir=recipe.data_dir.absolute() if recipe.data_dir is not None else None,
        settings=merged(engine, settings),
    )


def joined(pieces: list[str]) -> list[str]:
    """``KEY=VALUE`` texts as they were typed: the parser takes every comma for the end of one.

    >>> joined(["network.hidden=[64", "32]", "network.delta=0.1"])
    ['network.hidden=[64,32]', 'network.delta=0.1']
    """
    whole: list[str] = []
    for piece in pieces:
        if whole and not re.match(r"[\w.+-]+=", piece):
            whole[-1] += f",{piece}"
        else:
            whole.append(piece)
    return whole


def run_name(config: RunConfig) -> str:
    """A name that tells runs apart, such as ``mnist5k-100-vadd-kl-0``."""
    return f"{Path(config.dataset).stem}-{config.labels}-{config.method}-{config.seed}"
