"""What a tape replays, what it holds, and what it costs. Whole networks are in test_zoo."""

# ruff: noqa: NPY002 - networks use numpy's legacy generator, too

import gc
import random
import statistics
import threading
import time
import weakref
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from advdrop import (
    VAT,
    CrossEntropy,
    Exhaustive,
    FirstOrder,
    Iterated,
    Probe,
    RandomFlips,
    SAdD,
    Step,
    VAdD,
)
from advdrop.step.any_network import MOST_RESTARTS, AnyNetwork
from advdrop.step.player import Player
from advdrop.step.recorder import Recorder
from advdrop.step.sequential_network import SequentialNetwork

from .zoo import CLASSES, FEATURES, HIDDEN, ROWS, ZOO, Net, chain, numbers

CPU = torch.device("cpu")
LABELS = torch.arange(ROWS) % CLASSES


def recorded(function):
    recorder = Recorder(CPU)
    with recorder:
        output = function()
        recorder.stop()
    return output, recorder.tape()


def replayed(first, second):
    """The results of two functions, the second of them on the tape of the first, and the number of replayed calls."""
    output, tape = recorded(first)
    player = Player(tape, tape.length())
    with player:
        again = second()
        player.stop()
    return output, again, player.position


# What is equal.

X = torch.randn(4, 6, dtype=torch.float64)
EQUAL = {
    "int": (2, 2),
    "float": (0.1 + 0.2, 0.30000000000000004),
    "list": ([1, 2], [1, 2]),
    "size": (torch.Size([2]), torch.Size([2])),
    "numpy": (np.float64(2.5), np.float64(2.5)),
    "slice": (slice(1, None), slice(1, None)),
    "nested": ((slice(0, 2), [0, 1]), (slice(0, 2), [0, 1])),
    "dtype": (torch.float32, torch.float32),
}
DIFFERENT = {
    "int": (2, 3),
    "type": (2, 2.0),
    "bool": (1, True),
    "numpy": (2.5, np.float64(2.5)),
    "zero": (0.0, -0.0),
    "complex zero": (0j, -0j),
    "numpy zero": (np.float32(0.0), np.float32(-0.0)),
    "list and tuple": ([1, 2], (1, 2)),
    "length": ([1, 2], [1, 2, 3]),
    "slice": (slice(1, None), slice(1, 2)),
    "nested": ((slice(0, 2), [0, 1]), (slice(0, 2), [0, 2])),
    "tensor": (torch.ones(1), torch.ones(1)),
    "unknown": (torch.Generator(), torch.Generator()),
    "none": (None, 0),
}


@pytest.mark.parametrize(("one", "other"), EQUAL.values(), ids=EQUAL)
def test_equal_arguments_are_replayed(one, other, free_call):
    assert replayed(lambda: free_call(X, one), lambda: free_call(X, other))[2] == 1
    assert replayed(lambda: free_call(X, key=one), lambda: free_call(X, key=other))[2] == 1


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_different_arguments_are_not(one, other, free_call):
    assert replayed(lambda: free_call(X, one), lambda: free_call(X, other))[2] == 0
    assert replayed(lambda: free_call(X, one), lambda: free_call(X))[2] == 0
    assert replayed(lambda: free_call(X, key=one), lambda: free_call(X, key=other))[2] == 0
    assert replayed(lambda: free_call(X, key=1), lambda: free_call(X, other=1))[2] == 0


@pytest.fixture
def free_call():
    """A torch function that takes anything."""

    def function(x, *args, **kwargs):
        if torch.overrides.has_torch_function((x,)):
            return torch.overrides.handle_torch_function(function, (x,), x, *args, **kwargs)
        return x * 2

    return function


def test_a_list_is_remembered_as_it_was():
    parts = [X, X * 2]

    def first():
        output = torch.cat(parts)
        parts.append(X * 3)
        return output

    _, again, position = replayed(first, lambda: torch.cat(parts))
    assert position == 0
    assert len(again) == 12


class Neighbors(NamedTuple):
    lower: Tensor
    upper: Tensor


def neighbors(x):
    """A function that a library has made known to torch, with a named tuple as its result."""
    if torch.overrides.has_torch_function((x,)):
        return torch.overrides.handle_torch_function(neighbors, (x,), x)
    return Neighbors(x - 1, x + 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda: X.topk(2, dim=1),
        lambda: X.chunk(2),
        lambda: X.tolist(),
        lambda: X.shape,
        lambda: X.sum().item(),
        lambda: torch.unique(X, return_counts=True),
        lambda: torch.tensor_split(X, 2),
        lambda: neighbors(X),
    ],
)
def test_results_come_back_as_they_were(call):
    one, other, position = replayed(call, call)
    assert position >= 1
    assert type(one) is type(other)
    torch.testing.assert_close(one, other)
    if isinstance(one, list):
        assert one is not other
        assert one[0] is not other[0]


@pytest.mark.parametrize(
    "around",
    [
        torch.no_grad,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.inference_mode(),
        lambda: torch.autograd.graph.save_on_cpu(),
    ],
)
def test_other_modes_are_other_calls(around):
    def inside():
        with around():
            return torch.relu(X)

    def outside():
        return torch.relu(X)

    assert replayed(outside, outside)[2] == 1
    assert replayed(outside, inside)[2] == 0
    assert replayed(inside, outside)[2] == 0


def test_inference_tensors_have_no_versions_and_are_not_recorded():
    with torch.inference_mode():
        x = X.clone()
    assert replayed(lambda: x.clone(), lambda: x.clone())[2] == 0


def test_a_failed_call_ends_the_tape():
    def fails():
        try:
            (X * 2).view(7)
        except RuntimeError:
            return X * 3

    one, other, position = replayed(fails, fails)
    assert position == 1
    assert torch.equal(one, other)


def test_the_layer_may_run_inside_a_call(free_call):
    recorder = Recorder(CPU)

    def function(x):
        if torch.overrides.has_torch_function((x,)):
            return torch.overrides.handle_torch_function(function, (x,), x)
        recorder.stop()
        return x * 2

    with recorder:
        function(X * 3)
    assert len(recorder.tape().calls) == 1


# Whole steps.


def losses(net, objective, reuse, steps=2, seed=0, **options):
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    step = Step(net, objective, reuse=reuse, **options)
    found = []
    for number in range(steps):
        loss = step(numbers(number), LABELS, generator=torch.Generator().manual_seed(number)).loss
        if loss.requires_grad:
            loss.backward()
        found.append(loss.item())
    return found


def twins(build):
    torch.manual_seed(0)
    one = build()
    torch.manual_seed(0)
    return one, build()


class Counting(TorchDispatchMode):
    """How often each operator ran."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class Deep(Net):
    def lower(self, x):
        for _ in range(10):
            x = self.first(x)[:, :FEATURES].sinh()
        return self.first(x)


@pytest.mark.parametrize(("noise", "computed"), [("shared", 10), ("independent", 20)])
def test_replayed_calls_do_not_run(noise, computed):
    for reuse, times in ((True, computed), (False, 30)):
        with Counting() as counting:
            losses(Deep(), VAdD(noise=noise), reuse, steps=1)
        assert counting.names.count("sinh") == times


SEARCHES = [Iterated(3), Probe(), RandomFlips(), Exhaustive()]


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: type(search).__name__)
@pytest.mark.parametrize("noise", ["shared", "independent"])
@pytest.mark.parametrize("name", ["InPlace", "FrozenTrunk", "CountsScale", "StochasticDepth"])
@pytest.mark.filterwarnings("ignore:only")
def test_searches_with_and_without_gradients(name, noise, search):
    one, other = twins(ZOO[name].build)
    objective = CrossEntropy() + VAdD(noise=noise, search=search)
    steps = 1 if isinstance(search, Exhaustive) else 2
    assert losses(one, objective, True, steps) == losses(other, objective, False, steps)
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["StochasticDepth", "InPlace", "plain", "RetainsGradient"])
@pytest.mark.parametrize("noise", ["shared", "independent"])
def test_a_step_without_gradients(name, noise):
    one, other = twins(ZOO[name].build)
    with torch.no_grad():
        assert losses(one, CrossEntropy() + VAdD(noise=noise), True) == losses(
            other, CrossEntropy() + VAdD(noise=noise), False
        )


class AsksForGradients(Net):
    def lower(self, x):
        h = self.first(x)
        h = h.tanh() if h.requires_grad else h.sigmoid()
        return h * 2 if torch.is_grad_enabled() else h


@pytest.mark.parametrize("search", [FirstOrder(), Iterated(3), Exhaustive()], ids=lambda search: type(search).__name__)
def test_a_network_that_asks_for_gradients_gets_the_answer_of_a_full_pass(search):
    one, other = twins(AsksForGradients)
    objective = VAdD(noise="shared", search=search)
    assert losses(one, objective, True) == losses(other, objective, False)


NOISY = ["StochasticDepth", "StochasticDepthPython", "StochasticDepthNumpy", "DropoutAndBatchNorm", "Distributions"]


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("name", NOISY)
@pytest.mark.filterwarnings("ignore:VAdD")  # no budget
def test_shared_noise_is_that_of_the_clean_pass(name, reuse):
    """Without flips, the adversarial pass is the clean one."""
    net = ZOO[name].build()
    assert losses(net, VAdD(noise="shared", delta=0.0), reuse) == [0.0, 0.0]
    assert min(losses(net, VAdD(noise="independent", delta=0.0), reuse)) > 1e-6


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("name", NOISY)
def test_shared_noise_leaves_no_trace_in_the_generators(name, reuse):
    found = []
    for objective in (CrossEntropy(), CrossEntropy() + VAdD(noise="shared")):
        losses(ZOO[name].build(), objective, reuse, steps=1)
        found.append((torch.rand(()).item(), random.random(), np.random.rand()))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["sequential_python_noise_above", "StochasticDepth", "StochasticDepthPython"])
@pytest.mark.parametrize("noise", ["shared", "independent"])
def test_perturbed_inputs_meet_the_same_noise(name, noise):
    one, other = twins(ZOO[name].build)
    objective = CrossEntropy() + VAT(epsilon=0.5, noise=noise)
    assert losses(one, objective, True) == losses(other, objective, False)


def test_labeled_and_unlabeled_rows_have_tapes_of_their_own():
    objective = SAdD() + VAdD(noise="shared") + CrossEntropy()
    found = []
    for net, reuse in zip(twins(ZOO["KeepsFeatures"].build), (True, False), strict=True):
        torch.manual_seed(1)
        step = Step(net, objective, reuse=reuse)
        loss = step(numbers(0), LABELS, unlabeled=numbers(1), second_view=numbers(2)).loss
        loss.backward()
        found.append([loss.item(), [value.sum().item() for value in net.kept]])
    assert found[0] == found[1]


def test_a_network_that_always_starts_again_is_not_recorded_any_more():
    net = ZOO["CountsInFrozen"].build()
    step = Step(net, VAdD(noise="shared"))
    with pytest.warns(UserWarning, match="could be reused"):
        step(numbers(0), LABELS)
    for number in range(1, 5):  # an error if there is another warning
        step(numbers(number), LABELS)
    assert step._known[1].restarts == MOST_RESTARTS
    assert net.n == 15


class HooksLater(Net):
    n = 0

    def forward(self, x):
        self.n += 1
        h = self.lower(x)
        output = self.last(self.layer(h))
        if self.n == 2:
            h.register_hook(lambda gradient: gradient * 2)
        return output


def test_a_change_for_all_passes_is_told():
    with pytest.warns(UserWarning, match="register_hook was called on a tensor that several passes of this step share"):
        losses(HooksLater(), VAdD(noise="shared"), True, steps=1)


class SumsOverProcesses(Net):
    def lower(self, x):
        h = super().lower(x).sin().cos()
        side = (h * 2).detach()
        torch.distributed.all_reduce(side)
        return h + side / torch.distributed.get_world_size()


def test_communication_takes_place_in_every_pass(tmp_path, monkeypatch):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        calls, reduce = [], torch.distributed.all_reduce
        monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor: calls.append(tensor) or reduce(tensor))
        one, other = twins(SumsOverProcesses)
        assert losses(one, VAdD(noise="shared"), True, steps=1) == losses(other, VAdD(noise="shared"), False, steps=1)
        assert len(calls) == 6
    finally:
        torch.distributed.destroy_process_group()


# Which networks are divided between their children.


def network_for(net, inputs=None):
    step = Step(net, CrossEntropy())
    inputs = numbers(0) if inputs is None else inputs
    step(inputs, LABELS)
    return type(step._known[1])


class Own(nn.Module):
    def forward(self, x):
        return x


class Declared(Own):
    rowwise = "still"


DIVIDED = {
    "torch's modules": (lambda: chain(nn.Linear(FEATURES, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Dropout()), True),
    "nested": (lambda: chain(nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Sequential(nn.ReLU()))), True),
    "weight norm": (lambda: chain(nn.utils.parametrizations.weight_norm(nn.Linear(FEATURES, HIDDEN))), True),
    "declared": (lambda: chain(nn.Linear(FEATURES, HIDDEN), Declared()), True),
    "unknown": (lambda: chain(nn.Linear(FEATURES, HIDDEN), Own()), False),
    "spectral norm": (lambda: chain(nn.utils.parametrizations.spectral_norm(nn.Linear(FEATURES, HIDDEN))), False),
    "no layer": (lambda: nn.Sequential(nn.Linear(FEATURES, CLASSES)).double(), True),
}


@pytest.mark.parametrize(("build", "divided"), DIVIDED.values(), ids=DIVIDED)
def test_only_known_modules_are_divided(build, divided):
    assert network_for(build()) is (SequentialNetwork if divided else AnyNetwork)


@pytest.mark.parametrize("where", ["root", "nested", "below"])
def test_hooks_are_user_code(where):
    net = chain(nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh()))
    module = {"root": net, "nested": net[0], "below": net[0][0]}[where]
    module.register_forward_hook(lambda module, given, output: 2 * output)
    assert network_for(net) is AnyNetwork


def test_a_sequential_without_a_layer_may_return_anything():
    net = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.LSTM(HIDDEN, CLASSES)).double()
    assert Step(net, CrossEntropy(), logits=0)(numbers(0), LABELS).loss.isfinite()


def test_a_layer_whose_input_is_changed_gets_it_anew():
    def build():
        net = chain(nn.Linear(FEATURES, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Dropout(0.3), nn.Linear(HIDDEN, HIDDEN))
        net[4].register_forward_pre_hook(lambda module, given: (given[0].mul_(1.5),))
        return net

    one, other = twins(build)
    assert losses(one, VAdD(noise="shared"), True) == losses(other, VAdD(noise="shared"), False)


# Memory.


@pytest.fixture
def no_gc():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Watched(Net):
    """Notes which of the intermediate results of its lower part are alive when the layer runs."""

    frozen = ""

    def build(self):
        self.parts = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(6))
        self.seen, self.alive = [], []
        if self.frozen == "parameters":
            self.first.requires_grad_(False)
            self.parts.requires_grad_(False)

    def forward(self, x):
        with torch.set_grad_enabled(self.frozen != "no_grad"):
            h = self.first(x)
            for part in self.parts:
                h = part(h).tanh()
                self.seen.append(weakref.ref(h))
        self.alive.append(sum(reference() is not None for reference in self.seen[-6:]))
        return self.last(self.layer(h))


@pytest.mark.parametrize("noise", ["shared", "independent"])
@pytest.mark.parametrize("frozen", ["", "no_grad", "parameters"])
@pytest.mark.usefixtures("no_gc")
def test_the_tape_is_gone_after_the_step(noise, frozen, monkeypatch):
    tapes, tape = [], Recorder.tape

    def watch(recorder):
        found = tape(recorder)
        tapes.append(weakref.ref(found))
        return found

    monkeypatch.setattr(Recorder, "tape", watch)
    monkeypatch.setattr(Watched, "frozen", frozen)
    net = Watched()
    loss = Step(net, CrossEntropy() + VAdD(noise=noise))(numbers(0), LABELS).loss
    assert tapes
    assert not any(reference() for reference in tapes)
    loss.backward()
    del loss
    assert not any(reference() is not None for reference in net.seen)


@pytest.mark.parametrize("noise", ["shared", "independent"])
@pytest.mark.parametrize("frozen", ["no_grad", "parameters"])
@pytest.mark.usefixtures("no_gc")
def test_a_frozen_network_keeps_only_its_last_result(noise, frozen, monkeypatch):
    monkeypatch.setattr(Watched, "frozen", frozen)
    net = Watched()
    Step(net, CrossEntropy() + VAdD(noise=noise))(numbers(0), LABELS)
    assert net.alive == [1] * 3
    assert all(parameter.grad is None for parameter in net.first.parameters())


@pytest.mark.usefixtures("no_gc")
def test_an_error_leaves_nothing():
    class Fails(Watched):
        def forward(self, x):
            output = super().forward(x)
            if len(self.alive) == 2:
                raise ValueError("no")
            return output

    net = Fails()
    with pytest.raises(ValueError, match="no"):
        Step(net, VAdD(noise="shared"))(numbers(0), LABELS)
    gc.collect()  # a traceback is a cycle
    assert not any(reference() is not None for reference in net.seen)


# Threads.


@pytest.mark.parametrize("names", [("ResNet", "TransformerEncoder"), ("InPlace", "FrozenTrunk")])
def test_threads_do_not_disturb_each_other(names):
    """Without noise but that of the generator, which all threads share, each gets what it gets alone."""

    def quiet(name):
        torch.manual_seed(0)
        net = ZOO[name].build()
        for module in net.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
        return net

    def run(name, net, found):
        step = Step(net, CrossEntropy() + VAdD(noise="shared"))
        for number in range(8):
            loss = step(ZOO[name].inputs(number), LABELS, generator=torch.Generator().manual_seed(number)).loss
            loss.backward()
            found.append(loss.item())
        found += [parameter.grad.sum().item() for parameter in net.parameters() if parameter.grad is not None]

    alone, together = {name: [] for name in names}, {name: [] for name in names}
    for name in names:
        run(name, quiet(name), alone[name])
    threads = [threading.Thread(target=run, args=(name, quiet(name), together[name])) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert alone == together
    assert all(alone.values())


# Cost.


def cheap(x, calls):
    for _ in range(calls // 2):
        x = torch.relu(x + 1.0)
    return x


def seconds(function):
    """Of this thread: other processes on the machine do not count."""
    start = time.thread_time()
    function()
    return time.thread_time() - start


class Nothing(TorchFunctionMode):
    """The least that anything which sees the calls of torch must do."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("gradient", [False, True])
def test_recording_costs_little(gradient):
    x, calls = torch.randn(4, 4, requires_grad=gradient), 200

    def overhead():
        """How much a recorder adds to the time of calls, in multiples of what an empty mode adds."""
        times = {"plain": [], "empty": [], "recording": []}
        for _ in range(20):
            for name, mode in (("plain", nullcontext()), ("empty", Nothing()), ("recording", Recorder(CPU))):
                with mode:
                    times[name].append(seconds(lambda: cheap(x, calls)))
        plain, empty, recording = (statistics.median(found) for found in times.values())
        return (recording - plain) / (empty - plain)

    assert any(overhead() < 6 for _ in range(10))  # the caches are shared with other processes


def test_replaying_is_cheaper_than_computing():
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(16, track_running_stats=False)
    net = nn.Sequential(*[nn.Conv2d(16, 16, 3, padding=1), norm, nn.ReLU(inplace=True)] * 3)
    x = torch.randn(16, 16, 16, 16)
    _, tape = recorded(lambda: net(x))
    computing, replaying = [], []
    for _ in range(7):
        computing.append(seconds(lambda: net(x)))
        player = Player(tape, tape.length())
        with player:
            replaying.append(seconds(lambda: net(x)))
        assert player.position == len(tape.calls)
    assert statistics.median(replaying) < 0.3 * statistics.median(computing)
