import pytest

from advdrop.masks import flip_budget
from advdrop.masks.budget import shared_budget


@pytest.mark.parametrize(("delta", "units", "flips"), [(0.005, 2048, 10), (0.05, 128, 6), (0.3, 256, 76)])
def test_the_papers_numbers(delta, units, flips):
    assert flip_budget(delta, units) == flips


@pytest.mark.parametrize("units", [1, 7, 100, 300, 1152, 2048])
def test_it_is_the_truncated_product(units):
    for percent in range(101):
        delta = percent / 100
        budget = flip_budget(delta, units)
        assert type(budget) is int
        assert budget == percent * units // 100  # δ counts as it is written: 0.29 of 100 units are 29
        assert 0 <= budget <= units
    assert flip_budget(0, units) == 0
    assert flip_budget(1, units) == units


@pytest.mark.parametrize(("delta", "flips"), [(1 - 0.9, 10), (3 * 0.1, 30), (0.7 - 0.4, 30), (0.57 - 0.28, 29)])
def test_an_error_of_rounding_costs_no_flip(delta, flips):
    assert flip_budget(delta, 100) == flips
    assert flip_budget(flips / 100 - 1e-9, 100) == flips - 1  # this is meant


@pytest.mark.parametrize(
    ("delta", "units", "error", "message"),
    [
        (-0.1, 10, ValueError, r"delta must be in \[0, 1\], got -0\.1"),
        (1.5, 10, ValueError, r"delta must be in \[0, 1\], got 1\.5"),
        (float("nan"), 10, ValueError, r"delta must be in \[0, 1\], got nan"),
        (True, 10, TypeError, r"delta must be a number.*True \(bool\)"),
        ("0.1", 10, TypeError, r"delta must be a number.*'0\.1' \(str\)"),
        (0.1, 0, ValueError, r"units must be at least 1, got 0"),
        (0.1, -3, ValueError, r"units must be at least 1, got -3"),
        (0.1, 10.0, TypeError, r"units must be an int, got 10\.0 \(float\)"),
        (0.1, True, TypeError, r"units must be an int, got True \(bool\)"),
    ],
)
def test_errors(delta, units, error, message):
    with pytest.raises(error, match=message):
        flip_budget(delta, units)


def test_a_shared_budget_is_the_whole_part_of_the_sum():
    assert shared_budget([0.29, 0.29], [50, 50]) == 29  # 14.5 of each
    assert shared_budget([0.1] * 3, [1] * 3) == 0
    assert shared_budget([0.1] * 10, [1] * 10) == 1


@pytest.mark.parametrize("units", [3, 7, 12, 49, 128, 2048])
def test_one_unit_of_so_many_is_one_flip(units):
    assert flip_budget(1 / units, units) == 1
    assert flip_budget(0.999 / units, units) == 0
