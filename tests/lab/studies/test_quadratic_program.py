import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize

from advdrop.lab.studies.quadratic_program import interior_point


def test_the_nearest_point_of_a_half_plane():
    """min t₁² + t₂² over t₁ + 2 t₂ ≥ 5: the foot of the perpendicular, (1, 2)."""
    values, bound, steps = interior_point(2, sparse.csc_matrix([[1.0, 2.0]]), np.array([5.0]), 0, 1e-10, 100)
    np.testing.assert_allclose(values, [1.0, 2.0], rtol=1e-6)
    assert bound == pytest.approx(5.0)
    assert steps < 30


@pytest.mark.parametrize("seed", range(5))
def test_what_a_general_method_finds(seed):
    rng = np.random.default_rng(seed)
    matrix, levels = rng.normal(size=(12, 5)), rng.normal(size=12)
    matrix[:, -1] = np.abs(matrix[:, -1]) + 0.1  # feasible for a large t
    values, bound, _ = interior_point(3, sparse.csc_matrix(matrix), levels, 2, 1e-10, 100)
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
    assert bound <= np.square(values[2:]).sum() * (1 + 1e-12) + 1e-12
