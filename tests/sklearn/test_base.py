"""The fit that the classifier and the regressor share: an ensemble of two kinds of members."""

import copy
import pickle
import random
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from advdrop.objectives.targets import OtherMembers, clean_output
from advdrop.sklearn import AdversarialDropoutClassifier, AdversarialDropoutRegressor
from advdrop.sklearn.base import _auto_updates
from advdrop.sklearn.folds import parts_of_members, without_folds
from advdrop.sklearn.gain import Gain
from advdrop.sklearn.members import MemberLinear
from advdrop.sklearn.progress import Progress
from advdrop.sklearn.training import Table
from advdrop.trust import skill_error


def small(**options):
    chosen = {"updates": 20, "members": 4, "hidden_layer_sizes": (40,), "random_state": 0, "learning_rate": 0.01}
    return AdversarialDropoutClassifier(**chosen | options)


def softmax(z):
    return np.exp(z) / np.exp(z).sum(-1, keepdims=True)


def networks(found):
    """The parameters of all members of both kinds."""
    arms = [arm for arm in (found._semi, found._plain) if arm is not None]
    return [parameter for arm in arms for parameter in arm.network.parameters()]


def same(one, other):
    return all(map(torch.equal, networks(one), networks(other)))


@pytest.fixture
def spies(monkeypatch):
    """What was divided into folds and how, and every whole training by its kind of members."""
    folds, trainings, kind = [], {}, AdversarialDropoutClassifier
    divide, train = kind._folds, kind._trained

    def spy_folds(self, y, rng):
        folds.append(divide(self, y, rng))
        return folds[-1]

    def spy_trained(self, arm, *args, **options):
        trainings[arm] = train(self, arm, *args, **options)
        return trainings[arm]

    monkeypatch.setattr(kind, "_folds", spy_folds)
    monkeypatch.setattr(kind, "_trained", spy_trained)
    return folds, trainings


@pytest.fixture
def many(moons):
    """A table with at least 20 labels of each class, and unlabeled rows."""
    x, _, test, y = moons
    return np.concatenate([test, x]), np.concatenate([y, np.full(100, -1)])


# The members


@pytest.mark.parametrize(("members", "blend", "expected"), [(4, 1 / 3, 2), (4, 0.5, 4), (5, 0.1, 1), (4, 0.0, 0)])
def test_the_number_of_members_gives_the_blend(members, blend, expected, moons):
    x, few, _, _ = moons
    found = small(members=members, blend=blend, updates=2).fit(x, few)
    assert found._semi.members == members
    assert (0 if found._plain is None else found._plain.members) == expected


@pytest.mark.parametrize("blend", [0.0, 0.25, 0.5])
def test_predictions_are_a_blend_of_both_kinds_of_members(blend, moons, each_output):
    x, few, test, _ = moons
    found = small(blend=blend).fit(x, few)
    scaled = (test - x.mean(0)) / x.std(0)
    expected = (1 - blend) * softmax(each_output(found._semi, scaled)).mean(0)
    if blend:
        expected += blend * softmax(each_output(found._plain, scaled)).mean(0)
    np.testing.assert_allclose(found.predict_proba(test), expected)


def test_members_differ(moons):
    x, few, _, _ = moons
    found = small(blend=0.5).fit(x, few)
    each = found._each_member(x)
    assert each.shape == (8, 100, 2)
    assert len({shares.tobytes() for shares in each.round(6)}) == 8


@pytest.mark.parametrize("kind", [AdversarialDropoutClassifier, AdversarialDropoutRegressor])
def test_the_term_for_unlabeled_rows(kind):
    together, alone = kind()._consistency(6, 2), kind()._consistency(1, 1)
    values = kind is AdversarialDropoutRegressor
    assert together.target == OtherMembers(6, values=values, groups=2)
    assert together.given == "probabilities"
    assert (alone.target, alone.given) == (clean_output, "logits")
    for term in (together, alone):
        assert (term.detach, term.noise, term.rows) == (True, "shared", "unlabeled")
        assert (term.confidence == 0) == values


def test_several_hidden_layers_or_one_number(moons):
    _, _, x, y = moons
    deep = small(hidden_layer_sizes=(30, 20), updates=2).fit(x, y)
    for arm in (deep._semi, deep._plain):
        shapes = [layer.weight.shape[1:] for layer in arm.network if isinstance(layer, MemberLinear)]
        assert shapes == [(2, 30), (30, 20), (20, 2)]
    assert small(hidden_layer_sizes=25, updates=2).fit(x, y)._semi.network[-1].weight.shape == (4, 25, 2)


# Unlabeled rows, and how much they count


@pytest.fixture
def skilled(monkeypatch):
    """Members that predict well, whatever they predict."""
    monkeypatch.setattr(AdversarialDropoutClassifier, "_skill", lambda self, y, outputs: 0.8)


def test_rows_without_a_label_count(moons, skilled):
    x, few, _, _ = moons
    other = np.where((few == -1)[:, None], x[::-1], x)
    found, moved = (small(standardize=False).fit(features, few) for features in (x, other))
    assert all(map(torch.equal, found._plain.network.parameters(), moved._plain.network.parameters()))
    assert not torch.equal(found._semi.network[0].weight, moved._semi.network[0].weight)


def test_labels_only_members_know_nothing_of_them(moons):
    x, few, _, _ = moons
    found, fewer = (small(standardize=False, batch_size=4, updates=60).fit(x[:n], few[:n]) for n in (100, 50))
    assert all(map(torch.equal, found._plain.network.parameters(), fewer._plain.network.parameters()))


def test_they_do_not_count_if_the_members_predict_no_better_than_a_guess(moons, monkeypatch):
    x, few, _, _ = moons
    other = np.where((few == -1)[:, None], x[::-1], x)
    monkeypatch.setattr(AdversarialDropoutClassifier, "_skill", lambda self, y, outputs: 0.0)
    found, moved = (small(standardize=False).fit(features, few) for features in (x, other))
    assert found.skill_ == found._semi.trust.value == 0.0
    assert same(found, moved)


def test_they_count_the_more_the_better_the_members_predict(moons, monkeypatch):
    x, few, _, _ = moons
    trusts = []
    for skill in (0.0, 0.5, 0.8, 1.0):
        monkeypatch.setattr(AdversarialDropoutClassifier, "_skill", lambda self, y, outputs, skill=skill: skill)
        found = small(updates=1).fit(x, few)
        assert found.skill_ == skill
        trusts.append(found._semi.trust.value)
    assert trusts == sorted(set(trusts))
    assert (trusts[0], trusts[-1]) == (0.0, 1.0)


def test_a_skill_that_may_be_chance_is_the_same_as_labels_alone(moons, monkeypatch):
    x, few, _, _ = moons
    monkeypatch.setattr(AdversarialDropoutClassifier, "_skill", lambda self, y, outputs: 0.2)  # of ten labels
    assert same(small().fit(x, few), small(weight=0.0).fit(x, few))


def test_without_companions_the_skill_is_not_known_and_the_term_counts_in_full(moons):
    x, few, _, _ = moons
    found = small(blend=0.0, updates=2).fit(x, few)
    assert found._plain is None
    assert found._semi.trust.value == 1.0


def test_weight_0_uses_the_labels_alone_with_all_members(moons, skilled):
    x, few, _, _ = moons
    other = np.where((few == -1)[:, None], x[::-1], x)
    found, moved = (small(weight=0.0, standardize=False).fit(features, few) for features in (x, other))
    assert same(found, moved)
    assert len(found._each_member(x)) == 6
    assert found.unlabeled_gain_ is None
    assert not np.allclose(found.predict_proba(x), small(standardize=False).fit(x, few).predict_proba(x))


# Held-out labels


@pytest.mark.parametrize("members", [1, 2, 5, 7, 20, 23])
def test_members_are_divided_evenly_among_the_parts(members):
    parts = parts_of_members(members)
    assert len(parts) == members
    assert (np.diff(parts) >= 0).all()  # so that parts are groups
    assert set(parts) <= set(range(5))
    if members >= 5:
        assert np.ptp(np.bincount(parts, minlength=5)) <= 1


@pytest.mark.parametrize("weighted", [False, True])
def test_a_member_has_the_weight_0_for_the_labels_of_its_part(weighted):
    fold, own = np.array([0, 1, 2, 3, 4, 0, -1]), torch.tensor([[1.0, 2.0, 0.5, 0.5, 1.0, 1.5, 0.5]])
    table = Table(torch.zeros(7, 2), torch.zeros(7).long(), own if weighted else None, torch.zeros(3, 2))
    found = without_folds(table, fold, 10)
    assert found.unlabeled is table.unlabeled
    for member in range(10):
        kept = np.array([float(part != member // 2) for part in fold])
        kept *= own[0].numpy() if weighted else 1.0
        np.testing.assert_allclose(found.weights[member], kept / kept.mean(), rtol=1e-6)


def test_a_held_out_label_is_not_seen_by_its_members(many, spies):
    x, y = many
    found = small(updates=5).fit(x, y)
    fold = spies[0][0]
    _, table = found._table(x, y, y != -1, None)
    wrong = table._replace(targets=torch.where(torch.as_tensor(fold == 2), 1 - table.targets, table.targets))
    for arm, groups in (("plain", 1), ("semi held out", 5)):
        one, other = (
            found._trained(arm, without_folds(rows, fold, 20), 2, 20, progress=Progress(False), groups=groups)
            for rows in (table, wrong)
        )
        for left, right in zip(one.network.parameters(), other.network.parameters(), strict=True):
            equal = [torch.equal(a, b) for a, b in zip(left, right, strict=True)]
            assert equal == [8 <= member < 12 for member in range(20)], arm


def held_out(training, scaled, fold, each_output):
    """The mean probabilities of each row, from the members that learned without it: one row after the other."""
    shares = softmax(each_output(training, scaled))
    found = []
    for row, part in enumerate(fold):
        members = [member for member in range(training.members) if member * 5 // training.members == part]
        found.append(np.mean([shares[member, row] for member in members], axis=0))
    return np.stack(found)


def test_the_skill_is_that_of_members_on_labels_they_did_not_see(moons, spies, each_output):
    _, _, x, y = moons
    found = small(members=10, blend=0.5, updates=5).fit(x, y)
    expected = held_out(found._plain, (x - x.mean(0)) / x.std(0), spies[0][0], each_output)
    assert found.skill_ == pytest.approx(found._skill(y, expected))
    assert 0 < found.skill_ < 1


def test_few_members_are_tested_on_their_own_parts(moons, spies, each_output):
    _, _, x, y = moons
    found = small(members=2, blend=0.5, updates=5).fit(x, y)
    fold = spies[0][0]
    tested = (fold == 0) | (fold == 2)  # two members leave out the first and the third part
    expected = held_out(found._plain, ((x - x.mean(0)) / x.std(0))[tested], fold[tested], each_output)
    assert found.skill_ == pytest.approx(found._skill(y[tested], expected))
    assert found._skill_error() == skill_error(found.skill_, int(tested.sum()), 2)


def test_labels_that_are_never_left_out_are_not_counted_as_tested(moons):
    _, _, x, y = moons
    few = np.full(100, -1)
    few[np.flatnonzero(y == 0)[:6]], few[np.argmax(y)] = 0, 1
    assert small(members=10, updates=2, blend=0.5).fit(x, few)._tested == 6


def test_one_label_of_each_class_gives_no_skill(moons):
    _, _, x, y = moons
    few = np.full(100, -1)
    few[[np.argmin(y), np.argmax(y)]] = 0, 1
    found = small().fit(x, few)
    assert found.skill_ == found._semi.trust.value == 0.0


# The gain


def test_the_gain_is_that_of_held_out_labels(many, spies, each_output):
    x, y = many
    found = small(updates=10).fit(x, y)
    (fold,), trainings = spies
    scaled, known = ((x - x.mean(0)) / x.std(0))[:100], y[:100]
    right = [
        held_out(trainings[arm], scaled, fold, each_output).argmax(1) == known for arm in ("semi held out", "plain")
    ]
    gains = right[0].astype(float) - right[1]
    assert isinstance(found.unlabeled_gain_, Gain)
    assert found.unlabeled_gain_.mean == pytest.approx(gains.mean())
    assert found.unlabeled_gain_.standard_error == pytest.approx(gains.std(ddof=1) / 10)
    assert found._plain is trainings["plain"]
    assert found._semi is trainings["semi"]
    assert trainings["semi held out"].trust.value == found._semi.trust.value
    (_, _), (_, term) = trainings["semi held out"].step.objective.parts
    assert term.target == OtherMembers(20, groups=5)  # nobody who saw a label teaches one who did not


def test_the_gain_has_the_sign_of_the_difference(many, monkeypatch):
    x, y = many
    perfect = np.eye(2)[y[:100]]

    def outputs(self, training, x, fold):
        return perfect if training.step.objective.parts[1:] else 1 - perfect

    monkeypatch.setattr(AdversarialDropoutClassifier, "_held_out", outputs)
    monkeypatch.setattr(AdversarialDropoutClassifier, "_held_out_skill", lambda self, x, y, fold: (0.5, len(y)))
    assert small(updates=2).fit(x, y).unlabeled_gain_ == (1.0, 0.0)


@pytest.mark.parametrize("options", [{"measure_gain": False}, {"weight": 0.0}, {"blend": 0.0}])
def test_the_gain_is_not_measured_where_it_is_not_wanted(options, many, spies):
    found = small(updates=2, **options).fit(*many)
    assert found.unlabeled_gain_ is None
    assert "semi held out" not in spies[1]


@pytest.mark.parametrize(
    ("gain", "answer"),
    [
        (Gain(0.05, 0.02), "The unlabeled rows helped: accuracy on held-out labels +0.050 ± 0.040"),
        (Gain(-0.05, 0.02), "The unlabeled rows did harm: accuracy on held-out labels -0.050 ± 0.040"),
        (Gain(0.03, 0.02), "The unlabeled rows made no clear difference: accuracy on held-out labels +0.030 ± 0.040"),
        (None, "Too few labels to tell whether the unlabeled rows helped"),
    ],
)
def test_the_answer_says_whether_unlabeled_rows_helped(gain, answer, many, monkeypatch, capsys):
    def measured(self, *_):
        self.unlabeled_gain_ = gain

    monkeypatch.setattr(AdversarialDropoutClassifier, "_measure_gain", measured)
    monkeypatch.setattr(AdversarialDropoutClassifier, "_trust", lambda self: 1.0)
    answer += " (two standard errors)." if gain else "."
    assert small(updates=2, verbose=True).fit(*many).unlabeled_answer_ == answer
    assert capsys.readouterr().err.endswith(f"{answer}\n")


def test_the_answer_says_why_unlabeled_rows_were_not_used_or_not_measured(moons, many, monkeypatch):
    x, few, test, y = moons
    assert small(updates=2).fit(test, y).unlabeled_answer_ == "There are no unlabeled rows."
    unused = small(updates=2, weight=0.0).fit(x, few)
    assert unused.unlabeled_answer_ == "Unlabeled rows are not used with weight=0."
    for options in ({"measure_gain": False}, {"blend": 0.0}):
        unmeasured = small(updates=2, **options)
        monkeypatch.setattr(AdversarialDropoutClassifier, "_trust", lambda self: 1.0)
        assert unmeasured.fit(*many).unlabeled_answer_ == "Whether the unlabeled rows helped was not measured."
    monkeypatch.setattr(AdversarialDropoutClassifier, "_trust", lambda self: 0.0)
    left_out = "Unlabeled rows were left out: labels alone predict no better than a guess."
    assert small(updates=2).fit(*many).unlabeled_answer_ == left_out


def test_the_gain_needs_enough_labels_and_unlabeled_rows(moons, many):
    x, few, test, y = moons
    assert small(updates=2).fit(x, few).unlabeled_gain_ is None
    assert small(updates=2).fit(test, y).unlabeled_gain_ is None
    assert small(updates=2).fit(*many).unlabeled_gain_ is not None
    x, y = many
    rare = np.where((y == 1) & (np.cumsum(y == 1) > 19), -1, y)
    assert small(updates=2).fit(x, rare).unlabeled_gain_ is None


# A collapse


def test_a_collapse_is_told_once_and_the_rest_uses_the_labels_alone(moons, monkeypatch):
    x, few, _, _ = moons
    asked = []

    def collapse(self, outputs, plain):
        asked.append((outputs.shape, plain.shape))
        return "they are all blue" if len(asked) == 2 else ""

    monkeypatch.setattr(AdversarialDropoutClassifier, "_collapse", collapse)
    found = small(updates=100)
    with pytest.warns(UserWarning, match="collapse: they are all blue. The rest .* labels alone") as told:
        found.fit(x, few)
    assert len(told) == 1
    assert told[0].filename == __file__
    assert asked == [((90, 2), (90, 2))] * 2  # after 50 and 55 updates, and not again
    assert found.collapsed_
    assert found.skill_ > 0
    assert found._semi.trust.value == 0.0
    found.partial_fit(x, few)
    assert found._semi.trust.value == 0.0


def test_after_a_collapse_unlabeled_rows_do_not_count(moons, monkeypatch):
    x, few, _, _ = moons
    other = np.where((few == -1)[:, None], x[::-1], x)
    monkeypatch.setattr(AdversarialDropoutClassifier, "_collapse", lambda self, outputs, plain: "it is so")
    with pytest.warns(UserWarning, match="it is so"):
        found = small(updates=60, standardize=False).fit(x, few)
    one, two = copy.deepcopy(found).partial_fit(x, few), copy.deepcopy(found).partial_fit(other, few)
    assert same(one, two)
    found.collapsed_ = False
    one, two = copy.deepcopy(found).partial_fit(x, few), copy.deepcopy(found).partial_fit(other, few)
    assert not same(one, two)


def test_predictions_are_compared_with_those_of_members_of_the_same_age(moons, monkeypatch, each_output):
    x, few, _, _ = moons
    seen, ages = [], []
    monkeypatch.setattr(
        AdversarialDropoutClassifier, "_collapse", lambda self, outputs, plain: seen.append((outputs, plain)) or ""
    )
    train, kind = AdversarialDropoutClassifier._training, AdversarialDropoutClassifier

    def spy(self, arm, *args, **options):
        made = train(self, arm, *args, **options)
        real = made.train

        def watched(*args):
            loss = real(*args)
            rows = (x - x.mean(0)) / x.std(0)
            ages.append((arm, made.updates, softmax(each_output(made, rows[few == -1])).mean(0)))
            return loss

        made.train = watched
        return made

    monkeypatch.setattr(kind, "_training", spy)
    small(updates=60).fit(x, few)
    later = {arm: [shares for kind, age, shares in ages if kind == arm and 50 <= age < 60] for arm in ("semi", "plain")}
    assert len(seen) == len(later["semi"]) == 3  # after 51, 54 and 57 updates
    for (outputs, plain), semi, companions in zip(seen, later["semi"], later["plain"], strict=True):
        np.testing.assert_allclose(outputs, semi, atol=1e-5)
        np.testing.assert_allclose(plain, companions, atol=1e-5)


def test_a_short_training_is_no_collapse(moons):
    x, few, _, _ = moons
    for seed in range(10):  # a warning is an error here
        assert not small(updates=10, members=2, learning_rate=0.003, random_state=seed).fit(x, few).collapsed_


def test_without_unlabeled_rows_companions_or_weight_nothing_is_watched(moons, monkeypatch):
    x, few, test, y = moons
    monkeypatch.setattr(AdversarialDropoutClassifier, "_collapse", lambda self, outputs, plain: "never")
    small(updates=60).fit(test, y)
    small(updates=60, blend=0.0).fit(x, few)
    assert not small(updates=60, weight=0.0).fit(x, few).collapsed_


# One part after the other


def test_partial_fits_train_the_same_members(moons):
    x, few, _, _ = moons
    found = small(unlabeled_batch_size=50)
    for turn in range(1, 31):
        found.partial_fit(x, few, classes=[0, 1])
        assert len(found.loss_curve_) == turn
    assert found._semi.updates == found._plain.updates == 60  # 90 unlabeled rows are two batches
    assert found.loss_curve_[-1] < found.loss_curve_[0]
    assert found.score(x[:10], few[:10]) > 0.8
    assert not found.collapsed_
    assert found.unlabeled_gain_ is None


def parts(x, y):
    """Three parts of different size and place."""
    return [(x[:20], y[:20]), (3 * x[20:60] + 1, y[20:60]), (x[60:] - 2, y[60:])]


def test_features_are_standardized_by_all_rows_seen(moons, each_output):
    _, _, x, y = moons
    found, seen = small(), []
    for features, labels in parts(x, y):
        found.partial_fit(features, labels, classes=[0, 1])
        seen.append(features)
        rows = np.concatenate(seen)
        np.testing.assert_allclose(found._scaler.mean_, rows.mean(0))
        np.testing.assert_allclose(found._scaler.scale_, rows.std(0))
        scaled = (x - rows.mean(0)) / rows.std(0)
        semi, plain = (softmax(each_output(arm, scaled)).mean(0) for arm in (found._semi, found._plain))
        np.testing.assert_allclose(found.predict_proba(x), (1 - found.blend) * semi + found.blend * plain)


def test_the_skill_is_measured_on_labels_before_they_are_learned(moons, each_output):
    _, _, x, y = moons
    y = y.copy()
    y[25:40] = -1
    found, seen, skills = small(learning_rate=0.05), [], []
    for features, labels in parts(x, y):
        known = labels != -1
        before = copy.deepcopy(found._plain) if seen else None
        found.partial_fit(features, labels, classes=[0, 1])
        seen.append(features)
        if before is None:
            assert found.skill_ == found._semi.trust.value == 0.0
            continue
        rows = np.concatenate(seen)
        scaled = (features[known] - rows.mean(0)) / rows.std(0)
        skills.append((known.sum(), found._skill(labels[known], softmax(each_output(before, scaled)).mean(0))))
        assert found.skill_ == pytest.approx(sum(n * skill for n, skill in skills) / sum(n for n, _ in skills))
        assert (found._semi.trust.value > 0) == (found.skill_ > 0 and not known.all())
    assert [n for n, _ in skills] == [25, 40]
    assert found.skill_ > 0


def test_without_unlabeled_rows_the_labels_alone_are_learned(moons):
    _, _, x, y = moons
    found, alone = (small(updates=30, weight=weight).fit(x, y) for weight in (2.0, 0.0))
    np.testing.assert_array_equal(found.predict_proba(x), alone.predict_proba(x))


def test_a_partial_fit_goes_on_after_a_fit(moons):
    x, few, test, y = moons
    found = small().fit(x, few)
    before, skill = [copy.deepcopy(parameter) for parameter in networks(found)], found.skill_
    seen = found._plain, copy.deepcopy(found._plain)
    found.partial_fit(test, y)
    assert found._plain is seen[0]
    assert not any(map(torch.equal, before, networks(found)))
    outputs = found._mean(found._outputs(seen[1], test))
    expected = (4 * skill + 100 * found._skill(y, outputs)) / 104  # two members have tested two fifths of ten labels
    assert found.skill_ == pytest.approx(expected)


def test_a_second_fit_starts_anew(moons):
    x, few, test, y = moons
    found = small().fit(test, y).partial_fit(test, y)
    assert same(found.fit(x, few), small().fit(x, few))
    assert len(found.loss_curve_) == 20


# Weights


def test_weights_count(moons):
    _, _, x, y = moons
    found = small().fit(x, y, sample_weight=np.where(y == 1, 50.0, 1.0))
    assert found.predict(x).mean() > small().fit(x, y).predict(x).mean()
    equal = small().fit(x, y, sample_weight=np.full(100, 3.0))
    np.testing.assert_allclose(equal.predict_proba(x), small().fit(x, y).predict_proba(x), atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"weight": 0.0}, {"blend": 0.0}, {"members": 1}])
def test_weights_count_for_all_members(options, moons):
    _, _, x, y = moons
    weights = np.where(y == 1, 5.0, 1.0)
    found, without = small(**options).fit(x, y, sample_weight=weights), small(**options).fit(x, y)
    assert (found._each_member(x)[:, :, 1].mean(1) > without._each_member(x)[:, :, 1].mean(1)).all()
    found.partial_fit(x, y, sample_weight=weights)


def test_a_row_of_weight_0_is_one_without_a_label(moons):
    _, _, x, y = moons
    some = np.arange(100) < 20
    weighted = small().fit(x, y, sample_weight=some.astype(float))
    unlabeled = small().fit(x, np.where(some, y, -1))
    np.testing.assert_allclose(weighted.predict_proba(x), unlabeled.predict_proba(x), atol=1e-6)
    assert weighted.skill_ == unlabeled.skill_


def test_a_weight_below_0_is_refused(moons):
    _, _, x, y = moons
    weights = np.where(np.arange(100) == 7, -1.0, 1.0)
    for fit in (small().fit, small().partial_fit):
        with pytest.raises(ValueError, match="Negative values in data passed to `sample_weight`"):
            fit(x, y, sample_weight=weights)


@pytest.mark.parametrize("weights", [np.zeros(100), -np.ones(100)])
def test_a_refused_call_leaves_the_estimator_as_it_was(weights, moons):
    _, _, x, y = moons
    found, expected = small().fit(x, y), small().fit(x, y).predict(x)
    with pytest.raises(ValueError, match="weight"):
        found.fit(x, np.where(y == 1, "a", "b"), sample_weight=weights)
    np.testing.assert_array_equal(found.predict(x), expected)
    begun = small()
    with pytest.raises(ValueError, match="weight"):
        begun.partial_fit(x, y, sample_weight=weights)
    with pytest.raises(NotFittedError):
        begun.predict(x)
    np.testing.assert_array_equal(begun.partial_fit(x, y).predict_proba(x), small().partial_fit(x, y).predict_proba(x))


@pytest.mark.parametrize("sizes", [(), (0,), (8, -1), (2.5,), ("a",), 0])
def test_impossible_hidden_layers_are_refused(sizes, moons):
    x, few, _, _ = moons
    with pytest.raises(ValueError, match="hidden_layer_sizes"):
        small(hidden_layer_sizes=sizes).fit(x, few)


@pytest.mark.parametrize("sizes", [8, (8,), [np.int64(8)], np.array([8])])
def test_hidden_layers_are_a_number_or_some_numbers(sizes, moons):
    x, few, _, _ = moons
    assert same(
        small(hidden_layer_sizes=sizes, updates=2).fit(x, few), small(hidden_layer_sizes=(8,), updates=2).fit(x, few)
    )


@pytest.mark.parametrize(
    "mode",
    [
        torch.no_grad,
        torch.inference_mode,
        partial(torch.autocast, "cpu", torch.bfloat16),
        partial(torch.device, "meta"),  # where another default device has no values
    ],
)
def test_the_modes_of_the_caller_change_nothing(mode, moons):
    x, few, _, _ = moons
    expected = small().fit(x, few).predict_proba(x)
    with mode():
        found = small().fit(x, few)
        again = found.predict_proba(x)
        found.partial_fit(x, few)
    np.testing.assert_array_equal(again, expected)
    np.testing.assert_array_equal(found.predict(x), small().fit(x, few).partial_fit(x, few).predict(x))


def test_another_default_type_of_torch_is_no_hindrance(moons):
    _, _, x, y = moons
    torch.set_default_dtype(torch.float64)
    try:
        found = small().fit(x, y).partial_fit(x, y)
        assert found.score(x, y) > 0.8
    finally:
        torch.set_default_dtype(torch.float32)
    assert {parameter.dtype for parameter in found._semi.network.parameters()} == {torch.float32}


# What every estimator promises


def test_the_same_seed_gives_the_same_members(moons):
    x, few, _, _ = moons
    one = small(random_state=3).fit(x, few)
    assert same(one, small(random_state=3).fit(x, few))
    assert not same(one, small(random_state=4).fit(x, few))
    states = [np.random.RandomState(3) for _ in range(2)]
    assert same(*(small(random_state=state).fit(x, few) for state in states))


def test_the_seed_decides_where_the_members_start(moons):
    x, few, _, _ = moons
    one, other = (small(random_state=seed, updates=1, learning_rate=1e-30, blend=0.5).fit(x, few) for seed in (3, 4))
    starts = [arm.network[0].weight for found in (one, other) for arm in (found._semi, found._plain)]
    assert len({tuple(start.flatten().tolist()) for start in starts}) == 4


def test_the_global_generators_are_left_alone(moons):
    x, few, _, _ = moons

    def numbers():
        return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()  # noqa: NPY002

    def seeded():
        torch.manual_seed(5)
        np.random.seed(5)  # noqa: NPY002
        random.seed(5)

    seeded()
    expected = numbers()
    seeded()
    found = small().fit(x, few).partial_fit(x, few)
    found.predict(x)
    assert numbers() == expected


@pytest.mark.parametrize("kind", [small(), AdversarialDropoutRegressor(members=2, updates=5, random_state=0)])
def test_pickles_and_clones(kind, moons):
    _, _, x, y = moons
    fitted = clone(kind).fit(x, y)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(x), fitted.predict(x))
    np.testing.assert_array_equal(again.partial_fit(x, y).predict(x), fitted.partial_fit(x, y).predict(x))
    assert same(again, fitted)
    assert not hasattr(clone(fitted), "loss_curve_")
    assert clone(fitted).get_params() == kind.get_params()


def test_grids_and_pipelines(moons):
    _, _, x, y = moons
    search = GridSearchCV(
        make_pipeline(MinMaxScaler(), small()), {"adversarialdropoutclassifier__delta": [0.05, 0.2]}, cv=2
    )
    assert search.fit(x, y).best_score_ > 0.7


@pytest.mark.parametrize(("updates", "expected"), [(1, 1), (7, 7), (20, 20), (50, 20)])
def test_the_loss_is_recorded_twenty_times(updates, expected, moons):
    x, few, _, _ = moons
    found = small(updates=updates).fit(x, few)
    assert len(found.loss_curve_) == expected
    assert found._semi.updates == found._plain.updates == updates
    assert np.isfinite(found.loss_curve_).all()


@pytest.mark.parametrize(("labels", "expected"), [(1, 250), (1200, 250), (1201, 280), (5000, 1000), (1_000_000, 4000)])
def test_the_automatic_length_is_40_passes_within_limits(labels, expected):
    assert _auto_updates(labels, 200) == expected


def test_the_automatic_length_is_used(moons, monkeypatch):
    x, few, _, _ = moons
    monkeypatch.setattr("advdrop.sklearn.base.FEWEST_UPDATES", 3)
    monkeypatch.setattr("advdrop.sklearn.base.EPOCHS", 4)
    found = small(updates="auto", batch_size=5).fit(x, few)
    assert found._semi.updates == found._plain.updates == 8  # four passes over ten labels


def test_progress_is_printed_on_request(many, capsys):
    found = small(verbose=True).fit(*many)
    lines = capsys.readouterr().err.splitlines()
    starts = [
        f"{what}: {share} %, loss "
        for what in ("labels only", "with unlabeled rows", "measuring the gain")
        for share in (25, 50, 75, 100)
    ]
    *lines, answer = lines
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=True)] == [True] * 12
    assert answer == found.unlabeled_answer_
    assert lines[7].endswith(f"loss {found.loss_curve_[-1]:.4f}")
    for quiet in ("auto", False):
        small(updates=2, verbose=quiet).fit(*many)
        assert capsys.readouterr() == ("", "")


def test_features_are_standardized_unless_told_otherwise(moons):
    _, _, x, y = moons
    far = 1000 * x + 5
    np.testing.assert_allclose(small().fit(far, y).predict_proba(far), small().fit(x, y).predict_proba(x), atol=1e-3)
    raw, scaled = (small(updates=1, standardize=standardize).fit(far, y) for standardize in (False, True))
    assert np.ptp(raw._outputs(raw._semi, far)) > 100 * np.ptp(scaled._outputs(scaled._semi, far))


def test_a_constant_feature_changes_nothing_but_the_scale(moons):
    _, _, x, y = moons
    constant = np.column_stack([x, np.full(100, 1e6)])
    assert np.isfinite(small().fit(constant, y).predict_proba(constant)).all()


def test_a_prediction_does_not_depend_on_the_other_rows(moons):
    x, few, test, _ = moons
    found = small().fit(x, few)
    many = np.tile(test, (50, 1))  # more than one part of 4096 rows
    np.testing.assert_allclose(found.predict_proba(many), np.tile(found.predict_proba(test), (50, 1)), rtol=1e-12)
    np.testing.assert_allclose(found.predict_proba(test[:1]), found.predict_proba(test)[:1], rtol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"delta": 2.0},
        {"members": 0},
        {"members": 2.5},
        {"blend": 1.0},
        {"blend": -0.1},
        {"weight": -1.0},
        {"updates": 0},
        {"updates": "many"},
        {"p": 1.0},
        {"learning_rate": 0.0},
        {"unlabeled_batch_size": 0},
        {"measure_gain": "no"},
    ],
)
def test_bad_parameters_are_an_error(options, moons):
    _, _, x, y = moons
    for method in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match=f"The '{next(iter(options))}' parameter"):
            getattr(small(**options), method)(x, y)


def test_bad_input_is_an_error(moons):
    x, few, _, _ = moons
    with pytest.raises(ValueError, match="nothing to learn from"):
        small().fit(x, few, sample_weight=(few == -1).astype(float))
    for method in ("predict", "predict_proba", "disagreement"):
        with pytest.raises(NotFittedError):
            getattr(small(), method)(x)
    with pytest.raises(ValueError, match="features"):
        small(updates=1).fit(x, few).predict(x[:, :1])


def test_a_fit_that_failed_leaves_nothing_half_made(moons):
    x, few, _, _ = moons
    found = small()
    with pytest.raises(ValueError, match="nothing to learn from"):
        found.fit(x, few, sample_weight=(few == -1).astype(float))
    expected = small().partial_fit(x, few).predict_proba(x)
    np.testing.assert_array_equal(found.partial_fit(x, few).predict_proba(x), expected)


@pytest.mark.parametrize("before", [False, True])
def test_a_fit_that_was_interrupted_cannot_predict(before, moons, monkeypatch):
    x, few, _, _ = moons
    found = small()
    if before:
        found.fit(x[:, :1], few)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(AdversarialDropoutClassifier, "_held_out_skill", interrupt)
    with pytest.raises(KeyboardInterrupt):
        found.fit(x, few)
    monkeypatch.undo()
    with pytest.raises(NotFittedError):
        found.predict(x)
    assert same(found.partial_fit(x, few), small().partial_fit(x, few))
