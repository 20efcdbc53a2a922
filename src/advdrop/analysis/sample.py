"""The examples of an audit: batches, or a random sample with the same number of each class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from advdrop import checks
from advdrop.step.inputs import Inputs

BATCH = 100
"""The number of rows of a batch, if the data are a pair of tensors."""

Batches = Iterable[tuple[Inputs, Tensor]]
Data = Batches | tuple[Inputs, Tensor]


def balanced(y: Tensor, count: int, seed: int = 0) -> list[int]:
    """Return the positions of a random sample, in order, with equal numbers of all classes as far as there are enough.

    Args:
        y: labels, ``(N,)``.
        count: how many; all if there are fewer.
        seed: of the choice.

    >>> y = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 2])
    >>> y[balanced(y, 6)].tolist()
    [0, 0, 0, 1, 1, 2]
    """
    checks.count("examples", count)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    place = torch.empty_like(order)  # of each row among those of its class
    for label in y.unique():
        rows = (y[order.to(y.device)] == label).nonzero()[:, 0].cpu()
        place[rows] = torch.arange(len(rows))
    return sorted(order[place.argsort(stable=True)][:count].tolist())


def batches_of(data: Data) -> Batches:
    """Return batches of inputs and labels, from such batches or from a pair of all inputs and all labels."""
    if isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[1], Tensor):
        return _split(data[0], data[1])
    return map(_pair, data)


def _pair(batch: Any) -> tuple[Inputs, Tensor]:
    """Return a batch, or raise an error if it is not a pair."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        shown = f"{len(batch)} items" if isinstance(batch, tuple | list) else f"a {type(batch).__name__}"
        raise TypeError(
            f"a batch must be a pair of inputs and labels, got {shown}; the data are such batches, [(x, y), ...], or "
            "one pair of all inputs and a tensor of all labels, (x, y)"
        )
    return batch[0], batch[1]


def _split(x: Inputs, y: Tensor) -> Iterator[tuple[Inputs, Tensor]]:
    for start in range(0, len(y), BATCH):
        places = torch.arange(start, min(start + BATCH, len(y)), device=y.device)
        yield rows_of(x, places, len(y)), y[places]


def sampled(batches: Batches, count: int, seed: int) -> tuple[list[tuple[Inputs, Tensor]], list[int]]:
    """Return a class-balanced sample of the rows of some batches, and the positions of these rows."""
    kept = list(batches)
    if not kept:
        return [], []
    chosen = balanced(torch.cat([y.cpu() for _, y in kept]), count, seed)
    found, start, wanted = [], 0, torch.tensor(chosen)
    for x, y in kept:
        places = wanted[(wanted >= start) & (wanted < start + len(y))] - start
        if len(places):
            found.append((rows_of(x, places.to(y.device), len(y)), y[places.to(y.device)]))
        start += len(y)
    return found, chosen


def rows_of(inputs: Inputs, places: Tensor | Sequence[int], rows: int) -> Any:
    """Return the same inputs with some of their rows; a tensor belongs to the rows if its first dimension does."""

    def chosen(value: Any) -> Any:
        of_rows = isinstance(value, Tensor) and value.dim() > 0 and len(value) == rows
        return value[torch.as_tensor(places, device=value.device)] if of_rows else value

    return tree_map(chosen, dict(inputs) if isinstance(inputs, Mapping) else inputs)
