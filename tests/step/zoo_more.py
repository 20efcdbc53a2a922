"""More of the zoo: modules of torch, wrappers, caches, and other habits."""

# ruff: noqa: NPY002 - networks use numpy's legacy generator, too

from __future__ import annotations

import copy
import random
import warnings
from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn.utils import parametrizations, prune, rnn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from advdrop import AdversarialDropout, insert

from .zoo import CLASSES, FEATURES, HIDDEN, LENGTH, ROWS, WORDS, Net, chain, images, kind, numbers, padded, tokens

# Checkpointing.


class Blocks(Net):
    def build(self):
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Dropout(0.2), nn.Tanh())
            for _ in range(3)
        )


@kind("little", why="checkpointing")
class CheckpointLoop(Blocks):
    def lower(self, x):
        h = self.first(x)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False)
        return h


@kind("any")
class CheckpointLoopReentrant(Blocks):
    def lower(self, x):
        h = self.first(x)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=True)
        return h


@kind("little", why="checkpointing")
class CheckpointSequential(Blocks):
    def lower(self, x):
        return checkpoint_sequential(nn.Sequential(*self.blocks), 2, self.first(x), use_reentrant=False)


@kind("whole")
class CheckpointAbove(Blocks):
    def upper(self, h):
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False)
        return self.last(h)


@kind("little", why="checkpointing")
class CheckpointSometimes(Blocks):
    """As libraries do: only if a gradient is needed and the network trains."""

    def lower(self, x):
        h = self.first(x)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False) if self.training and h.requires_grad else block(h)
        return h


@kind("little", why="checkpointing")
class OffloadsSaved(Net):
    def lower(self, x):
        with torch.autograd.graph.save_on_cpu():
            h = self.first(x).tanh()
        return self.second(h).tanh()


# Arguments and results.


def optional(seed):
    return {"x": numbers(seed), "scale": torch.tensor(0.5, dtype=torch.float64), "unused": None, "flag": True}


@kind("whole", inputs=optional)
class OptionalArguments(Net):
    def forward(self, x, mask=None, *rest, flag=False, **more):
        assert not rest
        x = x if mask is None else x * mask
        return super().forward(x * more.pop("scale", 1.0) if flag else x)


@kind("whole", inputs=lambda seed: (numbers(seed), None, 2, "tanh"))
class PlainArguments(Net):
    def forward(self, x, mask, times, name):
        h = self.first(x)
        for _ in range(times):
            h = getattr(torch, name)(self.second(h))
        return self.last(self.layer(h))


@dataclass
class Result:
    scores: Tensor
    features: Tensor
    rest: Any = None


@kind("whole", logits="scores")
class ReturnsDataclass(Net):
    def forward(self, x):
        h = self.lower(x)
        return Result(self.last(self.layer(h)), h, {"sum": h.sum()})


@kind("whole", logits=lambda output: output[1][0]["scores"])
class ReturnsNested(Net):
    def forward(self, x):
        h = self.lower(x)
        return h, ({"scores": self.last(self.layer(h))}, [h.mean()])


@kind("whole")
class AuxiliaryLoss(Net):
    """The loss of a step is added to what the last pass has stored away."""

    def lower(self, x):
        h = super().lower(x)
        self.auxiliary = h.square().mean() + F.dropout(h, 0.3).mean()
        return h


@kind("whole")
class AuxiliaryLossAbove(Net):
    def upper(self, h):
        self.auxiliary = h.abs().mean()
        return self.last(h)


@kind("half")
class AuxiliaryLosses(Net):
    """Losses of all passes, summed up and cleared by the user."""

    def build(self):
        self.losses = []

    @property
    def auxiliary(self):
        total, self.losses = sum(self.losses), []
        return total

    def lower(self, x):
        h = super().lower(x)
        self.losses.append((len(self.losses) + 1) * h.square().mean())
        return h


@kind("whole")
class FeatureHook(Net):
    """A forward hook that keeps the features, as for distillation."""

    def build(self):
        self.first.register_forward_hook(self.keep)

    def keep(self, module, given, output):
        self.auxiliary = output.square().mean()


# Modules of torch.


@kind("little", why="makes a leaf")
def old_spectral_norm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = Net()
        nn.utils.spectral_norm(net.first)
    return net


@kind("whole")
def old_weight_norm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = Net()
        nn.utils.weight_norm(net.second)
        nn.utils.weight_norm(net.last)
    return net


@kind("whole")
def orthogonal():
    net = Net()
    parametrizations.orthogonal(net.second)
    return net


@kind("whole")
def cached_parametrization():
    class Cached(Net):
        def forward(self, x):
            with nn.utils.parametrize.cached():
                return super().forward(x)

    net = Cached()
    parametrizations.weight_norm(net.second)
    return net


@kind("whole")
def pruned():
    net = Net()
    prune.random_unstructured(net.second, "weight", 0.3)
    return net


@kind("whole")
def lazy():
    net = Net()
    net.second = nn.LazyLinear(HIDDEN)
    net.double()
    net(numbers(0))
    return net


@kind("little", inputs=tokens, why="embedding")
class RenormalizedEmbedding(Net):
    """Changes its weight in each pass."""

    def build(self):
        self.embedding = nn.Embedding(WORDS, HIDDEN, max_norm=1.0)

    def lower(self, x):
        return self.second(self.embedding(x).mean(1)).tanh()


@kind("whole", inputs=tokens)
class BagOfWords(Net):
    def build(self):
        self.bag = nn.EmbeddingBag(WORDS, HIDDEN, mode="mean")

    def lower(self, x):
        return self.second(self.bag(x)).tanh()


@kind("whole", inputs=padded)
class DeepRecurrent(Net):
    def build(self):
        self.embedding = nn.Embedding(WORDS, 8)
        self.reader = nn.LSTM(8, HIDDEN // 2, 2, batch_first=True, dropout=0.3, bidirectional=True)

    def lower(self, x):
        packed = rnn.pack_padded_sequence(self.embedding(x), (x != 0).sum(1), batch_first=True, enforce_sorted=False)
        _, (h, _) = self.reader(packed)
        return h[-2:].transpose(0, 1).flatten(1)


@kind("whole", inputs=tokens)
class RecurrentCells(Net):
    def build(self):
        self.embedding, self.cell = nn.Embedding(WORDS, 8), nn.GRUCell(8, HIDDEN)

    def lower(self, x):
        h = torch.zeros(len(x), HIDDEN, dtype=torch.float64)
        for word in self.embedding(x).unbind(1):
            h = self.cell(word, h)
        return h


@kind("little", inputs=tokens, why="in another way|existed before|changed")
class CarriesState(Net):
    """Goes on with the state of the last pass, as in truncated backpropagation through time."""

    state = None

    def build(self):
        self.embedding, self.reader = nn.Embedding(WORDS, 8), nn.GRU(8, HIDDEN, batch_first=True)

    def lower(self, x):
        h, state = self.reader(self.embedding(x), self.state)
        self.state = state.detach()
        return h[:, -1]


class Encoder(Net):
    def build(self):
        self.embedding = nn.Embedding(WORDS, 8)
        block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(block, 2), nn.Linear(8, CLASSES)


@kind("whole", inputs=padded)
class CausalTransformer(Encoder):
    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=torch.float64)
        h = self.encoder(self.embedding(x), mask=mask, is_causal=True)
        return self.head(self.layer(h)[:, -1])


@kind("little", inputs=padded, why="compiled")
class FrozenTransformer(Encoder):
    """In evaluation mode and without gradients, torch takes its fast path with nested tensors."""

    def build(self):
        super().build()
        self.encoder.requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        self.encoder.eval()
        return self

    def forward(self, x):
        e = self.embedding(x).sin().cos().tanh().sin()
        with torch.no_grad():
            h = self.encoder(e, src_key_padding_mask=x == 0)
        return self.head(self.layer(h.sum(1) + e.mean(1)))


@kind("whole", inputs=padded)
class AttentionWeights(Encoder):
    def build(self):
        super().build()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True, add_zero_attn=True)

    def forward(self, x):
        e = self.embedding(x)
        h, weights = self.attention(e, e, e, need_weights=True, average_attn_weights=False)
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            h = h + self.attention(e, h, h, need_weights=False)[0]
        return self.head(self.layer(h).mean(1)) + weights.mean()


@kind("whole", inputs=images)
class ImageOperations(Net):
    def build(self):
        self.up, self.norm = nn.ConvTranspose2d(2, 4, 2, 2), nn.GroupNorm(2, 4)
        self.head, self.channels = nn.Linear(16, CLASSES), AdversarialDropout(0.5, 0.3, granularity="channel")

    def forward(self, x):
        h = F.interpolate(self.norm(self.up(x)), size=(6, 6), mode="bilinear", align_corners=False)
        h = F.pixel_unshuffle(F.unfold(h, 3, padding=1).view(ROWS, 36, 6, 6)[:, :4], 2)
        return self.head(self.channels(F.dropout2d(h, 0.2)).mean((2, 3)))


@kind("little", why="existed before the pass")
class FakeQuantized(Net):
    """Observers change their buffers in each pass."""

    def build(self):
        self.register_buffer("scale", torch.tensor([0.1]))

    def lower(self, x):
        h = super().lower(x).sin().cos().tanh().sin()
        self.scale.copy_(0.9 * self.scale + 0.1 * h.detach().abs().max() / 127)
        return h + (torch.fake_quantize_per_tensor_affine(h.float(), self.scale.item(), 0, -128, 127) - h).detach()


# Modules that are chosen or made on the way.


@kind("half")
class RandomModule(Net):
    def build(self):
        self.choices = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.named = nn.ModuleDict({name: nn.Linear(HIDDEN, HIDDEN) for name in "abc"})

    def lower(self, x):
        h = random.choice(self.choices)(self.first(x))
        h = self.named[str(np.random.choice(["a", "b", "c"]))](h.tanh())
        return self.choices[int(torch.randint(4, ()))](h.sin())


@kind("whole")
class RandomOrder(Net):
    def build(self):
        self.choices = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(3))

    def lower(self, x):
        h = self.first(x)
        for i in torch.randperm(3).tolist():
            h = self.choices[i](h).tanh()
        return h


@kind("little", why="had not been kept|in another way")
class CopiesModule(Net):
    """The copy has parameters of its own, so the original gets no gradient from it."""

    def lower(self, x):
        return self.second(copy.deepcopy(self.first)(x).tanh())


@kind("little", why="existed before|has been changed since|in another way")
class Teacher(Net):
    """A moving average of the weights that is updated in each pass."""

    def build(self):
        self.teacher = copy.deepcopy(self.first).requires_grad_(False)

    def lower(self, x):
        with torch.no_grad():
            for slow, fast in zip(self.teacher.parameters(), self.first.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
            target = self.teacher(x)
        h = self.first(x)
        self.auxiliary = F.mse_loss(h, target)
        return self.second(h.tanh())


@kind("half")
class OwnGenerators(Net):
    """Generators that no step can know; what a pass that starts again has drawn is taken back."""

    def build(self):
        self.torch, self.python = torch.Generator().manual_seed(1), random.Random(2)
        self.legacy = np.random.RandomState(3)

    def lower(self, x):
        h = super().lower(x).sin().cos().tanh().sin()
        h = h * (self.python.random() + self.legacy.random_sample())
        return h + torch.rand(h.shape, generator=self.torch, dtype=h.dtype)


class Memory:
    """Counts the passes: an attribute, a list in a dict, a queue, slots, and an object in an object."""

    def __init__(self, inner=None):
        self.n, self.lists, self.queue, self.inner = 0, {"a": ([],)}, deque(maxlen=50), inner

    def count(self):
        self.n += 1
        self.lists["a"][0].append(self.n)
        self.queue.append(self.n)
        inner = 0 if self.inner is None else self.inner.count()
        return self.n + len(self.lists["a"][0]) + len(self.queue) + inner


@dataclass(slots=True)
class Slotted:
    n: int = 0

    def count(self):
        self.n += 1
        return self.n


MEMORIES = {
    "CountsInObject": Memory,
    "CountsInObjectInObject": lambda: Memory(Memory()),
    "CountsInSlots": Slotted,
    "CountsInObjectInList": lambda: [Memory()],
    "CountsInQueue": deque,
    "CountsInNestedList": lambda: {"a": {"b": []}},
}


class CountsElsewhere(Net):
    """The replay has to start again behind the count, and must not count twice."""

    def __init__(self, memory):
        super().__init__()
        self.memory = memory
        self.first.requires_grad_(False)

    def count(self):
        memory = self.memory[0] if isinstance(self.memory, list) else self.memory
        if isinstance(memory, deque | dict):
            seen = memory if isinstance(memory, deque) else memory["a"]["b"]
            seen.append(1)
            return len(seen)
        return memory.count()

    def lower(self, x):
        h = self.first(x).tanh()
        count = self.count()
        return self.second(h.sin() * (1 + 0.1 * count))


for _name, _memory in MEMORIES.items():
    kind("little", _name, why="still has a tensor|in another way")(lambda memory=_memory: CountsElsewhere(memory()))


@kind("whole")
class TiedByFunction(Net):
    def upper(self, h):
        return F.linear(h, self.second.weight)[:, :CLASSES] + self.last(h)


# Caches.


@kind("half")
class CacheByShape(Net):
    def build(self):
        self.cache = {}

    def lower(self, x):
        h = super().lower(x).sin().cos()
        key = tuple(h.shape), h.dtype
        if key not in self.cache:
            self.cache[key] = torch.linspace(0, 1, HIDDEN, dtype=h.dtype)
        return h + self.cache[key]


@cache
def table(width: int) -> Tensor:
    return torch.linspace(0, 1, width, dtype=torch.float64)


@kind("half")
class GlobalCache(Net):
    def lower(self, x):
        return super().lower(x).sin().cos() + table(HIDDEN)


@kind("any")
class CacheByInput(Net):
    """The second pass of the same rows takes the result of the first."""

    def build(self):
        self.cache = {}

    def lower(self, x):
        if id(x) not in self.cache:
            self.cache.clear()
            self.cache[id(x)] = super().lower(x)
        return self.cache[id(x)]


# Wrappers.


@kind("whole")
def data_parallel():
    return nn.DataParallel(Net())


@kind("whole")
class Profiled(Net):
    def lower(self, x):
        with torch.profiler.record_function("first"):
            h = self.first(x)
        with torch.autograd.profiler.record_function("second"):
            return self.second(h.tanh())


@kind("whole")
def averaged_model():
    return torch.optim.swa_utils.AveragedModel(Net())


@kind("whole")
def forwarding_wrapper():
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("module"), name)

        def forward(self, *args, **kwargs):
            kwargs = {key: value for key, value in kwargs.items() if value is not None}
            return self.module(*(part.to("cpu") for part in args), **kwargs)

    return Wrapper(Wrapper(Net()))


@kind("whole")
def hooks_with_keywords():
    class Named(Net):
        def forward(self, x):
            return self.last(self.layer(self.second(input=self.first(input=x))))

    net = Named()
    net.first.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {"input": kwargs["input"] * 2}), with_kwargs=True
    )
    net.second.register_forward_hook(
        lambda module, args, kwargs, output: output.tanh() + kwargs["input"], with_kwargs=True
    )
    return net


@kind("whole")
def multi_sample_dropout():
    """A dropout that runs four times, replaced by insertion."""

    class Samples(Net):
        def build(self):
            self.drop, self.inner = nn.Dropout(0.2), nn.Identity()

        def forward(self, x):
            h = self.lower(x)
            return torch.stack([self.last(self.inner(self.drop(h))) for _ in range(4)]).mean(0)

    return insert(Samples(), "inner", delta=0.3)


# Modes and transforms.


@kind("whole")
class ReadsTraining(Net):
    def lower(self, x):
        assert self.training
        h = F.dropout(self.first(x), 0.2, self.training)
        return self.second(h) + (torch.randn_like(h) if self.training else 0.0)


class InferenceTrunk(Net):
    def build(self):
        self.trunk = nn.Linear(FEATURES, FEATURES)


@kind("little", why="inference mode")
class InferenceInside(InferenceTrunk):
    def lower(self, x):
        with torch.inference_mode():
            h = self.trunk(x).tanh()
        return super().lower(h.clone())


@kind("little", why="inference mode")
class InferenceDecorated(InferenceTrunk):
    @torch.inference_mode()
    def features(self, x):
        return F.dropout(self.trunk(x), 0.3).tanh()

    def lower(self, x):
        return super().lower(torch.clone(self.features(x)))


@kind("whole")
class NoGradDecorated(InferenceTrunk):
    @torch.no_grad()
    def features(self, x):
        return F.dropout(self.trunk(x), 0.3).tanh()

    def lower(self, x):
        return super().lower(self.features(x))


@kind("little", why="requires_grad_ is used on a tensor")
class Ensemble(Net):
    """Runs several modules at once with vmap."""

    def build(self):
        self.members = nn.ModuleList(nn.Linear(FEATURES, HIDDEN) for _ in range(3))

    def lower(self, x):
        parameters, buffers = stack_module_state(list(self.members))
        base = self.members[0]
        return torch.vmap(lambda p, b: functional_call(base, (p, b), (x,)))(parameters, buffers).mean(0).tanh()


@kind("little", why="torch.func")
class JacobianFeatures(Net):
    def lower(self, x):
        slopes = torch.func.vmap(torch.func.jacrev(lambda row: self.first(row).tanh().sum()))(x)
        return super().lower(x + slopes)


@kind("whole")
class Fourier(Net):
    def build(self):
        self.filter = nn.Parameter(torch.randn(FEATURES // 2 + 1, dtype=torch.complex128))

    def lower(self, x):
        return super().lower(torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=FEATURES))


@kind("little", why="grad is used on a tensor")
class PenalizesGradient(Net):
    """Differentiates inside of forward, with a graph."""

    def lower(self, x):
        with torch.enable_grad():
            h = self.first(x)
            (slope,) = torch.autograd.grad(h.tanh().sum(), h, create_graph=True)
        return self.second(h + slope)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.strength * gradient, None


@kind("half")
class GradientReversal(Net):
    def lower(self, x):
        h = super().lower(x).sin().cos().tanh()
        return Reverse.apply(h, 0.5)


@kind("half")
class SparseAdjacency(Net):
    """A graph network with a sparse matrix, kept as a buffer."""

    def build(self):
        dense = torch.eye(ROWS).roll(1, 0) + torch.eye(ROWS)
        self.register_buffer("graph", dense.to_sparse(), persistent=False)

    def lower(self, x):
        h = super().lower(x).sin().cos().tanh().sin()
        return torch.sparse.mm(self.graph, h) / 2


@kind("whole")
class ComplexLinear(Net):
    def build(self):
        self.complex = nn.Linear(FEATURES, HIDDEN, dtype=torch.complex128)

    def lower(self, x):
        h = self.complex(torch.complex(x, -x))
        return torch.cat([h.real, h.imag], 1)[:, ::2].tanh() * h.abs() + h.angle().sin()


@kind("whole")
def dropout_and_inputs_shared():
    """Noise at the input, at the bottom of a plain sequence."""
    return chain(nn.Dropout(0.2), nn.Linear(FEATURES, HIDDEN), nn.AlphaDropout(0.1))
