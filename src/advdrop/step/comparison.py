"""D[target, output] of each example, over the places that count."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor

from advdrop import checks
from advdrop.divergences import CLASSES, Divergence, Given, over_places
from advdrop.step.batch import Batch, Rows
from advdrop.step.outputs import Outputs, counting


class Comparison:
    """Compares the outputs of a batch with targets, or with its labels.

    Args:
        batch: the rows.
        outputs: how labels and places are read.
    """

    def __init__(self, batch: Batch, outputs: Outputs) -> None:
        self.batch, self.outputs = batch, outputs

    def __call__(
        self,
        divergence: Divergence,
        target: Tensor,
        logits: Tensor,
        rows: Rows,
        *,
        given: Given = "logits",
        labeled: bool = False,
    ) -> Tensor:
        """Return D[target, output] of each example, ``(B,)``, over the places that count.

        If an example has no place that counts, its value is 0, and the others are scaled up, so that the mean of all
        values is the mean over the examples that count.

        Args:
            divergence: D.
            target: ``(B, C, *D)``, or labels ``(B, *D)``.
            logits: ``(B, C, *D)``.
            rows: the rows that they belong to.
            given: what a floating-point target is.
            labeled: whether only places with a label count.
        """
        return _over_examples(divergence, target, logits, given, self._counting(logits, rows, labeled))

    def labels(self, divergence: Divergence, logits: Tensor, *, given: Given = "probabilities") -> Tensor:
        """Return D[y, output] of each labeled example, ``(B,)``, for labels of any kind.

        They are classes if D is one of ``advdrop.divergences.CLASSES``, and values or yes-or-no answers of the shape of
        the output otherwise.

        Args:
            divergence: D.
            logits: the output, ``(B, C, *D)``.
            given: what floating-point labels are.
        """
        y = self.outputs.classes_second(self.batch.labels())
        own = y.is_floating_point() or y.dtype == torch.bool or y.shape == logits.shape or logits.shape[1] == 1
        if own and inspect.unwrap(divergence) not in CLASSES:
            return self.values(divergence, logits, given=given)
        return self.classes(divergence, logits, given=given)

    def classes(self, divergence: Divergence, logits: Tensor, *, given: Given = "probabilities") -> Tensor:
        """Return D[y, output] of each labeled example, ``(B,)``, for labels that are classes.

        Args:
            divergence: D.
            logits: the output, ``(B, C, *D)``.
            given: what soft labels ``(B, C, *D)`` are.
        """
        y = self.outputs.labels(self.batch.labels())
        if not y.is_floating_point():
            checks.labels_fit(checks.integers(y), logits)
        elif y.shape != logits.shape:
            raise TypeError(
                f"labels must be integers, or probabilities of the shape of the output, {tuple(logits.shape)}; got "
                f"{y.dtype} of shape {tuple(y.shape)}; use y.long() for classes, or SquaredError() for values"
            )
        else:
            y = y.to(torch.promote_types(logits.dtype, torch.float32))
            if given == "probabilities":  # places that do not count have zeros
                where = self._places(logits, "labeled")
                seen = y if where is None else torch.where(where.unsqueeze(1), y, 0.0)
                checks.distributions("soft labels", seen, zeros=where is not None)
        return self(divergence, y, logits, "labeled", given=given, labeled=True)

    def values(self, divergence: Divergence, logits: Tensor, *, given: Given = "logits") -> Tensor:
        """Return D[y, output] of each labeled example, ``(B,)``, for labels of the shape of the output.

        Every single output is a place: those whose label is the ``ignore_index`` do not count.

        Args:
            divergence: D; it is called with one output per row, ``(N, 1)``, if labels may be missing.
            logits: the output, ``(B, C, *D)``.
            given: what the labels are.
        """
        y = self._labels_like(logits)
        target = y.to(torch.promote_types(logits.dtype, torch.float32))
        where, missing = self._places(logits, "labeled"), self.outputs.ignore_index
        if missing is None:
            return _over_examples(divergence, target, logits, given, where)
        has_label = y != missing
        self._warn_if_none(has_label)
        if where is not None:
            has_label = has_label & where.unsqueeze(1)
        target, logits, has_label = target.flatten(1), logits.flatten(1), has_label.flatten(1)
        return _over_examples(divergence, target.unsqueeze(1), logits.unsqueeze(1), given, has_label)

    def _labels_like(self, logits: Tensor) -> Tensor:
        """Return labels that have the shape of the output; for one output, labels ``(B,)`` become ``(B, 1)``."""
        y = self.outputs.classes_second(self.batch.labels())
        y = y[:, None] if logits.dim() == 2 and logits.shape[1] == y.dim() == 1 else y
        if y.shape != logits.shape:
            raise ValueError(
                f"this loss needs labels of the shape of the output, {tuple(logits.shape)}, got {tuple(y.shape)}; for "
                "one class per example, use CrossEntropy()"
            )
        return y

    def _places(self, logits: Tensor, rows: Rows) -> Tensor | None:
        """Return the places that the mask of the inputs has, ``(B, *D)``; None if there is none."""
        where = self.outputs.places(self.batch.inputs(rows)) if logits.dim() > 2 else None
        if where is not None and where.shape != logits.shape[:1] + logits.shape[2:]:
            raise ValueError(
                f"the mask of the places, {tuple(where.shape)}, does not fit the output (B, C, *D), "
                f"{tuple(logits.shape)}; say with Step(..., mask=...) which input has the mask, or mask=None"
            )
        return None if where is None else counting(where)

    def _counting(self, logits: Tensor, rows: Rows, labeled: bool) -> Tensor | None:
        """Return the places that count, ``(B, *D)``; None if all do."""
        rows = self.batch.rows(rows)
        where = self._places(logits, rows)
        if rows == "unlabeled" or not (logits.dim() > 2 or labeled):
            return where
        has_label = self.outputs.labeled(self.batch.labels(), logits)
        if has_label is None:
            return where
        if not labeled:  # an example without any label is unlabeled, and all its places count
            has_label = has_label | ~has_label.flatten(1).any(1).view(-1, *[1] * (has_label.dim() - 1))
        else:
            self._warn_if_none(has_label)
        return has_label if where is None else where & has_label

    def _warn_if_none(self, has_label: Tensor) -> None:
        if checks.due("labels", has_label) and not has_label.any():
            checks.warn_once(
                f"all labels of this batch are ignore_index={self.outputs.ignore_index}: the loss of the labels is 0"
            )


def _over_examples(
    divergence: Divergence, target: Tensor, logits: Tensor, given: Given, where: Tensor | None
) -> Tensor:
    """Return the mean over the places of each example, scaled up if there are examples without a place that counts."""
    value = over_places(divergence, target, logits, given=given, where=where)
    return value if where is None else value * (len(where) / where.reshape(len(where), -1).any(1).sum().clamp_min(1))
