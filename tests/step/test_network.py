"""Lower parts that are computed once give the same results as full passes, and networks are run as they are."""

import gc
import random
import weakref
from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import nn

from advdrop import AT, VAT, AdversarialDropout, CrossEntropy, PiModel, SAdD, Step, VAdD
from advdrop.insertion import insert
from advdrop.lab.models import conv_large, mnist_cnn
from advdrop.step.any_network import AnyNetwork
from advdrop.step.batch_norm import RunningStatistics
from advdrop.step.divide import network_of
from advdrop.step.inputs import call, tensors
from advdrop.step.sequential_network import SequentialNetwork
from small import CLASSES, FEATURES, HIDDEN, Residual, Wrapped, batch, close, gradients, noisy, only, quiet, run, seeded


def nested():
    return nn.Sequential(
        nn.Linear(FEATURES, 12),
        nn.Sequential(nn.Tanh(), nn.Dropout(0.3), nn.Linear(12, HIDDEN), AdversarialDropout(0.5, 0.3), nn.Tanh()),
        nn.Dropout(0.2),
        nn.Linear(HIDDEN, CLASSES),
    )


def two_layers():
    return nn.Sequential(
        *(nn.Linear(FEATURES, 12), nn.BatchNorm1d(12), nn.Dropout(0.3), AdversarialDropout(0.5, 0.2)),
        *(nn.Linear(12, HIDDEN), nn.Dropout(0.3), AdversarialDropout(0.5, 0.3), nn.Linear(HIDDEN, CLASSES)),
    )


class Marked(nn.Module):
    """Something computed below the layer, without a gradient, is used above it; and Python's own noise everywhere."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)
        self.layers = nn.ModuleList(AdversarialDropout(0.5, 0.3) for _ in range(2))

    def forward(self, x):
        mark = x.mean(1, keepdim=True).sin()
        h = self.layers[0](self.first(x) * random.uniform(0.5, 1.5))
        return self.last(self.layers[1](h + mark) * np.random.uniform(0.5, 1.5))  # noqa: NPY002


class InPlaceLayer(AdversarialDropout):
    """A layer that changes its input."""

    def forward(self, h):
        return super().forward(h.mul_(0.5))


def in_place(noise=0.2):
    return nn.Sequential(
        *(nn.Linear(FEATURES, HIDDEN), nn.Dropout(noise)),
        *(InPlaceLayer(0.5, 0.3), nn.ReLU(inplace=True), nn.Linear(HIDDEN, CLASSES)),
    )


def late_layer():
    model = nn.Sequential(
        nn.Linear(FEATURES, HIDDEN), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(HIDDEN, CLASSES)
    )
    return insert(model, after="1", p=0.5, delta=0.3)


NETWORKS = {
    "sequential": noisy,
    "any": lambda: Wrapped(noisy()),
    "nested": nested,
    "two layers": two_layers,
    "skip connection": Residual,
    "inserted": late_layer,
    "a layer that works in place": in_place,
    "the same, unknown": lambda: Wrapped(in_place()),
    "the same, without noise below it": lambda: in_place(0.0),
    "other results of the lower part": Marked,
}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("noise", ["shared", "independent"])
@pytest.mark.parametrize("updating", [None, ()], ids=["updating", "not updating"])
def test_reused_lower_parts_equal_full_passes(make, noise, updating, apart):
    objective = CrossEntropy() + VAdD(noise=noise) + SAdD(noise=noise) + VAT(noise=noise) + AT(noise=noise) + PiModel()
    options, found = {} if updating is None else {"updating": updating}, []
    for reuse in (True, False):
        torch.manual_seed(1)
        model, rows = make().double(), batch(dtype=torch.float64)
        random.seed(2)
        np.random.seed(2)  # noqa: NPY002
        loss = run(model, objective, rows, reuse=reuse, **options).loss
        after = torch.rand(1), torch.tensor([random.random(), np.random.random()])  # noqa: NPY002
        found.append([loss, *gradients(model, loss), *(buffer.double() for buffer in model.buffers()), *after])
    close(*found, 1e-12)


@pytest.mark.parametrize("noise", ["shared", "independent"])
def test_a_sequential_network_and_the_same_as_any_network_agree(noise, apart):
    objective, found = CrossEntropy() + VAdD(noise=noise) + VAT(noise=noise), []
    for wrap in (lambda net: net, Wrapped):
        torch.manual_seed(1)
        model = noisy().double()
        loss = run(wrap(model), objective, batch(dtype=torch.float64)).loss
        found.append([loss, *gradients(model, loss), *(buffer.double() for buffer in model.buffers())])
    close(*found, 1e-12)


# torch's own compiler looks at .grad of a non-leaf on its way.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("part", ["whole", "child"])
def test_compiled_networks_give_the_same_loss_and_gradients(part, apart):
    torch._dynamo.reset()
    model, rows = quiet(p=0.5).double(), batch(dtype=torch.float64)
    objective = CrossEntropy() + SAdD() + VAdD()
    expected = run(model, objective, rows).loss
    expected = [expected, *gradients(model, expected)]
    if part == "whole":
        compiled = torch.compile(model, backend="eager")
    else:
        compiled = nn.Sequential(*model[:3], torch.compile(model[3:], backend="eager"))
    loss = run(compiled, objective, rows).loss
    close([loss, *gradients(model, loss)], expected)
    torch._dynamo.reset()


def kind_of(model, inputs=None, taped=True):
    inputs = torch.zeros(2, FEATURES) if inputs is None else inputs
    return network_of(model, inputs, torch.device("cpu"), RunningStatistics(model.modules()), taped)


def hooked(model, register="register_forward_hook"):
    getattr(model, register)(lambda *_: None)
    return model


def patched(model):
    model.forward = lambda x: x
    return model


class OwnSequential(nn.Sequential):
    """Who knows what it does."""


UNKNOWN = {
    "wrapped": lambda: Wrapped(noisy()),
    "subclass": lambda: OwnSequential(*noisy()),
    "subclass inside": lambda: nn.Sequential(OwnSequential(*noisy()), nn.Identity()),
    "inserted": late_layer,
    "hook": lambda: hooked(noisy()),
    "hook before": lambda: hooked(noisy(), "register_forward_pre_hook"),
    "backward hook": lambda: hooked(noisy(), "register_full_backward_hook"),
    "another forward": lambda: patched(noisy()),
    "a layer alone": lambda: AdversarialDropout(0.5),
}


@pytest.mark.parametrize("make", UNKNOWN.values(), ids=UNKNOWN)
def test_only_a_plain_sequential_network_is_divided_between_its_children(make):
    assert type(kind_of(make())) is AnyNetwork


def test_a_sequential_network_is_divided_at_its_first_layer():
    model = nested()
    network = kind_of(model)
    assert type(network) is SequentialNetwork
    assert network.first == [model[0], model[1][0]]
    assert network.rest == [model[1][1], model[1][2]]
    assert network.upper == [model[1][3], model[1][4], model[2], model[3]]
    hooked(model[2])  # a child may do as it likes
    assert type(kind_of(model)) is SequentialNetwork
    plain = nn.Sequential(nn.Linear(FEATURES, 4), nn.Dropout(0.5), nn.Linear(4, CLASSES))
    assert kind_of(plain).rest == [plain[1], plain[2]]
    assert kind_of(plain).upper == []
    for inputs in ((), {"input": torch.zeros(2, FEATURES)}):
        assert type(kind_of(model, inputs)) is AnyNetwork
    assert type(kind_of(model, taped=False)) is AnyNetwork
    assert kind_of(Wrapped(model)).taped
    assert not kind_of(Wrapped(model), taped=False).taped


def test_nothing_is_recorded_of_a_compiled_network():
    for compiled in (noisy(), Wrapped(noisy())):
        compiled.compile(backend="eager")
        network = kind_of(compiled)
        assert type(network) is AnyNetwork
        assert not network.taped
    inside = Wrapped(noisy())
    inside.net[0].compile(backend="eager")
    assert not kind_of(inside).taped


def test_inputs_are_handed_on_as_arguments():
    class Echo(nn.Module):
        def forward(self, *args, **kwargs):
            return args, kwargs

    x, named = torch.ones(1), namedtuple("Named", ["x"])(torch.ones(1))
    assert call(Echo(), x) == ((x,), {})
    assert call(Echo(), (x, 2)) == ((x, 2), {})
    assert call(Echo(), {"a": x}) == ((), {"a": x})
    assert call(Echo(), [x]) == (([x],), {})
    assert call(Echo(), named) == ((named,), {})
    assert len(list(tensors({"a": x, "b": (x, [x, {"c": x}]), "d": "no"}))) == 4
    assert list(tensors(None)) == []


@pytest.mark.parametrize(("make", "shape"), [(mnist_cnn, (1, 28, 28)), (conv_large, (3, 32, 32))])
@pytest.mark.parametrize("noise", ["independent", "shared"])
def test_the_papers_networks_on_a_device_without_values(make, shape, noise):
    model, rows = make().to("meta"), {name: torch.empty(4, *shape, device="meta") for name in ("x", "unlabeled")}
    step = Step(model, CrossEntropy() + VAdD(noise=noise))
    loss = step(**rows, y=torch.empty(4, dtype=torch.long, device="meta"), generator=seeded()).loss
    assert loss.device.type == "meta"


def test_a_network_can_be_forgotten():
    for make in (quiet, lambda: Wrapped(quiet(0.5))):
        model = make()
        run(model, CrossEntropy() + VAdD(), only(batch(), "x", "y", "unlabeled", "second_view"))
        gone = weakref.ref(model)
        del model
        gc.collect()
        assert gone() is None
