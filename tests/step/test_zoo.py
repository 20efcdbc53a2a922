"""A step gives the same results whether it reuses the lower part of a network or runs every pass in full."""

# ruff: noqa: NPY002 - networks use numpy's legacy generator, too

import random
import re
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

from advdrop import CrossEntropy, Iterated, SAdD, Step, VAdD
from advdrop.step import any_network
from advdrop.step.inputs import tensors
from advdrop.step.passes import Passes
from advdrop.step.sequential_network import SequentialNetwork

from . import zoo_more  # noqa: F401  it adds to the zoo
from .zoo import CLASSES, ROWS, ZOO

STEPS = 2
LABELS = torch.arange(ROWS) % CLASSES


def copied(inputs):
    if isinstance(inputs, Tensor):
        return inputs.clone()  # as_strided as it was
    if isinstance(inputs, dict):
        return {key: copied(value) for key, value in inputs.items()}
    return type(inputs)(map(copied, inputs)) if isinstance(inputs, list | tuple) else inputs


def left_behind(model):
    """What a network keeps on its modules: numbers, and tensors that are no parameters."""
    found = {}
    for name, module in model.named_modules():
        for key, value in {**vars(module), **dict(module.named_buffers(recurse=False))}.items():
            values = value if isinstance(value, list) else [value]
            for i, item in enumerate(values):
                if isinstance(item, int | float):
                    found[f"{name}.{key}.{i}"] = item
                elif isinstance(item, Tensor):
                    found[f"{name}.{key}.{i}"] = item.detach().to_dense().clone()
                    if item.is_leaf and item.grad is not None:
                        found[f"{name}.{key}.{i}.grad"] = item.grad.clone()
    return found


def generators():
    legacy = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), legacy[1].tolist(), legacy[2:]


class Results:
    """Everything that some steps of a network give and leave behind."""

    def __init__(self, kind, model, objective, reuse):
        self.losses, self.gradients, self.left = [], [], []
        torch.manual_seed(1)
        random.seed(2)
        np.random.seed(3)
        step = Step(model, objective, logits=kind.logits, reuse=reuse)
        with kind.around():
            for number in range(STEPS):
                inputs = copied(kind.inputs(number))
                model.zero_grad()
                loss = step(inputs, LABELS).loss
                state = generators()
                loss = loss + getattr(model, "auxiliary", 0.0)
                loss.backward()
                self.losses.append(loss.item())
                self.gradients.append({name: value.grad for name, value in model.named_parameters()})
                self.left.append((left_behind(model), state, inputs))  # behind the backward pass
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.mul_(0.9)
        self.network = step._known[1]


def check(name, objective, exactly, monkeypatch):
    kind, told = ZOO[name], []
    monkeypatch.setattr(Passes, "_separable", lambda *_: ([], []))  # joined passes draw their noise in another order
    warn = any_network._AnyLower._warn_if_slow

    def spy(lower, player, tape):
        told.append((player.position, tape.total, player.reason))
        warn(lower, player, tape)

    monkeypatch.setattr(any_network._AnyLower, "_warn_if_slow", spy)
    torch.manual_seed(0)
    model = kind.build().train()
    torch.manual_seed(0)
    twin = kind.build().train()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        full = Results(kind, twin, objective, reuse=False)
        assert not told
        reused = Results(kind, model, objective, reuse=True)
    assert reused.losses == full.losses
    for ours, theirs in zip(reused.gradients, full.gradients, strict=True):
        assert ours.keys() == theirs.keys()
        largest = max(expected.abs().max() for expected in theirs.values() if expected is not None)
        for key, expected in theirs.items():
            assert (ours[key] is None) == (expected is None), key
            if expected is not None:
                far = (ours[key] - expected).abs().max() / largest
                assert far <= (0.0 if exactly and not hasattr(model, "auxiliary") else kind.close), (key, far)
    for ours, theirs in zip(reused.left, full.left, strict=True):
        torch.testing.assert_close(ours[0], theirs[0], rtol=1e-13, atol=1e-13)  # averaged by an instance norm
        assert ours[1] == theirs[1]
        torch.testing.assert_close(list(tensors(ours[2])), list(tensors(theirs[2])), rtol=0, atol=0)
    replayed(kind, reused.network, told, [str(warning.message) for warning in caught])


def replayed(kind, network, told, caught):
    """Check that as much is replayed as can be."""
    caught = [message for message in caught if "could be reused" in message]
    if kind.replayed == "any":
        return
    if isinstance(network, SequentialNetwork):
        assert kind.replayed == "whole"
        assert not caught
    elif not network.taped:
        assert kind.replayed == "little"
        assert kind.why == "compiled"
    elif kind.replayed == "little":
        assert len(caught) == 1
        assert re.search(kind.why, caught[0]), caught
    else:
        assert told
        assert not caught
        for position, total, reason in told[2:] if kind.replayed == "half" else told:
            assert total > 0
            assert 2 * position >= total, reason
            assert kind.replayed == "half" or position == total, (position, total, reason)


@pytest.fixture(autouse=True)
def _nothing_leaks():
    yield
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() is torch.float32
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("noise", ["shared", "independent"])
@pytest.mark.parametrize("name", ZOO)
def test_virtual(name, noise, monkeypatch):
    check(name, CrossEntropy() + VAdD(noise=noise), False, monkeypatch)


@pytest.mark.parametrize("name", ZOO)
def test_supervised(name, monkeypatch):
    """Only the adversarial pass is differentiated, so that gradients are the same bit for bit."""
    check(name, SAdD(), True, monkeypatch)


@pytest.mark.parametrize(
    "name", ["OwnGenerators", "OwnNumpyGenerator", "FrozenTrunk", "Checkpointed", "InPlace", "bert"]
)
def test_searches_in_both_grad_modes(name, monkeypatch):
    monkeypatch.setattr(ZOO[name], "replayed", "any")
    check(name, VAdD(search=Iterated(2)), False, monkeypatch)
