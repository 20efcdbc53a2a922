"""Misuse of the library, for ``chaos.py``: odd networks, objectives, batches, labels, weights and estimators.

A step that reuses the lower part of the network is compared with one that makes full passes: loss, gradients and
buffers must be equal, or both must refuse with the same error. What an estimator predicts must be probabilities.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import advdrop
from advdrop import AT, VAT, AdversarialDropout, CrossEntropy, PiModel, Ramp, SAdD, Step, TemporalEnsembling, VAdD

FEATURES, CLASSES, LABELED, UNLABELED = 6, 3, 8, 10
REFUSALS = (ValueError, TypeError, RuntimeError)
"""How a mistake may be refused, by this library or by torch."""


class Net(nn.Module):
    """A network with two layers, of which one may run twice, and with what people write into ``forward``."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.habits = frozenset(draw.sample(["in place", "stored", "twice", "no grad", "branch", "view"], k=2))
        self.first = nn.Linear(FEATURES, 16)
        self.norm = draw.choice([nn.BatchNorm1d(16), nn.LayerNorm(16), nn.Identity(), nn.Dropout(0.3)])
        delta = draw.choice([0.0, 0.05, 0.2, 1.0])
        self.layer = AdversarialDropout(
            draw.choice([0.0, 0.5, 0.9]), delta, granularity=draw.choice(["unit", "channel"])
        )
        self.second = nn.Linear(16, 16)
        self.last = nn.Linear(16, CLASSES)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        h = self.first(x)
        h = torch.relu_(h) if "in place" in self.habits else torch.tanh(h)
        h = self.norm(h)
        if "no grad" in self.habits:
            with torch.no_grad():
                shift = h.mean(0)
            h = h - shift
        if "stored" in self.habits:
            self.seen = [h]
        if "branch" in self.habits and float(h.detach().abs().sum()) > 1.0:
            h = h * 1.5
        h = self.layer(h)
        h = torch.relu(self.second(h))
        if "twice" in self.habits:
            h = self.layer(h)
        if "view" in self.habits:
            h = h.view(len(h), 4, 4).transpose(1, 2).reshape(len(h), 16)
        out: Tensor = self.last(h)
        return out


def _objective(draw: random.Random) -> Any:
    noise: Any = draw.choice(["shared", "independent"])
    terms: list[Callable[[], Any]] = [
        lambda: VAdD(noise=noise, divergence=draw.choice([advdrop.kl, advdrop.qe, advdrop.reverse_kl])),
        lambda: VAdD(noise=noise, delta=draw.choice([0.0, 0.3, 1.0]), confidence=draw.choice([0.0, 1.0])),
        lambda: VAdD(noise=noise, search=draw.choice([advdrop.Iterated(3), advdrop.Probe(), advdrop.RandomFlips()])),
        lambda: SAdD(noise=noise),
        PiModel,
        lambda: VAT(noise=noise),
        lambda: AT(norm=draw.choice(["linf", "l2"])),
        lambda: TemporalEnsembling(20, CLASSES),
        advdrop.EntropyMinimization,
    ]
    total: Any = CrossEntropy()
    for make in draw.sample(terms, k=draw.randrange(1, 3)):
        weight = draw.choice([1.0, 0.0, 0.5, 1e-9, Ramp(1.0, over=0.3)])
        total = total + weight * make()
    return total


def _batch(draw: random.Random) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(draw.randrange(2**32))
    return {
        "x": torch.randn(LABELED, FEATURES, generator=rng),
        "y": torch.randint(CLASSES, (LABELED,), generator=rng),
        "unlabeled": torch.randn(UNLABELED, FEATURES, generator=rng),
        "index": torch.arange(UNLABELED),
        "progress": 0.5,
    }


def _mistakes(draw: random.Random, net: Net, batch: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """What may go wrong; each changes the network or the batch."""
    row = draw.randrange(LABELED)

    def put(name: str, value: Any) -> None:
        batch[name] = value

    def instead(unlabeled: Tensor) -> None:
        batch.update(unlabeled=unlabeled, index=torch.arange(len(unlabeled)))

    def precision(dtype: torch.dtype) -> None:
        net.to(dtype)
        batch.update({name: batch[name].to(dtype) for name in ("x", "unlabeled")})

    def fill(name: str, value: float) -> None:
        batch[name][row] = value

    def attribute(name: str, value: Any) -> None:
        setattr(net.layer, name, value)

    side = draw.choice(["x", "unlabeled"])
    return {
        "nothing": lambda: None,
        "nan": lambda: fill(side, float("nan")),
        "infinity": lambda: fill(side, float("inf")),
        "zeros": lambda: put(side, torch.zeros_like(batch[side])),
        "one row": lambda: instead(batch["unlabeled"][:1]),
        "no rows": lambda: put(side, batch[side][:0]),
        "other features": lambda: put(side, batch[side][:, :-1]),
        "float64": lambda: put(side, batch[side].double()),
        "integers": lambda: put(side, batch[side].long()),
        "complex": lambda: put(side, batch[side].to(torch.complex64)),
        "not contiguous": lambda: put(side, batch[side].t().contiguous().t()),
        "expanded": lambda: put(side, batch[side][:1].expand(len(batch[side]), -1)),
        "same tensor": lambda: instead(batch["x"]),
        "needs gradient": lambda: batch[side].requires_grad_(),
        "a list": lambda: put(side, batch[side].tolist()),
        "numpy": lambda: put(side, batch[side].numpy()),
        "label -100": lambda: fill("y", -100),
        "label too large": lambda: fill("y", CLASSES),
        "labels float": lambda: put("y", batch["y"].float()),
        "labels one-hot": lambda: put("y", nn.functional.one_hot(batch["y"], CLASSES)),
        "labels int32": lambda: put("y", batch["y"].int()),
        "labels column": lambda: put("y", batch["y"][:, None]),
        "labels short": lambda: put("y", batch["y"][:-1]),
        "labels missing": lambda: batch.pop("y"),
        "index out of range": lambda: put("index", torch.arange(UNLABELED) + 15),
        "index missing": lambda: batch.pop("index"),
        "progress": lambda: put("progress", draw.choice([-0.1, 1.5, float("nan"), "x", True, None])),
        "second view": lambda: put("second_view", batch["unlabeled"] + draw.choice([0.0, 0.1, float("nan")])),
        "second view short": lambda: put("second_view", batch["unlabeled"][:3]),
        "generator": lambda: put("generator", draw.choice([0, "x"])),
        "measure": lambda: put("measure", True),
        "p": lambda: attribute("p", draw.choice([1.0, 2.0, -1.0, float("nan"), "x", None])),
        "delta": lambda: attribute("delta", draw.choice([2.0, -1.0, float("nan"), "x", None])),
        "granularity": lambda: attribute("granularity", draw.choice(["feature", "x", None])),
        "eval mode": net.eval,
        "layer in eval mode": net.layer.eval,
        "half": lambda: precision(torch.float16),
        "bfloat16": lambda: precision(torch.bfloat16),
        "half, batch not": lambda: net.half(),
        "weights of zero": lambda: nn.init.zeros_(net.last.weight),
        "weights of nan": lambda: nn.init.constant_(net.last.weight, float("nan")),
        "frozen": lambda: net.requires_grad_(False),
        "frozen below": lambda: net.first.requires_grad_(False),
        "hook": lambda: net.second.register_forward_hook(lambda *a: a[-1] * 2),
        "hook that returns nothing": lambda: net.layer.register_forward_hook(lambda *_: None),
        "inserted": lambda: advdrop.insert(net, after="second", p=0.3, delta=0.2),
        "more outputs": lambda: setattr(net, "last", nn.Linear(16, CLASSES + 2)),
        "fewer outputs": lambda: setattr(net, "last", nn.Linear(16, 1)),
    }


def _stepped(net: nn.Module, objective: Any, batch: dict[str, Any], reuse: bool, seed: int) -> Any:
    """Do one step, and return the loss, gradients and buffers, or the error."""
    torch.manual_seed(seed)
    try:
        loss = Step(net, objective, reuse=reuse)(**batch).loss
        if loss.requires_grad:
            loss.backward()
    except Exception as error:
        return error
    gradients = [torch.zeros(()) if p.grad is None else p.grad for p in net.parameters()]
    return [loss.detach(), *gradients, *net.buffers()]


def _step_case(draw: random.Random) -> tuple[str, str]:
    net, objective, batch = Net(draw), _objective(draw), _batch(draw)
    mistakes = _mistakes(draw, net, batch)
    name = draw.choice(list(mistakes))
    mistakes[name]()
    seed = draw.randrange(2**31)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    modes = [module.training for module in net.modules()]
    copies = [(copy.deepcopy(net), copy.deepcopy(objective), copy.deepcopy(batch)) for _ in range(2)]
    reused, full = (_stepped(*each, reuse, seed) for each, reuse in zip(copies, (True, False), strict=True))
    what = f"{name}, {sorted(net.habits)}, {[term.name for _, (_, term) in objective.named_parts().items()]}"
    touched = [not all(map(_equal, before, each[0].parameters())) for each in copies]
    if any(touched) or any([module.training for module in each[0].modules()] != modes for each in copies):
        return f"{what}: the network was changed", "wrong"
    if isinstance(reused, Exception) or isinstance(full, Exception):
        return f"{what}: {reused!r:.200} and {full!r:.200}", _refusal(reused, full)
    if not all(map(_equal, reused, full)):
        return f"{what}: {reused[0]} and {full[0]}", "wrong"
    inputs = [given for key in ("x", "unlabeled", "second_view") if isinstance(given := batch.get(key), Tensor)]
    bad = any(not bool(t.isfinite().all()) for t in (*inputs, *before))
    return f"{what}: {reused[0]}", "whole" if bool(reused[0].isfinite()) or bad else "wrong"


def _refusal(reused: Any, full: Any) -> str:
    if type(reused) is not type(full):
        return "wrong"  # one of them works, or fails for another reason
    if not isinstance(reused, REFUSALS):
        return "traceback"
    return "refused" if len(str(reused)) > 20 else "unnamed"


def _equal(one: Tensor, other: Tensor) -> bool:
    """Equal up to rounding: full passes add up the gradients of the lower part in another order."""
    few = torch.finfo(one.dtype).eps * 64 if one.is_floating_point() else 0.0
    return torch.allclose(one, other, rtol=few, atol=few / 10, equal_nan=True)


def _estimator_case(draw: random.Random) -> tuple[str, str]:
    rng = np.random.default_rng(draw.randrange(2**32))
    x = rng.normal(size=(30, 4))
    y: Any = (x[:, 0] > 0).astype(int)
    y[draw.randrange(2, 30) :] = -1
    odd = {
        "nothing": (x, y),
        "nan": (np.where(x > 1.5, np.nan, x), y),
        "infinity": (np.where(x > 1.5, np.inf, x), y),
        "large": (x * draw.choice([1e30, 1e150, 1e300]), y),
        "small": (x * 1e-30, y),
        "constant": (np.zeros_like(x), y),
        "text": (x.astype(str), y),
        "words": (np.full(x.shape, "a"), y),
        "no rows": (x[:0], y[:0]),
        "no columns": (x[:, :0], y),
        "labels short": (x, y[:5]),
        "labels nan": (x, np.where(y < 0, np.nan, y)),
        "labels real": (x, rng.normal(size=30)),
        "labels none": (x, np.full(30, -1)),
        "labels one class": (x, np.minimum(y, 0)),
        "labels two-dimensional": (x, np.stack([y, y], 1)),
        "labels text": (x, np.array(["a", "b", ""])[y]),
    }
    name = draw.choice(list(odd))
    options = {
        draw.choice(["p", "delta", "weight", "members", "batch_size", "updates", "hidden_layer_sizes", "random_state"]):
        draw.choice([0, -1, 0.5, 3, float("nan"), "x", None, (4, 4)])
        for _ in range(draw.randrange(2))
    }  # fmt: skip
    weights = draw.choice([None, None, np.ones(30), -np.ones(30), np.full(30, np.nan), np.ones(3)])
    settings: dict[str, Any] = {"updates": 3, "members": 2, "measure_gain": False, "hidden_layer_sizes": 8, **options}
    what = f"estimator: {name}, {options}, weights {None if weights is None else weights[:1]}"
    try:
        found = advdrop.AdversarialDropoutClassifier(**settings).fit(*odd[name], sample_weight=weights)
        probabilities = found.predict_proba(np.asarray(odd[name][0]))
    except REFUSALS as error:
        return f"{what}: {error!r:.200}", "refused" if len(str(error)) > 20 else "unnamed"
    except Exception as error:
        return f"{what}: {error!r:.200}", "traceback"
    right = np.isfinite(probabilities).all() and np.allclose(probabilities.sum(1), 1)
    return f"{what}: {probabilities[:1]}", "whole" if right else "wrong"


def library(draw: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Call the library with mistakes."""
    for _ in range(count):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield (_step_case if draw.random() < 0.75 else _estimator_case)(draw)
