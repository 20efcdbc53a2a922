"""Composition: + and * read as the paper's formulas do."""

import pytest
import torch

from advdrop import VAT, CrossEntropy, PiModel, Ramp, SAdD, TemporalEnsembling, VAdD, qe
from small import batch, quiet, seeded


def test_weights_follow_the_schedule():
    objective = CrossEntropy() + Ramp(30.0, over=0.5) * VAdD(divergence=qe) + 2.0 * VAT()
    early, late = (objective(quiet(0.5), batch(), progress=t).weights for t in (0.0, 0.5))
    assert early == pytest.approx({"cross_entropy": 1.0, "vadd_qe": 30.0 * 0.006737947, "vat": 2.0})
    assert late == {"cross_entropy": 1.0, "vadd_qe": 30.0, "vat": 2.0}


def test_factors_multiply_and_distribute():
    objective = 2.0 * (CrossEntropy() + VAT() * 3.0)
    assert objective(quiet(), batch()).weights == {"cross_entropy": 2.0, "vat": 6.0}


def test_order_of_the_sum_does_not_change_a_term():
    terms = [CrossEntropy(), SAdD(), PiModel()]
    forward, backward = terms[0] + terms[1] + terms[2], terms[2] + terms[1] + terms[0]
    values = []
    for objective in (forward, backward):
        torch.manual_seed(0)
        values.append(objective(quiet(), batch(), generator=seeded()).total)
    torch.testing.assert_close(*values)


def test_the_same_term_twice_has_two_names():
    loss = (VAdD(delta=0.1) + VAdD(delta=0.3) + VAdD(delta=0.2))(quiet(), batch())
    assert list(loss.terms) == ["vadd_kl", "vadd_kl_2", "vadd_kl_3"]


def test_terms_are_detached_and_the_total_is_not():
    loss = (CrossEntropy() + VAT())(quiet(), batch())
    assert loss.total.requires_grad
    assert not any(value.requires_grad for value in loss.terms.values())


def test_state_of_another_objective_is_refused():
    with pytest.raises(ValueError, match="temporal_ensembling"):
        TemporalEnsembling(4, 3).load_state_dict({"other": {}})
    with pytest.raises(ValueError, match=r"\(4, 3\) and \(5, 3\)"):
        TemporalEnsembling(5, 3).load_state_dict(TemporalEnsembling(4, 3).state_dict())


def test_sum_of_a_list():
    loss = sum([CrossEntropy(), 2.0 * VAT()])(quiet(), batch())
    assert loss.weights == {"cross_entropy": 1.0, "vat": 2.0}


def test_state_of_two_temporal_terms_comes_back_whole():
    first, second = (2.0 * (TemporalEnsembling(16, 3) + TemporalEnsembling(16, 3, momentum=0.9)) for _ in range(2))
    first(quiet(), batch())
    second.load_state_dict(first.state_dict())
    assert list(first.state_dict()) == ["temporal_ensembling", "temporal_ensembling_2"]
    for name, state in first.state_dict().items():
        assert torch.equal(second.state_dict()[name]["ensemble"], state["ensemble"])
