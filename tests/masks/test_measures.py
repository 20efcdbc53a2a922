import pytest
import torch

from advdrop import CrossEntropy, FirstOrder, RandomFlips, VAdD
from advdrop.masks import search_measures
from small import HIDDEN, noisy, run, seeded


def test_counts_are_those_of_a_loop_over_the_units():
    draw = seeded(3)
    sampled, adversarial = (torch.randint(2, (5, 4, 3), generator=draw).float() for _ in range(2))
    found = search_measures((sampled, sampled[:, 0]), (adversarial, adversarial[:, 0]), budget=(6, 2))
    pairs = [
        (int(s), int(a))
        for part in (slice(None), (slice(None), 0))
        for s, a in zip(sampled[part].flatten().tolist(), adversarial[part].flatten().tolist(), strict=True)
    ]
    assert found["drops"] == pytest.approx(pairs.count((1, 0)) / 5)
    assert found["revivals"] == pytest.approx(pairs.count((0, 1)) / 5)
    assert found["flips"] == pytest.approx((pairs.count((1, 0)) + pairs.count((0, 1))) / 5)
    assert found["budget_share"] == pytest.approx(float(found["flips"]) / 8)
    assert "jacobian_norm" not in found


def test_jacobian_norm_is_over_all_layers_of_the_first_jacobian():
    mask = torch.ones(2, 2)
    first = (torch.tensor([[3.0, 0.0], [0.0, 0.0]]), torch.tensor([[0.0, 4.0], [0.0, 1.0]]))
    found = search_measures((mask, mask), (mask, mask), 0, [first, (mask, mask)])
    assert found["jacobian_norm"] == pytest.approx((5.0 + 1.0) / 2)
    assert found["budget_share"] == 0.0


def test_layers_may_have_different_numbers_of_rows():
    tokens, sentences = torch.ones(6, 4), torch.ones(2, 3)
    sampled, flipped = (tokens, sentences), (tokens * torch.tensor([0.0, 1.0, 1.0, 1.0]), sentences)
    found = search_measures(sampled, flipped, (1, 1), [sampled])
    assert (found["flips"], found["budget_share"]) == (3.0, pytest.approx(3 / 4))
    assert found["jacobian_norm"] == pytest.approx((3 * 4 + 3) ** 0.5)


@pytest.mark.parametrize(("search", "has_norm"), [(FirstOrder(), True), (RandomFlips(), False)])
def test_a_search_is_measured_when_asked(search, has_norm):
    measures = run(noisy(), VAdD(delta=0.3, search=search), measure=True).measures
    assert 0 < measures["vadd_kl/flips"] <= int(0.3 * HIDDEN)
    assert 0 < measures["vadd_kl/budget_share"] <= 1
    assert ("vadd_kl/jacobian_norm" in measures) == has_norm


def test_a_dead_search_shows():
    measures = run(noisy(), CrossEntropy() + VAdD(delta=0.0), measure=True).measures
    assert measures["vadd_kl/flips"] == 0
    assert "vadd_kl/jacobian_norm" not in measures
