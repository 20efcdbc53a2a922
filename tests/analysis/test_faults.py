"""Faults compared with the same faults made by hand."""

import math
import struct

import pytest
import torch
from torch import nn

from advdrop.analysis.audit import audit
from advdrop.analysis.faults import BITS, BitFlip, Fault, SignFlip, StuckAt, chosen, fault, measure, right

GENERATOR = torch.Generator()


def bits(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


@pytest.mark.parametrize("part", BITS)
def test_a_bit_flip_changes_one_bit_of_the_hit_weights(part):
    torch.manual_seed(0)
    weights, hit = torch.randn(40, 5), torch.rand(40, 5) < 0.5
    found = BitFlip(part).broken(weights, hit, torch.Generator().manual_seed(1))
    seen = set()
    for before, after, was_hit in zip(*(t.flatten().tolist() for t in (weights, found, hit)), strict=True):
        changed = bits(before) ^ bits(after) if not math.isnan(after) else None
        if not was_hit:
            assert changed == 0
        elif changed is not None:
            assert changed.bit_count() == 1
            seen.add(changed.bit_length() - 1)
    assert seen <= set(BITS[part])
    assert len(seen) > len(BITS[part]) // 2
    assert torch.equal(torch.where(hit, weights, found), weights)


def test_the_parts_of_a_float():
    assert (bits(-1.0) ^ bits(1.0)) == 1 << BITS["sign"][0]
    assert (bits(2.0) ^ bits(1.0)).bit_length() - 1 in BITS["exponent"]
    assert sorted([*BITS["sign"], *BITS["exponent"], *BITS["mantissa"]]) == list(BITS["any"])


def test_the_highest_bit_of_the_exponent_makes_weights_huge_and_wrong_outputs_count_as_wrong():
    one = torch.ones(1)
    assert {float(BitFlip("exponent").broken(one, one > 0, GENERATOR.manual_seed(i))) for i in range(60)} >= {
        math.inf,
        0.5,
    }
    logits = torch.tensor([[1.0, 2.0], [1.0, math.inf], [math.nan, 2.0], [-math.inf, 2.0], [3.0, 2.0]])
    assert right(logits, torch.ones(5).long()).tolist() == [True, False, False, False, False]


def test_only_float32_has_these_bits():
    with pytest.raises(TypeError, match=r"float32 weights, got torch\.float64"):
        BitFlip().broken(torch.ones(2).double(), torch.ones(2).bool(), GENERATOR)


def test_names():
    assert fault("stuck") == StuckAt(0.0)
    assert fault("stuck:-2") == StuckAt(-2.0)
    assert fault("sign") == SignFlip()
    assert fault("bit:mantissa") == BitFlip("mantissa")
    assert fault(SignFlip()) == SignFlip()
    assert [str(fault(name)) for name in ("stuck:0.5", "sign", "bit", "bit:sign")] == [
        "stuck at 0.5",
        "sign flip",
        "bit flip",
        "bit flip (sign)",
    ]
    for name in ("stuc", "stuck:much", "bit:exponents", "sign:1", ""):
        with pytest.raises(ValueError, match=f"'{name}'"):
            fault(name)


@pytest.fixture
def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3)).eval()
    x = torch.randn(40, 1, 6, 6)
    return model, x, model(x).argmax(1)


def found(model, module, x, y, kind, counts, **options):
    batches = [(x[:25], y[:25]), (x[25:], y[25:])]
    return measure(model, module, batches, kind, counts, logits=lambda output: output, **options)


@torch.no_grad()
def test_units_and_whole_channels_that_are_stuck(network):
    model, x, y = network
    h = model[:2](x)
    for granularity, shape in (("channel", (5, 1, 1)), ("unit", (5, 4, 4))):
        size = math.prod(shape)
        (result,) = found(model, model[1], x, y, StuckAt(1.5), [3], granularity=granularity, draws=4, seed=7)
        generator, accuracies = torch.Generator().manual_seed(7), []
        for _ in range(4):
            hit = chosen(size, 3, generator).view(1, *shape).expand_as(h)
            broken = h.clone()
            broken[hit] = 1.5
            accuracies.append(100 * (model[2:](broken).argmax(1) == y).float().mean().item())
        assert result.accuracy == pytest.approx(sum(accuracies) / 4)
        assert result.lowest == pytest.approx(min(accuracies))
        assert (result.fault, result.count) == ("stuck at 1.5", 3)
    everything = found(model, model[1], x, y, StuckAt(0.0), [80], draws=1)[0]
    assert everything.accuracy == pytest.approx(100 * (y == model[4].bias.argmax()).float().mean().item())


def test_signs_of_weights(network):
    model, x, y = network
    before = [parameter.detach().clone() for parameter in model.parameters()]
    (none, every) = found(model, model[4], x, y, SignFlip(), [0, 15], draws=2)
    assert none.accuracy == 100.0
    h, head = model[:4](x), model[4]
    expected = (h @ -head.weight.T + head.bias).argmax(1) == y
    assert every.accuracy == pytest.approx(100 * expected.float().mean().item())
    for one, other in zip(before, model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert found(model, model[1], x, y, SignFlip(), [1]) == []  # no weights


def test_a_fault_that_fails_leaves_the_weights_as_they_were(network):
    model, x, y = network

    class Broken(Fault):
        of = "weights"

        def broken(self, values, hit, generator):
            if len(values) == 3:
                return torch.full_like(values, math.nan)
            raise RuntimeError("no")

    before = model[4].weight.detach().clone()
    assert found(model, model[4], x, y, Broken(), [1], draws=1)[0].accuracy == 0.0  # NaN is wrong
    assert torch.equal(model[4].weight, before)
    with pytest.raises(RuntimeError, match="no"):
        found(model, model[0], x, y, Broken(), [1])


def test_the_same_seed_gives_the_same_faults(network):
    model, x, y = network
    options = {"layers": ["0", "4"][:1], "faults": ["bit", "stuck:1"], "budgets": (1, 2), "draws": 3}
    one, again, other = (audit(model, (x, y), seed=seed, **options).layers[0].faults for seed in (0, 0, 1))
    assert one == again
    assert one != other
    assert [(result.fault, result.count) for result in one] == [
        ("bit flip", 1),
        ("bit flip", 2),
        ("stuck at 1", 1),
        ("stuck at 1", 2),
    ]


def test_a_count_above_the_number_of_units_hits_all():
    assert chosen(3, 9, GENERATOR).tolist() == [True] * 3
    assert chosen(9, 4, GENERATOR).sum() == 4
