"""What a step costs in arithmetic, which no machine's noise can hide: the formula of docs/performance.md."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from advdrop import VAT, AdversarialDropout, CrossEntropy, PiModel, SAdD, Step, VAdD
from advdrop.lab.models import conv_large, mnist_cnn
from depth import flops_around, forward_flops, independent, shared, small_network
from naive import naive_step, naive_vadd_step, plain_torch
from small import Wrapped

EXAMPLES = 4


def batch(shape):
    return torch.randn(EXAMPLES, *shape), torch.arange(EXAMPLES)


class Counter(TorchDispatchMode):
    """Adds up the arithmetic, as FlopCounterMode does, without hooks on the tensors."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        self.total += formula(*args, **(kwargs or {}), out_val=output) if formula else 0
        return output


def flops(objective, model, rows):
    with Counter() as counter:
        Step(model, objective)(*rows).loss.backward()
    return counter.total


@pytest.fixture(scope="module")
def parts():
    """B, U and V of the MNIST CNN."""
    model, x = mnist_cnn(shape=(1, 12, 12)), torch.randn(EXAMPLES, 1, 12, 12)
    layer = next(i for i, module in enumerate(model) if isinstance(module, AdversarialDropout))
    begun, _ = forward_flops(model[:3], x)
    under, h = forward_flops(model[:layer], x)
    return begun, under, forward_flops(model[layer:], h)[0]


FORMULAS = {
    "plain": (CrossEntropy(), lambda b, u, v: 3 * u + 3 * v),
    "sadd": (CrossEntropy() + SAdD(), lambda b, u, v: 3 * u + 8 * v),
    "vadd shared": (CrossEntropy() + VAdD(noise="shared"), lambda b, u, v: 3 * u + 8 * v),
    "vadd independent": (CrossEntropy() + VAdD(), lambda b, u, v: 6 * u - 3 * b + 8 * v),
    "pi": (CrossEntropy() + PiModel(), lambda b, u, v: 6 * u - 3 * b + 6 * v),
    "vat": (CrossEntropy() + VAT(), lambda b, u, v: 8 * u + 8 * v),
}


@pytest.mark.parametrize(("objective", "formula"), FORMULAS.values(), ids=FORMULAS)
@pytest.mark.parametrize("wrap", [nn.Sequential, Wrapped], ids=["sequential", "any"])
def test_the_arithmetic_of_a_step(objective, formula, wrap, parts):
    begun, under, upper = parts
    # What comes before the first noise is shared by the passes of a sequential network only.
    expected = formula(begun if wrap is nn.Sequential else 0, under, upper)
    counted = flops(objective, wrap(mnist_cnn(shape=(1, 12, 12))), batch((1, 12, 12)))
    # The first layer has no gradient to hand down, except that VAT asks for that of the input.
    assert expected - 2 * begun <= counted <= expected


@pytest.mark.parametrize("wrap", [nn.Sequential, Wrapped], ids=["sequential", "any"])
def test_the_lower_pass_of_conv_large_is_made_once(wrap):
    model, rows = wrap(conv_large(AdversarialDropout(0.5, delta=0.2), width=0.1, shape=(3, 12, 12))), batch((3, 12, 12))
    plain, shared_noise = (flops(o, model, rows) for o in (CrossEntropy(), CrossEntropy() + VAdD(noise="shared")))
    assert plain < shared_noise < 1.01 * plain


@pytest.mark.parametrize("places", [(0,), (2,), (0, 1, 2, 3)])
@pytest.mark.parametrize("noise", ["shared", "independent"])
def test_the_formula_holds_wherever_the_layers_are(places, noise):
    begun, under, upper = flops_around(small_network(places), (1, 28, 28))
    model, rows = small_network(places), batch((1, 28, 28))
    plain = flops(CrossEntropy(), model, rows)
    ratio = flops(CrossEntropy() + VAdD(noise=noise), model, rows) / plain
    expected = shared(under, upper) if noise == "shared" else independent(under, upper, begun)
    assert ratio == pytest.approx(expected, rel=0.03)


def test_the_public_ports_make_three_full_passes(parts):
    begun, under, upper = parts
    counts = []
    for step in (naive_step, naive_vadd_step):
        model, rows = plain_torch(mnist_cnn(shape=(1, 12, 12))), batch((1, 12, 12))
        with Counter() as counter:
            step(model, *rows, torch.optim.Adam(model.parameters()))
        counts.append(counter.total)
    assert counts == [3 * (under + upper) - begun, 9 * (under + upper) - 3 * begun]
