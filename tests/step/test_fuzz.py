"""Random networks: a step gives the same results whether it reuses their lower parts or runs every pass in full."""

# ruff: noqa: NPY002 - networks use numpy's legacy generator, too

import random
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from advdrop import AdversarialDropout, CrossEntropy, SAdD, Step, VAdD

from .zoo import AddOne, Exp, Square, jitter, scripted, scripted_in_place

ROWS, WIDTH, CLASSES = 4, 6, 3
POOL = ThreadPoolExecutor(1)


def scaled_in_place(values, to, a, b):
    values[to] = values[a].mul_(1.1)


def added_in_place(values, to, a, b):
    values[a] += values[b]


def assigned(values, to, a, b):
    values[a][:, 1:3] = values[b][:, :2].detach()


def changed_unseen(values, to, a, b):
    values[a].data.mul_(1.1)


def changed_detached(values, to, a, b):
    values[a].detach().mul_(1.1)


def sliced_in_place(values, to, a, b):
    part = values[a][:, :3]
    part.mul_(1.2)


def chunked_in_place(values, to, a, b):
    left, right = torch.unsafe_chunk(values[a] * 1.0, 2, dim=1)  # views that have versions of their own
    left.mul_(1.2)
    values[to] = torch.cat([left, right], dim=1)


def changed_without_gradient(values, to, a, b):
    with torch.no_grad():
        values[a].mul_(1.1)


def hooked(values, to, a, b):
    values[to] = values[a] * 1.5
    if values[to].requires_grad:
        values[to].register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))


def forgotten(values, to, a, b):
    values[to] = values[a]


def branched(values, to, a, b):
    values[to] = values[a] if values[b].sum().item() > 0 else -values[a]


def split(values, to, a, b):
    left, right = values[a].chunk(2, dim=1)
    values[to] = torch.cat([right, left], dim=1)


def viewed(values, to, a, b):
    values[to] = values[a].view(ROWS, 2, 3).transpose(1, 2).reshape(ROWS, WIDTH)


def aliased(values, to, a, b):
    values[to] = values[a].view(ROWS, WIDTH)


def written(values, to, a, b):
    values[to] = torch.zeros_like(values[a]).index_add_(1, torch.tensor([5, 4, 3, 2, 1, 0]), values[a])


class Program(nn.Module):
    """Runs a list of instructions on three registers, a layer on the first, and more instructions."""

    def __init__(self, lower, upper):
        super().__init__()
        self.programs = [lower, upper]
        self.linear, self.frozen = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.norm, self.layer_norm = nn.BatchNorm1d(WIDTH), nn.LayerNorm(WIDTH)
        self.instance = nn.BatchNorm1d(WIDTH, momentum=None)
        self.layer, self.last = AdversarialDropout(0.5, 0.4), nn.Linear(WIDTH, CLASSES)
        self.register_buffer("count", torch.ones(WIDTH))
        self.n, self.kept, self.memory = 0, [], None
        self.double()

    def forward(self, x):
        self.n += 1
        values = [x * 1.0, x.sin(), self.linear(x)]
        self.run(self.programs[0], values)
        values[0] = self.layer(values[0])
        self.run(self.programs[1], values)
        return self.last(values[0] + values[1].tanh() + values[2].tanh())

    def run(self, program, values):
        for name, to, a, b in program:
            if name in INSTRUCTIONS:
                INSTRUCTIONS[name](values, to, a, b)
            else:
                values[to] = METHODS[name](self, values[a], values[b])

    def no_gradient(self, a, b):
        with torch.no_grad():
            return self.linear(a).tanh() * 2

    def counted(self, a, b):
        self.count += 0.1
        return a * self.count.clone()

    def averaged(self, a, b):
        result = a + self.count.clone()
        self.count.lerp_(a.detach().mean(0), 0.1)
        return result

    def remembered(self, a, b):
        result = a if self.memory is None else a + self.memory
        self.memory = b.detach() * 0.5
        return result

    def kept_aside(self, a, b):
        self.kept.append(a)
        return a * 1.2

    def changed_before(self, a, b):
        """Changes what an earlier pass has kept."""
        if self.kept:
            with torch.no_grad():
                self.kept[-1].mul_(1.1)
        return a * 1.0

    def with_output(self, a, b):
        with torch.no_grad():
            result = torch.empty_like(a)
            torch.mul(a, b, out=result)
            return result.tanh_()

    def through_numpy(self, a, b):
        return b * torch.from_numpy(np.tanh((a * 2).detach().numpy()))

    def tried(self, a, b):
        try:
            return a.view(7, 7)
        except RuntimeError:
            return a * 0.9


METHODS = {
    "linear": lambda net, a, b: net.linear(a),
    "frozen": lambda net, a, b: net.frozen(a),
    "no gradient": Program.no_gradient,
    "detach": lambda net, a, b: a.detach(),
    "batch norm": lambda net, a, b: net.norm(a),
    "cumulative norm": lambda net, a, b: net.instance(a),
    "layer norm": lambda net, a, b: net.layer_norm(a),
    "dropout": lambda net, a, b: F.dropout(a, 0.3, net.training),
    "noise": lambda net, a, b: a + torch.randn_like(a) * torch.rand(()),
    "hidden noise": lambda net, a, b: a + jitter(b.detach()),
    "python noise": lambda net, a, b: a * random.random() if random.random() < 0.7 else a,
    "numpy noise": lambda net, a, b: a * float(np.random.rand()),
    "stochastic depth": lambda net, a, b: a if torch.rand(()) < 0.5 else a + net.linear(b),
    "count": lambda net, a, b: a * (1 + net.n / 10),
    "count branch": lambda net, a, b: a.tanh() if net.n % 2 else a,
    "count buffer": Program.counted,
    "average buffer": Program.averaged,
    "remember": Program.remembered,
    "keep": Program.kept_aside,
    "change kept": Program.changed_before,
    "out": Program.with_output,
    "numpy": Program.through_numpy,
    "try": Program.tried,
    "square": lambda net, a, b: Square.apply(a),
    "exp": lambda net, a, b: Exp.apply(a.tanh()),
    "dirty": lambda net, a, b: AddOne.apply(a * 1.0),
    "scripted": lambda net, a, b: scripted(a),
    "scripted in place": lambda net, a, b: scripted_in_place(a * 1.0),
    "thread": lambda net, a, b: POOL.submit(lambda: a * a.detach().mean().item()).result(),
    "checkpoint": lambda net, a, b: checkpoint(lambda h: net.linear(h).tanh(), a, use_reentrant=False),
    "reentrant": lambda net, a, b: checkpoint(lambda h: net.linear(h).tanh(), a, use_reentrant=True),
    "vmap": lambda net, a, b: torch.vmap(lambda row: row * row.sum().tanh())(a),
    "add": lambda net, a, b: a + b,
    "product": lambda net, a, b: a * b.sigmoid(),
    "relu in place": lambda net, a, b: F.relu(net.linear(a), inplace=True),
    "relu": lambda net, a, b: a.relu(),
    "where": lambda net, a, b: torch.where(a > b, a, 0.5 * b).masked_fill(a > 2, 0.1),
    "sort": lambda net, a, b: a.sort(dim=1).values + b.topk(2, dim=1).indices.sum(1, keepdim=True),
    "einsum": lambda net, a, b: torch.einsum("bi,bj->bj", a, b) / WIDTH,
    "cumsum": lambda net, a, b: a.cumsum(1) / WIDTH,
}
INSTRUCTIONS = {
    "scale in place": scaled_in_place,
    "add in place": added_in_place,
    "assign": assigned,
    "data": changed_unseen,
    "detached": changed_detached,
    "slice in place": sliced_in_place,
    "chunk in place": chunked_in_place,
    "without gradient": changed_without_gradient,
    "hook": hooked,
    "forget": forgotten,
    "branch": branched,
    "split": split,
    "view": viewed,
    "alias": aliased,
    "write": written,
}
instructions = st.tuples(st.sampled_from([*METHODS, *INSTRUCTIONS]), *[st.integers(0, 2)] * 3)
OBJECTIVES = {
    "shared": CrossEntropy() + VAdD(noise="shared"),
    "independent": CrossEntropy() + VAdD(noise="independent"),
    "supervised": SAdD(),
}
X = torch.randn(2, ROWS, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 0])


def results(lower, upper, objective, reuse):
    torch.manual_seed(0)
    net = Program(lower, upper)
    random.seed(1)
    np.random.seed(2)
    step, found = Step(net, objective, reuse=reuse), []
    for x in X:
        loss = step(x.clone(), Y).loss
        found += [loss.item(), torch.get_rng_state().sum().item(), random.getstate(), np.random.get_state()[1].tolist()]
        loss.backward()
        with torch.no_grad():  # so that buffers stay numbers
            net.count.clamp_(-2, 2)
        found += [value.tolist() for value in (net.count, net.norm.running_mean, net.instance.running_var)]
        found += [net.n, len(net.kept), None if net.memory is None else net.memory.tolist()]
    return found, [parameter.grad for parameter in net.parameters()]


@settings(max_examples=500)
@given(
    st.lists(instructions, min_size=1, max_size=8),
    st.lists(instructions, max_size=4),
    st.sampled_from(list(OBJECTIVES)),
)
def test_reuse_changes_nothing(lower, upper, objective):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            full, expected = results(lower, upper, OBJECTIVES[objective], reuse=False)
        except RuntimeError:  # a change in place of something that autograd needs
            return
        reused, gradients = results(lower, upper, OBJECTIVES[objective], reuse=True)
    if any("several passes of this step share" in str(warning.message) for warning in caught):
        return  # "change kept" above the layer: it cannot be right, and says so
    assert reused == full
    largest = max([value.abs().max().item() for value in expected if value is not None], default=1.0)
    close = (1e-14 if objective == "supervised" else 1e-11) * largest
    for ours, theirs in zip(gradients, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=close, equal_nan=True)


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("name", [*METHODS, *INSTRUCTIONS])
def test_each_instruction_can_run(name):
    results([(name, 0, 1, 2)], [], OBJECTIVES["shared"], reuse=False)
