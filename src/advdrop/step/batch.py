"""The rows of one training step: labeled, unlabeled, or both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from advdrop import checks
from advdrop.step.inputs import Inputs, tensors, values

Rows = Literal["labeled", "unlabeled"]
"""Which rows a term runs on. In a step without unlabeled rows, ``"unlabeled"`` terms run on the labeled ones."""


@dataclass(frozen=True)
class Batch:
    """The rows of one training step.

    Inputs are whatever the network takes: a tensor, a tuple of arguments, a dict of keyword arguments (token ids and an
    attention mask), or an object of the network's own type.

    Args:
        x: labeled inputs of B rows.
        y: their labels: integers ``(B,)``, or ``(B, *D)`` for an output with places; or the targets of another loss,
            such as probabilities or values.
        unlabeled: unlabeled inputs of U rows; without them, terms for unlabeled rows run on ``x``.
        second_view: the same rows as ``unlabeled`` (or ``x`` without it), augmented independently.
        index: the positions of those rows in the data set, ``(U,)``; temporal ensembling needs them.
        more_views: more views of the same rows, for terms that compare more than two.

    >>> Batch(torch.zeros(2, 3), torch.tensor([0, 1]), unlabeled=torch.zeros(5, 3)).inputs("unlabeled").shape
    torch.Size([5, 3])
    """

    x: Inputs = None
    y: Tensor | None = None
    unlabeled: Inputs = None
    second_view: Inputs = None
    index: Tensor | None = None
    more_views: Sequence[Inputs] = ()

    def __post_init__(self) -> None:
        if self.x is None and self.unlabeled is None:
            raise ValueError("a step needs labeled inputs x, unlabeled inputs, or both")
        given = [("x", self.x), ("unlabeled", self.unlabeled), ("second_view", self.second_view)]
        for name, inputs in [*given, *(("more_views", view) for view in self.more_views)]:
            for value in values(inputs):
                _check_value(name, value)
            if isinstance(inputs, Tensor):
                checks.examples(name, inputs)
            elif agreed_rows(inputs) == 0:
                raise ValueError(f"{name} must hold at least one example, got none")
        if (self.x is None) != (self.y is None):
            raise ValueError("a step needs labeled inputs x and their labels y together")
        if self.y is not None and (rows := agreed_rows(self.x)) not in (None, checks.label_count(self.y)):
            raise ValueError(
                f"got {rows} labeled rows x and {len(self.y)} labels y; the first dimension of x must be the examples"
            )
        if self.second_view is not None:
            name = "x" if self.unlabeled is None else "unlabeled"
            first = list(tensors(self.inputs("unlabeled")))
            for kind, view in [("second_view", self.second_view), *(("more_views", each) for each in self.more_views)]:
                second = list(tensors(view))
                if len(first) != len(second):
                    raise ValueError(f"{name} has {len(first)} tensors, and its {kind} has {len(second)}")
                for one, other in zip(first, second, strict=True):
                    checks.same_shape(name, one, kind, other)
        elif self.more_views:
            raise ValueError("more_views needs a second_view before them")
        if self.index is not None:
            checks.is_tensor("index", self.index)
            rows = self.count("unlabeled")
            dtype = self.index.dtype
            integers = not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
            if not integers or self.index.dim() != 1 or rows not in (None, len(self.index)):
                raise ValueError(
                    f"index must hold one integer for each of the {rows} unlabeled rows, "
                    f"got {dtype} of shape {tuple(self.index.shape)}"
                )

    def rows(self, rows: Rows) -> Rows:
        """Return the rows that a term for ``rows`` runs on: the labeled ones if the batch has no others."""
        return "labeled" if self.unlabeled is None else rows

    def inputs(self, rows: Rows) -> Inputs:
        """Return the inputs of these rows."""
        inputs = self.x if self.rows(rows) == "labeled" else self.unlabeled
        if inputs is None:
            raise ValueError("this objective needs labeled rows: call the step with x and y")
        return inputs

    def count(self, rows: Rows) -> int | None:
        """Return the number of these rows; None if the tensors of the inputs have several, as those of a graph do."""
        return agreed_rows(self.inputs(rows))

    def second(self, rows: Rows) -> Inputs:
        """Return the second view of these rows, or the first if there is no second."""
        has_second_view = self.rows(rows) == self.rows("unlabeled")
        return self.second_view if has_second_view and self.second_view is not None else self.inputs(rows)

    def further(self, rows: Rows, number: int) -> Inputs:
        """Return one of the views of these rows after the second, or the second if there are fewer."""
        has_views = self.rows(rows) == self.rows("unlabeled") and number < len(self.more_views)
        return self.more_views[number] if has_views else self.second(rows)

    def labels(self) -> Tensor:
        """Return the labels, or raise an error if there are none. Integers become int64.

        In a smaller type, other classes equal a negative ``ignore_index``: the uint8 156 equals -100.
        """
        if self.y is None:
            raise ValueError("this objective needs labels: call the step with x and y")
        kind = self.y.dtype
        return self.y if kind.is_floating_point or kind.is_complex or kind == torch.bool else self.y.long()

    def versions(self) -> list[int]:
        """Return the version of each tensor among the inputs. It is another one after a change in place."""
        return [tensor._version for tensor in tensors([self.x, self.unlabeled, self.second_view, *self.more_views])]

    @contextmanager
    def unchanged(self, who: str) -> Iterator[None]:
        """Raise an error if a network changes an input in place inside the block; ``who`` runs it several times."""
        before = self.versions()
        yield
        if self.versions() != before:
            raise ValueError(
                f"the network changes its input in place, and {who} runs it several times, so each pass would have "
                "another input; change a copy, x = x / 255 instead of x.div_(255)"
            )

    def arguments(self) -> dict[str, Inputs]:
        """Return the fields as keyword arguments of a step."""
        names = ("x", "y", "unlabeled", "second_view", "index", "more_views")
        return {name: getattr(self, name) for name in names}

    @property
    def device(self) -> torch.device:
        """The device of the first tensor that is not on the CPU, where lengths may be; the CPU if there is none."""
        devices = (tensor.device for tensor in tensors((self.x, self.unlabeled, self.y)))
        return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))


def _check_value(name: str, value: object) -> None:
    """Raise an error if an input is not the same in every pass, lets no gradient through, or has no sizes."""
    if isinstance(value, Iterator):
        raise TypeError(
            f"{name} has a {type(value).__name__}, which is used up by the first of the passes of a step; pass its "
            "items as a list"
        )
    if isinstance(value, Tensor):
        checks.ordinary(name, value)
        if value.is_nested and value.layout is torch.strided:
            raise TypeError(f"{name} has a nested tensor without sizes; make it with layout=torch.jagged, or pad it")


def agreed_rows(inputs: Inputs) -> int | None:
    """Return the number of rows that all tensors of some inputs have; None if they differ, as those of a graph do.

    It is also None if there is a list: it may have a tensor for each example, such as a sequence.
    """
    counts = set(_row_counts(inputs))
    return counts.pop() if len(counts) == 1 else None


def _row_counts(inputs: Inputs) -> Iterator[int | None]:
    if isinstance(inputs, PackedSequence):
        yield int(inputs.batch_sizes[0])
    elif isinstance(inputs, Mapping | tuple):
        for value in inputs.values() if isinstance(inputs, Mapping) else inputs:
            yield from _row_counts(value)
    elif isinstance(inputs, Tensor) and inputs.dim() > 0:
        yield len(inputs)
    elif isinstance(inputs, list) and next(tensors(inputs), None) is not None:
        yield None


def row_count(inputs: Inputs) -> int | None:
    """Return the number of rows of some inputs, or None if no tensor is found."""
    first = next((tensor for tensor in tensors(inputs) if tensor.dim() > 0), None)
    return None if first is None else len(first)
