import re

import numpy as np
import pytest
from scipy import stats

from advdrop.lab.report.charts import COLORS, VARIABLES
from advdrop.lab.report.collect import results_of
from advdrop.lab.report.verdict import seed_lines, seeds_needed, verdict_lines
from ledger import run_of

BLUE, ORANGE, GRAY = (VARIABLES[COLORS[number]] for number in (1, 2, 0))


def table(suite, pi, vadd):
    runs = [run_of(suite, "pi", seed, (error,)) for seed, error in enumerate(pi)]
    runs += [run_of(suite, "vadd", seed, (error,)) for seed, error in enumerate(vadd)]
    (found,) = results_of(runs, {suite.key: suite})
    return found


@pytest.mark.parametrize(("std", "difference"), [(0.1, 0.1), (0.05, 0.05), (0.06, 0.05)])
def test_so_many_seeds_show_the_difference_and_two_fewer_do_not(std, difference):
    rng = np.random.default_rng(0)
    needed = seeds_needed(std, difference)
    for n, enough in ((needed, True), (needed - 2, False)):
        found = stats.ttest_1samp(rng.normal(difference, std, (20_000, n)), 0.0, axis=1).pvalue < 0.05
        assert bool(found.mean() > 0.79) == enough


def test_two_seeds_do_not_tell_how_many_are_needed(suite):
    (line,) = verdict_lines(table(suite, (1.0, 1.2), (0.9, 0.9)), "20")
    assert line.startswith("VAdD (KL) against Π model: difference -0.20")
    assert "takes" not in line


def test_equal_differences_do_not_tell_how_many_seeds_are_needed(suite):
    (line,) = verdict_lines(table(suite, (1.0, 1.2, 1.1), (0.9, 1.1, 1.0)), "20")
    assert line == "VAdD (KL) against Π model: difference -0.10 in each of 3 runs"


def test_a_line_has_the_difference_its_interval_and_the_seeds_that_are_needed(suite):
    # Differences -0.1, -0.3, -0.2: mean -0.2, standard deviation 0.1, t(0.975, 2) = 4.303, margin 4.303 · 0.1 / √3.
    (line,) = verdict_lines(table(suite, (1.0, 1.2, 1.1), (0.9, 0.9, 0.9)), "20")
    assert line == (
        "VAdD (KL) against Π model: difference -0.20 ± 0.25, n = 3, p = 0.074; "
        "to show a difference of 0.05 takes 34 seeds"
    )


def test_a_single_seed_asks_for_no_number_of_seeds(suite):
    (line,) = verdict_lines(table(suite, (1.0,), (0.9,)), "20")
    assert line == "VAdD (KL) against Π model: difference -0.10 in a single run"


def test_a_seed_is_blue_if_the_method_is_lower_orange_if_it_is_higher_and_gray_if_equal(suite):
    svg = seed_lines(table(suite, (1.0, 1.2, 1.1), (0.9, 1.3, 1.1)), "20").svg
    thin = re.findall(r"stroke: (var\(--s\d\)); stroke-width: 1.2", svg)
    assert thin == [BLUE, ORANGE, GRAY]
    thick = re.findall(r"stroke: (var\(--s\d\)); stroke-opacity: 0.4; stroke-width: 4", svg)
    assert thick == [GRAY]


def test_only_seeds_that_both_methods_have_are_drawn(suite):
    svg = seed_lines(table(suite, (1.0, 1.2, 1.3), (0.9, 1.1)), "20").svg
    assert len(re.findall("stroke-width: 1.2", svg)) == 2


def test_a_pair_with_a_single_seed_is_not_drawn(suite):
    assert seed_lines(table(suite, (1.0, 1.2), (0.9,)), "20") is None


def test_without_a_pair_there_is_no_figure(suite):
    assert seed_lines(table(suite, (1.0,), ()), "20") is None
    assert verdict_lines(table(suite, (1.0,), ()), "20") == []


def test_a_column_without_a_comparison_has_no_figure(suite):
    assert seed_lines(table(suite, (1.0,), (0.9,)), "all") is None
