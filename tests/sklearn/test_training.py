"""An update of the estimators, compared with the same passes written by hand."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from advdrop import AdversarialDropout, cross_entropy, kl, mse
from advdrop.masks import sample_mask
from advdrop.randomness import derived_generator
from advdrop.sklearn.training import Table, Training, mlp

P, DELTA = 0.4, 0.2
HIDDEN = (16, 20)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
WEIGHTS = torch.tensor([1.0, 0.5, 1.5, 1.0, 2.0, 0.0], dtype=torch.float64)


def training(supervised=cross_entropy, adversarial=kl, **changed):
    chosen = {"p": P, "delta": DELTA, "noise": 0.0, "weight": 0.7, "ramp": 0.3, "batch_size": 8, "learning_rate": 0.01}
    chosen |= {"supervised": supervised, "adversarial": adversarial, "seed": 3, "device": torch.device("cpu")}
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    try:
        return Training(5, 3, HIDDEN, **chosen | changed)
    finally:
        torch.set_default_dtype(torch.float32)


def rows(count, seed=1):
    return torch.randn(count, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def table(count=20, labeled=6):
    return Table(rows(count), torch.arange(labeled), torch.arange(labeled) % 3)


def watch(made):
    """The arguments of every step."""
    seen = []
    made.step.register_forward_pre_hook(lambda _, args, kwargs: seen.append((args, kwargs)), with_kwargs=True)
    return seen


class ByHand:
    """The network and the losses in numpy, with formulas for the derivatives.

    Args:
        network: whose parameters to use.
        regression: whether both divergences are mse, and not cross-entropy and kl.
    """

    def __init__(self, network, regression):
        self.linear = [
            (layer.weight.detach().numpy(), layer.bias.detach().numpy())
            for layer in network
            if isinstance(layer, nn.Linear)
        ]
        self.regression = regression

    def hidden(self, x):
        """The inputs of all linear layers but the last, and the last hidden units."""
        units = [x]
        for weight, bias in self.linear[:-1]:
            units.append(np.maximum(units[-1] @ weight.T + bias, 0))
        return units

    def top(self, h):
        weight, bias = self.linear[-1]
        return h @ weight.T + bias

    def supervised(self, y, z):
        """D[y, z] of each row, and its derivative by z."""
        if self.regression:
            return ((y - z) ** 2).mean(1), 2 * (z - y) / z.shape[1]
        hot = np.eye(z.shape[1])[y]
        return -(hot * log_softmax(z)).sum(1), np.exp(log_softmax(z)) - hot

    def adversarial(self, target, z):
        """D[target, z] of each row, and its derivatives by target and z."""
        if self.regression:
            return ((target - z) ** 2).mean(1), 2 * (target - z) / z.shape[1], 2 * (z - target) / z.shape[1]
        log_t, log_o = log_softmax(target), log_softmax(z)
        t, o = np.exp(log_t), np.exp(log_o)
        value = (t * (log_t - log_o)).sum(1)
        return value, t * (log_t - log_o - value[:, None]), o - t

    def flipped(self, mask, h, target):
        """Algorithm 1: flip the units with the largest gains at a mask of ones."""
        slope = (self.adversarial(target, self.top(h))[2] @ self.linear[-1][0]) * h
        gain = np.where(mask == 1, -slope, slope)
        found = mask.copy()
        for row, best in enumerate(np.argsort(-gain, axis=1)[:, : int(DELTA * HIDDEN[-1])]):
            for unit in best[gain[row, best] > 0]:
                found[row, unit] = 1 - mask[row, unit]
        return found

    def step(self, views, mask, y, weights, factor):
        """The loss and the gradient of every parameter.

        Args:
            views: the features of the labeled rows, of the other rows (None if there are none) and of the rows of the
                adversarial pass (None if they are those of the clean pass).
            mask: εs of all rows of the clean pass.
            y: targets of the labeled rows.
            weights: their weights.
            factor: λ.
        """
        x, others, second = views
        labeled = slice(0, len(x))
        moved = labeled if others is None else slice(len(x), None)
        clean = self.hidden(x if others is None else np.concatenate([x, others]))
        z = self.top(clean[-1] * mask / (1 - P))
        h = [part[moved] for part in clean] if second is None else self.hidden(second)
        found = self.flipped(mask[moved], h[-1], z[moved])
        z_adv = self.top(h[-1] * found / (1 - P))
        loss, by_clean = self.supervised(y, z[labeled])
        value, by_target, by_adv = self.adversarial(z[moved], z_adv)
        by_z = np.zeros_like(z)
        by_z[labeled] += weights[:, None] * by_clean / len(x)
        by_z[moved] += factor * by_target / len(value)
        by_adv = factor * by_adv / len(value)
        gradient = self.backward(clean, mask, by_z)
        for total, part in zip(gradient, self.backward(h, found, by_adv), strict=True):
            total += part
        return (weights * loss).mean() + factor * value.mean(), gradient

    def backward(self, units, mask, by_z):
        """The gradient of every parameter, from the derivative by the outputs of one pass."""
        found = [by_z.sum(0), by_z.T @ (units[-1] * mask / (1 - P))]
        slope = by_z @ self.linear[-1][0] * mask / (1 - P)
        for (weight, _), (below, above) in zip(self.linear[-2::-1], [*pairwise(units)][::-1], strict=True):
            slope = slope * (above > 0)
            found += [slope.sum(0), slope.T @ below]
            slope = slope @ weight
        return found[::-1]


def log_softmax(z):
    shifted = z - z.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def noisy(x, noise, generator):
    return x + noise * torch.randn(x.shape, dtype=x.dtype, generator=generator)


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("count", [None, 7])
def test_an_update_is_that_of_the_formulas(regression, noise, count):
    made = training(mse, mse, noise=noise) if regression else training(noise=noise)
    targets = torch.randn(6, 3, dtype=torch.float64) if regression else LABELS
    x, others = rows(6), None if count is None else rows(count, seed=2)
    with made.supervised.using(targets, WEIGHTS):
        loss = made.loss(x, torch.arange(6), others, 0.1, torch.Generator().manual_seed(1))
    found = torch.autograd.grad(loss, list(made.network.parameters()))

    generator, second = torch.Generator().manual_seed(1), None
    if noise:
        second = noisy(x if others is None else others, noise, generator)
        x = noisy(x, noise, generator)
        others = None if others is None else noisy(others, noise, generator)
    mask = sample_mask(torch.empty(6 + (count or 0), HIDDEN[-1], dtype=torch.float64), P, generator)
    views = [None if part is None else part.numpy() for part in (x, others, second)]
    factor = 0.7 * np.exp(-5 * (1 - 0.1 / 0.3) ** 2)
    expected, gradient = ByHand(made.network, regression).step(
        views, mask.numpy(), targets.numpy(), WEIGHTS.numpy(), factor
    )
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    for here, there in zip(found, gradient, strict=True):
        np.testing.assert_allclose(here.numpy(), there, rtol=0, atol=1e-12)


def test_a_row_without_a_weight_has_weight_one():
    made, x, positions = training(), rows(3), torch.tensor([4, 0, 2])
    losses = []
    for weights in (None, torch.ones(6, dtype=torch.float64)):
        with made.supervised.using(LABELS, weights):
            losses.append(made.loss(x, positions, None, 0.5, torch.Generator().manual_seed(1)).item())
    assert losses[0] == losses[1]


def test_an_epoch_is_updates_of_adam_with_an_annealed_learning_rate():
    made, copy = training(), training()
    seen, generator = watch(made), derived_generator(3, "masks", 0)
    found = made.epoch(table(), 0.8, 1.0)
    adam = torch.optim.Adam(copy.network.parameters())
    losses = []
    for update, ((x, positions), options) in enumerate(seen):
        progress = 0.8 + 0.2 * update / 3
        adam.param_groups[0]["lr"] = 0.01 * np.exp(-12.5 * ((progress - 0.7) / 0.3) ** 2)
        adam.zero_grad()
        with copy.supervised.using(table().targets):
            loss = copy.loss(x, positions, options["unlabeled"], progress, generator)
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert len(losses) == 3
    assert found == pytest.approx(np.mean(losses), abs=1e-12)
    for here, there in zip(made.network.parameters(), copy.network.parameters(), strict=True):
        torch.testing.assert_close(here, there, rtol=0, atol=1e-12)


def test_an_epoch_uses_every_row_once_and_can_be_repeated():
    losses = []
    for _ in range(2):
        made = training()
        seen = watch(made)
        losses.append([made.epoch(table(), 0.0, 0.5), made.epoch(table(), 0.5, 1.0)])
    assert losses[0] == losses[1] == made.losses
    assert [len(args[0]) for args, _ in seen] == [6] * 6
    assert [len(options["unlabeled"]) for _, options in seen] == [8, 8, 4] * 2
    everything = torch.cat([options["unlabeled"] for _, options in seen[:3]])
    assert sorted(everything.tolist()) == sorted(table().x.tolist())
    for (x, positions), _ in seen:
        assert torch.equal(x, table().x[positions])


def test_without_other_rows_an_epoch_uses_every_labeled_row_once():
    made = training()
    seen = watch(made)
    made.epoch(table(16, 16), 0.0, 1.0)
    assert [options["unlabeled"] for _, options in seen] == [None, None]
    assert sorted(torch.cat([positions for (_, positions), _ in seen]).tolist()) == list(range(16))


def test_a_trained_network_keeps_no_targets():
    made = training()
    made.epoch(table()._replace(weights=torch.ones(6)), 0.0, 1.0)
    assert not any(isinstance(value, torch.Tensor) for value in vars(made.supervised).values())


def test_a_loss_that_is_not_a_number_is_an_error_with_advice():
    made = training(mse, mse, learning_rate=0.25)
    good = table()._replace(targets=torch.zeros(6, 3, dtype=torch.float64))
    made.epoch(good, 0.0, 0.5)
    with pytest.raises(ValueError, match=r"the loss of epoch 2 is nan.*learning_rate=0.25"):
        made.epoch(good._replace(targets=good.targets / 0.0), 0.5, 1.0)
    assert len(made.losses) == 1


def test_a_delta_without_a_flip_is_a_warning_unless_the_term_has_no_weight(recwarn):
    training(delta=0.01, weight=0.0).epoch(table(), 0.0, 1.0)
    assert not recwarn
    made = training(delta=0.01)
    with pytest.warns(UserWarning, match="delta=0.01 of 20 units allows no flip"):
        made.epoch(table(), 0.0, 0.5)
    recwarn.clear()
    made.epoch(table(), 0.5, 1.0)
    assert not recwarn


@pytest.mark.parametrize(("batch_size", "expected"), [(8, 1), (200_000, 2)])
def test_a_small_network_uses_one_thread(batch_size, expected):
    before = torch.get_num_threads()
    seen = []
    try:
        torch.set_num_threads(2)
        made = training(batch_size=batch_size)
        made.step.register_forward_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
        made.epoch(table(), 0.0, 1.0)
        assert set(seen) == {expected}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_initial_weights_are_those_of_version_0_1():
    torch.manual_seed(0)
    network = mlp([5, 16, 20], 3, AdversarialDropout())
    weights, biases = list(network.parameters())[::2], list(network.parameters())[1::2]
    last = [weight[-1, -1].item() for weight in weights]
    assert last == pytest.approx([-1.37894356, -0.21645713, 0.63437855], abs=1e-7)
    assert not any(bias.any() for bias in biases)
