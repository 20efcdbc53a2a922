"""Small networks and batches that the tests of all objectives share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from advdrop import AdversarialDropout, Step
from advdrop.objectives import Objective, Term
from advdrop.step.batch import Batch
from advdrop.step.passes import Passes
from advdrop.step.step import Loss

CLASSES, FEATURES, HIDDEN = 3, 6, 10

Rows = dict[str, Any]
"""The arguments of a step."""


class Wrapped(nn.Module):
    """A network that is no ``nn.Sequential``, so that a step knows nothing of it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Residual(nn.Module):
    """A network whose layer sits inside its own forward, beside a skip connection and a parameter of its own."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, HIDDEN)
        self.noise = nn.Dropout(0.3)
        self.layer = AdversarialDropout(p, delta=0.3)
        self.last = nn.Linear(HIDDEN, CLASSES)
        self.skip = nn.Linear(HIDDEN, CLASSES)
        self.gain = nn.Parameter(torch.ones(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        h = self.noise(torch.relu(self.first(x)).view(x.size(0), -1))
        return self.gain * self.last(self.layer(h)) + self.skip(h)


def noisy(p: float = 0.5, norm: bool = True) -> nn.Sequential:
    """Dropout below and above the layer, and batch norm if wanted."""
    return nn.Sequential(
        nn.Linear(FEATURES, 16, bias=not norm),
        *([nn.BatchNorm1d(16)] if norm else []),
        nn.Tanh(),
        nn.Dropout(0.3),
        nn.Linear(16, HIDDEN),
        nn.Tanh(),
        AdversarialDropout(p, delta=0.3),
        nn.Linear(HIDDEN, 8, bias=not norm),
        *([nn.BatchNorm1d(8)] if norm else []),
        nn.Tanh(),
        nn.Dropout(0.2),
        nn.Linear(8, CLASSES),
    )


def quiet(p: float = 0.0, delta: float = 0.3) -> nn.Sequential:
    """No noise but the layer's: whatever is random comes from the objective."""
    return nn.Sequential(
        nn.Linear(FEATURES, HIDDEN),
        nn.Tanh(),
        AdversarialDropout(p, delta),
        nn.Linear(HIDDEN, 8),
        nn.Tanh(),
        nn.Linear(8, CLASSES),
    )


def batch(labeled: int = 8, unlabeled: int = 16, dtype: torch.dtype = torch.float32) -> Rows:
    draw = torch.Generator().manual_seed(5)
    sizes = (labeled, unlabeled, unlabeled)
    x, u, step = (torch.randn(rows, FEATURES, generator=draw, dtype=dtype) for rows in sizes)
    y = torch.randint(CLASSES, (labeled,), generator=draw)
    return {"x": x, "y": y, "unlabeled": u, "second_view": u + 0.3 * step, "index": torch.arange(unlabeled)}


def only(rows: Rows, *names: str) -> Rows:
    return {name: rows[name] for name in names}


def half(rows: Rows, part: int) -> Rows:
    return {name: tensor.chunk(2)[part] for name, tensor in rows.items()}


def moved(rows: Rows, turn: int) -> Rows:
    """The same rows, augmented anew each turn: a memory of the last turn then differs from what is seen now."""
    shifted = {"unlabeled": rows["unlabeled"] + 0.5 * turn, "second_view": rows["second_view"] - 0.5 * turn}
    return {**rows, **shifted}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def run(model: nn.Module, objective: Objective, rows: Rows | None = None, seed: int | None = 0, **options: Any) -> Loss:
    """One step, with masks from a generator of this seed; None: as the global generator wants."""
    call = {name: options.pop(name) for name in ("progress", "measure") if name in options}
    rows, generator = batch() if rows is None else rows, None if seed is None else seeded(seed)
    return Step(model, objective, **options)(**rows, **{"progress": 1.0, "generator": generator, **call})


def passes_of(model: nn.Module, *terms: Term, rows: Rows | None = None, seed: int | None = 0, **options: Any) -> Passes:
    """The passes of one step for these terms."""
    given, generator = Batch(**(batch() if rows is None else rows)), None if seed is None else seeded(seed)
    return Step(model, terms[0], **options).passes(given, terms, generator)


def values(model: nn.Module, term: Term, rows: Rows | None = None, seed: int = 0) -> Tensor:
    """What a term gives each example."""
    return term.per_example(passes_of(model, term, rows=rows, seed=seed))


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True))


def close(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-10) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
