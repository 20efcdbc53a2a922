"""Small data sets and configurations that the tests of the engine and of the command line share."""

from __future__ import annotations

import torch

from advdrop.lab.config.config import RunConfig
from advdrop.lab.config.recipes import resolve
from advdrop.lab.config.values import merged, overrides
from advdrop.lab.data import DataSet, Examples

CLASSES = ("a", "b", "c")


def rings(train: int = 60, test: int = 30, features: int = 6) -> DataSet:
    """Three classes of float features: easy, and the same every time."""
    draw = torch.Generator().manual_seed(7)
    centers = 2.0 * torch.randn(len(CLASSES), features, generator=draw)

    def part(size: int) -> Examples:
        y = torch.arange(size) % len(CLASSES)
        return Examples(centers[y] + torch.randn(size, features, generator=draw), y)

    return DataSet("rings", part(train), part(test), CLASSES)


def pictures(count: int = 60, shape: tuple[int, ...] = (1, 8, 8)) -> DataSet:
    """Random pictures of three classes."""
    draw = torch.Generator().manual_seed(3)
    y = torch.arange(count) % 3
    x = torch.randint(256, (count, *shape), generator=draw, dtype=torch.uint8)
    examples = Examples(x, y)
    return DataSet("pictures", examples, examples, CLASSES)


def tiny(
    *settings: str,
    data: DataSet | None = None,
    method: str = "vadd-kl",
    labels: int | str = 12,
    preset: str = "paper",
) -> RunConfig:
    """A run of a second: twelve updates in three epochs of a small network, with whatever is set."""
    data = data or rings()
    base = {
        "network": {"name": "mlp", "hidden": (16, 12), "dropout": 0.2, "delta": 0.25},
        "training": {"updates": 12, "epoch_updates": 4, "labeled": 4, "unlabeled": 8, "measure_every": 3},
        "engine": {"checkpoint_seconds": 0.0, "accelerator": "cpu"},
    }
    given = overrides(settings)
    if given.get("network", {}).get("name", "mlp") != "mlp":
        del base["network"]
    return resolve(
        "rings",
        shape=data.shape,
        examples=len(data.train),
        labels=labels,
        method=method,
        preset=preset,
        settings=merged(base, given),
    )


def squares(train: int = 60, test: int = 30, channels: int = 3, size: int = 8) -> DataSet:
    """Images of three classes, the bright half of each being left, right or nowhere, with noise."""
    draw = torch.Generator().manual_seed(3)

    def part(count: int) -> Examples:
        y = torch.arange(count) % len(CLASSES)
        x = torch.randint(0, 100, (count, channels, size, size), generator=draw)
        x[y == 0, :, :, : size // 2] += 120
        x[y == 1, :, :, size // 2 :] += 120
        return Examples(x.byte(), y)

    return DataSet("squares", part(train), part(test), CLASSES)
