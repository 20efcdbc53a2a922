"""What a step costs in arithmetic, which no machine's noise can hide: the formula of docs/performance.md."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from advdrop import VAT, AdversarialDropout, Batch, CrossEntropy, PiModel, SAdD, VAdD
from advdrop.models import conv_large, mnist_cnn
from depth import flops_around, forward_flops, independent, shared, small_network
from naive import naive_step, naive_vadd_step, plain_torch

EXAMPLES = 4


def batch(shape):
    return Batch(torch.randn(EXAMPLES, *shape), torch.arange(EXAMPLES))


def flops(objective, model, rows):
    with FlopCounterMode(display=False) as counter:
        objective(model, rows).total.backward()
    return counter.get_total_flops()


@pytest.fixture(scope="module")
def parts():
    """B, U and V of the MNIST CNN."""
    model, x = mnist_cnn(), torch.randn(EXAMPLES, 1, 28, 28)
    begun, _ = forward_flops(model.under[:3], x)
    under, h = forward_flops(model.under, x)
    return begun, under, forward_flops(model.upper, h)[0]


FORMULAS = {
    "plain": (CrossEntropy(), lambda b, u, v: 3 * u + 3 * v),
    "sadd": (CrossEntropy() + SAdD(), lambda b, u, v: 3 * u + 8 * v),
    "vadd shared": (CrossEntropy() + VAdD(noise="shared"), lambda b, u, v: 3 * u + 8 * v),
    "vadd independent": (CrossEntropy() + VAdD(), lambda b, u, v: 6 * u - 3 * b + 8 * v),
    "pi": (CrossEntropy() + PiModel(), lambda b, u, v: 6 * u - 3 * b + 6 * v),
    "vat": (CrossEntropy() + VAT(), lambda b, u, v: 8 * u + 8 * v),
}


@pytest.mark.parametrize(("objective", "formula"), FORMULAS.values(), ids=FORMULAS)
def test_arithmetic_of_a_step(objective, formula, parts):
    begun, _, _ = parts
    counted = flops(objective, mnist_cnn(), batch((1, 28, 28)))
    # The first layer has no gradient to hand down, except that VAT asks for that of the input.
    assert formula(*parts) - 2 * begun <= counted <= formula(*parts)


def test_the_lower_pass_of_conv_large_is_made_once():
    model, rows = conv_large(AdversarialDropout(0.5, delta=0.2), width=0.1), batch((3, 32, 32))
    plain, shared_noise = (flops(o, model, rows) for o in (CrossEntropy(), CrossEntropy() + VAdD(noise="shared")))
    assert plain < shared_noise < 1.001 * plain


@pytest.mark.parametrize("places", [(0,), (1,), (2,), (3,), (0, 1, 2, 3)])
@pytest.mark.parametrize("noise", ["shared", "independent"])
def test_the_formula_holds_wherever_the_layers_are(places, noise):
    begun, under, upper = flops_around(small_network(places), (1, 28, 28))
    model, rows = small_network(places), batch((1, 28, 28))
    plain = flops(CrossEntropy(), model, rows)
    ratio = flops(CrossEntropy() + VAdD(noise=noise), model, rows) / plain
    expected = shared(under, upper) if noise == "shared" else independent(under, upper, begun)
    assert ratio == pytest.approx(expected, rel=0.03)


def test_naive_makes_three_full_passes(parts):
    begun, under, upper = parts
    counts = []
    for step in (naive_step, naive_vadd_step):
        model, rows = plain_torch(mnist_cnn()), batch((1, 28, 28))
        with FlopCounterMode(display=False) as counter:
            step(model, rows.x, rows.y, torch.optim.Adam(model.parameters()))
        counts.append(counter.get_total_flops())
    assert counts == [3 * (under + upper) - begun, 9 * (under + upper) - 3 * begun]
