"""The identities of the theorem, the masks against all masks, and the fits against what they must not lose to."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse
from scipy.optimize import minimize

from advdrop import flip_mask
from advdrop.lab.studies.linear_regression import (
    Fit,
    adversarial_dropout,
    adversarial_training,
    fit,
    input_gradient,
    least_squares,
    linearized_mask,
    sign_perturbation,
    squared_error,
    worst_mask,
)

ROWS, FEATURES = 6, 4
numbers = st.floats(-10, 10, allow_subnormal=False).map(lambda value: round(value, 6))
problems = st.tuples(
    arrays(np.float64, (ROWS, FEATURES), elements=numbers),
    arrays(np.float64, ROWS, elements=numbers),
    arrays(np.float64, FEATURES, elements=numbers),
)
ranks = st.integers(0, FEATURES)


def close(one, other):
    return abs(one - other) <= 1e-9 * max(1.0, abs(one), abs(other))


def every_mask(features, k):
    for size in range(k + 1):
        for dropped in combinations(range(features), size):
            mask = np.ones(features)
            mask[list(dropped)] = 0.0
            yield mask


def random_problem(seed, rows=30, features=5):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, features)) @ rng.normal(size=(features, features))
    return x, x @ rng.normal(size=features) + rng.normal(size=rows), rng


@given(problems)
def test_the_gradient_is_that_of_the_loss(problem):
    x, y, w = problem
    at = torch.tensor(x, requires_grad=True)
    (torch.tensor(y) - at @ torch.tensor(w)).square().sum().backward()
    np.testing.assert_allclose(input_gradient(x, y, w), at.grad.numpy(), rtol=1e-9, atol=1e-9)


@given(problems, st.floats(0, 3))
def test_adversarial_training_is_its_decomposition(problem, delta):
    x, y, w = problem
    perturbed = squared_error(x + sign_perturbation(x, y, w, delta), y, w)
    assert close(perturbed, adversarial_training(x, y, w, delta))


@given(problems, st.floats(0, 3))
def test_adversarial_training_penalizes_the_one_norm(problem, delta):
    x, y, w = problem
    residual, norm = np.abs(y - x @ w), np.abs(w).sum()
    moved = np.count_nonzero(np.outer(residual, w).any(axis=1))  # a zero gradient has no sign to follow
    expected = squared_error(x, y, w) + 2 * delta * norm * residual.sum() + delta**2 * moved * norm**2
    assert close(adversarial_training(x, y, w, delta), expected)


@given(problems, ranks)
def test_adversarial_dropout_is_its_decomposition(problem, k):
    x, y, w = problem
    mask = linearized_mask(x, y, w, k)
    assert close(squared_error(mask * x, y, w), adversarial_dropout(x, y, w, mask))


@given(problems, ranks)
def test_the_linearized_mask_is_that_of_the_library(problem, k):
    x, y, w = problem
    ours = linearized_mask(x, y, w, k)
    slopes = torch.tensor(x * input_gradient(x, y, w))
    gain = (1 - flip_mask(torch.ones(ROWS, FEATURES, dtype=torch.float64), slopes, k)).mul(slopes).sum()
    assert close(float(((1 - ours) * slopes.numpy()).sum()), float(gain))  # of equals either may be dropped
    assert ((1 - ours).sum(1) <= k).all()


def test_ties_and_too_few_negatives_keep_the_constraint():
    """The printed rule would drop all three of the tied inputs, and those whose product is zero."""
    x, y, w = np.array([[1.0, 1.0, 1.0, 0.0]]), np.array([9.0]), np.ones(4)
    np.testing.assert_array_equal(linearized_mask(x, y, w, 2), [[0.0, 0.0, 1.0, 1.0]])
    x = np.array([[1.0, -1.0, 0.0, 0.0]])
    np.testing.assert_array_equal(linearized_mask(x, y, w, 3), [[0.0, 1.0, 1.0, 1.0]])


@given(problems, ranks)
def test_no_mask_is_worse_than_the_worst(problem, k):
    x, y, w = problem
    found = np.square(y - (worst_mask(x, y, w, k) * x) @ w)
    best = np.max([np.square(y - (mask * x) @ w) for mask in every_mask(FEATURES, k)], axis=0)
    np.testing.assert_allclose(found, best, rtol=1e-9, atol=1e-9)
    assert ((1 - worst_mask(x, y, w, k)).sum(1) <= k).all()


def test_the_linearized_mask_is_not_the_worst_when_overshooting_does_more():
    x, y, w = np.array([[1.0, -5.0]]), np.array([-3.9]), np.ones(2)  # the residual is 0.1
    assert squared_error(linearized_mask(x, y, w, 1) * x, y, w) == pytest.approx(1.1**2)
    assert squared_error(worst_mask(x, y, w, 1) * x, y, w) == pytest.approx(4.9**2)
    mask = worst_mask(x, y, w, 1)
    assert adversarial_dropout(x, y, w, mask) != pytest.approx(4.9**2)  # the identity is of the linearized mask


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("k", [0, 1, 2, 5])
def test_fitting_against_dropout_is_optimal(seed, k):
    x, y, rng = random_problem(seed)
    found = fit(x, y, k=k)
    assert found.converged
    assert found.gap <= 1e-8

    def objective(parameters):
        shifted = y - parameters[-1]
        return squared_error(worst_mask(x, shifted, parameters[:-1], k) * x, shifted, parameters[:-1])

    at = np.append(found.coefficients, found.intercept)
    assert objective(at) == pytest.approx(found.objective)
    for scale in (1e-6, 1e-3, 0.1, 1.0):
        for _ in range(50):
            assert objective(at + scale * rng.normal(size=len(at))) >= found.objective * (1 - 1e-8)
    assert minimize(objective, at, method="Nelder-Mead").fun >= found.objective * (1 - 1e-8)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("delta", [0.0, 0.1, 0.5])
def test_fitting_against_perturbations_is_optimal(seed, delta):
    x, y, _ = random_problem(seed)
    found = fit(x, y, delta=delta)

    def objective(parameters):
        residual = np.abs(y - x @ parameters[:-1] - parameters[-1])
        return np.square(residual + delta * np.abs(parameters[:-1]).sum()).sum()

    at = np.append(found.coefficients, found.intercept)
    assert objective(at) == pytest.approx(found.objective)
    assert found.converged
    # A smooth objective from below: |a| >= sqrt(a² + c²) - c.
    soft = minimize(
        lambda p: np.square(
            np.sqrt(np.square(y - x @ p[:-1] - p[-1]) + 1e-10) + delta * (np.sqrt(np.square(p[:-1]) + 1e-10)).sum()
        ).sum(),
        np.zeros(len(at)),
        method="BFGS",
    )
    assert found.objective <= objective(soft.x) * (1 + 1e-8)


def test_nothing_dropped_is_least_squares():
    x, y, _ = random_problem(0)
    least = np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y, rcond=None)[0]
    for found in (fit(x, y, k=0), fit(x, y, delta=0.0)):
        np.testing.assert_allclose([*found.coefficients, found.intercept], least, atol=1e-9)
        assert found.gap == 0.0


def test_everything_dropped_leaves_the_mean():
    x, y, _ = random_problem(1)
    found = fit(x - x.mean(0), y, k=x.shape[1])
    np.testing.assert_allclose(found.coefficients, 0.0, atol=1e-4)
    assert found.intercept == pytest.approx(y.mean(), abs=1e-4)


def test_a_constant_target_needs_no_features():
    found = fit(np.eye(3), np.full(3, 2.0), k=1)
    assert found.converged
    assert found.intercept == pytest.approx(2.0)
    np.testing.assert_allclose(found.coefficients, 0.0, atol=1e-6)


def test_repeated_features_can_be_fitted():
    x, y, _ = random_problem(2)
    assert fit(np.hstack([x, x]), y, k=1).converged


def test_a_fit_converged_if_its_objective_is_close_to_its_bound():
    assert Fit(np.zeros(1), 0.0, 2.0, 2.0 * (1 - 1e-9)).converged
    assert not Fit(np.zeros(1), 0.0, 2.0, 2.0 * (1 - 1e-7)).converged


def test_the_nearest_point_of_a_half_plane():
    """min t₁² + t₂² over t₁ + 2 t₂ ≥ 5: the foot of the perpendicular, (1, 2)."""
    values, bound = least_squares(2, sparse.csc_matrix([[1.0, 2.0]]), np.array([5.0]))
    np.testing.assert_allclose(values, [1.0, 2.0], rtol=1e-9)
    assert bound == pytest.approx(5.0)


@pytest.mark.parametrize("seed", range(5))
def test_a_quadratic_program_has_the_solution_of_a_general_method(seed):
    rng = np.random.default_rng(seed)
    matrix, levels = rng.normal(size=(12, 5)), rng.normal(size=12)
    matrix[:, -1] = np.abs(matrix[:, -1]) + 0.1  # feasible for a large t
    values, bound = least_squares(3, sparse.csc_matrix(matrix), levels)
    other = minimize(
        lambda v: np.square(v[2:]).sum(),
        np.append(np.zeros(4), 100.0),
        jac=lambda v: np.concatenate([np.zeros(2), 2 * v[2:]]),
        constraints={"type": "ineq", "fun": lambda v: matrix @ v - levels, "jac": lambda _: matrix},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert other.success
    assert np.square(values[2:]).sum() == pytest.approx(other.fun, rel=1e-5, abs=1e-8)
    assert (matrix @ values - levels).min() > -1e-8
    assert bound == pytest.approx(np.square(values[2:]).sum(), rel=1e-9, abs=1e-10)


def test_a_program_without_a_solution_has_no_bound():
    contradiction = sparse.csc_matrix([[1.0, 0.0], [-1.0, 0.0]])  # z ≥ 1 and −z ≥ 1
    assert least_squares(1, contradiction, np.ones(2))[1] == 0.0
