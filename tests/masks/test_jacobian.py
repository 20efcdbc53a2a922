import copy

import pytest
import torch
from torch import nn

from advdrop.divergences import kl, qe
from advdrop.masks import mask_jacobian, unit_jacobian


def network(seed, units=6, classes=3, hidden=5):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        upper = nn.Sequential(nn.Linear(units, hidden), nn.Tanh(), nn.Linear(hidden, classes)).double()
        h, target = torch.randn(4, units, dtype=torch.float64), torch.randn(4, classes, dtype=torch.float64)
    return upper, h, target


def central_differences(function, point, step=1e-5):
    slopes = torch.empty_like(point)
    for i in range(point.shape[1]):
        shift = torch.zeros_like(point)
        shift[:, i] = step
        slopes[:, i] = (function(point + shift) - function(point - shift)).detach() / (2 * step)
    return slopes


@pytest.mark.parametrize("divergence", [kl, qe])
def test_both_forms_are_equal_at_the_mask_of_ones(divergence):
    upper, h, target = network(0)
    (by_mask,) = mask_jacobian(lambda masks: divergence(target, upper(h * masks[0])), (torch.ones_like(h),))
    by_unit = unit_jacobian(lambda units: divergence(target, upper(units)), h)
    assert by_mask.abs().max() > 1e-4
    torch.testing.assert_close(by_unit, by_mask, rtol=0, atol=1e-12)


@pytest.mark.parametrize("divergence", [kl, qe])
def test_they_are_the_slopes(divergence):
    upper, h, target = network(1)

    def of_mask(mask):
        return divergence(target, upper(h * mask))

    mask = torch.bernoulli(torch.full_like(h, 0.5), generator=torch.Generator().manual_seed(1))
    for point in (torch.ones_like(h), mask):
        (jacobian,) = mask_jacobian(lambda masks: of_mask(masks[0]), (point,))
        torch.testing.assert_close(jacobian, central_differences(of_mask, point), rtol=1e-6, atol=1e-8)
    by_unit = unit_jacobian(lambda units: divergence(target, upper(units)), h)
    torch.testing.assert_close(by_unit, central_differences(of_mask, torch.ones_like(h)), rtol=1e-6, atol=1e-8)


def test_several_masks_have_a_jacobian_each(generator):
    first, second = (torch.rand(2, n, dtype=torch.float64, generator=generator) for n in (3, 4))
    jacobians = mask_jacobian(lambda m: m[0].square().sum(1) * m[1].sum(1), (first, second))
    torch.testing.assert_close(jacobians[0], 2 * first * second.sum(1, keepdim=True))
    torch.testing.assert_close(jacobians[1], first.square().sum(1, keepdim=True).expand(2, 4))


@pytest.mark.parametrize("filled", [True, False])
def test_accumulated_gradients_are_left_alone(filled):
    upper, h, target = network(0)
    h.requires_grad_()
    tensors = [h, *upper.parameters()]
    for i, tensor in enumerate(tensors):
        tensor.grad = torch.full_like(tensor, float(i)) if filled else None
    mask_jacobian(lambda masks: kl(target, upper(h * masks[0])), (torch.ones_like(h),))
    unit_jacobian(lambda units: kl(target, upper(units)), h)
    for i, tensor in enumerate(tensors):
        assert tensor.grad is None if not filled else (tensor.grad == i).all()


def test_a_jacobian_carries_no_graph():
    upper, h, target = network(0)
    (by_mask,) = mask_jacobian(lambda masks: kl(target, upper(h * masks[0])), (torch.ones_like(h),))
    by_unit = unit_jacobian(lambda units: kl(target, upper(units)), h.requires_grad_())
    assert not by_mask.requires_grad
    assert not by_unit.requires_grad


def test_the_masks_given_stay_as_they_were():
    mask = torch.ones(1, 2)
    mask_jacobian(lambda masks: (2 * masks[0]).sum(1), (mask,))
    assert not mask.requires_grad
    assert mask.tolist() == [[1.0, 1.0]]


def test_it_works_under_no_grad_and_leaves_gradients_off():
    upper, h, target = network(0)

    def both():
        (by_mask,) = mask_jacobian(lambda masks: kl(target, upper(h * masks[0])), (torch.ones_like(h),))
        return by_mask, unit_jacobian(lambda units: kl(target, upper(units)), h)

    expected = both()
    with torch.no_grad():
        found = both()
        assert not torch.is_grad_enabled()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "search",
    [
        lambda: mask_jacobian(lambda masks: masks[0].sum(1), (torch.ones(1, 2),)),
        lambda: unit_jacobian(lambda h: h.sum(1), torch.ones(1, 2)),
    ],
)
def test_inference_mode_is_refused_with_the_way_out(search):
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"inference_mode.*no_grad.*Lightning"):
        search()


@pytest.mark.parametrize("differentiate", [mask_jacobian, unit_jacobian])
def test_transforms_of_torch_are_refused_with_the_way_out(differentiate):
    ones = torch.ones(1, 2)

    def total(weight):
        if differentiate is mask_jacobian:
            return mask_jacobian(lambda masks: (weight * masks[0]).sum(1), (ones,))[0].sum()
        return unit_jacobian(lambda h: (weight * h).sum(1), ones).sum()

    with pytest.raises(RuntimeError, match=r"the mask search cannot run inside torch.func.*autograd.grad"):
        torch.func.grad(total)(torch.tensor(1.0))


@pytest.mark.parametrize("weights", [3.0, 1.0, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_keeps_small_jacobians(weights, autocast):
    """Without a scale, float16 loses those below 1e-7 or so, and one that is too large overflows."""
    upper, h, target = network(3)
    with torch.no_grad():
        upper[2].weight.mul_(weights)
        target.mul_(weights)
    dtype = torch.float32 if autocast else torch.float16
    half, units, goal = copy.deepcopy(upper).to(dtype), h.to(dtype), target.to(torch.float16)
    (exact,) = mask_jacobian(lambda m: qe(goal.double(), upper(h * m[0])), (torch.ones_like(h),))
    with torch.autocast("cpu", torch.float16, enabled=autocast):
        (found,) = mask_jacobian(lambda m: qe(goal, half(units * m[0])), (torch.ones_like(units),))
        by_unit = unit_jacobian(lambda u: qe(goal, half(u)), units)
    assert found.dtype == by_unit.dtype == torch.float32
    for slope in (found, by_unit):
        assert (slope != 0).all()
        assert torch.cosine_similarity(slope.double().flatten(), exact.flatten(), dim=0) > 0.999


def test_half_precision_does_not_scale_beyond_its_range():
    """The largest float16 is 65504: the scale goes down to 1, and what overflows then is not finite in the end."""

    def steep(factor):
        return mask_jacobian(lambda m: (factor * m[0]).sum(1).float(), (torch.ones(2, 3, dtype=torch.float16),))[0]

    assert torch.equal(steep(3e4), torch.full((2, 3), 3e4))
    assert steep(torch.inf).isinf().all()
    assert (steep(0.0) == 0).all()


def test_the_exact_values_of_a_quadratic():
    (jacobian,) = mask_jacobian(lambda masks: (3 * masks[0].square()).sum(1), (torch.tensor([[1.0, 0.0]]),))
    assert jacobian.tolist() == [[6.0, 0.0]]
    assert unit_jacobian(lambda h: (h**2).sum(1), torch.tensor([[3.0, -1.0]])).tolist() == [[18.0, 2.0]]
