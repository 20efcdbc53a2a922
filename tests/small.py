"""Small networks and batches that the tests of all objectives share."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from advdrop import AdversarialDropout, Batch, Split

CLASSES, FEATURES, HIDDEN = 3, 6, 10


class Opaque(nn.Module):
    """A network that no tracer can cut: it looks at the values of its input."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) if x.abs().sum() >= 0 else x


class Residual(nn.Module):
    """A network whose layer sits inside its own forward, beside a skip connection and a parameter of its own."""

    def __init__(self, p: float) -> None:
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


def noisy(p: float = 0.5, norm: bool = True) -> Split:
    """Dropout below and above the layer, and batch norm if wanted."""
    lower = [nn.BatchNorm1d(16)] if norm else []
    upper = [nn.BatchNorm1d(8)] if norm else []
    return Split(
        nn.Sequential(
            nn.Linear(FEATURES, 16, bias=not norm), *lower, nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, HIDDEN), nn.Tanh()
        ),
        nn.Sequential(
            AdversarialDropout(p, delta=0.3),
            nn.Linear(HIDDEN, 8, bias=not norm),
            *upper,
            nn.Tanh(),
            nn.Dropout(0.2),
            nn.Linear(8, CLASSES),
        ),
    )


def quiet(p: float = 0.0, delta: float = 0.3) -> Split:
    """No noise but the layer's: whatever is random comes from the objective."""
    return Split(
        nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh()),
        nn.Sequential(AdversarialDropout(p, delta), nn.Linear(HIDDEN, 8), nn.Tanh(), nn.Linear(8, CLASSES)),
    )


def batch(labelled: int = 8, unlabelled: int = 16, dtype: torch.dtype = torch.float32) -> Batch:
    draw = torch.Generator().manual_seed(5)
    x, u, step = (
        torch.randn(rows, FEATURES, generator=draw, dtype=dtype) for rows in (labelled, unlabelled, unlabelled)
    )
    y = torch.randint(CLASSES, (labelled,), generator=draw)
    return Batch(x, y, u, v=u + 0.3 * step, index=torch.arange(unlabelled))


def half(whole: Batch, part: int) -> Batch:
    def rows(tensor: Tensor) -> Tensor:
        return tensor.chunk(2)[part]

    return Batch(*(rows(t) for t in (whole.x, whole.y, whole.u, whole.v, whole.index)))


def moved(rows: Batch, turn: int) -> Batch:
    """The same rows, augmented anew each turn: a memory of the last turn then differs from what is seen now."""
    return replace(rows, u=rows.u + 0.5 * turn, v=rows.v - 0.5 * turn)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True))
