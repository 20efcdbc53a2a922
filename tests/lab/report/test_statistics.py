import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from advdrop.lab.report.statistics import (
    Agreement,
    Difference,
    Paired,
    Summary,
    agreement,
    detectable,
    gap,
    holm,
    judged,
    numbers,
    paired,
    paired_images,
    t_power,
)

NUMBERS = st.floats(-100, 100).map(lambda value: round(value, 2))


def by_seed(values):
    return dict(enumerate(values))


def against_zero(differences):
    return paired(by_seed(differences), by_seed([0.0] * len(differences)))


def test_a_summary_has_the_standard_deviation_of_a_sample():
    # Mean 12/4 = 3; squares 4 + 1 + 1 + 4 = 10; sqrt(10/3) = 1.8257.
    summary = Summary.of([1.0, 2.0, 4.0, 5.0])
    assert summary == (3.0, pytest.approx(1.825742, abs=1e-6), 4)
    assert summary.text() == "3.00 ± 1.83"


def test_a_single_run_has_no_standard_deviation():
    assert Summary.of([2.0]) == Summary(2.0, None, 1)
    assert Summary.of([2.0]).text() == "2.00"


def test_runs_that_are_all_equal_have_no_spread_at_all():
    assert Summary.of([0.1, 0.1, 0.1]).std == 0.0


def test_the_gap_to_the_paper_has_welchs_interval():
    # Both sides: 0.2²/5 = 0.008. Variance 0.016, so the error is 0.126491; equal parts have 2 · 4 = 8 degrees of
    # freedom, t = 2.306004. 2.306004 · 0.126491 = 0.291690.
    found = gap(Summary(1.2, 0.2, 5), 1.0, 0.2, 5)
    assert found[:2] == (pytest.approx(0.2), pytest.approx(0.291690, abs=1e-6))
    assert not found.seen


def test_the_degrees_of_freedom_are_welchs_where_the_sides_differ():
    # 0.2²/3 = 0.0133333 (2 free), 0.1²/5 = 0.002 (4 free); 0.0153333² / (0.0133333²/2 + 0.002²/4)
    # = 2.351111e-4 / 8.988889e-5 = 2.615575.
    found = gap(Summary(1.2, 0.2, 3), 1.0, 0.1, 5)
    assert found.margin == pytest.approx(stats.t.ppf(0.975, 2.615575) * math.sqrt(0.0153333333), rel=1e-5)


@given(
    st.floats(0.01, 5), st.integers(2, 20), st.floats(0.01, 5), st.integers(2, 20), st.floats(0, 20), st.floats(0, 20)
)
def test_the_edge_of_welchs_interval_has_p_of_five_percent(std, n, other_std, other_n, mean, other):
    found = gap(Summary(mean, std, n), other, other_std, other_n)
    edge = stats.ttest_ind_from_stats(found.margin, std, n, 0.0, other_std, other_n, equal_var=False)
    assert edge.pvalue == pytest.approx(0.05, rel=1e-6)
    here = stats.ttest_ind_from_stats(mean, std, n, other, other_std, other_n, equal_var=False)
    assert found.seen == (here.pvalue < 0.05) or here.pvalue == pytest.approx(0.05)


@pytest.mark.parametrize(("std", "repeats"), [(None, 5), (0.1, 1)])
def test_a_paper_without_a_spread_is_taken_for_exact(std, repeats):
    # 0.2/sqrt(3) = 0.115470; t with 2 degrees of freedom = 4.302653; their product 0.496828.
    values = [1.0, 1.2, 1.4]
    found = gap(Summary.of(values), 1.1, std, repeats)
    assert found[:2] == (pytest.approx(0.1), pytest.approx(0.496828, abs=1e-6))
    interval = stats.ttest_1samp(values, 1.1).confidence_interval()
    assert found.margin == pytest.approx((interval.high - interval.low) / 2)


def test_a_single_run_has_no_interval():
    assert gap(Summary.of([1.5]), 1.0, 0.1, 5) == Difference(0.5, None, 1)
    assert not gap(Summary.of([1.5]), 1.0, 0.1, 5).seen


def test_equal_runs_have_no_interval_also_beside_a_spread_of_the_paper():
    assert gap(Summary.of([1.5, 1.5]), 1.0, 0.1, 5) == Difference(0.5, None, 2)


def test_no_spread_on_either_side_is_no_certainty():
    found = gap(Summary.of([1.5, 1.5]), 1.0, 0.0, 5)
    assert found == Difference(0.5, None, 2)
    assert not found.seen
    assert found.words("the paper") == "higher than the paper by 0.50 in each of 2 runs"


def test_methods_are_compared_on_the_seeds_that_both_have():
    # Differences 0.1, 0.2, 0.3: mean 0.2, std 0.1, error 0.1/sqrt(3) = 0.057735, t = 3.464102 with 2 degrees of
    # freedom, for which p = 1 - t/sqrt(t² + 2) = 1 - 3.464102/sqrt(14) = 0.074180. Margin 4.302653 · 0.057735.
    # Three signs that agree: 2 of 2³ ways. d = 0.2/0.1.
    found = paired({0: 1.0, 1: 1.4, 2: 1.9, 3: 90.0}, {0: 0.9, 1: 1.2, 2: 1.6, 7: 80.0})
    assert found.n == 3
    assert found.difference[:2] == (pytest.approx(0.2), pytest.approx(0.248414, abs=1e-6))
    assert found.t_p == pytest.approx(0.074180, abs=1e-6)
    assert found.wilcoxon_p == 0.25
    assert found.effect == pytest.approx(2.0)
    assert not found.difference.seen


@given(st.lists(st.integers(0, 50), min_size=2, max_size=6, unique=True), st.randoms(use_true_random=False))
def test_the_agreement_of_two_orders_counts_all_pairs_and_all_orders(values, random):
    other = random.sample(values, len(values))

    def score(order):
        signs = [np.sign(a - b) for i, a in enumerate(order) for b in order[:i]]
        return np.dot(signs, [np.sign(a - b) for i, a in enumerate(values) for b in values[:i]])

    found, pairs = agreement(values, other), math.comb(len(values), 2)
    assert (found.same - (pairs - found.same)) == score(other)
    assert found.pairs == pairs
    assert found.tau == pytest.approx(score(other) / pairs, abs=6e-4)
    every = [abs(score(order)) >= abs(score(other)) for order in permutations(values)]
    assert found.p == pytest.approx(np.mean(every), abs=1e-5)


def test_a_tie_has_no_order_and_equal_numbers_do_not_agree():
    assert agreement([1.0, 2.0, 3.0], [5.0, 5.0, 6.0])[:2] == (2, 3)
    # In four of the six orders of 1, 2, 3 the one beside 6 is the largest or the smallest.
    assert agreement([1.0, 2.0, 3.0], [5.0, 5.0, 6.0]).p == pytest.approx(4 / 6, abs=1e-6)
    assert agreement([1.0, 2.0], [5.0, 5.0]) is None
    assert agreement([], []) is None
    assert isinstance(agreement([1.0, 2.0], [1.0, 2.0]), Agreement)


def test_methods_without_a_common_seed_are_not_compared():
    assert paired({0: 1.0}, {1: 1.0}) is None
    assert paired({}, {}) is None


def test_one_seed_is_a_difference_and_nothing_else():
    assert paired({0: 1.5}, {0: 1.0}) == Paired(1, Difference(0.5, None), None, None, None, None)


@pytest.mark.parametrize("by", [0.5, -0.25])
def test_equal_differences_have_no_test(by):
    assert against_zero([by] * 3) == Paired(3, Difference(by, None, 3), None, None, None, None)


def test_equal_differences_are_equal_whatever_the_last_bit_says():
    assert 0.4 - 0.3 != 0.3 - 0.2
    assert paired({0: 0.3, 1: 0.4}, {0: 0.2, 1: 0.3}) == Paired(2, Difference(0.1, None, 2), None, None, None, None)


@settings(max_examples=50)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=7))
def test_the_paired_test_is_scipys(pairs):
    one, other = zip(*pairs, strict=True)
    found = paired(by_seed(one), by_seed(other))
    if found.t_p is None:
        assert len({round(a - b, 9) for a, b in pairs}) == 1
        return
    differences = np.array([round(a - b, 9) for a, b in pairs])
    scipys = stats.ttest_1samp(differences, 0.0)
    assert found.t_p == pytest.approx(scipys.pvalue, rel=1e-6)
    assert stats.ttest_rel(one, other).pvalue == pytest.approx(found.t_p, rel=1e-3, abs=1e-9)
    interval = scipys.confidence_interval()
    assert found.difference.margin == pytest.approx((interval.high - interval.low) / 2)
    assert found.effect == pytest.approx(differences.mean() / differences.std(ddof=1))
    assert found.difference.seen == (found.t_p < 0.05) or found.t_p == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        # Ranks 1 -2 3 4: the minus side is 2, as small or smaller in 3 of 16 ways (none, 1, 2); twice that.
        ([0.1, -0.2, 0.3, 0.4], 6 / 16),
        # Ranks 1½ 1½ 3, all on one side.
        ([0.1, 0.1, 0.2], 2 / 8),
        # Ranks 2 2 -2: sums are 0, 2, 4 or 6, and 4 is as near to the middle as any.
        ([0.1, 0.1, -0.1], 1.0),
        # A zero does not count: two signs that agree.
        ([0.0, 0.3, 0.4], 2 / 4),
        ([0.0, 0.3], 2 / 2),
        # Ranks 1 2 3 4 -5 6: the minus side is 5. Subsets of 1..6 that sum to 5 or less: {} 1 2 3 12 4 13 5 14 23 = 10.
        ([0.1, 0.2, 0.3, 0.4, -0.5, 0.6], 20 / 64),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 2 / 256),
    ],
)
def test_wilcoxons_p_counts_the_ways(differences, p):
    assert against_zero(differences).wilcoxon_p == p
    assert against_zero([-value for value in differences]).wilcoxon_p == p


@settings(max_examples=50)
@given(st.lists(st.integers(-40, 40).filter(bool), min_size=2, max_size=7, unique_by=abs))
def test_wilcoxons_p_is_scipys_exact_one(values):
    assert against_zero(values).wilcoxon_p == pytest.approx(stats.wilcoxon(values, method="exact").pvalue)


@settings(max_examples=50)
@given(st.lists(st.integers(-3, 3).filter(bool), min_size=2, max_size=7).filter(lambda values: len(set(values)) > 1))
def test_wilcoxons_p_is_exact_with_ties(values):
    every = stats.PermutationMethod(n_resamples=100_000)
    assert against_zero(values).wilcoxon_p == pytest.approx(stats.wilcoxon(values, method=every).pvalue)


def test_ties_are_ties_whatever_the_last_bit_says():
    # 0.1 three times and -0.1 once: ranks 2½; the minus side is one of four. 1 - 6/16 (the even halves) = 10/16.
    found = paired({0: 0.3, 1: 0.4, 2: 0.5, 3: 0.1}, {0: 0.2, 1: 0.3, 2: 0.4, 3: 0.2})
    assert found.wilcoxon_p == 10 / 16


@pytest.mark.parametrize(
    ("values", "corrected"),
    [
        # 0.005·4 = 0.02, 0.01·3 = 0.03, 0.03·2 = 0.06, and 0.04·1 is raised to the one before it.
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.6, 0.7], [1.0, 1.0]),
        ([0.02, None, 0.5], [0.04, None, 0.5]),
        ([0.03], [0.03]),
        ([None], [None]),
        ([], []),
    ],
)
def test_holm_by_hand(values, corrected):
    assert holm(values) == [p if p is None else pytest.approx(p) for p in corrected]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_holm_lies_between_no_correction_and_bonferronis_and_keeps_the_order(values):
    corrected = holm(values)
    for value, holms in zip(values, corrected, strict=True):
        assert value <= holms <= min(1.0, value * len(values))
    assert [p for _, p in sorted(zip(values, corrected, strict=True))] == sorted(corrected)


@pytest.mark.parametrize("freedom", [1, 2, 4, 9, 30])
def test_no_shift_is_shown_as_often_as_the_level(freedom):
    assert t_power(0.0, freedom) == pytest.approx(0.05, abs=1e-9)


@pytest.mark.parametrize(("shift", "freedom"), [(1.0, 2), (2.0, 4), (3.0, 9), (2.5, 30)])
def test_the_power_is_that_of_the_noncentral_t(shift, freedom):
    limit = stats.t.ppf(0.975, freedom)
    exact = stats.nct.sf(limit, freedom, shift) + stats.nct.cdf(-limit, freedom, shift)
    assert t_power(shift, freedom) == pytest.approx(exact, abs=1e-6)


def test_with_many_seeds_the_power_is_the_normal_one():
    # 1.959964 + 0.841621 = 2.801585 standard errors are seen in 80 % of the cases if the spread is known.
    assert t_power(2.801585, 500) == pytest.approx(0.8, abs=0.003)


def test_what_can_be_seen_is_what_is_printed_in_tables():
    assert detectable(1.0, 10) == pytest.approx(0.996, abs=5e-4)  # Cohen: n = 10, two-sided 5 %, power 80 %
    assert detectable(0.3, 10) == pytest.approx(0.3 * detectable(1.0, 10))


@pytest.mark.parametrize("n", [2, 5, 8])
def test_a_difference_that_can_be_seen_is_seen_in_four_of_five_simulated_studies(n):
    draw = np.random.default_rng(7)
    differences = draw.normal(detectable(0.3, n), 0.3, size=(40_000, n))
    seen = stats.ttest_1samp(differences, 0.0, axis=1).pvalue < 0.05
    assert seen.mean() == pytest.approx(0.8, abs=0.01)  # the simulation's own error is 0.002


def test_a_comparison_says_what_it_could_have_seen():
    found = against_zero([0.1, 0.2, 0.3])
    assert found.detectable == pytest.approx(detectable(0.1, 3))
    assert found.detectable > found.difference.margin


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        (Difference(0.12, 0.05), "higher than the paper by 0.12 ± 0.05"),
        (Difference(-0.12, 0.05), "lower than the paper by 0.12 ± 0.05"),
        (Difference(0.02, 0.05), "higher than the paper by 0.02 ± 0.05, which may be chance"),
        (Difference(-0.3, None), "lower than the paper by 0.30 in a single run"),
        (Difference(0.004, 0.05), "equal to the paper to two digits (± 0.05), which may be chance"),
        (Difference(-0.004, 0.001), "equal to the paper to two digits (± 0.00)"),
        (Difference(-0.3, None, 3), "lower than the paper by 0.30 in each of 3 runs"),
        (Difference(0.0, None), "equal to the paper to two digits in a single run"),
        (Difference(0.05, 0.05), "higher than the paper by 0.05 ± 0.05, which may be chance"),
    ],
)
def test_a_difference_in_words(difference, words):
    assert difference.words("the paper") == words


@given(st.floats(-100, 100), st.none() | st.floats(0, 100))
def test_no_difference_is_ever_called_reproduced(mean, margin):
    words = Difference(mean, margin).words("the paper")
    assert "reprod" not in words.lower()
    assert words.startswith(("higher than", "lower than", "equal to"))
    assert ("chance" in words) == (margin is not None and abs(mean) <= margin)


@pytest.mark.parametrize(
    ("mean", "p", "shown"),
    [(-1.0, 0.049, "lower"), (1.0, 0.049, "higher"), (-1.0, 0.05, "unknown"), (-1.0, None, "unknown")],
)
def test_a_difference_is_shown_if_its_p_is_below_five_percent(mean, p, shown):
    assert judged(Paired(3, Difference(mean, 0.5, 3)), p) == shown


def test_a_comparison_in_numbers():
    assert numbers(Paired(1, Difference(-2.0, None)), None) == "difference -2.00 in a single run"
    assert numbers(Paired(3, Difference(-6.1, 0.2484, 3)), 1e-5, ".3g", ".2g") == (
        "difference -6.1 ± 0.25, n = 3, p < 0.001"
    )


def counted(better, worse, images):
    """The errors of one seed: so many images are right only with, so many only without."""
    without = [True] * better + [False] * (images - better)
    return paired_images([without], [[False] * better + [True] * worse + [False] * (images - better - worse)])


def test_one_seed_is_mcnemars_test_with_continuity_correction():
    images = 100_000  # so that t is the normal distribution
    for better, worse in ((12, 2), (30, 45), (300, 100), (0, 9)):
        found, z = counted(better, worse, images), stats.norm.ppf(0.975)
        assert found.mean == pytest.approx(100 * (better - worse) / images)
        assert found.margin == pytest.approx(100 * (z * math.sqrt(better + worse) + 1) / images, rel=1e-4)
        corrected = (abs(better - worse) - 1) / math.sqrt(better + worse)
        assert found.seen == (2 * stats.norm.sf(corrected) < 0.05)


def test_it_claims_nothing_that_the_exact_test_does_not():
    claims = 0
    for better in range(36):
        for worse in range(36 - better):
            if counted(better, worse, 40).seen:
                claims += 1
                assert stats.binomtest(better, better + worse).pvalue < 0.05, (better, worse)
    assert claims > 200


def test_several_seeds_add_what_differs_between_them():
    draw = np.random.default_rng(0)
    without, given = draw.random((4, 300)) < 0.3, draw.random((4, 300)) < 0.2
    found = paired_images(without.tolist(), given.tolist())
    gained = without.astype(float) - given
    a, b = (gained.mean(0) ** 2).sum() / 300**2, gained.mean(1).var(ddof=1) / 4
    freedom = (a + b) ** 2 / (a**2 / 299 + b**2 / 3)
    expected = stats.t.ppf(0.975, freedom) * math.sqrt(a + b) + 1 / 1200
    assert found == (pytest.approx(100 * gained.mean()), pytest.approx(100 * expected), 4)


def test_the_interval_covers_the_truth_over_other_images_and_seeds():
    """Seeds and images both have effects of their own; 95 % of the intervals contain 0, or somewhat more."""
    draw = np.random.default_rng(1)
    images, seeds, covered, trials = 200, 4, 0, 300
    for _ in range(trials):
        hard = draw.beta(0.5, 2.0, images)  # of an image
        luck = draw.normal(0.0, 0.05, (2, seeds, 1))  # of a seed, without and with
        wrong = draw.random((2, seeds, images)) < np.clip(hard + luck, 0, 1)
        covered += not paired_images(wrong[0].tolist(), wrong[1].tolist()).seen
    assert covered / trials > 0.93


def test_equal_predictions_have_the_smallest_interval():
    same = [[True, False, False, False]] * 2
    assert paired_images(same, same) == Difference(0.0, 12.5, 2)  # 100 / (2 · 4), for continuity
    assert paired_images([[True]], [[False]]).margin > 100.0  # one image shows nothing
