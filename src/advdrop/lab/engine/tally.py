"""What happened since the last look, added up on the device: no step waits for a number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from advdrop.step.step import Loss


class Tally:
    """Means of the losses and the measures of an epoch, and the first update at which a term was not finite."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._bad: Tensor | None = None
        self.weights: dict[str, float] = {}

    def add(self, update: int, loss: Loss) -> None:
        """Take in the loss of one step."""
        self.weights = loss.weights
        terms = {f"train/{name}": value for name, value in {"loss": loss.loss.detach(), **loss.terms}.items()}
        for name, value in {**terms, **{f"search/{key}": m for key, m in loss.measures.items()}}.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value.clone()
            self._counts[name] = self._counts.get(name, 0) + 1
        # A term of weight 0 did not run.
        finite = torch.stack([loss.terms.get(name, loss.loss.new_zeros(())).isfinite() for name in loss.weights])
        bad = torch.full_like(finite, -1, dtype=torch.int64) if self._bad is None else self._bad
        self._bad = torch.where(finite | (bad >= 0), bad, update)

    def blown_up(self) -> tuple[int, str] | None:
        """The first update and term that were not finite, if any. Waits for the device."""
        if self._bad is None:
            return None
        first = {name: update for name, update in zip(self.weights, self._bad.tolist(), strict=True) if update >= 0}
        return min((update, name) for name, update in first.items()) if first else None

    def means(self) -> dict[str, Tensor]:
        """The means so far, on the device."""
        return {name: total / self._counts[name] for name, total in self._sums.items()}

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training needs."""
        return {"sums": self._sums, "counts": self._counts, "bad": self._bad, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state that ``state_dict`` gave."""
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])
        self._bad, self.weights = state["bad"], dict(state["weights"])
