import itertools
import math
import warnings

import pytest
import torch
from torch import nn

from advdrop.checks import value_checks
from advdrop.divergences import kl
from advdrop.masks import (
    Exhaustive,
    FirstOrder,
    Iterated,
    MaskProblem,
    Probe,
    RandomFlips,
    hamming,
    sample_mask,
    scale_mask,
)
from advdrop.masks.search import join

SEARCHES = {
    "first order": FirstOrder,
    "smallest": lambda: FirstOrder(order="smallest"),
    "dropped": lambda: FirstOrder(ties="dropped"),
    "iterated": Iterated,
    "probe": Probe,
    "two probes": lambda: Probe(iterations=2),
    "random": RandomFlips,
    "exhaustive": Exhaustive,
}
every_search = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
linearized = pytest.mark.parametrize("search", [FirstOrder, Iterated])


def network_problem(seed, budget, units=(6,), p=0.5, examples=3, dtype=torch.float64, scale="inverted"):
    """VAdD's: D[f(x, εs), f(x, ε)] for a network with one or more masked layers of tanh units."""
    g = torch.Generator().manual_seed(seed)
    h = torch.randn(examples, units[0], generator=g, dtype=dtype)
    widths = (*units, 3)
    weights = [2 * torch.randn(a, b, generator=g, dtype=dtype) / math.sqrt(a) for a, b in itertools.pairwise(widths)]

    def scaled(masks):
        return tuple(scale_mask(mask, p, scale) for mask in masks)

    def logits(masks):
        out = h
        for i, (mask, weight) in enumerate(zip(masks, weights, strict=True)):
            out = ((out if i == 0 else out.tanh()) * mask) @ weight
        return out

    sampled = tuple(sample_mask((examples, n), p, g).to(dtype) for n in units)
    target = logits(scaled(sampled))
    return MaskProblem(lambda masks: kl(target, logits(masks)), sampled, budget, scaled, g)


def linear_problem(seed, budget, units=(4, 5), examples=3):
    g = torch.Generator().manual_seed(seed)
    weights = [torch.randn(examples, n, generator=g, dtype=torch.float64) for n in units]
    sampled = tuple(sample_mask((examples, n), 0.5, g).double() for n in units)
    return MaskProblem(lambda masks: sum((w * m).sum(1) for w, m in zip(weights, masks, strict=True)), sampled, budget)


def quadratic_problem(seed, budget=3, units=10, examples=4):
    """D = ½(ε − 1)ᵀA(ε − 1), at its minimum without dropout."""
    g = torch.Generator().manual_seed(seed)
    root = torch.randn(examples, units, units, generator=g, dtype=torch.float64)
    a = root @ root.transpose(1, 2)

    def divergence(masks):
        step = masks[0] - 1
        return 0.5 * torch.einsum("bi,bij,bj->b", step, a, step)

    return MaskProblem(divergence, (torch.ones(examples, units, dtype=torch.float64),), budget, generator=g)


def reached(problem, masks):
    return problem.divergence(problem.scale(masks))


def flips(problem, masks):
    """(B, layers)"""
    return torch.stack([hamming(m, s) for m, s in zip(masks, problem.sampled, strict=True)], dim=1)


def brute_force(problem):
    """The largest divergence of each example over all sets of flips within an int budget."""
    start = join(problem.sampled)
    values = []
    for size in range(problem.budget + 1):
        for units in itertools.combinations(range(start.shape[1]), size):
            masks = start.clone()
            masks[:, list(units)] = 1 - masks[:, list(units)]
            values.append(reached(problem, problem.separate(masks)))
    return torch.stack(values).amax(0)


@pytest.mark.parametrize("budget", [0, 1, 3, 6])
def test_exhaustive_finds_the_optimum(budget):
    for seed in range(2):
        problem = network_problem(seed, budget)
        assert torch.equal(reached(problem, Exhaustive()(problem)), brute_force(problem))


def test_exhaustive_respects_the_budget_of_each_layer():
    problem = network_problem(0, (1, 2), units=(3, 4))
    masks = Exhaustive()(problem)
    values = []
    for first in itertools.product((0.0, 1.0), repeat=3):
        for second in itertools.product((0.0, 1.0), repeat=4):
            if sum(first) <= 1 and sum(second) <= 2:
                a, b = (m.new_tensor(f) for m, f in zip(problem.sampled, (first, second), strict=True))
                values.append(reached(problem, ((problem.sampled[0] - a).abs(), (problem.sampled[1] - b).abs())))
    assert torch.equal(reached(problem, masks), torch.stack(values).amax(0))


def test_exhaustive_refuses_large_layers_unless_told():
    problem = linear_problem(0, 1, units=(9, 8), examples=1)
    with pytest.raises(ValueError, match=r"17 units.*2\^17.*max_units \(now 16\)"):
        Exhaustive()(problem)
    with pytest.raises(ValueError, match=r"max_units \(now 3\)"):
        Exhaustive(max_units=3)(linear_problem(0, 1, units=(4,)))
    assert len(Exhaustive(max_units=4)(linear_problem(0, 1, units=(4,)))) == 1


BUDGETS = [((6,), 2), ((6,), 6), ((6,), (2,)), ((3, 4), 3), ((3, 4), (1, 2)), ((3, 4), (0, 4))]


@every_search
def test_no_search_beats_exhaustive_or_the_budget(search):
    for (units, budget), seed in itertools.product(BUDGETS, range(2)):
        problem = network_problem(seed, budget, units)
        masks = search()(problem)
        spent = flips(problem, masks)
        assert [m.shape for m in masks] == [m.shape for m in problem.sampled]
        assert all(set(m.unique().tolist()) <= {0.0, 1.0} for m in masks)
        assert (spent <= torch.tensor(budget)).all() if isinstance(budget, tuple) else (spent.sum(1) <= budget).all()
        assert (reached(problem, masks) <= reached(problem, Exhaustive()(problem)) + 1e-12).all()


@every_search
def test_no_budget_no_flip(search):
    for budget in (0, (0, 0)):
        problem = network_problem(0, budget, (3, 4))
        assert flips(problem, search()(problem)).sum() == 0


@every_search
def test_masks_of_any_shape(search):
    g = torch.Generator().manual_seed(0)
    weights = [torch.randn(2, 2, 2, 2, generator=g), torch.randn(2, 3, generator=g)]
    sampled = tuple(sample_mask(w, 0.5, g) for w in weights)
    problem = MaskProblem(
        lambda masks: sum((w * m).flatten(1).sum(1) for w, m in zip(weights, masks, strict=True)),
        sampled,
        3,
        generator=g,
    )
    assert [m.shape for m in search()(problem)] == [(2, 2, 2, 2), (2, 3)]


@every_search
def test_a_search_leaves_no_trace(search):
    problem = network_problem(0, 2)
    before = [m.clone() for m in problem.sampled]
    state = torch.get_rng_state()
    with torch.no_grad():
        masks = search()(problem)
    assert not any(m.requires_grad for m in (*masks, *problem.sampled))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(m, b) for m, b in zip(problem.sampled, before, strict=True))


@every_search
def test_gradients_being_accumulated_are_left_alone(search):
    g = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(5, 3, generator=g))
    weight.grad = torch.full_like(weight, 7.0)
    target = torch.randn(2, 3, generator=g)
    problem = MaskProblem(lambda m: kl(target, m[0] @ weight), (sample_mask((2, 5), 0.5, g),), 2, generator=g)
    search()(problem)
    assert (weight.grad == 7.0).all()


@pytest.mark.parametrize("search", [FirstOrder, Iterated, Probe])
def test_a_linear_divergence_is_solved_exactly(search):
    for budget, seed in itertools.product((1, 3, 9, (2, 3), (4, 0)), range(2)):
        problem = linear_problem(seed, budget)
        for found, best in zip(search()(problem), Exhaustive()(problem), strict=True):
            assert torch.equal(found, best)


def test_one_step_of_iterated_is_first_order():
    for budget, seed in itertools.product((1, 3, (2, 1)), range(5)):
        problem = network_problem(seed, budget, (5, 4))
        for iterated, first in zip(Iterated(steps=1)(problem), FirstOrder()(problem), strict=True):
            assert torch.equal(iterated, first)


@pytest.mark.parametrize(("budget", "units"), [(4, ()), (3, (4,)), ((3, 2), (4,))])
def test_linearizing_again_never_loses_and_pays_on_average(budget, units):
    gained = []
    for seed in range(30):
        problem = network_problem(seed, budget, units=(10 + seed % 3, *units), examples=8)
        first, iterated = (reached(problem, search(problem)) for search in (FirstOrder(), Iterated(steps=4)))
        gained.append(iterated - first)
    assert torch.stack(gained).min() >= 0
    assert torch.stack(gained).mean() > 0


def test_iterated_never_undoes_a_flip():
    slopes, dropped = torch.tensor([0.0, -1.0, -2.0, -3.0]), []

    def divergence(masks):
        """Unit 0 would gain the most by every flip, there and back."""
        dropped.extend((m == 0).nonzero()[:, 1].tolist() for m in masks if m.requires_grad)
        return (slopes * masks[0]).sum(1) - 10 * (masks[0][:, 0] - 0.5).square()

    Iterated(steps=3)(MaskProblem(divergence, (torch.ones(1, 4),), 3))
    assert dropped == [[], [0], [0, 3]]


def test_the_better_masks_are_chosen_for_each_example():
    low, high = torch.zeros(2, 1, 2), torch.ones(2, 1, 2)
    signs = torch.tensor([1.0, -1.0])
    problem = MaskProblem(lambda masks: signs * masks[0].flatten(1).sum(1), (low,), 2)
    for pair in ((low, high), (high, low)):
        (found,) = problem.better((pair[0],), (pair[1],))
        assert found.tolist() == [[[1.0, 1.0]], [[0.0, 0.0]]]
    equal = MaskProblem(lambda masks: 0 * masks[0].flatten(1).sum(1), (low,), 2)
    assert torch.equal(equal.better((low,), (high,))[0], low)


def test_first_order_beats_random_flips_on_average():
    problems = [network_problem(seed, budget=3, units=(12,), examples=8) for seed in range(30)]
    random, first = (
        sum(reached(p, search(p)).mean().item() for p in problems) for search in (RandomFlips(), FirstOrder())
    )
    assert first > random


@pytest.mark.parametrize(
    ("steps", "budgets"), [(1, [4]), (2, [2, 4]), (3, [2, 3, 4]), (4, [1, 2, 3, 4]), (9, [1, 2, 3, 4])]
)
def test_iterated_linearizes_at_the_mask_found_with_each_part_of_the_budget(steps, budgets):
    points = []

    def divergence(masks):
        points.extend(m.detach().clone() for m in masks if m.requires_grad)
        return -(masks[0] * torch.arange(1.0, 9.0)).sum(1)

    problem = MaskProblem(divergence, (torch.ones(1, 8),), 4)
    final = Iterated(steps=steps)(problem)
    assert len(points) == len(budgets)
    assert [int((p == 0).sum()) for p in (*points, *final)] == [0, *budgets]
    assert final[0].tolist() == [[1.0] * 4 + [0.0] * 4]


def test_the_options_of_first_order_reach_the_flips():
    weights = torch.tensor([[-1.0, -2.0, -2.0, -5.0]])
    problem = MaskProblem(lambda masks: (weights * masks[0]).sum(1), (torch.ones(1, 4),), 2)
    assert FirstOrder(order="smallest")(problem)[0][0, 0] == 0.0
    assert FirstOrder(ties="dropped")(problem)[0].tolist() == [[1.0, 1.0, 1.0, 0.0]]
    assert FirstOrder()(problem)[0].sum() == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_random_flips_spend_the_whole_budget(dtype, generator):
    sampled = tuple(sample_mask((20, n), 0.5, generator).to(dtype) for n in (4, 5))
    for budget in (0, 1, 4, 9, (4, 5), (1, 3)):
        problem = MaskProblem(lambda masks: masks[0].sum(1), sampled, budget, generator=generator)
        spent = flips(problem, RandomFlips()(problem))
        if isinstance(budget, tuple):
            assert spent.tolist() == [list(budget)] * 20
        else:
            assert spent.sum(1).tolist() == [budget] * 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_random_flips_favor_no_unit(dtype, generator):
    sampled = (sample_mask((4000, 12), 0.5, generator).to(dtype),)
    problem = MaskProblem(lambda masks: masks[0].sum(1), sampled, 3, generator=generator)
    share = (RandomFlips()(problem)[0] != sampled[0]).double().mean(0)
    assert (share - 3 / 12).abs().max() < 5 * math.sqrt(0.25 * 0.75 / 4000)


def test_random_flips_favor_no_half_of_a_wide_layer_in_half_precision(generator):
    sampled = (torch.ones(200, 2000, dtype=torch.bfloat16),)
    problem = MaskProblem(lambda masks: masks[0].sum(1), sampled, 5, generator=generator)
    flips = (RandomFlips()(problem)[0] == 0).double().sum(0)
    assert abs(flips[:1000].sum() / 1000 - 0.5) < 5 * math.sqrt(0.25 / 1000)


@pytest.mark.parametrize("search", [RandomFlips, Probe])
def test_the_generator_decides(search):
    def found(seed):
        problem = quadratic_problem(0)
        problem.generator.manual_seed(seed)
        return search()(problem)[0]

    assert torch.equal(found(1), found(1))
    assert not torch.equal(found(1), found(2))


@linearized
def test_a_zero_jacobian_is_said_once_with_its_cause_and_its_cure(search):
    problem, instance = quadratic_problem(0), search()
    with pytest.warns(
        UserWarning, match=r"all-zero Jacobian.*ε0 = 1.*p is 0.*noise='independent'.*p > 0.*Probe\(\)"
    ) as said:
        instance(problem)
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        instance(problem)
    with pytest.warns(UserWarning, match="all-zero"):
        search()(problem)


def test_a_search_that_has_always_found_something_is_watched_now_and_then():
    slope, search = torch.ones(()), FirstOrder()
    problem = MaskProblem(lambda masks: slope * masks[0].sum(1), (torch.zeros(2, 3),), 1)
    for _ in range(10):
        search(problem)
    slope = torch.zeros(())
    for _ in range(89):
        search(problem)
    with pytest.warns(UserWarning, match="all-zero"):
        search(problem)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_rounding_of_equal_passes_counts_as_zero(dtype):
    for seed in range(3):
        problem = network_problem(seed, 2, p=0.0, dtype=dtype)
        with pytest.warns(UserWarning, match="all-zero"):
            FirstOrder()(problem)


@linearized
def test_one_layer_alive_is_enough(search):
    problem = MaskProblem(lambda m: m[0].sum(1) + (m[1] - 1).square().sum(1), (torch.ones(2, 3), torch.ones(2, 3)), 1)
    search()(problem)


@linearized
def test_checks_that_are_off_say_nothing_yet(search):
    problem, instance = quadratic_problem(0), search()
    with value_checks("never"):
        instance(problem)
    with pytest.warns(UserWarning, match="all-zero"):
        instance(problem)


@pytest.mark.parametrize("iterations", [1, 3])
def test_probe_is_alive_at_the_minimum(iterations):
    problem = quadratic_problem(0)
    assert (reached(problem, Probe(iterations)(problem)) > 0).all()
    with pytest.warns(UserWarning, match="all-zero"):
        assert (reached(problem, FirstOrder()(problem)) == 0).all()


def test_probing_finds_more_than_chance():
    problems = [quadratic_problem(seed) for seed in range(20)]
    random, probe = (sum(reached(p, search(p)).mean().item() for p in problems) for search in (RandomFlips(), Probe()))
    assert probe > 1.2 * random


def test_no_scale_is_applied_to_the_expansion_point():
    def double(masks):
        return tuple(2 * mask for mask in masks)

    mask = torch.tensor([[1.0, 0.0, 1.0]])
    problem = MaskProblem(lambda masks: masks[0].square().sum(1) / 2, (mask,), 1, scale=double)
    assert problem.jacobian()[0].tolist() == [[1.0, 1.0, 1.0]]
    assert problem.jacobian((mask,))[0].tolist() == [[2.0, 0.0, 2.0]]


def test_separate_undoes_join(generator):
    sampled = (torch.rand(2, 3, 2, generator=generator), torch.rand(2, 4, generator=generator))
    problem = MaskProblem(lambda masks: masks[0], sampled, 1)
    assert join(sampled).shape == (2, 10)
    for mask, same in zip(sampled, problem.separate(join(sampled)), strict=True):
        assert torch.equal(mask, same)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: FirstOrder(order="up"), ValueError, "order must be one of 'largest', 'smallest', got 'up'"),
        (lambda: FirstOrder(ties="all"), ValueError, "ties must be one of 'exact', 'dropped', got 'all'"),
        (lambda: Iterated(steps=0), ValueError, "steps must be at least 1, got 0"),
        (lambda: Iterated(steps=2.0), TypeError, r"steps must be an int, got 2\.0"),
        (lambda: Probe(iterations=0), ValueError, "iterations must be at least 1, got 0"),
        (lambda: Probe(iterations=True), TypeError, "iterations must be an int, got True"),
        (lambda: FirstOrder()(linear_problem(0, 10)), ValueError, r"budget must be in 0\.\.9.*got 10"),
        (lambda: FirstOrder()(linear_problem(0, (5, 1))), ValueError, r"budget must be in 0\.\.4.*got 5"),
        (lambda: FirstOrder()(linear_problem(0, (1, 1, 1))), ValueError, "longer|layers"),
        (lambda: linear_problem(0, [1, 1]), TypeError, r"a tuple of one int for each layer, got \[1, 1\]"),
    ],
)
def test_errors(build, error, message):
    with pytest.raises(error, match=message):
        build()


def rows_of_examples(search, examples=3, rows=2):
    """Each example has two rows of units, one below the other; D is linear in the first row of each example."""
    slopes = torch.randn(examples, rows, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sampled = (torch.ones(examples * rows, 4, dtype=torch.float64),)

    def divergence(masks):
        return (slopes.flatten(0, 1) * (1 - masks[0])).view(examples, -1).sum(1)

    problem = MaskProblem(divergence, sampled, (2,), lambda masks: masks, torch.Generator(), None, None)
    return problem, search(problem)


def test_an_example_may_have_several_rows_of_units():
    problem, (first,) = rows_of_examples(RandomFlips())
    better = problem.better((torch.ones(6, 4, dtype=torch.float64),), (first,))[0]
    wins = problem.divergence((first,)) > 0
    assert 0 < wins.sum() < 3
    for example in range(3):
        chosen = first if wins[example] else torch.ones_like(first)
        assert torch.equal(better.view(3, 2, 4)[example], chosen.view(3, 2, 4)[example])


def test_an_exhaustive_search_needs_one_row_for_each_example():
    with pytest.raises(ValueError, match="got 6 rows for 3 examples; use another search"):
        rows_of_examples(Exhaustive())


def test_rows_that_belong_to_no_example_are_refused():
    problem, (mask,) = rows_of_examples(RandomFlips())
    broken = MaskProblem(
        lambda masks: torch.zeros(4), problem.sampled, (2,), problem.scale, problem.generator, None, None
    )
    with pytest.raises(ValueError, match="a mask of 6 rows does not belong to 4 examples"):
        broken.better((mask,), (mask,))


@pytest.mark.parametrize(("search", "budget"), [(FirstOrder(), 2), (Exhaustive(), (1, 1))])
def test_layers_with_different_numbers_of_rows_have_no_search_together(search, budget):
    problem = MaskProblem(lambda masks: masks[0].sum(1), (torch.ones(6, 4), torch.ones(2, 3)), budget)
    with pytest.raises(ValueError, match=r"different numbers of rows, \[2, 6\], cannot be searched together"):
        search(problem)
