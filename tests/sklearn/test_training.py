"""An update of the estimators, compared with the same passes written by hand."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from advdrop import cross_entropy, mse
from advdrop.masks import sample_mask
from advdrop.randomness import derived_generator
from advdrop.schedules import Factor
from advdrop.sklearn import AdversarialDropoutClassifier, AdversarialDropoutRegressor
from advdrop.sklearn.members import MemberLinear
from advdrop.sklearn.training import Table, Training

P, DELTA = 0.4, 0.2
HIDDEN = (16, 20)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def training(regression=False, members=3, groups=1, plain=False, **changed):
    """A training in float64, with the term that the estimators use."""
    kind = AdversarialDropoutRegressor if regression else AdversarialDropoutClassifier
    chosen = {
        "members": members,
        "p": P,
        "delta": DELTA,
        "supervised": mse if regression else cross_entropy,
        "consistency": None if plain else kind()._consistency(members, groups),
        "weight": 0.7,
        "ramp": 0.3,
        "batch_size": 8,
        "unlabeled_batch_size": 8,
        "learning_rate": 0.01,
        "seed": 3,
        "device": torch.device("cpu"),
    }
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    try:
        made = Training(5, 3, HIDDEN, **chosen | changed)
        with torch.no_grad():
            for layer in made.network:
                if isinstance(layer, MemberLinear):
                    layer.bias.normal_(std=0.1)
        return made
    finally:
        torch.set_default_dtype(torch.float32)


def rows(count, seed=1):
    return torch.randn(count, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def table(labeled=6, unlabeled=20, weights=None):
    return Table(rows(labeled), torch.arange(labeled) % 3, weights, rows(unlabeled, seed=2))


def member_weights(members, labels=6):
    return torch.rand(members, labels, dtype=torch.float64, generator=torch.Generator().manual_seed(4)) * 2


def watch(made):
    """The arguments of every step."""
    seen = []
    made.step.register_forward_pre_hook(lambda _, args, kwargs: seen.append((args, kwargs)), with_kwargs=True)
    return seen


class Member:
    """One network and its losses in numpy, with formulas for the derivatives.

    Args:
        network: of all members.
        number: of this one.
        regression: whether both divergences are mse, and not cross-entropy and kl.
    """

    def __init__(self, network, number, regression):
        self.linear = [
            (layer.weight[number].detach().numpy(), layer.bias[number, 0].detach().numpy())
            for layer in network
            if isinstance(layer, MemberLinear)
        ]
        self.regression = regression

    def hidden(self, x):
        """The inputs of all linear layers but the last, and the last hidden units."""
        units = [x]
        for weight, bias in self.linear[:-1]:
            units.append(np.maximum(units[-1] @ weight + bias, 0))
        return units

    def top(self, h):
        weight, bias = self.linear[-1]
        return h @ weight + bias

    def supervised(self, y, z):
        """D[y, z] of each row, and its derivative by z."""
        if self.regression:
            return ((y - z) ** 2).mean(1), 2 * (z - y) / z.shape[1]
        hot = np.eye(z.shape[1])[y]
        return -(hot * np.log(softmax(z))).sum(1), softmax(z) - hot

    def adversarial(self, target, z):
        """D[target, z] of each row, and its derivative by z."""
        if self.regression:
            return ((target - z) ** 2).mean(1), 2 * (z - target) / z.shape[1]
        return (target * np.log(target / softmax(z))).sum(1), softmax(z) - target

    def flipped(self, mask, h, target):
        """Algorithm 1: flip the units with the largest gains at a mask of ones."""
        slope = (self.adversarial(target, self.top(h))[1] @ self.linear[-1][0].T) * h
        gain = np.where(mask == 1, -slope, slope)
        found = mask.copy()
        for row, best in enumerate(np.argsort(-gain, axis=1)[:, : int(DELTA * HIDDEN[-1])]):
            for unit in best[gain[row, best] > 0]:
                found[row, unit] = 1 - mask[row, unit]
        return found

    def backward(self, units, mask, by_z):
        """The gradient of every parameter, from the derivative by the outputs of one pass."""
        found = [by_z.sum(0), (units[-1] * mask / (1 - P)).T @ by_z]
        slope = by_z @ self.linear[-1][0].T * mask / (1 - P)
        for (weight, _), (below, above) in zip(self.linear[-2::-1], [*pairwise(units)][::-1], strict=True):
            slope = slope * (above > 0)
            found += [slope.sum(0), below.T @ slope]
            slope = slope @ weight.T
        return found[::-1]


def softmax(z):
    shares = np.exp(z - z.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True)


def by_hand(network, regression, groups, x, others, masks, y, weights, factor):
    """The loss and the gradient of every parameter, ``(K, ...)``, one member after the other.

    Args:
        network: of all members.
        regression: whether outputs are values.
        groups: how many groups the members form.
        x: the labeled rows.
        others: the other rows; None if there are none.
        masks: εs of both, one for each member.
        y: the targets of the labeled rows.
        weights: their weights for each member.
        factor: λ.
    """
    count = len(weights)
    members = [Member(network, number, regression) for number in range(count)]
    seen = [x] if others is None else [x, others]
    units = [[member.hidden(part) for part in seen] for member in members]
    outputs = [
        [member.top(own[part][-1] * masks[part][number] / (1 - P)) for part in range(len(seen))]
        for number, (member, own) in enumerate(zip(members, units, strict=True))
    ]
    loss, gradients = 0.0, []
    for number, member in enumerate(members):
        value, by_z = member.supervised(y, outputs[number][0])
        loss += (weights[number] * value).mean() / count
        gradient = member.backward(units[number][0], masks[0][number], weights[number][:, None] * by_z / len(x) / count)
        size = count // groups
        teachers = [other for other in range(count) if other // size == number // size and other != number] or [number]
        target = np.mean([outputs[other][-1] if regression else softmax(outputs[other][-1]) for other in teachers], 0)
        h, mask = units[number][-1], masks[-1][number]
        found = member.flipped(mask, h[-1], target)
        value, by_z = member.adversarial(target, member.top(h[-1] * found / (1 - P)))
        sure = np.ones(len(target)) if regression else (target.max(1) - 1 / 3) / (1 - 1 / 3)
        loss += factor * (sure * value).mean() / count
        second = member.backward(h, found, factor * sure[:, None] * by_z / len(target) / count)
        gradients.append([one + other for one, other in zip(gradient, second, strict=True)])
    return loss, [np.stack(parts) for parts in zip(*gradients, strict=True)]


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize(("members", "groups"), [(1, 1), (3, 1), (4, 2)])
@pytest.mark.parametrize("count", [None, 7])
def test_an_update_is_that_of_the_formulas(regression, members, groups, count):
    made = training(regression, members, groups)
    made.trust.value = 0.6
    targets = torch.randn(6, 3, dtype=torch.float64) if regression else LABELS
    x, others, weights = rows(6), None if count is None else rows(count, seed=2), member_weights(members)
    positions = torch.tensor([4, 0, 2, 3, 1, 5])
    with made.supervised.using(targets, weights):
        loss = made.step(x, positions, unlabeled=others, progress=0.1, generator=torch.Generator().manual_seed(1)).loss
    found = torch.autograd.grad(loss, list(made.network.parameters()))

    generator = torch.Generator().manual_seed(1)
    masks = [
        sample_mask(torch.empty(members * len(part), HIDDEN[-1], dtype=torch.float64), P, generator)
        .numpy()
        .reshape(members, len(part), -1)
        for part in (x, others)
        if part is not None
    ]
    factor = 0.6 * 0.7 * np.exp(-5 * (1 - 0.1 / 0.3) ** 2)
    expected, gradient = by_hand(
        made.network,
        regression,
        groups,
        x.numpy(),
        None if others is None else others.numpy(),
        masks,
        targets[positions].numpy(),
        weights[:, positions].numpy(),
        factor,
    )
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    for here, there in zip(found, gradient, strict=True):
        np.testing.assert_allclose(here.numpy().reshape(there.shape), there, rtol=0, atol=1e-12)


def losses_with(weights):
    made = training()
    with made.supervised.using(LABELS, weights):
        loss = made.step(rows(3), torch.tensor([4, 0, 2]), progress=0.5, generator=torch.Generator().manual_seed(1))
    return loss.loss.item()


def test_a_row_without_a_weight_has_weight_one():
    assert losses_with(None) == losses_with(torch.ones(3, 6, dtype=torch.float64))


def test_weights_may_be_those_of_all_members():
    own = member_weights(1)
    assert losses_with(own) == losses_with(own.repeat(3, 1)) != losses_with(None)


def test_a_member_learns_nothing_from_a_label_of_weight_zero():
    weights, others = torch.ones(3, 6, dtype=torch.float64), LABELS.clone()
    weights[1, 2:4], others[2:4] = 0.0, 1 - LABELS[2:4].clamp(max=1)
    found = []
    for targets in (LABELS, others):
        made = training(plain=True)
        made.train(table(weights=weights)._replace(targets=targets), 5, 0.0, 0.5)
        found.append([parameter.detach() for parameter in made.network.parameters()])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one[1], other[1])
        assert not torch.equal(one[0], other[0])


def test_updates_are_those_of_adam_with_an_annealed_learning_rate():
    made, copy = training(), training()
    seen, generator, weights = watch(made), derived_generator(3, "masks", 0), member_weights(3)
    found = made.train(table(weights=weights), 3, 0.8, 1.0)
    adam = torch.optim.Adam(copy.network.parameters())
    losses = []
    for update, ((x, positions), options) in enumerate(seen):
        progress = 0.8 + 0.2 * update / 3
        assert options["progress"] == pytest.approx(progress)
        adam.param_groups[0]["lr"] = 0.01 * np.exp(-12.5 * ((progress - 0.7) / 0.3) ** 2)
        adam.zero_grad()
        with copy.supervised.using(table().targets, weights):
            loss = copy.step(x, positions, unlabeled=options["unlabeled"], progress=progress, generator=generator).loss
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert len(losses) == made.updates == 3
    assert found == pytest.approx(np.mean(losses), abs=1e-12)
    for here, there in zip(made.network.parameters(), copy.network.parameters(), strict=True):
        torch.testing.assert_close(here, there, rtol=0, atol=1e-12)


def test_every_pass_over_the_rows_has_a_new_order():
    made, whole = training(), table(labeled=16, unlabeled=20)
    seen = watch(made)
    made.train(whole, 8, 0.0, 1.0)
    labeled = torch.stack([positions for (_, positions), _ in seen]).view(4, 16)
    assert [sorted(one) for one in labeled.tolist()] == [list(range(16))] * 4
    assert len({tuple(one) for one in labeled.tolist()}) == 4
    for (x, positions), options in seen:
        assert torch.equal(x, whole.labeled[positions])
        assert len(options["unlabeled"]) == 8
    place = {tuple(row): number for number, row in enumerate(whole.unlabeled.tolist())}
    pairs = [[place[tuple(row)] for row in options["unlabeled"].tolist()] for _, options in seen]
    orders = [first + second for first, second in zip(pairs[::2], pairs[1::2], strict=True)]
    assert [len(set(order)) for order in orders] == [16] * 4  # the rest of 4 rows is left out
    assert len(set(map(tuple, orders))) == 4


def test_a_training_can_be_repeated():
    losses = []
    for _ in range(2):
        made = training()
        losses.append([made.train(table(), 2, 0.0, 0.5), made.train(table(), 2, 0.5, 1.0)])
    assert losses[0] == losses[1]


def test_each_part_of_a_training_has_its_own_order_and_masks():
    made = training(learning_rate=1e-30)
    seen = watch(made)
    losses = [made.train(table(labeled=16), 2, 0.0, 0.5) for _ in range(2)]
    assert losses[0] != losses[1]
    assert not torch.equal(seen[0][0][1], seen[2][0][1])
    generators = [options["generator"].initial_seed() for _, options in seen]
    assert generators[0] == generators[1] != generators[2] == generators[3]


@pytest.mark.parametrize("options", [{"consistency": None}, {"weight": 0.0}])
def test_without_trust_the_term_is_left_out(options):
    made, plain = training(), training(**options)
    made.trust.value = 0.0
    assert made.train(table(), 3, 0.4, 0.6) == plain.train(table(), 3, 0.4, 0.6)
    for here, there in zip(made.network.parameters(), plain.network.parameters(), strict=True):
        assert torch.equal(here, there)
    trusted = training()
    trusted.train(table(), 3, 0.4, 0.6)
    assert not torch.equal(trusted.network[0].weight, made.network[0].weight)


def test_trust_is_the_same_at_every_progress():
    trust = Factor(0.3)
    assert [trust(0.0), trust(1.0)] == [0.3, 0.3]
    trust.value = 0.0
    assert trust(0.5) == 0.0


def test_a_trained_network_keeps_no_targets():
    made = training()
    made.train(table(weights=member_weights(3)), 1, 0.0, 1.0)
    assert not any(isinstance(value, torch.Tensor) for value in vars(made.supervised).values())


def test_a_loss_that_is_not_a_number_is_an_error_with_advice():
    made = training(regression=True, learning_rate=0.25)
    good = table()._replace(targets=torch.zeros(6, 3, dtype=torch.float64))
    made.train(good, 12, 0.0, 0.5)
    with pytest.raises(ValueError, match=r"the loss of update 14 is nan.*standardize=True.*learning_rate=0.25"):
        made.train(good._replace(targets=good.targets / 0.0), 2, 0.5, 1.0)


def test_a_delta_without_a_flip_is_a_warning_unless_the_term_has_no_weight(recwarn):
    training(delta=0.01, weight=0.0).train(table(), 1, 0.0, 1.0)
    assert not recwarn
    made = training(delta=0.01)
    with pytest.warns(UserWarning, match="delta=0.01 of 20 units allows no flip"):
        made.train(table(), 1, 0.0, 0.5)
    recwarn.clear()
    made.train(table(), 1, 0.5, 1.0)
    assert not recwarn


@pytest.mark.parametrize(("batch_size", "expected"), [(8, 1), (200_000, 2)])
def test_a_small_network_uses_one_thread(batch_size, expected):
    before = torch.get_num_threads()
    seen = []
    try:
        torch.set_num_threads(2)
        made = training(batch_size=batch_size)
        made.step.register_forward_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
        made.train(table(), 2, 0.0, 1.0)
        assert set(seen) == {expected}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
