import torch

from advdrop.lab.report.charts import LEVELS, unpacked
from advdrop.lab.studies.features import order, packed


def test_the_strongest_unit_comes_first_and_dead_ones_last():
    assert order(torch.tensor([[0.0, 1.0, 3.0], [0.0, 2.0, 3.0]])).tolist() == [2, 1, 0]
    assert order(torch.zeros(2, 3)).tolist() == [0, 1, 2]


def test_a_packed_picture_can_be_unpacked():
    weights = torch.randn(20, 9, generator=torch.Generator().manual_seed(0))
    text, scale = packed(weights)
    found = torch.tensor(unpacked(text, 1.0)).view(20, 9) * scale / LEVELS
    assert (found - weights).abs().max() < scale / LEVELS / 2 + 1e-6
    assert unpacked(text, 0.5) == [round(step / 2) for step in unpacked(text, 1.0)]


def test_one_huge_weight_does_not_set_the_scale():
    weights = torch.ones(100, 20)
    weights[0, 0] = 1000.0
    text, scale = packed(weights)
    assert scale == 1.0
    assert unpacked(text, 1.0)[:2] == [LEVELS, LEVELS]


def test_nothing_but_zeros_can_be_packed():
    text, scale = packed(torch.zeros(2, 2))
    assert (unpacked(text, 1.0), scale) == ([0, 0, 0, 0], 1.0)
