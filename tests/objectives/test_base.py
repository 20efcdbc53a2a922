"""Composition: + and * read as the paper's formulas do."""

import pytest
import torch

from advdrop import EMA, VAT, CrossEntropy, MeanTeacher, PiModel, Ramp, SAdD, Step, TemporalEnsembling, VAdD, qe
from small import CLASSES, batch, close, noisy, only, quiet, run


def test_weights_follow_the_schedule():
    objective = CrossEntropy() + Ramp(30.0, over=0.5) * VAdD(divergence=qe) + 2.0 * VAT()
    early, late = (run(quiet(0.5), objective, progress=t).weights for t in (0.0, 0.5))
    assert early == pytest.approx({"cross_entropy": 1.0, "vadd_qe": 30.0 * 0.006737947, "vat": 2.0})
    assert late == {"cross_entropy": 1.0, "vadd_qe": 30.0, "vat": 2.0}


def test_factors_multiply_and_distribute():
    def slope(progress):
        return 10.0 * progress

    objective = slope * (2.0 * (CrossEntropy() + VAT() * 3.0))
    assert run(quiet(), objective, progress=0.5).weights == {"cross_entropy": 10.0, "vat": 30.0}
    loss = run(quiet(), sum([CrossEntropy(), 2 * VAT()]))
    assert loss.weights == {"cross_entropy": 1.0, "vat": 2.0}
    assert all(type(weight) is float for weight in loss.weights.values())


def test_the_order_of_a_sum_does_not_change_a_term():
    terms = [CrossEntropy(), SAdD(), PiModel()]
    model, losses = quiet(), []
    for objective in (terms[0] + terms[1] + terms[2], terms[2] + terms[1] + terms[0]):
        losses.append(run(model, objective, batch()).terms)
    assert losses[0].keys() == losses[1].keys()
    for name, value in losses[0].items():
        torch.testing.assert_close(value, losses[1][name])


def test_terms_of_one_name_are_numbered():
    loss = run(quiet(0.5), VAdD(delta=0.1) + VAdD(delta=0.3) + CrossEntropy() + VAdD(delta=0.2))
    assert list(loss.terms) == ["vadd_kl", "vadd_kl_2", "cross_entropy", "vadd_kl_3"]


def test_terms_are_detached_and_the_loss_is_not():
    loss = run(quiet(), CrossEntropy() + VAT())
    assert loss.loss.requires_grad
    assert not any(value.requires_grad for value in loss.terms.values())


def test_the_state_of_two_terms_of_one_kind_comes_back_whole():
    first, second = (2.0 * (TemporalEnsembling(16, 3) + TemporalEnsembling(16, 3, momentum=0.9)) for _ in range(2))
    run(quiet(), CrossEntropy() + first)
    second.load_state_dict(first.state_dict())
    assert list(first.state_dict()) == ["temporal_ensembling", "temporal_ensembling_2"]
    assert first.state_dict()["temporal_ensembling"]["ensemble"].abs().sum() > 0
    for name, state in first.state_dict().items():
        close(list(second.state_dict()[name].values()), list(state.values()))


def test_the_state_of_another_objective_is_refused():
    with pytest.raises(ValueError, match="temporal_ensembling"):
        TemporalEnsembling(4, 3).load_state_dict({"other": {}})
    with pytest.raises(ValueError, match=r"\(4, 3\) and \(5, 3\)"):
        TemporalEnsembling(5, 3).load_state_dict(TemporalEnsembling(4, 3).state_dict())


REFUSED = {
    "negative": (lambda: -1.0 * VAT(), ValueError, "not negative, got -1.0"),
    "infinite": (lambda: VAT() * float("inf"), ValueError, "must be finite.*got inf"),
    "NaN": (lambda: float("nan") * VAT(), ValueError, "got nan"),
    "class of a schedule": (lambda: Ramp * VAdD(), TypeError, "unsupported operand"),
    "word": (lambda: "2" * VAT(), TypeError, "can't multiply sequence|unsupported operand"),
    "sum with a number": (lambda: VAT() + 1.0, TypeError, "unsupported operand"),
    "number first": (lambda: 1.0 + VAT(), TypeError, "unsupported operand"),
    "product": (lambda: VAT() * VAT(), TypeError, "unsupported operand"),
}


@pytest.mark.parametrize(("make", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_makes_no_sense_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_term_of_your_own():
    from dataclasses import dataclass

    from advdrop import Term

    @dataclass
    class LogitNorm(Term):
        rows: str = "labeled"

        def per_example(self, passes):
            return passes.clean(self.rows).logits.square().sum(1)

    model, rows = quiet(), batch()
    loss = run(model, CrossEntropy() + 0.1 * LogitNorm(), rows, seed=None)
    assert loss.terms["logit_norm"].item() == pytest.approx(model(rows["x"]).square().sum(1).mean().item(), rel=1e-5)


@pytest.mark.parametrize("make", [lambda: VAdD(target=EMA(0.9)), MeanTeacher, lambda: TemporalEnsembling(20, CLASSES)])
def test_an_objective_can_train_one_network_after_the_other(make):
    """What a term remembers of the first network has no influence on the second."""
    objective, found = make(), []
    for _ in range(2):
        torch.manual_seed(0)
        step = Step(noisy(), objective)
        optimizer = torch.optim.SGD(step.parameters(), 0.5)
        for number in range(3):
            torch.manual_seed(number)
            step(**only(batch(), "unlabeled", "index")).loss.backward()
            optimizer.step()
        found.append([tensor.detach().clone() for tensor in step.parameters()])
    assert all(map(torch.equal, *found))
    again = Step(step.model, objective)  # the same network: what it knows is kept
    assert any(tensor.any() for tensor in again.objective.state_dict()[objective.name].values())
