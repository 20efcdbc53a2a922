"""A step on an accelerator must not wait for it: nothing in it may look at the values of a tensor."""

from collections import Counter

import pytest
import torch

from advdrop import VAdD
from advdrop.checks import value_checks
from advdrop.lab.engine.run import train
from advdrop.lab.engine.training import PartialLoss
from runs import rings, tiny
from small import noisy, run
from waits import Waits


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.sum() > 0),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.index_put((x > 0,), torch.ones((), device=x.device)),
    ],
)
def test_what_waits_is_counted(wait):
    with Waits() as waits:
        wait(torch.arange(3.0))
    assert waits.counted.total() >= 1


def test_values_are_looked_at_where_that_is_free():
    with Waits() as waits:
        run(noisy(), VAdD())
    assert waits.counted["_local_scalar_dense"] > 0


def test_a_step_of_the_engine_does_not_wait(tmp_path, monkeypatch):
    counted, forward = [], PartialLoss.forward

    def watched(self, update, turn):
        with value_checks("never"), Waits() as waits:
            loss = forward(self, update, turn)
        counted.append(waits.counted)
        return loss

    monkeypatch.setattr(PartialLoss, "forward", watched)
    train(tiny(), tmp_path / "r", data=rings(), progress=False)
    # One number is drawn on the CPU, whatever the device, to seed the masks.
    assert counted == [Counter({"_local_scalar_dense": 1})] * 12
