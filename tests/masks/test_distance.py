import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advdrop.masks import euclidean, graph_edit, hamming, jaccard


@st.composite
def pairs(draw):
    units = draw(st.integers(1, 12))
    row = st.lists(st.sampled_from([0.0, 1.0]), min_size=units, max_size=units)
    rows = st.lists(st.tuples(row, row), min_size=1, max_size=4)
    first, second = zip(*draw(rows), strict=True)
    return torch.tensor(first, dtype=torch.float64), torch.tensor(second, dtype=torch.float64)


def kept(mask):
    return [{i for i, value in enumerate(row) if value} for row in mask.tolist()]


def norm(mask):
    return np.linalg.norm(mask.numpy(), axis=1)


@given(pairs())
def test_hamming_is_the_symmetric_difference_of_the_kept_sets_and_the_squared_euclidean_distance(pair):
    first, second = pair
    assert hamming(*pair).tolist() == [len(a ^ b) for a, b in zip(*map(kept, pair), strict=True)]
    np.testing.assert_allclose(euclidean(first, second), norm(first - second), atol=1e-12)
    np.testing.assert_allclose(hamming(first, second), norm(first - second) ** 2, atol=1e-12)


def edges(kept_units, lower, upper):
    below = {("below", i, unit) for unit in kept_units for i in range(lower)}
    return below | {("above", unit, i) for unit in kept_units for i in range(upper)}


@given(pairs(), st.integers(0, 4), st.integers(0, 4))
def test_graph_edit_counts_the_edges_that_come_and_go(pair, lower, upper):
    sets = zip(*map(kept, pair), strict=True)
    expected = [len(edges(a, lower, upper) ^ edges(b, lower, upper)) for a, b in sets]
    assert graph_edit(*pair, lower_units=lower, upper_units=upper).tolist() == expected


@given(pairs())
def test_jaccard_is_its_definition_on_sets_and_the_printed_formula_only_with_squared_norms(pair):
    first, second = pair
    expected = [1 - len(a & b) / len(a | b) if a | b else 0.0 for a, b in zip(*map(kept, pair), strict=True)]
    np.testing.assert_allclose(jaccard(first, second), expected, atol=1e-12)
    union = norm(first + second - first * second)
    some = union > 0
    printed = norm(first - second)[some] / union[some]
    np.testing.assert_allclose(jaccard(first, second)[some], printed**2, atol=1e-12)


def test_two_empty_sets_have_no_distance():
    nothing = torch.zeros(2, 3)
    assert jaccard(nothing, nothing).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("distance", [hamming, euclidean, jaccard, lambda a, b: graph_edit(a, b, 2, 3)])
def test_a_distance_is_symmetric_per_example_and_zero_at_home(distance, generator):
    first, second = (torch.bernoulli(torch.full((5, 2, 3, 3), 0.5), generator=generator) for _ in range(2))
    assert distance(first, second).shape == (5,)
    assert torch.equal(distance(first, second), distance(second, first))
    assert distance(first, first).tolist() == [0.0] * 5
    assert (distance(first, second) > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_distance_has_the_masks_dtype(dtype):
    assert hamming(torch.ones(1, 2, dtype=dtype), torch.zeros(1, 2, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_layers_are_counted_exactly(dtype):
    assert hamming(torch.ones(1, 257, dtype=dtype), torch.zeros(1, 257, dtype=dtype)).item() == 257


@pytest.mark.parametrize(
    ("first", "second", "error", "message"),
    [
        (torch.ones(2, 3), torch.ones(2, 4), ValueError, r"\(2, 3\) and \(2, 4\)"),
        (torch.ones(2, 3).long(), torch.ones(2, 3), TypeError, r"first must be floating point, got torch\.int64"),
        (torch.ones(2, 3), torch.ones(2, 3).long(), TypeError, r"second must be floating point, got torch\.int64"),
        (torch.full((2, 3), 0.5), torch.ones(2, 3), ValueError, r"first must hold only 0 and 1, got 0\.5"),
        (torch.ones(2, 3), torch.full((2, 3), 2.0), ValueError, r"second must hold only 0 and 1, got 2\.0"),
    ],
)
def test_errors(first, second, error, message):
    for distance in (hamming, euclidean, jaccard, lambda a, b: graph_edit(a, b, 2, 3)):
        with pytest.raises(error, match=message):
            distance(first, second)


@pytest.mark.parametrize("name", ["lower_units", "upper_units"])
def test_graph_edit_refuses_a_negative_number_of_units(name):
    units = {"lower_units": 1, "upper_units": 1, name: -1}
    with pytest.raises(ValueError, match=rf"{name} must be at least 0, got -1"):
        graph_edit(torch.ones(1, 2), torch.ones(1, 2), **units)
