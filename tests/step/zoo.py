"""Networks that write ``forward`` in as many ways as we could think of.

Each says how much of its lower part must be replayed: ``"whole"`` of it, at least ``"half"``, or ``"little"``, which is
right only where more would be wrong.
"""

# ruff: noqa: NPY002 - networks use numpy's legacy generator, too

from __future__ import annotations

import random
import warnings
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, rnn
from torch.utils.checkpoint import checkpoint

from advdrop import AdversarialDropout, insert

ROWS, FEATURES, HIDDEN, CLASSES, LENGTH, WORDS = 6, 6, 10, 3, 5, 11


def numbers(seed):
    return torch.randn(ROWS, FEATURES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def images(seed):
    return torch.randn(ROWS, 2, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(seed):
    return torch.randint(1, WORDS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(seed))


def padded(seed):
    found = tokens(seed)
    found[1, 3:] = found[4, 2:] = 0
    return found


@dataclass
class Kind:
    """A network of the zoo.

    Args:
        build: makes the network.
        replayed: ``"whole"``, ``"half"``, ``"little"``, or ``"any"`` share if it depends on the objective.
        inputs: from a seed to the inputs of a step.
        logits: for the step.
        around: a context for the whole step.
        close: how far gradients may be apart, relative to the largest.
        why: a part of the reason that the warning gives, for ``"little"``.
    """

    build: Any
    replayed: str
    inputs: Any = numbers
    logits: Any = None
    around: Any = nullcontext
    close: float = 1e-12
    why: str = ""


ZOO: dict[str, Kind] = {}


def kind(replayed, name=None, **options):
    def register(build):
        ZOO[name or build.__name__] = Kind(build, replayed, **options)
        return build

    return register


class Net(nn.Module):
    """The usual parts. Most of the zoo replaces ``lower``."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.layer, self.last = AdversarialDropout(0.5, 0.3), nn.Linear(HIDDEN, CLASSES)
        self.build()
        self.double()

    def build(self):
        pass

    def lower(self, x):
        return self.second(self.first(x).tanh()).tanh()

    def upper(self, h):
        return self.last(h)

    def forward(self, x):
        return self.upper(self.layer(self.lower(x)))


kind("whole", "plain")(Net)


# Python in forward.


@kind("whole")
class Branches(Net):
    def lower(self, x):
        h = self.first(x)
        if h.sum().item() > 0.1:
            h = h.tanh()
        while bool(h.abs().max() > 1.5):
            h = h * 0.7
        return self.second(h) if h.mean() > 0 else -self.second(h)


@kind("whole", inputs=lambda seed: {"x": numbers(seed), "shift": numbers(seed + 100)})
class KeywordArguments(Net):
    def forward(self, x, scale=2.0, *, shift=None, **rest):
        assert not rest
        return super().forward(scale * x + shift)


@kind("whole", inputs=lambda seed: (numbers(seed), [numbers(seed + 1), {"deep": numbers(seed + 2)}]))
class NestedInputs(Net):
    def forward(self, x, more):
        return super().forward(x + more[0] * more[1]["deep"])


@kind("whole")
def instance_forward():
    net = Net()
    net.forward = lambda x: net.last(net.layer(net.first(x).sigmoid()))
    return net


@kind("whole")
class Shapes(Net):
    def lower(self, x):
        assert isinstance(x, Tensor)
        assert hasattr(x, "shape") == (type(x) is Tensor)
        rows, width = x.shape
        scale = len(x) * x.size(1) * x.dim() / (x.numel() * width) + sum(x[0].tolist())
        assert (rows, x.dtype, x.device.type, bool(f"{x.mean():.3f}")) == (x.shape[0], torch.float64, "cpu", True)
        return super().lower(x.new_tensor(scale) * x.to(x.dtype))


@kind("whole")
class Iterates(Net):
    def lower(self, x):
        first, *rest = x
        rows = [torch.stack(list(row)) * 2 for row in (first, *rest)]
        return super().lower(torch.stack(rows) + sum(part for part in x.unbind(1))[:, None])


@kind("whole")
class MakesTensors(Net):
    def lower(self, x):
        steps = torch.arange(x.shape[1], dtype=x.dtype, device=x.device)
        mask = torch.zeros(x.shape[0], 1, dtype=torch.bool).logical_not()
        scale = torch.tensor([[1.5], [2.0]], dtype=x.dtype).repeat(3, 1)
        return super().lower((x + steps / 10 + torch.linspace(0, 1, FEATURES, dtype=x.dtype)) * scale * mask)


@kind("half")  # torch.Tensor(...) is not shown to anybody, so what comes behind it is computed
class MakesOldTensors(Net):
    def lower(self, x):
        h = super().lower(x).tanh().sin().cos()
        return h * torch.Tensor([1.5]).double() + np.sqrt(HIDDEN)


@kind("whole")
class NumpyScalars(Net):
    def lower(self, x):
        return super().lower(x / np.sqrt(FEATURES) + np.float32(0.5) * x[:, [np.int64(1)]])


@kind("whole")
class Indices(Net):
    def lower(self, x):
        h = x[:, [0, 1, 2, 3, 4, 5]][..., ::2][:, None, :].expand(-1, 2, -1)[:, 0]
        return super().lower(torch.cat([h, x[:, 3:]], dim=-1) * x[x > 0].mean())


FACTORS = {"scale": 0.5}


@kind("whole")
def closure():
    scale = torch.full((1,), 1.5, dtype=torch.float64)

    class Closure(Net):
        def lower(self, x):
            return super().lower(x * scale) * FACTORS["scale"]

    return Closure()


CALLS = [0]


@contextmanager
def counted():
    CALLS[0] = 0
    yield


@kind("little", around=counted, why="was called in another way")
class GlobalCounter(Net):
    def lower(self, x):
        CALLS[0] += 1
        return super().lower(x * CALLS[0])


@kind("little", why="was called in another way")
class CountsScale(Net):
    n = 0

    def lower(self, x):
        self.n += 1
        return super().lower(x * (1 + 0.1 * self.n))


@kind("half")
class CountsBranch(Net):
    n = 0

    def lower(self, x):
        self.n += 1
        h = super().lower(x).sin().cos()
        return h.tanh() if self.n % 2 else h


@kind("little", why="relu_ is used on a tensor that was recorded|still has a tensor")
class CountsBetweenInPlace(Net):
    """The replay has to start again, and must not count twice."""

    def build(self):
        self.n, self.seen, self.names = 0, [], {"a": 0}

    def lower(self, x):
        self.n += 1
        self.seen.append(self.n)
        self.names["a"] += len(self.seen)
        h = self.first(x)
        if self.n % 2:
            h = h * (1 + 0.1 * self.n)
        return self.second(h.relu_()) * (1 + self.names["a"] / 10)


@kind("little", why="relu_ is used on a tensor that was recorded|still has a tensor|has been changed since")
class CountsAfterBuffer(Net):
    """Starts again when a buffer has been changed already."""

    def build(self):
        self.register_buffer("count", torch.zeros(()))
        self.n = 0

    def lower(self, x):
        self.n += 1
        h = self.first(x)
        self.count += 1
        if self.n % 2:
            h = h * (1 + 0.1 * self.count.item())
        return self.second(h.relu_()) * self.count.item()


@kind("little", why="still has a tensor from before|was called in another way")
class CountsInFrozen(Net):
    n = 0

    def lower(self, x):
        self.n += 1
        with torch.no_grad():
            h = self.first(x)
            h = h.tanh() if self.n % 2 else h.sigmoid()
            return self.second(h)


@kind("little", why="view failed")
class Attempts(Net):
    def lower(self, x):
        h = self.first(x)
        try:
            h = h.view(7, 7, 7) if FACTORS else h
        except RuntimeError:
            h = h.tanh()
        return self.second(h)


@kind("little", why="relu_ is used on a tensor that was recorded|still has a tensor")
class CatchesAll(Net):
    """A bare except around everything catches the restart, too."""

    n = 0

    def lower(self, x):
        self.n += 1
        try:
            h = self.first(x)
            if self.n % 2:
                h = h * 2
            return self.second(h.relu_())
        except:  # noqa: E722
            return x.new_zeros(ROWS, HIDDEN)


@kind("whole")
class ModulesByData(Net):
    def build(self):
        self.experts = nn.ModuleList(nn.Linear(FEATURES, HIDDEN) for _ in range(3))

    def lower(self, x):
        best = int(x.sum(0)[:3].argmax())
        gate = x[:, :3].argmax(1).tolist()
        rows = [self.experts[g](x[i]) for i, g in enumerate(gate)]
        return torch.stack(rows) + self.experts[best](x)


@kind("half")
class Threads(Net):
    def lower(self, x):
        h = super().lower(x).sin().cos().tanh()
        with ThreadPoolExecutor(2) as pool:
            parts = list(pool.map(lambda part: self.second(part).tanh(), h.split(3)))
        return torch.cat(parts)


@kind("little", why="a computation that torch does not report")
class ThreadsInPlace(Net):
    """A thread reads a tensor before it is changed in place."""

    def lower(self, x):
        h = self.first(x)
        with ThreadPoolExecutor(1) as pool:
            mean = pool.submit(lambda: h.mean().item()).result()
        return self.second(h.relu_()) * mean


@kind("little", why="a computation that torch does not report")
class ThreadsInFrozen(Net):
    def lower(self, x):
        with torch.no_grad():
            h = self.first(x).tanh()
            with ThreadPoolExecutor(1) as pool:
                scale = pool.submit(lambda: h.abs().mean().item()).result()
            h = self.second(h)
        return h * scale


@kind("half")
class LazyCache(Net):
    cache = None

    def lower(self, x):
        h = super().lower(x)
        if self.cache is None:
            self.cache = torch.linspace(1, 2, HIDDEN, dtype=x.dtype)
        return h * self.cache


@kind("half")
class MarkedTensor(Net):
    def lower(self, x):
        h = super().lower(x).sin().cos()
        h = h.tanh()
        if not hasattr(h, "marked"):
            h.marked = True
            return h * 2
        return h


# Modules and hooks.


@kind("whole")
class SharedModule(Net):
    def lower(self, x):
        h = self.first(x).tanh()
        return self.second(self.second(h).tanh()).tanh()


@kind("whole")
class LayerTwice(Net):
    def forward(self, x):
        h = self.layer(self.first(x).tanh())
        return self.last(self.layer(self.second(h).tanh()))


@kind("whole")
class MultiSample(Net):
    def forward(self, x):
        h = self.lower(x)
        return sum(self.last(self.layer(h)) for _ in range(4)) / 4


@kind("whole")
class SeveralLayers(Net):
    def build(self):
        self.layers = nn.ModuleList(AdversarialDropout(0.3, 0.2) for _ in range(2))

    def forward(self, x):
        h = self.layers[0](self.first(x).tanh())
        return self.last(self.layer(self.layers[1](self.second(h).tanh()).sin()))


@kind("whole")
class TiedWeights(Net):
    def build(self):
        self.decoder = nn.Linear(HIDDEN, FEATURES)
        self.decoder.weight = nn.Parameter(self.first.weight.detach().t().clone())
        self.again = nn.Linear(FEATURES, HIDDEN)
        self.again.weight = self.first.weight

    def lower(self, x):
        return self.again(self.decoder(self.first(x).tanh()))

    def upper(self, h):
        return self.last(h) + self.first(F.linear(h, self.first.weight.t()))[:, :CLASSES]


@kind("whole")
def sequential_subclass():
    class Chain(nn.Sequential):
        def forward(self, x):
            for module in self:
                x = module(x) * 1.1
            return x

    return Chain(
        nn.Linear(FEATURES, HIDDEN), nn.Tanh(), AdversarialDropout(0.5, 0.3), nn.Linear(HIDDEN, CLASSES)
    ).double()


def chain(*lower, norm=True):
    """A plain nn.Sequential; batch norm above keeps its passes from running as one batch."""
    upper = [nn.BatchNorm1d(HIDDEN)] if norm else []
    return nn.Sequential(*lower, AdversarialDropout(0.5, 0.3), *upper, nn.Tanh(), nn.Linear(HIDDEN, CLASSES)).double()


@kind("whole")
def plain_sequential():
    return chain(nn.Linear(FEATURES, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Dropout(0.3), nn.Sequential(nn.Tanh()))


@kind("little", why="was called in another way")
def sequential_that_counts():
    class Counts(nn.Module):
        n = 0

        def forward(self, x):
            self.n += 1
            return x * self.n

    return chain(nn.Linear(FEATURES, HIDDEN), Counts())


@kind("little", why="existed before|has been changed since")
def sequential_spectral_norm():
    return chain(parametrizations.spectral_norm(nn.Linear(FEATURES, HIDDEN)), nn.Tanh())


@kind("whole")
def sequential_inserted():
    net = chain(nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Sequential(nn.Tanh())), nn.Linear(HIDDEN, HIDDEN))
    return insert(net, "0.1.0", delta=0.2)


@kind("whole")
def sequential_python_noise_above():
    class Noise(nn.Module):
        def forward(self, h):
            return h * random.random() + np.random.rand()

    net = chain(nn.Linear(FEATURES, HIDDEN), nn.Tanh())
    net.insert(3, Noise())
    return net


@kind("whole")
def sequential_in_place_above():
    """A hook of the layer changes its input in place."""
    net = chain(nn.Linear(FEATURES, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Linear(HIDDEN, HIDDEN))
    net[3].register_forward_pre_hook(lambda module, given: (given[0].mul_(1.5),))
    return net


@kind("whole")
def sequential_skip():
    """A module below keeps what a module above takes."""

    class Keep(nn.Module):
        def forward(self, x):
            self.kept = x.tanh()
            return self.kept

    class Add(nn.Module):
        def __init__(self, keep):
            super().__init__()
            self.keep = [keep]

        def forward(self, h):
            return h + self.keep[0].kept

    keep = Keep()
    net = chain(nn.Linear(FEATURES, HIDDEN), keep)
    net.insert(3, Add(keep))
    return net


@contextmanager
def global_hooks():
    hooks = [
        nn.modules.module.register_module_forward_hook(
            lambda module, given, output: output * 1.01 if isinstance(output, Tensor) else None
        ),
        nn.modules.module.register_module_forward_pre_hook(
            lambda module, given: (given[0] * 0.99,) if len(given) == 1 else None
        ),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


kind("whole", "global_hooks", around=global_hooks)(Net)
kind("whole", "global_hooks_sequential", around=global_hooks)(plain_sequential)


@contextmanager
def global_backward_hook():
    hook = nn.modules.module.register_module_full_backward_hook(
        lambda module, back, gradient: (back[0].clamp(-1e-2, 1e-2),) if len(back) == 1 and back[0] is not None else None
    )
    try:
        yield
    finally:
        hook.remove()


kind("little", "global_backward_hook", around=global_backward_hook)(Net)


@kind("whole")
def forward_hooks():
    net = Net()
    net.first.register_forward_hook(lambda module, given, output: output.tanh())
    net.second.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    net.register_forward_pre_hook(lambda module, given: (given[0].sin(),))
    net.second.register_forward_hook(lambda module, given, named, output: output + 1, with_kwargs=True)
    return net


@kind("whole")
def container_hooks():
    net = chain(nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh()), nn.Linear(HIDDEN, HIDDEN))
    net[0].register_forward_hook(lambda module, given, output: output * 2)
    net.register_forward_hook(lambda module, given, output: output * 3)
    return net


@kind("little", why="grad_fn|leaf")
def full_backward_hook():
    net = Net()
    net.lower = lambda x: net.second(net.first(x.sin().cos()).tanh().sin().cos())
    # Not linear: applied once to a sum, it would give another gradient.
    net.second.register_full_backward_hook(lambda module, back, gradient: (back[0].clamp(-1e-3, 1e-3),))
    return net


@kind("little", why="grad_fn|leaf")
def full_backward_pre_hook():
    net = Net()
    net.lower = lambda x: net.second(net.first(x.sin().cos()).tanh().sin().cos())
    net.second.register_full_backward_pre_hook(lambda module, gradient: (gradient[0].clamp(-1e-3, 1e-3),))
    return net


@kind("half")
class TensorHook(Net):
    def lower(self, x):
        h = self.first(x.sin().cos()).tanh().sin().cos().relu()
        h.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
        return h


@kind("half")
class TensorHookAbove(Net):
    def forward(self, x):
        h = self.second(self.first(x).tanh().sin()).tanh()
        output = self.last(self.layer(h))
        h.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
        return output


@kind("half")
class NodeHook(Net):
    def lower(self, x):
        h = super().lower(x).sin().cos().relu()
        if h.grad_fn is not None:
            h.grad_fn.register_hook(lambda back, gradient: (back[0].clamp(-1e-3, 1e-3),))
        return h


@kind("half")
class RetainsGradient(Net):
    def forward(self, x):
        h = self.lower(x).sin().cos()
        if h.requires_grad:
            h.retain_grad()
        self.kept = h.detach()
        return self.last(self.layer(h))


# In place.


@kind("whole")
class InPlace(Net):
    def lower(self, x):
        h = self.first(x).relu_()
        h = self.second(h)
        h += 1.5
        h = h.mul_(0.5)
        return F.relu(h, inplace=True)


@kind("whole")
class InPlaceFrozen(Net):
    def lower(self, x):
        with torch.no_grad():
            h = self.first(x).relu_()
            return self.second(h).tanh_().add_(1.0)


@kind("whole")
class IndexAssignment(Net):
    def forward(self, x):
        h = self.second(self.first(x))
        h[:, :FEATURES] = x
        h[0] = 2.0
        return self.last(self.layer(h))


@kind("whole")
class IndexAssignmentInside(Net):
    """Nobody has the buffer any more when the layer runs."""

    def buffer(self, x):
        h = x.new_zeros(ROWS, HIDDEN)
        for i in range(FEATURES):
            h[:, i] = x[:, i] * i
        return h + 1

    def lower(self, x):
        return self.second(self.buffer(x))


@kind("whole")
class InPlaceKeepsName(Net):
    def forward(self, x):
        a = self.first(x)
        b = torch.relu_(a)
        return self.last(self.layer(self.second(b) + a))


@kind("whole")
class InPlaceView(Net):
    def shifted(self, h):
        part = h[:, :4]
        part = part.mul_(2.0)
        return h.add_(part.mean())

    def lower(self, x):
        return self.second(self.shifted(self.first(x))).tanh()


@kind("half")
class InPlaceAbove(Net):
    """Changes, above the layer, what was recorded below it."""

    def forward(self, x):
        h = super().lower(x).sin().cos()
        skip = h * 2
        output = self.layer(h)
        skip += output
        return self.last(skip)


@kind("little", why="has been changed since")
class InputInPlace(Net):
    def forward(self, x):
        output = super().forward(x * 2)
        x.mul_(1.1)
        return output


@kind("little", why="existed before")
class InputInPlaceBelow(Net):
    def lower(self, x):
        return super().lower(x.mul_(1.1) * 2)


@kind("whole")
class DetachedAlias(Net):
    """The alias is changed where no graph sees it."""

    def lower(self, x):
        h = super().lower(x).sin().cos().tanh()
        h = h * 2
        h.detach().clamp_(-0.5, 0.5)
        return h


@kind("half")
class Data(Net):
    def lower(self, x):
        h = super().lower(x).sin().cos().tanh()
        h = h * 2
        h.data.clamp_(-0.5, 0.5)
        return h


@kind("half")
class DataAbove(Net):
    def forward(self, x):
        h = self.lower(x).sin().cos().tanh()
        side = h * 2
        output = self.last(self.layer(h)) + side[:, :CLASSES]
        side.data.mul_(3.0)
        return output + side[:, :CLASSES]


@kind("half")
class InPlaceFromAbove(Net):
    """A frozen tensor is used below, and changed through another one above."""

    def build(self):
        self.register_buffer("table", torch.ones(HIDDEN))

    def forward(self, x):
        h = super().lower(x).sin().cos() * self.table.view(1, -1)
        output = self.last(self.layer(h))
        self.table[:3].data.mul_(1.1)
        return output


@kind("whole")
class OutArgument(Net):
    def lower(self, x):
        with torch.no_grad():
            h = torch.empty(ROWS, FEATURES, dtype=x.dtype)
            h = torch.mul(x, 2.0, out=h)
            h = torch.add(h, x.abs(), out=torch.empty(0, dtype=x.dtype))
        return super().lower(h)


@kind("little", why="existed before")
class OutArgumentBuffer(Net):
    def build(self):
        self.register_buffer("work", torch.zeros(ROWS, FEATURES))

    def lower(self, x):
        with torch.no_grad():
            torch.mul(x, 2.0, out=self.work)
        return super().lower(self.work + x)


# Norms.


def normed(norm):
    class Normed(Net):
        def build(self):
            self.norm, self.above = norm(), nn.BatchNorm1d(HIDDEN)

        def lower(self, x):
            return self.norm(super().lower(x)).tanh()

        def upper(self, h):
            return self.last(self.above(h))

    return Normed


kind("whole", "batch norm")(normed(lambda: nn.BatchNorm1d(HIDDEN)))
kind("whole", "batch norm, cumulative")(normed(lambda: nn.BatchNorm1d(HIDDEN, momentum=None)))
kind("whole", "batch norm, not tracking")(normed(lambda: nn.BatchNorm1d(HIDDEN, track_running_stats=False)))
kind("whole", "layer norm")(normed(lambda: nn.LayerNorm(HIDDEN)))
kind("whole", "group norm")(normed(lambda: nn.GroupNorm(2, HIDDEN)))


@kind("whole")
def frozen_batch_norm():
    net = normed(lambda: nn.BatchNorm1d(HIDDEN))()
    net.norm.running_mean.add_(0.3)
    net.norm.eval()
    train = net.train
    net.train = lambda mode=True: train(mode) and net.norm.eval() and net
    return net


@kind("whole", inputs=images)
class InstanceNorm(Net):
    def build(self):
        self.conv, self.norm = nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
        self.above = nn.InstanceNorm2d(4, track_running_stats=True)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x):
        h = self.layer(self.norm(self.conv(x)).tanh())
        return self.head(self.above(h).flatten(1))


@kind("little", why="batch_norm is used on a tensor")
class ReadsStatistics(Net):
    """The running mean is read before batch norm changes it."""

    def build(self):
        self.norm = nn.BatchNorm1d(HIDDEN)

    def lower(self, x):
        h = self.first(x) * (1 + self.norm.running_mean)
        return self.second(self.norm(h).tanh()).sin().cos().tanh()


@kind("half")
class ReadsStatisticsBelow(Net):
    """The running mean is read below the layer, and changed above it."""

    def build(self):
        self.norm = nn.BatchNorm1d(HIDDEN)

    def lower(self, x):
        return super().lower(x).sin().cos() * (1 + self.norm.running_mean)

    def upper(self, h):
        return self.last(self.norm(h))


@kind("half")
class ReadsStatisticsAfter(Net):
    def build(self):
        self.norm = nn.BatchNorm1d(HIDDEN)

    def lower(self, x):
        h = self.norm(self.first(x)).tanh().sin().cos().tanh()
        return self.second(h - self.norm.running_mean * self.norm.num_batches_tracked)


@kind("little", why="existed before")
class OwnBatchNorm(Net):
    def build(self):
        self.register_buffer("mean", torch.zeros(HIDDEN))

    def lower(self, x):
        h = self.first(x)
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(0.1 * h.mean(0))
        return self.second(h - self.mean).tanh()


@kind("whole")
class FunctionalBatchNorm(Net):
    def build(self):
        self.weight = nn.Parameter(torch.ones(HIDDEN))
        self.register_buffer("mean", torch.zeros(HIDDEN))
        self.register_buffer("variance", torch.ones(HIDDEN))

    def lower(self, x):
        h = F.batch_norm(self.first(x), None, None, self.weight, training=True)
        return F.batch_norm(h, self.mean, self.variance, training=False)


@kind("half")
class OwnStatistics(FunctionalBatchNorm):
    """Running statistics that no step controls: every pass updates them."""

    def lower(self, x):
        h = Net.lower(self, x).sin().cos()
        return F.batch_norm(h, self.mean, self.variance, training=True)


@kind("little", why="batch_norm is used on a tensor")
class OwnStatisticsOfTorch(FunctionalBatchNorm):
    def lower(self, x):
        h = torch.batch_norm(self.first(x), self.weight, None, self.mean, self.variance, True, 0.1, 1e-5, False)
        return self.second(h) * (1 + self.mean)


@kind("little", why="batch_norm is used on a tensor")
class FunctionalBatchNormChanges(Net):
    """Only the weights are others in each pass."""

    def build(self):
        self.weights = nn.ParameterList(torch.ones(HIDDEN) * (1 + i) for i in range(7))
        self.n = 0

    def lower(self, x):
        self.n += 1
        h = x @ self.first.weight.t()
        return torch.batch_norm(h, self.weights[self.n % 7], None, None, None, True, 0.1, 1e-5, False).sin().tanh()


@kind("little", why="existed before|has been changed since")
class SpectralNorm(Net):
    def build(self):
        parametrizations.spectral_norm(self.first)

    def lower(self, x):
        return self.first(x).tanh()


@kind("whole")
class WeightNorm(Net):
    def build(self):
        parametrizations.weight_norm(self.first)

    def lower(self, x):
        return self.first(x).tanh()


@kind("whole", inputs=images)
class ResNet(Net):
    class Block(nn.Module):
        def __init__(self, inner, outer):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer)
            self.conv2, self.bn2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer)
            self.relu = nn.ReLU(inplace=True)
            self.downsample = None
            if inner != outer:
                self.downsample = nn.Sequential(nn.Conv2d(inner, outer, 1), nn.BatchNorm2d(outer))

        def forward(self, x):
            identity = x
            out = self.conv1(x)
            out = self.bn1(out)
            out = self.relu(out)
            out = self.conv2(out)
            out = self.bn2(out)
            if self.downsample is not None:
                identity = self.downsample(x)
            out += identity
            return self.relu(out)

    def build(self):
        self.stem = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True))
        self.blocks = nn.Sequential(self.Block(3, 3), self.Block(3, 5))
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(5, CLASSES)

    def forward(self, x):
        x = self.blocks(self.stem(x))
        return self.head(self.layer(torch.flatten(self.pool(x), 1)))


@kind("whole", inputs=lambda seed: images(seed).to(memory_format=torch.channels_last))
class ChannelsLast(ResNet):
    pass


@kind("whole", inputs=lambda seed: numbers(seed).t().contiguous().t())
class NotContiguous(Net):
    def lower(self, x):
        h = x if x.is_contiguous() else x.contiguous() * 2
        return super().lower(h.view(-1, FEATURES))


@kind("whole")
class DropoutAndBatchNorm(Net):
    def build(self):
        self.norm = nn.BatchNorm1d(HIDDEN)

    def lower(self, x):
        h = F.dropout(self.norm(self.first(x)), 0.3, self.training).relu()
        return F.alpha_dropout(self.second(h), 0.1, self.training)

    def upper(self, h):
        return self.last(F.dropout(h, 0.2))


# Random numbers.


@kind("whole")
class StochasticDepth(Net):
    def lower(self, x):
        h = self.first(x).tanh()
        if torch.rand(()) < 0.5:
            h = h + self.second(h)
        keep = torch.empty(len(h), 1, dtype=h.dtype).bernoulli_(0.7)
        return h + keep * self.second(h).tanh() + torch.rand_like(h) + 0.1 * torch.randn(HIDDEN, dtype=h.dtype)

    def upper(self, h):
        return self.last(h + torch.randn_like(h)) * (1 + random.random()) + np.random.rand()


@kind("whole")
class StochasticDepthPython(Net):
    def lower(self, x):
        h = self.first(x).tanh()
        for _ in range(4):
            if random.random() < 0.5:
                h = h + self.second(h).tanh() * random.gauss(1, 0.1)
        return h

    def upper(self, h):
        return self.last(h * random.random())


@kind("whole")
class StochasticDepthNumpy(Net):
    def lower(self, x):
        h = self.first(x).tanh()
        for scale in np.random.rand(4):
            h = h + self.second(h).tanh() * float(scale) if np.random.rand() < 0.5 else h * np.random.rand()
        return h


@kind("half")
class OwnGenerator(Net):
    def build(self):
        self.generator = [123]

    def lower(self, x):
        h = super().lower(x).sin().cos().tanh()
        self.generator[0] += 1
        generator = torch.Generator().manual_seed(self.generator[0])
        return h + torch.rand(h.shape, generator=generator, dtype=h.dtype)


@kind("half")
class OwnNumpyGenerator(Net):
    def build(self):
        self.generator = np.random.default_rng(3)

    def lower(self, x):
        h = super().lower(x).sin().cos().tanh()
        return h * self.generator.random()


@kind("whole")
class Distributions(Net):
    def lower(self, x):
        h = super().lower(x)
        h = torch.distributions.Normal(h, h.exp()).rsample()
        return F.gumbel_softmax(h, hard=True) + torch.distributions.Categorical(logits=h).sample()[:, None]


@kind("whole")
class LowRank(Net):
    """torch itself draws random numbers inside."""

    def lower(self, x):
        h = super().lower(x).sin().cos()
        u, s, v = torch.svd_lowrank(h, q=2)
        return F.dropout(h + u @ s.diag() @ v.t(), 0.3)


@torch.library.custom_op("advdrop_zoo::jitter", mutates_args=())
def jitter(x: Tensor) -> Tensor:
    return torch.rand_like(x)


@kind("half")
class HiddenRandom(Net):
    """An operator draws random numbers, and its name does not say so."""

    def lower(self, x):
        h = F.dropout(super().lower(x).sin().cos().tanh(), 0.3)
        h = h + jitter(h.detach())
        return F.dropout(h, 0.3)


@kind("half")
class HiddenRandomLast(Net):
    def lower(self, x):
        h = F.dropout(super().lower(x).sin().cos(), 0.3)
        return h + jitter(h.detach())

    def upper(self, h):
        return self.last(F.dropout(h, 0.3))


@kind("half")
class HiddenRandomAndCount(Net):
    """Leaves the tape between a hidden draw and one that shows."""

    n = 0

    def lower(self, x):
        self.n += 1
        h = F.dropout(super().lower(x).sin().cos().tanh(), 0.3)
        h = (h + jitter(h.detach())) * (1 + self.n)
        return F.dropout(h, 0.3)


@kind("half")
class ForkedNoise(Net):
    def lower(self, x):
        h = super().lower(x).sin().cos()
        with torch.random.fork_rng(devices=[]):
            h = h + torch.rand_like(h)
        return F.dropout(h, 0.3)


@kind("little", why="random numbers")
class SeedsItself(Net):
    def lower(self, x):
        h = super().lower(x).sin().cos()
        torch.manual_seed(int(1000 * x.abs().sum()))
        return F.dropout(h, 0.3)


@kind("half")
class CountsInForkedNoise(Net):
    """Leaves the tape inside a fork, which restores the noise from before."""

    n = 0

    def lower(self, x):
        self.n += 1
        h = F.dropout(super().lower(x).sin().cos(), 0.3)
        with torch.random.fork_rng(devices=[]):
            h = h + torch.rand_like(h) * (1 + self.n)
        return F.dropout(h, 0.3)


# Sequences.


class Reader(Net):
    recurrent: Any = nn.LSTM

    def build(self):
        self.embedding = nn.Embedding(WORDS, 8, padding_idx=0)
        self.reader = self.recurrent(8, HIDDEN, 2, dropout=0.3, batch_first=True)
        self.layer = AdversarialDropout(0.5, 0.3, granularity="feature")

    def forward(self, x):
        h, _ = self.reader(self.embedding(x))
        return self.last(self.layer(h)[:, -1])


kind("whole", "LSTM", inputs=tokens)(Reader)


@kind("whole", inputs=tokens)
class GRU(Reader):
    recurrent = nn.GRU


@kind("whole", inputs=padded)
class Packed(Reader):
    def forward(self, x):
        lengths = (x != 0).sum(1)
        packed = rnn.pack_padded_sequence(self.embedding(x), lengths, batch_first=True, enforce_sorted=False)
        h, sizes = rnn.pad_packed_sequence(self.reader(packed)[0], batch_first=True)
        h = self.layer(h)
        return self.last(h.sum(1) / sizes[:, None])


@kind("whole", inputs=padded)
class PaddingMask(Net):
    def build(self):
        self.embedding = nn.Embedding(WORDS, HIDDEN, padding_idx=0)
        self.register_buffer("place", torch.linspace(0, 1, LENGTH * HIDDEN).view(LENGTH, HIDDEN), persistent=False)

    def lower(self, x):
        mask = (x == 0)[..., None]
        h = self.embedding(x) * HIDDEN**0.5 + self.place[: x.shape[1]]
        h = h.masked_fill(mask, 0.0)
        return h.sum(1) / (~mask).sum(1).clamp(min=1)


@kind("whole", inputs=padded)
class TransformerEncoder(Net):
    def build(self):
        self.embedding = nn.Embedding(WORDS, 8)
        block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        h = self.encoder(self.embedding(x), src_key_padding_mask=x == 0)
        return self.head(self.layer(h).mean(1))


@kind("whole", inputs=padded)
class Attention(Net):
    def build(self):
        self.embedding = nn.Embedding(WORDS, 8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        e = self.embedding(x)
        h, weights = self.attention(e, e, e, key_padding_mask=x == 0)
        q = h.view(ROWS, LENGTH, 2, 4).transpose(1, 2)
        h = h + F.scaled_dot_product_attention(q, q, q, dropout_p=0.2).transpose(1, 2).flatten(2) + weights.mean()
        return self.head(self.layer(h).mean(1))


def bert_inputs(seed):
    found = padded(seed)
    return {"input_ids": found, "attention_mask": (found != 0).long()}


@kind("whole", inputs=bert_inputs)
def bert():
    from transformers import BertConfig, BertForSequenceClassification

    widths = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=WORDS, num_labels=CLASSES, **widths)
    return insert(BertForSequenceClassification(config).double(), "bert.encoder.layer.1", p=0.2, delta=0.1)


@kind("whole", inputs=bert_inputs)
def frozen_bert():
    net = bert()
    net.bert.embeddings.requires_grad_(False)
    net.bert.encoder.layer[0].requires_grad_(False)
    return net


# What a network returns, and what it leaves behind.


@kind("whole")
class ReturnsDict(Net):
    def forward(self, x):
        h = self.lower(x)
        return {"features": h, "logits": self.last(self.layer(h))}


@kind("whole", logits=1)
class ReturnsTuple(Net):
    def forward(self, x):
        h = self.lower(x)
        return h, self.last(self.layer(h))


Answer = namedtuple("Answer", "features logits")


@kind("whole")
class ReturnsNamedTuple(Net):
    def forward(self, x):
        h = self.lower(x)
        return Answer(h, self.last(self.layer(h)))


@kind("whole")
class ReturnsModelOutput(Net):
    def forward(self, x):
        from transformers.modeling_outputs import SequenceClassifierOutput

        h = self.lower(x)
        return SequenceClassifierOutput(logits=self.last(self.layer(h)), hidden_states=(h,))


@kind("whole", logits=lambda output: output[0] + output[1])
class TwoHeads(Net):
    def forward(self, x):
        h = self.lower(x)
        self.auxiliary = self.last(h).pow(2).mean()
        return self.last(self.layer(h)), self.last(h)


@kind("whole")
class KeepsFeatures(Net):
    def build(self):
        self.kept = []

    def lower(self, x):
        with torch.no_grad():
            self.frozen = self.first(x)
            h = self.frozen.tanh()
        h = self.second(h)
        self.kept.append(h.detach())
        self.features = h
        return h


@kind("little", why="still has a tensor from before|was called in another way")
class KeepsFeaturesLate(Net):
    """Keeps something that was thrown away in the first pass."""

    n, features = 0, None

    def lower(self, x):
        self.n += 1
        with torch.no_grad():
            h = self.first(x)
            if self.n == 3:
                self.features = h
            h = h.tanh().sin()
        return self.second(h).tanh()


@kind("half")
class CounterBuffer(Net):
    def build(self):
        self.register_buffer("count", torch.zeros(()))

    def lower(self, x):
        h = super().lower(x).sin().cos()
        self.count += 1
        return h * (1 + self.count / 10)


@kind("half")
class CounterBufferRebound(Net):
    def build(self):
        self.register_buffer("count", torch.zeros(()))

    def lower(self, x):
        h = super().lower(x).sin().cos().tanh()
        self.count = self.count + 1
        return h * (1 + self.count / 10)


@kind("little", why="index_add_ changes a tensor that existed before")
class CodeBook(Net):
    """Vector quantization with a codebook that moves: it is used before it is changed."""

    def build(self):
        self.register_buffer("codes", torch.linspace(-1, 1, 4 * HIDDEN).view(4, HIDDEN))

    def lower(self, x):
        h = super().lower(x).sin().cos()
        nearest = torch.cdist(h, self.codes).argmin(1)
        found = self.codes[nearest]
        with torch.no_grad():
            self.codes.index_add_(0, nearest, 0.1 * (h - found))
        return h + (found - h).detach()


@kind("little", why="mul_ is used on a tensor that was recorded|existed before")
class RunningFeatures(Net):
    """Keeps features of the first pass, and changes them in place in the next ones."""

    average = None

    def lower(self, x):
        h = super().lower(x).sin().cos()
        if self.average is None:
            self.average = h.detach()
        else:
            self.average.mul_(0.9).add_(0.1 * h.detach())
        return h + self.average.clone()


@kind("half")
class CodeBookAbove(Net):
    def build(self):
        self.register_buffer("center", torch.ones(HIDDEN))

    def forward(self, x):
        h = super().lower(x).sin().cos() * self.center.clone()
        output = self.last(self.layer(h))
        self.center.lerp_(h.detach().mean(0), 0.1)
        return output


@kind("half")
class ClipsWeights(Net):
    """Assigns the data of a parameter above the layer, which its version does not tell."""

    def forward(self, x):
        h = self.second(self.first(x).tanh().sin().cos().tanh())
        output = self.last(self.layer(h))
        self.second.weight.data = self.second.weight.data.clamp(-0.2, 0.2) * 0.99
        return output


# Gradients.


@kind("whole")
class FrozenTrunk(Net):
    def lower(self, x):
        with torch.no_grad():
            return super().lower(x).sin().cos()


@kind("whole")
class GradModeSwitch(Net):
    def lower(self, x):
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        h = self.first(x).tanh()
        torch.set_grad_enabled(before)
        with torch.set_grad_enabled(h.mean().item() < 100):
            return self.second(h.detach()).tanh()


@kind("little", why="was called in another way")
class GradModeByCount(Net):
    n = 0

    def lower(self, x):
        self.n += 1
        with torch.set_grad_enabled(self.n % 2 == 0):
            h = self.first(x).tanh().sin().cos()
        return self.second(h) if h.requires_grad else h


@kind("whole")
def frozen_parameters():
    net = Net()
    net.first.requires_grad_(False)
    return net


@kind("half")
class FreezesItself(Net):
    def lower(self, x):
        h = self.first(x).tanh().sin().cos().tanh()
        self.second.weight.requires_grad_(False)
        h = self.second(h)
        self.second.weight.requires_grad = True
        return h


@kind("half")
class OwnLeaf(Net):
    """A new leaf in every pass, whose gradient is looked at afterwards."""

    def lower(self, x):
        h = super().lower(x).sin().cos().tanh()
        self.shift = torch.zeros(HIDDEN, dtype=x.dtype, requires_grad=True)
        return h + self.shift


@kind("little", why="requires_grad_ is used|grad is used")
class InnerGradient(Net):
    """Differentiates in forward."""

    def lower(self, x):
        h = super().lower(x).sin().cos()
        with torch.enable_grad():
            point = h.detach().requires_grad_()
            (slope,) = torch.autograd.grad(point.pow(3).sum(), point)
        return h + slope


@kind("little", why="backward")
class InnerBackward(Net):
    def lower(self, x):
        with torch.enable_grad():
            point = x.detach().clone().requires_grad_()
            super().lower(point).sum().backward(inputs=[point])
        return super().lower(x + point.grad)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient.clamp(-1e-2, 1e-2)


class Exp(torch.autograd.Function):
    """Saves its output."""

    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


class AddOne(torch.autograd.Function):
    """Changes its input in place."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.add_(1.0)

    @staticmethod
    def backward(ctx, gradient):
        return 3 * gradient


class Fresh(torch.autograd.Function):
    """New style, with two outputs, one of them without a gradient."""

    @staticmethod
    def forward(x):
        return x.sin() * 2, x.argmax(1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, gradient, _):
        return ctx.saved_tensors[0].cos() * gradient


def custom(function, last=False):
    class Custom(Net):
        def lower(self, x):
            h = super().lower(x).sin().cos().tanh() * 2
            h = function(h)
            return h if last else self.second(h)

    return Custom


kind("half", "custom function")(custom(Square.apply))
kind("half", "custom function, last")(custom(Square.apply, last=True))
kind("half", "custom function, output")(custom(Exp.apply))
kind("half", "custom function, output, last")(custom(Exp.apply, last=True))
kind("half", "custom function, in place")(custom(AddOne.apply))
kind("half", "custom function, in place, last")(custom(AddOne.apply, last=True))
kind("half", "custom function, new")(custom(lambda h: Fresh.apply(h)[0]))


@kind("whole")
class CustomFrozen(Net):
    def lower(self, x):
        with torch.no_grad():
            return Exp.apply(self.first(x)).sin()


@kind("little", why="torch does not report")
class CustomFrozenInPlace(Net):
    def lower(self, x):
        with torch.no_grad():
            return AddOne.apply(self.first(x))


@kind("half")
class CustomInPlaceUnneeded(Net):
    """A tensor that needs no gradient is changed in place by a function that gives it one."""

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.mark_dirty(x)
            ctx.save_for_backward(weight)
            return x.mul_(2.0)

        @staticmethod
        def backward(ctx, gradient):
            return None, gradient.sum(0) * ctx.saved_tensors[0]

    def lower(self, x):
        h = super().lower(x).sin().cos().tanh().sin()
        noise = torch.ones_like(h) / 2
        noise = self.Scale.apply(noise, self.second.bias)
        return h * noise


@kind("half")
class CheckpointedLate(Net):
    def lower(self, x):
        h = self.first(x).tanh().sin().cos()
        return checkpoint(lambda h: F.dropout(self.second(h).tanh(), 0.2), h, use_reentrant=False)


@kind("little", why="checkpointing")
class Checkpointed(Net):
    def lower(self, x):
        h = checkpoint(lambda h: F.dropout(self.first(h).tanh(), 0.2), x, use_reentrant=False)
        return self.second(h).tanh()


@kind("half")
class CheckpointedReentrant(Net):
    def lower(self, x):
        h = self.first(x).tanh().sin().cos().sin().cos()
        return checkpoint(lambda h: F.dropout(self.second(h).tanh(), 0.2), h, use_reentrant=True)


@kind("little", why="checkpointing")
class CheckpointedCounts(Net):
    """Leaves the tape inside a checkpoint."""

    n = 0

    def part(self, h):
        h = self.second(self.second(h).tanh())
        return h * (1 + self.n / 10)

    def lower(self, x):
        self.n += 1
        return checkpoint(self.part, self.first(x), use_reentrant=False)


# Other ways to compute.


@kind("whole")
class Complex(Net):
    def lower(self, x):
        h = torch.view_as_complex(self.first(x).view(ROWS, 5, 2)) * (0.5 + 1j)
        h = torch.view_as_real(h.conj() * h).flatten(1)
        turn = torch.polar(torch.ones(6).double(), torch.arange(6.0).double())
        return torch.fft.irfft(torch.fft.rfft(h) * turn, HIDDEN)


@contextmanager
def bfloat16():
    with torch.autocast("cpu", torch.bfloat16):
        yield


def single(seed):
    return numbers(seed).float()


class Single(Net):
    def __init__(self):
        super().__init__()
        self.float()

    def forward(self, x):
        return super().forward(x).float()


kind("whole", "autocast around", inputs=single, around=bfloat16, close=0.05)(Single)


@kind("whole", inputs=single, around=bfloat16, close=0.05)
class AutocastOffInside(Single):
    def lower(self, x):
        h = self.first(x).tanh()
        with torch.autocast("cpu", enabled=False):
            return self.second(h.float()).tanh()


@kind("whole", inputs=single, close=0.05)
class AutocastInside(Single):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            h = self.lower(x)
        return self.last(self.layer(h.float()))


@kind("little", inputs=single, close=0.05, why="was called in another way")
class AutocastByCount(Single):
    n = 0

    def lower(self, x):
        self.n += 1
        with torch.autocast("cpu", torch.bfloat16, enabled=self.n % 2 == 0):
            return self.second(self.first(x).tanh()).float()


@kind("whole", inputs=single)
class MixedPrecision(Single):
    def build(self):
        self.precise = nn.Linear(HIDDEN, HIDDEN)

    def __init__(self):
        super().__init__()
        self.precise.double()

    def lower(self, x):
        return self.precise(super().lower(x).double()).float()


ZOO["MixedPrecision"].close = 1e-4


@kind("half")
class DefaultDtypeByCount(Net):
    n = 0

    def lower(self, x):
        self.n += 1
        h = super().lower(x).sin().cos().tanh()
        torch.set_default_dtype(torch.float64 if self.n % 2 else torch.float32)
        thirds = torch.ones(HIDDEN) / 3
        torch.set_default_dtype(torch.float32)
        return h * thirds


@kind("whole")
class Einsum(Net):
    def lower(self, x):
        h = torch.einsum("bi,oi->bo", x, self.first.weight)
        return torch.einsum("bi,bj->bij", h, h).diagonal(dim1=1, dim2=2) @ self.second.weight


@kind("whole")
class Operators(Net):
    def lower(self, x):
        h = torch.ops.aten.addmm(self.first.bias, x, self.first.weight.t())
        h = torch.ops.aten.tanh.default(h)
        return torch.ops.aten.native_dropout(h, 0.2, True)[0]


@torch.library.custom_op("advdrop_zoo::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


twice.register_autograd(lambda ctx, gradient: gradient * 2)


@torch.library.custom_op("advdrop_zoo::grow_", mutates_args=("x",))
def grow_(x: Tensor) -> None:
    x.mul_(2)


@kind("whole")
class CustomOperator(Net):
    def lower(self, x):
        return twice(super().lower(x)) + torch.ops.advdrop_zoo.twice(x).mean()


@kind("little", why="existed before")
class CustomOperatorInPlace(Net):
    def build(self):
        self.register_buffer("count", torch.full((1,), 0.01))

    def lower(self, x):
        grow_(self.count)
        return super().lower(x) * self.count.clone()


def script(function):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, but in use
        return torch.jit.script(function)


@kind("little", why="compiled")
class ScriptedModule(Net):
    def build(self):
        self.scripted = script(nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh()))

    def lower(self, x):
        return self.scripted(super().lower(x))


@script
def scripted(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


@script
def scripted_in_place(x: Tensor) -> Tensor:
    return x.mul_(2.0)


@script
def scripted_mean(x: Tensor) -> float:
    return float(x.mean().item())


@kind("half")
class ScriptedFunction(Net):
    def lower(self, x):
        return scripted(super().lower(x).sin().cos()).tanh()


@kind("half")
class ScriptedInPlace(Net):
    def lower(self, x):
        h = super().lower(x).sin().cos().tanh()
        side = h * 2
        scripted_in_place(side)
        return h + side


@kind("little", why="a computation that torch does not report")
class ScriptedReadsBeforeChange(Net):
    def lower(self, x):
        with torch.no_grad():
            h = self.first(x)
            scale = scripted_mean(h)
            h = h.relu_()
        return self.second(h) * scale


@kind("half")
class Vmap(Net):
    def lower(self, x):
        h = super().lower(x).sin().cos()
        return torch.vmap(lambda row: row * row.sum().tanh())(h)


@kind("half")
class FunctionalCall(Net):
    def lower(self, x):
        h = self.first(x).tanh()
        weights = {name: value * 0.5 for name, value in self.second.named_parameters()}
        return torch.func.functional_call(self.second, weights, (h,)).tanh()


ZOO["FunctionalCall"].replayed = "whole"


@kind("half")
class FunctionalGradient(Net):
    def lower(self, x):
        h = super().lower(x).sin().cos().tanh()
        return h + torch.func.vmap(torch.func.grad(lambda row: row.pow(3).sum()))(h)


@kind("whole")
class Sparse(Net):
    def build(self):
        self.register_buffer("graph", torch.eye(ROWS).add(torch.eye(ROWS).roll(1, 0)).to_sparse())

    def lower(self, x):
        return torch.sparse.mm(self.graph, self.first(x)).tanh()


class Tagged(Tensor):
    """A tensor subclass with a state of its own."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


@kind("little", inputs=lambda seed: numbers(seed).as_subclass(Tagged), why="takes a Tagged")
class Subclass(Net):
    def forward(self, x):
        assert isinstance(x, Tagged)
        return super().forward(x).as_subclass(Tensor)


@kind("half")
class NumpyInTheMiddle(Net):
    def lower(self, x):
        h = super().lower(x).sin().cos().tanh().sin()
        side = torch.from_numpy(np.tanh((h * 2).detach().numpy()))
        return h * side


@kind("half")
class NumpyInPlace(Net):
    def lower(self, x):
        h = super().lower(x).sin().cos().tanh().sin()
        side = (h * 2).detach()
        side.numpy()[:] *= 1.5
        return h * side


@kind("half")
class NumpyAbove(Net):
    def forward(self, x):
        h = super().lower(x).sin().cos().tanh().sin()
        side = (h * 2).detach()
        output = self.last(self.layer(h) * side)
        np.multiply(side.numpy(), 1.5, out=side.numpy())
        return output + side[:, :CLASSES]


@kind("whole")
class Selects(Net):
    def lower(self, x):
        h = super().lower(x)
        h = torch.where(h > 0, h, 0.1 * h).masked_fill(h > 0.9, 0.5)
        return h.clamp(-1, 1) * (h != 0)


@kind("whole")
class Scatters(Net):
    def lower(self, x):
        h = super().lower(x)
        index = h.argsort(1)
        h = torch.zeros_like(h).scatter_(1, index, h)
        h = torch.zeros(ROWS, HIDDEN, dtype=h.dtype).index_add_(0, torch.tensor([0, 0, 1, 2, 3, 3]), h)
        return h.cumsum(1) / HIDDEN


@kind("whole")
class Sorts(Net):
    def lower(self, x):
        h = super().lower(x)
        values, indices = h.sort(dim=1)
        top = h.topk(3, dim=1)
        low = torch.min(h, dim=1)
        return values + indices / HIDDEN + top.values.mean(1, keepdim=True) + low.indices[:, None] + low[0][:, None]


@kind("whole")
class Splits(Net):
    def lower(self, x):
        h = super().lower(x)
        a, b = h.chunk(2, dim=1)
        pieces = [*a.split([2, 3], dim=1), *b.unbind(1)]
        pieces = [piece if piece.dim() == 2 else piece[:, None] for piece in pieces]
        pieces.reverse()
        h = torch.cat(pieces, dim=1)
        pieces.clear()
        return h


@kind("whole")
class Rearranges(Net):
    def lower(self, x):
        h = super().lower(x)
        h = h.reshape(ROWS, 5, 2).permute(0, 2, 1).contiguous().view(ROWS, HIDDEN)
        return h.unflatten(1, (2, 5)).movedim(1, 2).flatten(1).roll(1, 1).flip(0)


@kind("whole")
def residual_dense():
    class Dense(Net):
        def lower(self, x):
            features = [self.first(x).relu()]
            for _ in range(3):
                features.append(self.second(torch.stack(features).mean(0)).relu())
            return torch.stack(features).sum(0)

    return Dense()


@kind("little", why="compiled")
def compiled_module():
    net = Net()
    net.second.compile(backend="eager")
    return net


@kind("half")
class CompiledFunction(Net):
    def build(self):
        self.function = [torch.compile(lambda h: h.sin() * 2, backend="eager")]

    def lower(self, x):
        h = super().lower(x).tanh().cos()
        return self.function[0](h).tanh()
