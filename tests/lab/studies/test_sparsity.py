"""Sparsity measures against their closed forms, dead units and histograms against networks and numbers made by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advdrop.lab.studies.sparsity import BINS, edges, histogram, hoyer, measures, treves_rolls

sizes = st.integers(2, 40)


@given(sizes, st.floats(1e-3, 1e3))
def test_one_active_unit_is_as_sparse_as_can_be(units, height):
    one_hot = height * torch.eye(units, dtype=torch.float64)
    torch.testing.assert_close(hoyer(one_hot), torch.ones(units, dtype=torch.float64))
    torch.testing.assert_close(treves_rolls(one_hot), torch.ones(units, dtype=torch.float64))


@given(sizes, st.floats(1e-3, 1e3))
def test_equal_units_are_not_sparse_at_all(units, height):
    uniform = torch.full((3, units), height, dtype=torch.float64)
    assert hoyer(uniform).abs().max() < 1e-9
    assert treves_rolls(uniform).abs().max() < 1e-9


@given(sizes, st.data())
def test_equally_active_units_among_silent_ones_have_a_closed_form(units, data):
    active = data.draw(st.integers(1, units))
    a = torch.zeros(1, units, dtype=torch.float64)
    a[0, :active] = 5.0
    assert float(hoyer(a)) == pytest.approx((math.sqrt(units) - math.sqrt(active)) / (math.sqrt(units) - 1), abs=1e-9)
    assert float(treves_rolls(a)) == pytest.approx((1 - active / units) / (1 - 1 / units), abs=1e-9)


def test_sparsity_does_not_depend_on_the_scale():
    a = torch.rand(5, 9, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(hoyer(a), hoyer(7 * a))
    torch.testing.assert_close(treves_rolls(a), treves_rolls(7 * a))


def test_dead_units_of_a_network_made_by_hand():
    """Unit 0 never fires, unit 1 always, unit 2 for one input of the three."""
    x = torch.tensor([[0.0], [1.0], [2.0]])
    weight, bias = torch.tensor([[-1.0], [1.0], [1.0]]), torch.tensor([0.0, 1.0, -1.5])
    activations = torch.relu(x @ weight.T + bias)
    assert measures(activations)["dead_units"] == 1


def test_the_numbers_of_a_layer():
    found = measures(torch.tensor([[0.0, 4.0, 0.0, 0.0], [0.5, 0.5, 0.5, 1.5], [0.0, 0.0, 0.0, 0.0]]))
    assert found["mean_activation"] == pytest.approx(7 / 12)
    assert found["high_percent"] == pytest.approx(100 * 2 / 12)
    assert found["active_percent"] == pytest.approx(100 * 5 / 12)
    assert found["dead_units"] == 0
    mixed = torch.tensor([[0.5, 0.5, 0.5, 1.5]], dtype=torch.float64)
    assert found["hoyer"] == pytest.approx((1 + float(hoyer(mixed))) / 2)  # the silent example has none
    assert found["treves_rolls"] == pytest.approx((1 + float(treves_rolls(mixed))) / 2)


def test_the_histogram_is_numpys():
    values = torch.rand(1000, generator=torch.Generator().manual_seed(1)).double() * 3
    values[:100] = 0
    expected, _ = np.histogram(np.log10(values[100:].numpy()), bins=edges())
    np.testing.assert_allclose(histogram(values), expected / 1000)
    assert sum(histogram(values)) == pytest.approx(0.9)


def test_what_is_beyond_the_histogram_is_counted_at_its_ends():
    shares = histogram(torch.tensor([1e-9, 1e9, 0.0, 0.0]))
    assert (shares[0], shares[-1], len(shares), len(edges())) == (0.25, 0.25, BINS, BINS + 1)


def test_a_training_that_diverged_is_not_measured():
    with pytest.raises(ValueError, match="activations"):
        measures(torch.full((2, 2), float("nan")))
