"""A step on an accelerator must not wait for it: nothing in it may look at the values of a tensor.

Tensors on the meta device have no values, so whatever looks at one fails there. On the CPU a dispatch mode counts.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import advdrop.objectives.passes as passes_module
from advdrop import Batch, CrossEntropy, VAdD
from advdrop.checks import value_checks
from advdrop.engine.module import Training
from advdrop.engine.run import train
from advdrop.models import adversarial_layers, conv_large, mnist_cnn
from runs import rings, tiny
from small import FEATURES, batch, noisy, seeded
from table import TABLE

# The exhaustive search walks through all masks in Python: it is there to judge the others by.
STEPS = {name: make for name, make in TABLE.items() if name != "vadd exhaustive"}
steps = pytest.mark.parametrize("make", STEPS.values(), ids=STEPS)
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_dim", "item"}


class Waits(TorchDispatchMode):
    """Counts the operations that hand values, or shapes that depend on them, to Python."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_", "_index_put_impl_") else ()
        if name in WAITS or any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
            self.counted[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: float(x.sum()),
        lambda x: bool(x.sum() > 0),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
    ],
)
def test_what_waits_is_counted_and_fails_on_meta(wait):
    with Waits() as waits:
        wait(torch.arange(3.0))
    assert waits.counted.total() >= 1
    with pytest.raises((RuntimeError, NotImplementedError)):
        wait(torch.arange(3.0, device="meta"))


def test_a_mask_as_an_index_is_counted_too():
    with Waits() as waits:
        torch.arange(3.0).index_put((torch.tensor([True, False, True]),), torch.ones(()))
    assert waits.counted == {"index_put": 1}


@steps
def test_no_objective_waits(make):
    objective, model, rows = make(), noisy(), batch()
    for turn in range(2):  # temporal ensembling has something to say from the second time on
        with value_checks("never"), Waits() as waits:
            objective(model, rows, generator=seeded(), measure=True).total.backward()
        assert not waits.counted, turn


def test_values_are_looked_at_where_that_is_free():
    with Waits() as waits:
        VAdD()(noisy(), batch(), generator=seeded())
    assert waits.counted["_local_scalar_dense"] > 0


@pytest.fixture
def _no_noise_of_meta(monkeypatch):
    """There is no generator for the meta device."""
    monkeypatch.setattr(passes_module, "noise_state", lambda device: None)
    monkeypatch.setattr(passes_module, "borrowed_noise", lambda device, start=None: nullcontext())


def without_values(model: nn.Module, shape: tuple[int, ...]) -> tuple[nn.Module, Batch]:
    rows = {name: torch.empty(16, *shape, device="meta") for name in ("x", "u", "v")}
    index = torch.empty(16, dtype=torch.long, device="meta")
    return model.to("meta"), Batch(**rows, y=index, index=index)


@steps
@pytest.mark.usefixtures("_no_noise_of_meta")
def test_a_step_without_any_values(make):
    model, rows = without_values(noisy(), (FEATURES,))
    make()(model, rows, generator=seeded(), measure=True).total.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(("make", "shape"), [(mnist_cnn, (1, 28, 28)), (conv_large, (3, 32, 32))])
@pytest.mark.parametrize("noise", ["independent", "shared"])
@pytest.mark.usefixtures("_no_noise_of_meta")
def test_the_paper_s_networks_without_any_values(make, shape, noise):
    model, rows = without_values(make(), shape)
    assert adversarial_layers(model)
    objective = CrossEntropy() + VAdD(noise=noise)
    assert objective(model, rows, generator=seeded()).total.device.type == "meta"


def test_the_engine_s_step_does_not_wait(tmp_path, monkeypatch):
    counted, step = [], Training.training_step

    def watched(self, batch, batch_idx):
        with value_checks("never"), Waits() as waits:
            loss = step(self, batch, batch_idx)
        counted.append(waits.counted)
        return loss

    monkeypatch.setattr(Training, "training_step", watched)
    train(tiny(), tmp_path / "r", data=rings(), progress=False)
    # One number is drawn on the CPU, whatever the device, to seed the masks.
    assert counted == [Counter({"_local_scalar_dense": 1})] * 12
