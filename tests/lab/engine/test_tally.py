import pytest
import torch

from advdrop.lab.engine.tally import Tally
from advdrop.step.step import Loss


def loss(total, measured=None, **terms):
    values = {name: torch.tensor(float(value)) for name, value in terms.items()}
    measures = {} if measured is None else {"vadd_kl/flips": torch.tensor(float(measured))}
    return Loss(torch.tensor(float(total), requires_grad=True), values, dict.fromkeys(values, 1.0), measures)


def test_means_are_over_what_was_added():
    tally = Tally()
    tally.add(0, loss(3.0, ce=1.0, kl=2.0, measured=10))
    tally.add(1, loss(5.0, ce=2.0, kl=3.0))
    means = {name: float(value) for name, value in tally.means().items()}
    assert means == {"train/loss": 4.0, "train/ce": 1.5, "train/kl": 2.5, "search/vadd_kl/flips": 10.0}
    assert not any(value.requires_grad for value in tally.means().values())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_first_update_and_term_that_blew_up_are_named(bad):
    tally = Tally()
    tally.add(7, loss(1.0, ce=1.0, kl=1.0))
    assert tally.blown_up() is None
    tally.add(8, loss(bad, ce=1.0, kl=bad))
    tally.add(9, loss(bad, ce=bad, kl=bad))
    assert tally.blown_up() == (8, "kl")


def test_a_term_that_did_not_run_is_finite():
    """Its weight begins at 0, so it is not among the terms."""
    tally, bad = Tally(), float("nan")
    for update, value in enumerate((1.0, bad)):
        ran = loss(value, kl=value)
        tally.add(update, Loss(ran.loss, ran.terms, {"at": 0.0, "kl": 1.0}, {}))
        assert tally.blown_up() == (None if update == 0 else (1, "kl"))


def test_a_tally_goes_on_where_it_was_saved(tmp_path):
    whole, first, second = Tally(), Tally(), Tally()
    for update, value in enumerate((0.1, 0.7, 0.3)):
        whole.add(update, loss(value, ce=value))
    first.add(0, loss(0.1, ce=0.1))
    torch.save(first.state_dict(), tmp_path / "tally")
    second.load_state_dict(torch.load(tmp_path / "tally", weights_only=True))
    for update, value in ((1, 0.7), (2, 0.3)):
        second.add(update, loss(value, ce=value))
    assert second.means() == whole.means()
    assert second.weights == whole.weights


def test_adding_waits_for_nothing():
    """Every number stays a tensor until someone looks: on a device, a step must not wait for it."""
    tally = Tally()
    with torch.device("meta"):  # a value that nobody can read
        value = torch.empty(())
    tally.add(0, Loss(value, {"ce": value}, {"ce": 1.0}, {"kl/flips": value}))
    tally.add(1, Loss(value, {"ce": value}, {"ce": 1.0}, {}))
    assert all(mean.device.type == "meta" for mean in tally.means().values())
