import pytest
import torch

from advdrop.lab.engine.training import Metrics
from advdrop.step.step import Loss


def loss(total, measured=None, **terms):
    values = {name: torch.tensor(float(value)) for name, value in terms.items()}
    measures = {} if measured is None else {"vadd_kl/flips": torch.tensor(float(measured))}
    return Loss(torch.tensor(float(total), requires_grad=True), values, dict.fromkeys(values, 1.0), measures)


def test_means_are_over_what_was_added():
    metrics = Metrics()
    metrics.add(0, loss(3.0, ce=1.0, kl=2.0, measured=10))
    metrics.add(1, loss(5.0, ce=2.0, kl=3.0))
    means = {name: float(value) for name, value in metrics.means().items()}
    assert means == {"train/loss": 4.0, "train/ce": 1.5, "train/kl": 2.5, "search/vadd_kl/flips": 10.0}
    assert not any(value.requires_grad for value in metrics.means().values())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_first_update_and_term_that_is_not_finite_is_named(bad):
    metrics = Metrics()
    metrics.add(7, loss(1.0, ce=1.0, kl=1.0))
    assert metrics.first_not_finite() is None
    metrics.add(8, loss(bad, ce=1.0, kl=bad))
    metrics.add(9, loss(bad, ce=bad, kl=bad))
    assert metrics.first_not_finite() == (8, "kl")


def test_a_term_that_did_not_run_is_finite():
    """Its weight begins at 0, so it is not among the terms."""
    metrics, bad = Metrics(), float("nan")
    for update, value in enumerate((1.0, bad)):
        ran = loss(value, kl=value)
        metrics.add(update, Loss(ran.loss, ran.terms, {"at": 0.0, "kl": 1.0}, {}))
        assert metrics.first_not_finite() == (None if update == 0 else (1, "kl"))


def test_metrics_are_resumed_where_they_were_saved(tmp_path):
    whole, first = Metrics(), Metrics()
    for update, value in enumerate((0.1, 0.7, 0.3)):
        whole.add(update, loss(value, ce=value))
    first.add(0, loss(0.1, ce=0.1))
    torch.save(vars(first), tmp_path / "metrics")
    second = Metrics(**torch.load(tmp_path / "metrics", weights_only=True))
    for update, value in ((1, 0.7), (2, 0.3)):
        second.add(update, loss(value, ce=value))
    assert second.means() == whole.means()
    assert second.weights == whole.weights


def test_resumed_metrics_move_to_the_device():
    """A checkpoint is read to the CPU, whatever the device is."""
    saved = Metrics()
    saved.add(0, loss(0.1, ce=0.1))
    with torch.device("meta"):
        value = torch.empty(())
    metrics = Metrics(**vars(saved))
    metrics.add(1, Loss(value, {"ce": value}, {"ce": 1.0}, {}))
    assert all(mean.device.type == "meta" for mean in metrics.means().values())
    assert metrics.bad.device.type == "meta"


def test_adding_waits_for_nothing():
    """Every number stays a tensor until someone looks: on a device, a step must not wait for it."""
    metrics = Metrics()
    with torch.device("meta"):  # a value that nobody can read
        value = torch.empty(())
    metrics.add(0, Loss(value, {"ce": value}, {"ce": 1.0}, {"kl/flips": value}))
    metrics.add(1, Loss(value, {"ce": value}, {"ce": 1.0}, {}))
    assert all(mean.device.type == "meta" for mean in metrics.means().values())
