"""The rows of a data set for a trainer: which ones have a label, and which ones come next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from advdrop.randomness import derived_seed

UNLABELED = -100
"""The label of a row without one, as in ``torch.nn.functional.cross_entropy``."""


class LabelMissing:
    """A data collator that gives rows without a label the label -100, and then calls another collator.

    Args:
        collate: the other collator.
        names: the names that a column of labels may have; the first is that of a batch without any label.

    >>> LabelMissing(list, ("labels",))([{"x": 1, "labels": 3}, {"x": 2}])
    [{'x': 1, 'labels': 3}, {'x': 2, 'labels': -100}]
    """

    def __init__(self, collate: Callable[[list[Any]], Any], names: tuple[str, ...]) -> None:
        self.collate, self.names = collate, names

    def __call__(self, rows: list[Any]) -> Any:
        """Return the batch."""
        if not rows or not all(isinstance(row, Mapping) for row in rows):
            return self.collate(rows)
        rows = [{key: item for key, item in row.items() if key not in self.names or item is not None} for row in rows]
        name = next((name for name in self.names if any(name in row for row in rows)), None)
        if name is None:
            return self._without_labels(rows)
        known: Mapping[str, Any] = next(row for row in rows if name in row)
        return self.collate([row if name in row else {**row, name: _no_label(row, known, name)} for row in rows])

    def _without_labels(self, rows: list[Any]) -> Any:
        """Return a batch in which no row has a label, so that the form of a label is not known."""
        try:
            batch = self.collate(rows)
        except KeyError:  # a collator that needs the column
            return self.collate([{**row, self.names[0]: UNLABELED} for row in rows])
        batch[self.names[0]] = torch.full((len(rows),), UNLABELED)
        return batch


def _no_label(row: Mapping[str, Any], known: Mapping[str, Any], name: str) -> Any:
    """Return -100 in the form of another row's label: for the row, for each class, each token or each pixel."""
    label = torch.as_tensor(known[name])
    of_tokens = label.dim() > 0 and not label.is_floating_point() and len(label) == len(known.get("input_ids", ()))
    shape = (len(row["input_ids"]), *label.shape[1:]) if of_tokens else label.shape
    missing = torch.full(shape, UNLABELED, dtype=label.dtype if label.is_floating_point() else torch.long)  # not uint8
    return missing if isinstance(known[name], Tensor) else missing.tolist()


def shuffled(rows: int, first: int, count: int, seed: int) -> list[int]:
    """Return some entries of an endless list: all rows in a random order, then all in another order, and so on.

    >>> sorted(shuffled(rows=5, first=5, count=5, seed=0))
    [0, 1, 2, 3, 4]
    """
    chosen: list[int] = []
    while len(chosen) < count:
        turn, place = divmod(first + len(chosen), rows)
        generator = torch.Generator().manual_seed(derived_seed(seed, "unlabeled", turn))
        chosen += torch.randperm(rows, generator=generator)[place : place + count - len(chosen)].tolist()
    return chosen


def has_rows(data: Any) -> bool:
    """Return True if a data set has rows by their number."""
    return hasattr(data, "__getitem__") and not isinstance(data, IterableDataset)


def some_rows(inputs: Mapping[str, Any], chosen: Tensor) -> dict[str, Any]:
    """Return some of the rows of each tensor and of each list; a tensor of one row belongs to all rows."""
    rows, found = len(chosen), dict(inputs)
    for key, value in inputs.items():
        if not isinstance(value, Tensor | list) or (isinstance(value, Tensor) and value.dim() == 0):
            continue
        if len(value) not in (1, rows):
            shown = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{len(value)} items"
            raise ValueError(
                f"a batch of {rows} rows, some without a label, cannot be divided: its input {key} has {shown}; put "
                "the rows without a label into unlabeled_dataset"
            )
        if len(value) == rows:
            found[key] = value[chosen] if isinstance(value, Tensor) else [value[row] for row in chosen.nonzero()]
    return found
