"""Least squares under linear inequalities, by Mehrotra's predictor-corrector method.

Reference: Mehrotra, "On the implementation of a primal-dual interior point method", SIAM Journal on Optimization 2
(1992).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import linalg

Array = npt.NDArray[np.float64]

TINY = 1e-11
"""What keeps a system of equations regular whose variables cost nothing."""


def interior_point(
    count: int, matrix: Any, levels: Array, free: int, tolerance: float, steps: int
) -> tuple[Array, float, int]:
    """Minimize Σ t² over A·(z, t) ≥ b.

    Args:
        count: the number of variables t, the last ones.
        matrix: A, sparse.
        levels: b.
        free: the number of variables z.
        tolerance: of the gap between the value and that of the dual, relative to it.
        steps: Newton steps at most.

    Returns:
        the variables, the largest value of the dual, which is a bound from below, and the steps taken.
    """
    cost = np.concatenate([np.zeros(free), np.full(count, 2.0)])
    values = np.concatenate([np.zeros(free), np.full(count, 1.0 + np.abs(levels).max())])
    slack, price = np.ones(len(levels)), np.ones(len(levels))
    bound, taken = 0.0, 0
    while taken < steps:
        taken += 1
        pull = matrix.T @ price
        dual = float(price @ levels - np.square(pull[free:]).sum() / 4)
        missing = slack - (matrix @ values - levels)
        exact = np.abs(pull[:free]).max(initial=0.0) <= 1e-9 * price.max() and np.abs(missing).max() <= 1e-9
        if exact:
            bound = max(bound, dual)
        if exact and float(np.square(values[free:]).sum()) - dual <= tolerance * max(dual, tolerance):
            break
        system = sparse.bmat([[sparse.diags(cost + TINY), matrix.T], [matrix, sparse.diags(-slack / price - TINY)]])
        solve = linalg.splu(system.tocsc(), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True}).solve
        mean = float(slack @ price) / len(slack)
        center = np.zeros(len(slack))
        for last in (False, True):
            aim = center / price - slack  # of the slack, if the price stays
            step, less = np.split(solve(np.concatenate([pull - cost * values, missing + aim])), [len(values)])
            step_price, step_slack = -less, aim + slack / price * less
            if not last:
                a, b = _longest(slack, step_slack), _longest(price, step_price)
                left = float((slack + a * step_slack) @ (price + b * step_price)) / len(slack)
                center = (left / mean) ** 3 * mean - step_slack * step_price
        length = 0.995 * min(_longest(slack, step_slack), _longest(price, step_price))
        values, slack, price = values + length * step, slack + length * step_slack, price + length * step_price
    return values, bound, taken


def _longest(values: Array, step: Array) -> float:
    """The longest step up to 1 that leaves all values positive."""
    shrinking = step < 0
    return min(1.0, float((-values[shrinking] / step[shrinking]).min())) if shrinking.any() else 1.0
