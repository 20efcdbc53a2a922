import itertools
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from advdrop.checks import value_checks
from advdrop.masks import flip, flip_mask
from advdrop.masks.flip import GROUPED, WIDE
from waits import Waits

ORDERS = ("largest", "smallest")
TIES = ("exact", "dropped")
OPTIONS = [{"order": order, "ties": ties} for order in ORDERS for ties in TIES]
INTEGER_SLOPES = st.integers(-6, 6).map(float)  # sums are exact in float64, and ties are frequent


@st.composite
def problems(draw, slopes=INTEGER_SLOPES, most_units=12):
    """mask (B, H), jacobian (B, H), budget."""
    examples, units = draw(st.integers(1, 3)), draw(st.integers(1, most_units))
    row = st.lists(slopes, min_size=units, max_size=units)
    bits = st.lists(st.sampled_from([0.0, 1.0]), min_size=units, max_size=units)
    mask = torch.tensor([draw(bits) for _ in range(examples)], dtype=torch.float64)
    jacobian = torch.tensor([draw(row) for _ in range(examples)], dtype=torch.float64)
    return mask, jacobian, draw(st.integers(0, units))


def distinct(units):
    """Non-zero slopes whose sizes all differ."""
    return st.permutations(range(1, units + 1)).flatmap(
        lambda sizes: st.tuples(*[st.sampled_from([-float(s), float(s)]) for s in sizes])
    )


def gains(mask, jacobian):
    return np.where(mask.numpy() == 0, jacobian.numpy(), -jacobian.numpy())


def flips(before, after):
    return (before != after).flatten(1).sum(1)


def linear(mask, jacobian):
    return (mask * jacobian).flatten(1).sum(1)


def best_linear(jacobian_row, mask_row, budget):
    candidates = np.array(list(itertools.product((0.0, 1.0), repeat=len(mask_row))))
    near = (candidates != mask_row).sum(1) <= budget
    return (candidates[near] @ jacobian_row).max()


@given(problems())
def test_no_mask_within_the_budget_has_a_larger_linearized_divergence(problem):
    mask, jacobian, budget = problem
    found = flip_mask(mask, jacobian, budget)
    expected = [best_linear(j, m, budget) for j, m in zip(jacobian.numpy(), mask.numpy(), strict=True)]
    assert linear(found, jacobian).tolist() == expected


@given(problems(), st.sampled_from(ORDERS), st.sampled_from(TIES))
def test_what_holds_for_every_order_and_every_rule(problem, order, ties):
    mask, jacobian, budget = problem
    options = {"order": order, "ties": ties}
    found = flip_mask(mask, jacobian, budget, **options)
    assert found.shape == mask.shape
    assert set(found.unique().tolist()) <= {0.0, 1.0}
    assert flips(mask, found).max() <= budget
    assert (gains(mask, jacobian)[(found != mask).numpy()] > 0).all()
    assert torch.equal(flip_mask(mask, jacobian, 0, **options), mask)
    assert torch.equal(flip_mask(mask, torch.zeros_like(jacobian), budget, **options), mask)


@given(problems(), st.sampled_from(ORDERS), st.sampled_from(TIES), st.data())
def test_a_budget_per_example_is_an_int_budget_for_each(problem, order, ties, data):
    mask, jacobian, _ = problem
    budgets = [data.draw(st.integers(0, mask.shape[1])) for _ in mask]
    found = flip_mask(mask, jacobian, torch.tensor(budgets), order=order, ties=ties)
    for i, budget in enumerate(budgets):
        alone = flip_mask(mask[i : i + 1], jacobian[i : i + 1], budget, order=order, ties=ties)
        assert linear(alone, jacobian[i : i + 1]) == linear(found, jacobian)[i]
        assert flips(alone, mask[i : i + 1]) == flips(found, mask)[i]


def test_an_int_a_list_a_tuple_and_a_tensor_are_the_same_budget(generator):
    mask = torch.bernoulli(torch.full((4, 7), 0.5), generator=generator)
    jacobian = torch.randn(4, 7, generator=generator)
    for options, budget in itertools.product(OPTIONS, (0, 1, 3, 7)):
        expected = flip_mask(mask, jacobian, budget, **options)
        tensors = [torch.full((4,), budget, dtype=dtype) for dtype in (torch.int64, torch.uint8, torch.uint16)]
        for vector in ([budget] * 4, (budget,) * 4, *tensors):
            assert torch.equal(flip_mask(mask, jacobian, vector, **options), expected)


def test_the_printed_order_finds_a_smaller_gain():
    mask = torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    jacobian = torch.tensor([[-3.0, 5.0, 1.0, 2.0]])
    assert flip_mask(mask, jacobian, 2).tolist() == [[0.0, 1.0, 0.0, 1.0]]
    assert flip_mask(mask, jacobian, 2, order="smallest").tolist() == [[1.0, 1.0, 1.0, 1.0]]
    assert linear(flip_mask(mask, jacobian, 2, order="smallest"), jacobian) == 5.0
    assert linear(flip_mask(mask, jacobian, 2), jacobian) == 7.0


def algorithm_1(mask, jacobian, budget):
    """The paper's walk in ascending |J|, stopped when the budget is spent."""
    mask = list(mask)
    for i in sorted(range(len(mask)), key=lambda i: abs(jacobian[i])):
        if budget and ((mask[i] == 0 and jacobian[i] > 0) or (mask[i] == 1 and jacobian[i] < 0)):
            mask[i] = 1 - mask[i]
            budget -= 1
    return mask


@given(
    st.integers(1, 12).flatmap(
        lambda n: st.tuples(
            distinct(n), st.lists(st.sampled_from([0.0, 1.0]), min_size=n, max_size=n), st.integers(0, n)
        )
    )
)
def test_the_printed_order_is_the_papers_walk(problem):
    slopes, bits, budget = problem
    found = flip_mask(torch.tensor([bits]), torch.tensor([slopes]), budget, order="smallest")
    assert found[0].tolist() == algorithm_1(bits, slopes, budget)


def released_rule(mask, jacobian, budget, order):
    """Flip the gains that are positive and strictly better than the (k+1)-th."""
    gain = gains(mask, jacobian)
    score = gain if order == "largest" else np.where(gain > 0, -gain, -np.inf)
    flipped = gain > 0
    if budget < gain.shape[1]:
        flipped &= score > -np.sort(-score, axis=1)[:, budget, None]
    return np.where(flipped, 1 - mask.numpy(), mask.numpy())


@given(problems(), st.sampled_from(ORDERS), st.data())
def test_dropped_ties_follow_the_released_rule(problem, order, data):
    mask, jacobian, budget = problem
    found = flip_mask(mask, jacobian, budget, order=order, ties="dropped")
    assert found.tolist() == released_rule(mask, jacobian, budget, order).tolist()
    budgets = [data.draw(st.integers(0, mask.shape[1])) for _ in mask]
    found = flip_mask(mask, jacobian, budgets, order=order, ties="dropped")
    for i, own in enumerate(budgets):
        expected = released_rule(mask[i : i + 1], jacobian[i : i + 1], own, order)
        assert found[i].tolist() == expected[0].tolist()


def test_dropped_ties_leave_out_everything_equal_to_the_runner_up():
    jacobian = torch.tensor([[-5.0, -2.0, -2.0, -1.0]])
    assert flip_mask(torch.ones(1, 4), jacobian, 2).sum() == 2
    assert flip_mask(torch.ones(1, 4), jacobian, 2, ties="dropped").tolist() == [[0.0, 1.0, 1.0, 1.0]]
    assert flip_mask(torch.ones(1, 4), jacobian, 3, ties="dropped").tolist() == [[0.0, 0.0, 0.0, 1.0]]


@pytest.mark.parametrize("order", ORDERS)
def test_equal_gains_give_exactly_the_budget_the_same_way_every_time(order, generator):
    mask = torch.bernoulli(torch.full((3, 12), 0.5), generator=generator)
    jacobian = 1 - 2 * mask
    for budget in (1, 5, 12):
        found = flip_mask(mask, jacobian, budget, order=order)
        assert flips(mask, found).tolist() == [budget] * 3
        assert all(torch.equal(flip_mask(mask, jacobian, budget, order=order), found) for _ in range(5))
        dropped = flip_mask(mask, jacobian, budget, order=order, ties="dropped")
        assert torch.equal(dropped, found if budget == 12 else mask)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_and_shapes(dtype, generator):
    for shape in ((1, 9), (5, 9), (2, 3, 4, 5), (1, 3, 2, 2), (2, 6, 3)):
        mask = torch.bernoulli(torch.full(shape, 0.5), generator=generator)
        jacobian = torch.randn(shape, generator=generator).to(dtype)
        found = flip_mask(mask.to(dtype), jacobian, 3)
        assert (found.dtype, found.shape) == (dtype, mask.shape)
        flat = flip_mask(mask.double().flatten(1), jacobian.double().flatten(1), 3)
        assert linear(found.double(), jacobian.double()).tolist() == linear(flat, jacobian.double().flatten(1)).tolist()
        assert flips(found, mask.to(dtype)).tolist() == [3] * shape[0]


@pytest.mark.parametrize(
    ("mask_dtype", "slope_dtype"), [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)]
)
def test_the_result_has_the_masks_dtype(mask_dtype, slope_dtype):
    found = flip_mask(torch.ones(1, 3, dtype=mask_dtype), torch.tensor([[-1.0, 2.0, -3.0]], dtype=slope_dtype), 1)
    assert found.dtype == mask_dtype
    assert found.tolist() == [[1.0, 1.0, 0.0]]


def test_the_order_of_pixels_in_memory_makes_no_difference(generator):
    mask = torch.bernoulli(torch.full((2, 3, 4, 5), 0.5), generator=generator)
    jacobian = torch.randn(2, 3, 4, 5, generator=generator)
    last = torch.channels_last
    masks, slopes = ((t, t.to(memory_format=last)) for t in (mask, jacobian))
    for options, budget in itertools.product(OPTIONS, (0, 7, [1, 5])):
        expected = flip_mask(mask, jacobian, budget, **options)
        for m, j in itertools.product(masks, slopes):
            found = flip_mask(m, j, budget, **options)
            assert torch.equal(found, expected)
            assert found.stride() == m.stride()


@pytest.mark.parametrize("budget", [0, 2])
def test_the_arguments_stay_as_they_were(budget):
    mask, jacobian = torch.tensor([[1.0, 0.0, 1.0]]), torch.tensor([[-1.0, 2.0, -3.0]])
    found = flip_mask(mask, jacobian, budget)
    found.fill_(9.0)
    assert mask.tolist() == [[1.0, 0.0, 1.0]]
    assert jacobian.tolist() == [[-1.0, 2.0, -3.0]]


@pytest.mark.parametrize("budget", [0, 2, [1, 2]])
def test_no_gradient_goes_through(budget):
    mask = torch.ones(2, 4, requires_grad=True)
    jacobian = torch.full((2, 4), -1.0, requires_grad=True)
    found = flip_mask(mask, jacobian, budget)
    assert not found.requires_grad
    assert found.grad_fn is None


ONES = torch.ones(2, 3)
MANY_NAN = torch.full((10, 3), float("nan"))
ERRORS = {
    "one row of NaN": (
        ONES,
        torch.tensor([[0.0] * 3, [0.0, float("nan"), 1.0]]),
        1,
        ValueError,
        r"jacobian.*1 of 2.*rows 1\)",
    ),
    "two rows of infinity": (
        ONES,
        torch.tensor([[float("inf")] * 3, [float("-inf")] * 3]),
        1,
        ValueError,
        r"rows 0, 1\)",
    ),
    "many rows of NaN": (
        torch.ones(10, 3),
        MANY_NAN,
        1,
        ValueError,
        r"10 of 10.*rows 0, 1, 2, 3, 4, 5, 6, 7, \.\.\.\)",
    ),
    "non binary": (
        torch.tensor([[1.0, 0.25, 0.0]]),
        torch.zeros(1, 3),
        1,
        ValueError,
        r"mask must hold only 0 and 1, got 0\.25",
    ),
    "scaled mask": (2 * ONES, ONES, 1, ValueError, r"mask.*got 2\.0"),
    "NaN mask": (ONES * float("nan"), ONES, 1, ValueError, r"mask.*got nan"),
    "shapes": (ONES, torch.zeros(2, 4), 1, ValueError, r"\(2, 3\) and \(2, 4\)"),
    "integer mask": (
        ONES.long(),
        ONES,
        1,
        TypeError,
        r"mask must be floating point, got torch\.int64.*mask\.float\(\)",
    ),
    "bool mask": (ONES.bool(), ONES, 1, TypeError, r"torch\.bool"),
    "integer jacobian": (ONES, ONES.long(), 1, TypeError, r"jacobian must be floating point"),
    "not a tensor": ([[1.0]], torch.ones(1, 1), 1, TypeError, r"mask must be a tensor, got list"),
    "empty batch": (torch.ones(0, 3), torch.ones(0, 3), 1, ValueError, r"at least one example, got shape \(0, 3\)"),
    "no unit dimension": (torch.ones(3), torch.ones(3), 1, ValueError, r"two dimensions.*got shape \(3,\)"),
    "budget above the units": (ONES, ONES, 4, ValueError, r"0\.\.3.*got 4"),
    "negative": (ONES, ONES, -1, ValueError, r"0\.\.3.*got -1"),
    "bool": (ONES, ONES, True, TypeError, r"True \(bool\)"),
    "float": (ONES, ONES, 1.0, TypeError, r"1\.0 \(float\)"),
    "none": (ONES, ONES, None, TypeError, r"NoneType"),
    "list too long": (ONES, ONES, [1, 1, 1], ValueError, r"\(2,\), got shape \(3,\)"),
    "scalar tensor": (ONES, ONES, torch.tensor(1), ValueError, r"\(2,\), got shape \(\)"),
    "matrix of budgets": (ONES, ONES, torch.ones(2, 1).long(), ValueError, r"got shape \(2, 1\)"),
    "float list": (ONES, ONES, [1.0, 1.0], TypeError, r"integers, got torch\.float32"),
    "bool tensor": (ONES, ONES, torch.tensor([True, False]), TypeError, r"integers, got torch\.bool"),
    "list above the units": (ONES, ONES, [1, 4], ValueError, r"0\.\.3, got values from 1 to 4"),
    "negative in a list": (ONES, ONES, [-2, 1], ValueError, r"0\.\.3, got values from -2 to 1"),
}


@pytest.mark.parametrize(("mask", "jacobian", "budget", "error", "message"), ERRORS.values(), ids=ERRORS)
def test_errors_show_what_was_given(mask, jacobian, budget, error, message):
    with pytest.raises(error, match=message):
        flip_mask(mask, jacobian, budget)


@pytest.mark.parametrize(("option", "message"), [("order", "'largest', 'smallest'"), ("ties", "'exact', 'dropped'")])
def test_unknown_options_are_refused_with_the_known_ones(option, message):
    with pytest.raises(ValueError, match=rf"{option} must be one of {message}, got 'ascending'"):
        flip_mask(ONES, ONES, 1, **{option: "ascending"})


def test_a_layer_without_units_is_refused():
    with pytest.raises(ValueError, match=r"\(2, 0\)"):
        flip_mask(torch.ones(2, 0), torch.ones(2, 0), 0)


def test_values_are_not_looked_at_when_checks_are_off():
    with value_checks("never"):
        assert flip_mask(ONES, torch.full((2, 3), float("nan")), 1).shape == (2, 3)
        assert flip_mask(torch.full((2, 3), 0.5), ONES, 1).shape == (2, 3)


def test_the_host_never_waits_for_the_device(generator):
    mask = torch.bernoulli(torch.full((4, 8), 0.5), generator=generator)
    jacobian = torch.randn(4, 8, generator=generator)
    with value_checks("never"), Waits() as waits:
        for options, budget in itertools.product(OPTIONS, (0, 3, 8)):
            flip_mask(mask, jacobian, budget, **options)
        flip_mask(*wide("random", WIDE, examples=2), 40)
    assert waits.seen["topk"] >= 8
    assert waits.seen["amax"] == 1  # of the groups of a wide layer
    assert not waits.counted
    with Waits() as waits:
        flip_mask(mask, jacobian, 1)
    assert waits.counted  # value checks


def test_tensors_without_values_have_masks_without_values():
    mask = torch.ones(2, 3, 4, 4, device="meta")
    for options in OPTIONS:
        found = flip_mask(mask, torch.ones_like(mask), 3, **options)
        assert (found.shape, found.device.type) == (mask.shape, "meta")


class Allocations(TorchDispatchMode):
    """The peak of the bytes of storages that were made inside the block and are still alive."""

    def __init__(self, *known):
        super().__init__()
        self.storages = {tensor.untyped_storage()._cdata for tensor in known}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.track(tensor.untyped_storage())
        return out

    def track(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key not in self.storages:
            self.storages.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.release, key, size)

    def release(self, key, size):
        self.storages.discard(key)
        self.now -= size


@pytest.mark.parametrize("options", OPTIONS)
def test_temporaries_are_at_most_four_masks(options, generator):
    mask = torch.bernoulli(torch.full((64, 4096), 0.5), generator=generator)
    jacobian = torch.randn(64, 4096, generator=generator)
    for budget in (20, 204, 1024):
        with Allocations(mask, jacobian) as allocations:
            found = flip_mask(mask, jacobian, budget, **options)
        size = mask.untyped_storage().nbytes()
        assert allocations.now == found.untyped_storage().nbytes()
        assert size <= allocations.peak <= 4 * size


def test_the_allocation_counter_counts():
    with Allocations() as allocations:
        a = torch.ones(1000)
        b = a + 1
        del a
        c = b + 1
        del b
    assert (allocations.peak, allocations.now) == (8000, c.untyped_storage().nbytes())


def stable_best(score, budgets):
    """The sums of the best scores above zero, by sorting: what any right choice must come to."""
    ordered = -np.sort(-score, axis=1)
    return [np.clip(row[:k], 0, None).sum() for row, k in zip(ordered, budgets, strict=True)]


def wide(kind, units, examples=3):
    """A wide layer: mask and jacobian, integers in float64, so that sums are exact."""
    draw = torch.Generator().manual_seed(units)
    mask = torch.randint(2, (examples, units), generator=draw).double()
    gain = {
        "random": lambda: torch.randperm(examples * units, generator=draw).view(examples, units) - units,
        "tied": lambda: torch.randint(-3, 4, (examples, units), generator=draw),
        "all negative": lambda: -torch.randint(1, 9, (examples, units), generator=draw),
        "all equal": lambda: torch.full((examples, units), 2),
        "zero": lambda: torch.zeros(examples, units),
        "one group": lambda: (torch.arange(units) % (units // GROUPED) == 5).long().expand(examples, -1) * 7,
        "the first few": lambda: (torch.arange(units) < 20).long().expand(examples, -1) * 7 - 1,
        "ascending": lambda: torch.arange(units).expand(examples, -1) - units // 2,
    }[kind]()
    return mask, gain.double() * (1 - 2 * mask)


KINDS = ("random", "tied", "all negative", "all equal", "zero", "one group", "the first few", "ascending")


@pytest.mark.parametrize("kind", KINDS)
def test_a_wide_layer_takes_the_best_of_all(kind):
    mask, jacobian = wide(kind, WIDE)
    score = gains(mask, jacobian)
    for budget in (1, 40, WIDE // GROUPED // 8, WIDE // GROUPED // 8 + 1):
        found = flip_mask(mask, jacobian, budget)
        assert (linear(found, jacobian) - linear(mask, jacobian)).tolist() == stable_best(score, [budget] * 3)
        assert flips(found, mask).tolist() == np.minimum((score > 0).sum(1), budget).tolist()
        assert torch.equal(flip_mask(mask, jacobian, budget), found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_wide_layer_with_a_budget_per_example(kind):
    mask, jacobian = wide(kind, WIDE)
    budgets, gain = [0, 5, 200], gains(mask, jacobian)
    for order in ORDERS:
        found, dropped = (flip_mask(mask, jacobian, budgets, ties=ties, order=order) for ties in TIES)
        for i, budget in enumerate(budgets):
            row = slice(i, i + 1)
            assert torch.equal(dropped[row], torch.from_numpy(released_rule(mask[row], jacobian[row], budget, order)))
            positive = np.sort(gain[i][gain[i] > 0])
            expected = positive[::-1][:budget] if order == "largest" else positive[:budget]
            assert sorted(gain[i][(found != mask)[i].numpy()]) == sorted(expected)


@pytest.mark.parametrize("units", [WIDE - 1, WIDE, WIDE + 1, WIDE + GROUPED, WIDE + GROUPED - 1, 3 * WIDE])
def test_the_width_makes_no_difference(units, monkeypatch):
    mask, jacobian = wide("random", units, examples=2)
    found = [flip_mask(mask, jacobian, 50, **options) for options in OPTIONS]
    monkeypatch.setattr(flip, "WIDE", 10**9)
    for options, one in zip(OPTIONS, found, strict=True):
        assert torch.equal(flip_mask(mask, jacobian, 50, **options), one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wide_map_of_any_precision_and_order_in_memory(dtype):
    draw = torch.Generator().manual_seed(1)
    mask = torch.randint(2, (2, 64, 16, 16), generator=draw).to(dtype)
    jacobian = torch.randn(2, 64, 16, 16, generator=draw).to(dtype)
    found = flip_mask(mask, jacobian, 81)
    score = gains(mask.float().flatten(1), jacobian.float().flatten(1))
    reached = linear(found.double(), jacobian.double()) - linear(mask.double(), jacobian.double())
    assert reached.tolist() == pytest.approx(stable_best(score.astype(float), [81] * 2), abs=1e-9)
    last = torch.channels_last
    again = flip_mask(mask.to(memory_format=last), jacobian.to(memory_format=last), 81)
    assert linear(again.double(), jacobian.double()).tolist() == linear(found.double(), jacobian.double()).tolist()


class Widths:
    """How many scores of an example each sort looked at."""

    def __init__(self, monkeypatch):
        self.seen, topk = [], torch.Tensor.topk

        def watched(tensor, *args, **options):
            self.seen.append(tensor.shape[1])
            return topk(tensor, *args, **options)

        monkeypatch.setattr(torch.Tensor, "topk", watched)


@pytest.mark.parametrize(
    ("units", "k", "expected"),
    [
        (WIDE, 1, [WIDE // GROUPED, GROUPED]),
        (WIDE, WIDE // GROUPED // 8, [WIDE // GROUPED, WIDE // 8]),
        (WIDE, WIDE // GROUPED // 8 + 1, [WIDE]),
        (WIDE + 1, 1, [WIDE + 1]),
        (WIDE - GROUPED, 1, [WIDE - GROUPED]),
    ],
)
def test_only_the_best_groups_of_a_wide_layer_are_sorted(units, k, expected, monkeypatch):
    widths = Widths(monkeypatch)
    mask, jacobian = wide("random", units, examples=1)
    flip_mask(mask, jacobian, k)
    assert widths.seen == expected


@st.composite
def grouped_problems(draw):
    """Layers that are wide enough if WIDE is small: H a multiple of GROUPED or not, k at the edge of the rule."""
    units, spread = draw(st.sampled_from([64, 128, 132, 192])), draw(st.sampled_from([0, 1, 3, 1000]))
    values = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    mask = torch.randint(2, (2, units), generator=values).double()
    jacobian = torch.randint(-spread, spread + 1, (2, units), generator=values).double()
    return mask, jacobian, draw(st.integers(0, 5)), draw(st.integers(0, 5))


@given(grouped_problems(), st.sampled_from(ORDERS), st.sampled_from(TIES))
def test_groups_find_what_sorting_finds(problem, order, ties):
    mask, jacobian, one, other = problem
    for budget in (one, [one, other]):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flip, "WIDE", 64)
            found = flip_mask(mask, jacobian, budget, order=order, ties=ties)
        expected = flip_mask(mask, jacobian, budget, order=order, ties=ties)
        if ties == "dropped":
            assert torch.equal(found, expected)
        assert linear(found, jacobian).tolist() == linear(expected, jacobian).tolist()
        assert flips(found, mask).tolist() == flips(expected, mask).tolist()


@given(
    st.lists(st.integers(-4, 4), min_size=16, max_size=16),
    st.lists(st.sampled_from([0.0, 1.0]), min_size=16, max_size=16),
)
def test_groups_of_two_find_the_best_of_all_masks(values, bits):
    mask, jacobian = torch.tensor([bits], dtype=torch.float64), torch.tensor([values], dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flip, "WIDE", 16)
        patch.setattr(flip, "GROUPED", 2)
        found = flip_mask(mask, jacobian, 1)
    best = max(linear(mask, jacobian).item() + max(gains(mask, jacobian).max(), 0.0), linear(mask, jacobian).item())
    assert linear(found, jacobian).item() == best
