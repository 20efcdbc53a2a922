"""The labels-only companion: what it sees, what its skill decides, and its share in the prediction."""

import os
import signal

import pytest
import torch
from torch import nn

from advdrop.lab.data.batches import LabelSplit
from advdrop.lab.data.examples import Examples
from advdrop.lab.data.preprocess import Preprocess
from advdrop.lab.engine.companion import WATCHED, Blend, Companion, held_out, main_network
from advdrop.lab.engine.model import load
from advdrop.lab.engine.run import train
from advdrop.lab.engine.rundir import RunDirectory
from advdrop.lab.engine.signals import StoppedError
from runs import rings, tiny

NOTHING = torch.empty(0, dtype=torch.int64)


def table(rows=40, classes=4):
    x = torch.randn(rows, 5, generator=torch.Generator().manual_seed(0))
    return Examples(x, torch.arange(rows) % classes)


def companion(network=None, labeled=20):
    examples = table()
    torch.manual_seed(1)
    network = Blend(nn.Linear(5, 4), nn.Linear(5, 4), 0.25) if network is None else network
    split = LabelSplit(torch.arange(labeled), torch.arange(labeled, 40), NOTHING)
    return Companion(network, examples, split, Preprocess("none"), seed=3), examples


def test_a_fifth_of_the_labels_of_each_class_is_held_out():
    y, labeled = table().y, torch.arange(20)
    rows = held_out(y, labeled, seed=3)
    assert sorted(y[rows].tolist()) == [0, 1, 2, 3]
    assert set(rows.tolist()) <= set(labeled.tolist())
    assert torch.equal(rows, held_out(y, labeled, seed=3))
    assert any(not torch.equal(rows, held_out(y, labeled, seed=other)) for other in range(5))


def test_the_only_label_of_a_class_is_never_held_out():
    assert held_out(torch.tensor([0, 1, 2]), torch.arange(3), seed=0).tolist() == []


def test_the_loss_is_the_cross_entropy_of_the_labels_that_are_not_held_out():
    found, examples = companion()
    rows = torch.arange(20)
    kept = torch.tensor([row not in held_out(examples.y, rows, seed=3).tolist() for row in range(20)])
    expected = nn.functional.cross_entropy(found.network(examples.x[:20][kept]), examples.y[:20][kept])
    torch.testing.assert_close(found.loss(examples.x[:20], examples.y[:20], rows), expected)
    alone = held_out(examples.y, rows, seed=3)
    assert found.loss(examples.x[alone], examples.y[alone], alone).item() == 0.0


class Known(nn.Module):
    """Predicts these classes, whatever it sees."""

    def __init__(self, answer):
        super().__init__()
        self.answer, self.weight = answer, nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return nn.functional.one_hot(self.answer[: len(x)], 4).float()


@pytest.mark.parametrize(("wrong", "skill"), [(0, 1.0), (1, 2 / 3), (3, 0.0), (4, 0.0)])
def test_the_skill_is_the_share_of_the_errors_of_a_guess_that_are_avoided(wrong, skill):
    found, examples = companion()
    answer = examples.y[held_out(examples.y, torch.arange(20), seed=3)].clone()
    answer[:wrong] = (answer[:wrong] + 1) % 4
    found.network = Known(answer)
    assert found.skill() == pytest.approx(skill)


UNIFORM, FIRST = torch.zeros(20, 4), torch.eye(4)[torch.zeros(20, dtype=torch.long)] * 9
SPREAD = torch.eye(4)[torch.arange(20) % 4] * 9


@pytest.mark.parametrize(
    ("main", "plain", "reason"),
    [
        (UNIFORM, SPREAD, "the mean of the highest probability is 0.25, for 4 classes"),
        (FIRST, SPREAD, "100 % of the rows are put in one class"),
        (UNIFORM, UNIFORM, ""),  # the labels alone say no more
        (FIRST, FIRST, ""),
        (SPREAD, SPREAD, ""),
    ],
)
def test_a_collapse_beside_the_labels_alone_ends_the_trust_with_a_warning(main, plain, reason):
    found, examples = companion(Blend(Fixed(main), Fixed(plain), 0.25))
    assert torch.equal(found._watched, examples.x[20:])
    if reason:
        with pytest.warns(UserWarning, match=f"unlabeled examples collapse: {reason}"):
            found.watch()
        found.watch()  # said once
    else:
        found.watch()
    assert found.collapsed == bool(reason)
    assert (found.trust(1.0) == 0.0) == bool(reason)


class Fixed(nn.Module):
    """Returns these logits, whatever it sees."""

    def __init__(self, logits):
        super().__init__()
        self.logits, self.weight = logits, nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.logits[: len(x)]


def test_the_watched_images_are_drawn_from_all_unlabeled_ones_by_the_seed():
    rows = 10 * WATCHED
    examples = Examples(torch.arange(rows, dtype=torch.float32)[:, None], torch.arange(rows) // WATCHED)
    split = LabelSplit(torch.arange(10), torch.arange(10, rows), NOTHING)
    network = Blend(nn.Linear(1, 10), nn.Linear(1, 10), 0.25)
    one, again, other = (Companion(network, examples, split, Preprocess("none"), seed)._watched for seed in (3, 3, 4))
    assert one.shape == (WATCHED, 1)
    assert len(one.unique()) == WATCHED
    assert one.min() >= 10  # no labeled image
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    found = (one[:, 0].long() // WATCHED).bincount(minlength=10)  # the images are sorted by class
    assert found.min() > WATCHED / 20


def test_a_run_that_collapsed_uses_the_labels_alone_also_after_it_is_resumed(tmp_path, monkeypatch):
    data, path = rings(), tmp_path / "run"
    monkeypatch.setattr("advdrop.lab.engine.companion.collapse", lambda *_: "a reason")
    monkeypatch.setattr(Companion, "skill", lambda self: 1.0)
    config = tiny("objective.blend=0.25", "training.epoch_updates=2")
    with pytest.warns(UserWarning, match="collapse: a reason"), pytest.raises(StoppedError):
        train(config, path, data=data, progress=False, tell=lambda done: done == 7)
    train(config, path, data=data, progress=False, resume=True)
    rows = RunDirectory.open(path).metrics()
    assert [row["companion/trust"] for row in rows] == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert [row["companion/collapsed"] for row in rows] == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_without_held_out_labels_there_is_no_skill():
    assert companion(labeled=4)[0].skill() == 0.0


def test_a_blend_is_the_mean_of_the_probabilities():
    torch.manual_seed(0)
    blend, x = Blend(nn.Linear(5, 3), nn.Linear(5, 3), share=0.25), torch.randn(6, 5)
    p, q = blend.main(x).softmax(1), blend.companion(x).softmax(1)
    torch.testing.assert_close(blend(x).exp(), 0.75 * p + 0.25 * q)
    torch.testing.assert_close(blend(x).exp().sum(1), torch.ones(6))


def test_the_skill_decides_how_much_unlabeled_images_count(tmp_path, monkeypatch):
    weights = {}
    for skill in (0.0, 1.0):
        monkeypatch.setattr(Companion, "skill", lambda self, skill=skill: skill)
        run = tmp_path / str(skill)
        train(tiny(preset="robust"), run, data=rings(), progress=False)
        weights[skill] = [float(row["weight/vadd_kl"]) for row in RunDirectory.open(run).metrics()]
    assert weights[0.0] == [0.0, 0.0, 0.0]
    assert weights[1.0][0] == 0.0  # not known before the first epoch ends
    assert weights[1.0][2] == 1.0


def test_what_may_be_chance_is_not_trusted(monkeypatch):
    found, _ = companion(labeled=40)
    held = len(found._tested)
    monkeypatch.setattr(Companion, "skill", lambda self: 0.8)
    error = (0.85 * 0.15 / held) ** 0.5 / 0.75  # four classes: an accuracy of 0.85
    assert found.trust(found.skill()) == pytest.approx((0.8 - error) ** 2)


def test_a_resumed_blend_is_bit_identical(tmp_path):
    config, data = tiny(preset="robust"), rings()
    train(config, tmp_path / "whole", data=data, progress=False)

    def stop(done):
        if done == 6:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(StoppedError):
        train(config, tmp_path / "parts", data=data, progress=False, tell=stop)
    train(config, tmp_path / "parts", data=data, progress=False, resume=True)
    one, other = (RunDirectory.open(tmp_path / name).weights() for name in ("whole", "parts"))
    assert any(name.startswith("companion.") for name in one)
    assert all(torch.equal(one[name], other[name]) for name in one)
    network = load(tmp_path / "whole").network
    assert isinstance(network, Blend)
    assert main_network(network) is network.main
