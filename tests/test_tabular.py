"""The step of the estimators is the objective, written out."""

import pytest
import torch

from advdrop import Batch, CrossEntropy, VAdD, cross_entropy, kl, mse, qe
from advdrop.tabular import Table, Training


def training(supervised=cross_entropy, adversarial=kl, **changed):
    torch.manual_seed(0)
    chosen = {
        "p": 0.4,
        "delta": 0.2,
        "noise": 0.0,
        "weight": 1.0,
        "ramp": 0.3,
        "batch_size": 8,
        "learning_rate": 0.01,
        "seed": 3,
    }
    made = Training(
        5,
        3,
        (16, 20),
        supervised=supervised,
        adversarial=adversarial,
        device=torch.device("cpu"),
        **{**chosen, **changed},
    )
    made.network.double()
    return made


def rows(count):
    return torch.randn(count, 5, dtype=torch.float64)


@pytest.mark.parametrize("adversarial", [kl, qe])
@pytest.mark.parametrize("others", [0, 7])
@pytest.mark.parametrize("weight", [0.7, 0.01])
def test_a_step_is_the_objective(adversarial, others, weight):
    made = training(adversarial=adversarial)
    x, y, u = rows(6), torch.tensor([0, 1, 2, 0, 1, 2]), rows(others) if others else None
    objective = CrossEntropy() + weight * VAdD(divergence=adversarial, noise="shared")
    expected = objective(made.network, Batch(x, y, u), generator=torch.Generator().manual_seed(1)).total
    slopes = torch.autograd.grad(expected, list(made.network.parameters()))
    loss = made.loss(x, y, torch.ones(6), u, weight, torch.Generator().manual_seed(1))
    assert loss.item() == pytest.approx(expected.item(), abs=1e-14)
    for here, there in zip(torch.autograd.grad(loss, list(made.network.parameters())), slopes, strict=True):
        torch.testing.assert_close(here, there, rtol=0, atol=1e-14)


def test_noise_is_drawn_anew_for_each_pass():
    made = training(noise=0.5)
    seen = []
    made.network.under.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    x, u = rows(6), rows(2000)
    made.loss(x, torch.zeros(6, dtype=torch.long), torch.ones(6), u, 1.0, torch.Generator().manual_seed(1))
    first, second = seen[0][6:] - u, seen[1] - u
    assert [len(part) for part in seen] == [2006, 2000]
    assert first.std().item() == pytest.approx(0.5, rel=0.05)
    assert second.std().item() == pytest.approx(0.5, rel=0.05)
    assert abs((first * second).mean().item()) < 0.02


def test_the_adversarial_mask_is_worse_than_the_sampled_one():
    made, still = training(p=0.5), training(p=0.5, delta=0.0)
    x, y = rows(6), torch.zeros(6, dtype=torch.long)
    values = [t.loss(x, y, torch.zeros(6), None, 1.0, torch.Generator().manual_seed(1)).item() for t in (made, still)]
    assert values[1] == 0.0  # the same pass twice
    assert values[0] > 0.01


def test_rows_count_as_much_as_they_weigh():
    made = training()
    x, y = rows(4), torch.tensor([0, 1, 2, 0])

    def loss(*weights):
        return made.loss(x, y, torch.tensor(weights), None, 0.0, torch.Generator().manual_seed(1)).item()

    single = [loss(*(1.0 if i == j else 0.0 for j in range(4))) for i in range(4)]
    assert loss(1.0, 1.0, 1.0, 1.0) == pytest.approx(sum(single))
    assert loss(2.0, 0.0, 0.0, 1.0) == pytest.approx(2 * single[0] + single[3])


def table(count=20, labelled=6):
    torch.manual_seed(1)
    return Table(rows(count), torch.arange(labelled), torch.arange(labelled) % 3, torch.ones(labelled))


def test_an_epoch_is_a_pass_over_all_rows_and_can_be_repeated():
    losses = []
    for _ in range(2):
        made = training()
        seen = []
        made.network.under.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[0].clone()))
        losses.append([made.epoch(table(), 0.0, 0.5), made.epoch(table(), 0.5, 1.0)])
        assert len(seen) == 2 * 3  # ceil(20 / 8) updates an epoch
        assert [len(x) for x in seen[:3]] == [6 + 8, 6 + 8, 6 + 4]
        everything = torch.cat([x[6:] for x in seen[:3]])
        assert {tuple(row) for row in everything.tolist()} == {tuple(row) for row in table().x.tolist()}
    assert losses[0] == losses[1] == made.losses


def test_a_loss_that_is_no_number_is_refused_with_a_way_out():
    made = training(mse, mse, learning_rate=0.25)
    good = table()._replace(targets=torch.zeros(6, 3, dtype=torch.float64))
    made.epoch(good, 0.0, 0.5)
    with pytest.raises(ValueError, match=r"the loss of epoch 2 is nan.*learning_rate=0.25"):
        made.epoch(good._replace(targets=good.targets / 0.0), 0.5, 1.0)
    assert len(made.losses) == 1


def test_a_delta_without_a_flip_is_told_unless_it_does_not_matter(recwarn):
    training(delta=0.01, weight=0.0)
    assert not recwarn
    with pytest.warns(UserWarning, match="delta=0.01 of 20 units allows no flip"):
        training(delta=0.01)


@pytest.mark.parametrize(("batch_size", "expected"), [(8, 1), (200_000, 2)])
def test_a_small_network_has_one_thread_and_the_others_get_theirs_back(batch_size, expected):
    before = torch.get_num_threads()
    seen = []
    try:
        torch.set_num_threads(2)
        made = training(batch_size=batch_size)
        made.network.under.register_forward_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
        made.epoch(table(), 0.0, 1.0)
        assert set(seen) == {expected}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
