"""The benchmark on real text: choosing settings, the tables, and a fit on texts that are made here."""

import argparse

import numpy as np
import pytest
import torch
from torch import nn

import text
from text import CHOOSE, FROZEN, LOOK, METHODS, TRAINED, Mean, Texts, best, fit, key, plan


class Small(nn.Module):
    """Stands in for the upper layers of the encoder."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential()
        self.encoder.embeddings = nn.Linear(16, 16)
        self.pool = Mean()
        self.classifier = nn.Linear(16, 2)

    def forward(self, hidden, attention_mask):
        noisy = nn.functional.dropout(self.encoder.embeddings(hidden), 0.1, self.training)
        return self.classifier(self.pool(noisy, attention_mask))


@pytest.fixture
def texts(monkeypatch):
    """Texts whose mean over the tokens tells their class; the padding would tell the opposite."""
    monkeypatch.setattr(text, "Top", Small)
    for name, value in {"UPDATES": 40, "RATE": 0.003, "HEAD_RATE": 0.03}.items():
        monkeypatch.setattr(text, name, value)
    generator = torch.Generator().manual_seed(0)
    y = np.arange(200) % 2
    mask = (torch.arange(6) < 2 + torch.arange(200)[:, None] % 4).long()
    sign = torch.from_numpy(2.0 * y - 1)[:, None, None].float()
    hidden = torch.randn(200, 6, 16, generator=generator) + torch.where(mask[:, :, None] > 0, 1.0, -9.0) * sign
    mean = Mean()(hidden, mask).numpy()
    return Texts(hidden.half(), mask, mean, y)


def split():
    rows = np.arange(200)
    return rows[:20], rows[20:100], rows[100:]


def test_a_batch_has_no_padding_that_nobody_needs(texts):
    assert texts.inputs(np.array([0, 4, 8]))["hidden"].shape == (3, 2, 16)
    assert texts.inputs(np.array([0, 3]))["attention_mask"].tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize("method", TRAINED)
def test_every_method_learns(texts, method):
    least = 45.0 if method == "VAT" else 85.0  # its perturbations are made for 384 features
    assert fit(texts, split(), next(iter(TRAINED[method].values())), seed=0) > least


def test_the_frozen_methods_learn(texts):
    for method in ("frozen: logistic regression", "frozen: self-training"):
        assert text.fit_frozen(texts, split(), method, seed=0) > 90.0


def rows(accuracies, name=CHOOSE, method="R-Drop", labels=20):
    return [
        key(name, labels, seed, method, setting) | {"accuracy": value, "seconds": 1.0}
        for setting, values in accuracies.items()
        for seed, value in enumerate(values)
    ]


def test_the_best_setting_is_that_of_the_seeds_that_all_settings_have():
    found = rows({"α=1": [70.0, 60.0, 99.0], "α=5": [71.0, 60.0]})
    assert best(found, "R-Drop") == "α=5"
    assert best(found, next(iter(FROZEN))) == ""
    with pytest.raises(ValueError, match="VAT: run its settings on rotten-tomatoes first"):
        best(found, "VAT")


def test_all_settings_where_they_are_chosen_and_the_best_one_elsewhere():
    found = rows({"α=1": [70.0], "α=5": [71.0]})
    options = argparse.Namespace(methods=["R-Drop", "frozen: advdrop"], labels=[20])
    chosen = plan(CHOOSE, range(2), True, options, [])
    assert [row["setting"] for row in chosen] == ["α=1", "α=5", "", "α=1", "α=5", ""]
    for name in (CHOOSE, LOOK):
        later = plan(name, range(2, 3), False, options, found)
        assert [(row["seed"], row["method"], row["setting"]) for row in later] == [
            (2, "R-Drop", "α=5"),
            (2, "frozen: advdrop", ""),
        ]


def test_the_tables():
    chosen = rows({"α=1": [70.0], "α=5": [71.0]}) + rows({"no layer": [70.0], "p=0.5": [69.0]}, method="cross-entropy")
    looked = rows({"α=5": [72.0, 73.5, 71.0]}, LOOK) + rows({"no layer": [70.0, 71.0, 70.0]}, LOOK, "cross-entropy")
    assert [line.split("|")[1:-1] for line in text.accuracies(chosen + looked, LOOK).splitlines()[2:]] == [
        [" cross-entropy ", " no layer ", " 70.3 ± 0.6 "],
        [" R-Drop        ", " α=5      ", " 72.2 ± 1.3 "],
    ]
    [line] = text.tests(chosen + looked, LOOK).splitlines()[2:]
    assert [cell.strip() for cell in line.split("|")[1:-1]] == ["20", "R-Drop", "+1.8 ± 1.9", "0.053", "0.250", "3"]
    assert text.settings(chosen).count("chosen") == 2
    assert text.settings(chosen[1:]).count("chosen") == 1  # not all settings of R-Drop were run
    more = chosen + rows({"α=5": [71.0, 99.0]})  # the second seed has only the chosen setting
    assert text.settings(more) == text.settings(chosen)
    assert set(METHODS) == {*TRAINED, *FROZEN}
