"""The paper's theorem: what adversarial training and adversarial dropout regularize in linear regression.

With l(w) = Σ_i (y_i − x_iᵀw)² and ∇_{x_i} l = −2 (y_i − x_iᵀw) w, the section "Discussion" and Appendix E of the paper
give the loss under inputs that are perturbed to increase it::

    l_AT(w)  = l(w) + Σ_ij |δ ∇_{x_ij} l| + δ² wᵀ Γ_AT w             r_i = δ sign(∇_{x_i} l)
    l_AdD(w) = l(w) + Σ_i Σ_{j in S_i} |x_ij ∇_{x_ij} l| + wᵀ Γ_AdD w    S_i = the dropped inputs, at most k

:func:`adversarial_training` and :func:`adversarial_dropout` compute the right-hand sides. The printed version needs
four corrections:

- *The orientation of Γ.* It is printed as Σ_i aᵀa. For the column vectors that the paper defines (x_i in R^D, and x_iᵀw
  a number) that is a number; the proof needs the D × D matrix Σ_i a aᵀ.
- *The k-th lowest element.* An input is dropped where x_ij ∇_{x_ij} l ≤ min(s_ik, 0), s_ik being the k-th lowest
  element of its row. Ties at s_ik drop more than k inputs, which breaks the constraint. With fewer than k negative
  elements the bound is 0 and every element that is exactly 0 is dropped too. For k = 0 there is no s_ik. Here: the k
  lowest of the negative elements, the first ones of equals, and none that is 0.
- *The constraint.* ‖ε − 1‖₂ ≤ k as written allows k² zeros. k is meant as their number.
- *The argmax.* The mask is defined as the one with the largest loss, and then given by Algorithm 1, which linearizes
  at ε = 1. These differ: the linearized mask only increases the residual on the side where it is. If the residual is
  small, dropping inputs of the other sign can move it further away on the other side. :func:`worst_mask` is the true
  argmax, and :func:`fit` uses it. (For adversarial training the two agree, except where a residual is exactly zero:
  the sign of a zero gradient moves nothing.)

With the true maximum both objectives are convex: they are maxima of squares of affine functions of w. With the
linearized mask the objective of adversarial dropout is not: it jumps where a residual changes its sign.

References: Park et al. (2018), "Discussion" and Appendix E. Xu, Caramanis and Mannor, "Robust regression and lasso",
IEEE Transactions on Information Theory 56 (2010), treat the case in which all examples are perturbed together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

Array = npt.NDArray[np.float64]

TOLERANCE = 1e-8
"""The largest duality gap of a fit that counts as converged, relative to its objective."""


def squared_error(x: Array, y: Array, w: Array) -> float:
    """l(w) = Σ_i (y_i − x_iᵀw)². x may be perturbed.

    >>> squared_error(np.eye(2), np.array([1.0, 2.0]), np.zeros(2))
    5.0
    """
    return float(np.square(y - x @ w).sum())


def input_gradient(x: Array, y: Array, w: Array) -> Array:
    """∇_{x_i} l = −2 (y_i − x_iᵀw) w for each example, ``(N, D)``."""
    return np.asarray(-2.0 * np.outer(y - x @ w, w))


def sign_perturbation(x: Array, y: Array, w: Array, delta: float) -> Array:
    """r_i = δ sign(∇_{x_i} l), ``(N, D)``: the fast gradient sign method."""
    return np.asarray(delta * np.sign(input_gradient(x, y, w)))


def adversarial_training(x: Array, y: Array, w: Array, delta: float) -> float:
    """L_AT = l + Σ_ij |δ ∇_{x_ij} l| + δ² wᵀ Γ_AT w with Γ_AT = Σ_i sign(∇_{x_i} l) sign(∇_{x_i} l)ᵀ.

    It equals ``squared_error(x + sign_perturbation(...), y, w)``. Where no residual is zero, the two terms after l are
    2δ‖w‖₁ Σ|y_i − x_iᵀw| and δ² N ‖w‖₁².
    """
    gradient = input_gradient(x, y, w)
    gamma = np.sign(gradient).T @ np.sign(gradient)
    return squared_error(x, y, w) + float(np.abs(delta * gradient).sum() + delta**2 * w @ gamma @ w)


def adversarial_dropout(x: Array, y: Array, w: Array, mask: Array) -> float:
    """L_AdD = l + Σ_i Σ_{j in S_i} |x_ij ∇_{x_ij} l| + wᵀ Γ_AdD w, Γ_AdD = Σ_i ((1 − ε_i) ⊙ x_i)((1 − ε_i) ⊙ x_i)ᵀ.

    It equals ``squared_error(mask * x, y, w)`` for every mask whose dropped inputs have x_ij ∇_{x_ij} l ≤ 0, as those
    of :func:`linearized_mask` have. For other masks the middle term has the wrong sign.
    """
    dropped = (1.0 - mask) * x
    gamma = dropped.T @ dropped
    return squared_error(x, y, w) + float(np.abs(dropped * input_gradient(x, y, w)).sum() + w @ gamma @ w)


def linearized_mask(x: Array, y: Array, w: Array, k: int) -> Array:
    """ε_i of Algorithm 1 from εs = 1, ``(N, D)``: drops the k lowest elements of x_i ⊙ ∇_{x_i} l, if negative.

    >>> linearized_mask(np.array([[1.0, 2.0, -3.0]]), np.array([9.0]), np.ones(3), k=1)
    array([[1., 0., 1.]])
    """
    return 1.0 - _dropped(-x * input_gradient(x, y, w), k)


def worst_mask(x: Array, y: Array, w: Array, k: int) -> Array:
    """ε_i = argmax (y_i − (ε ⊙ x_i)ᵀw)² over the masks with at most k zeros, ``(N, D)``; exact.

    Dropping the inputs S changes the residual by Σ_{j in S} x_ij w_j. The best S is therefore the k largest of these
    or the k smallest, whichever ends farther from zero.
    """
    residual, parts = y - x @ w, x * w
    up, down = _dropped(parts, k), _dropped(-parts, k)
    higher = np.abs(residual + (parts * up).sum(1)) >= np.abs(residual + (parts * down).sum(1))
    return 1.0 - np.where(higher[:, None], up, down)


def _dropped(gains: Array, k: int) -> Array:
    """1 where an input has one of the k largest gains of its example, and a positive one; the first ones of equals."""
    chosen, largest = np.zeros_like(gains), np.argsort(-gains, axis=1, kind="stable")[:, :k]
    np.put_along_axis(chosen, largest, 1.0, axis=1)
    return np.asarray(chosen * (gains > 0))


@dataclass(frozen=True)
class Fit:
    """A linear model that was fitted against an adversary.

    Args:
        coefficients: w, ``(D,)``.
        intercept: never perturbed and never dropped.
        objective: Σ_i max (y_i − x̃_iᵀw − intercept)² of this model.
        bound: a lower bound on the objective of every linear model.
    """

    coefficients: Array
    intercept: float
    objective: float
    bound: float

    @property
    def gap(self) -> float:
        """The distance from objective to bound, relative to the objective."""
        return (self.objective - self.bound) / max(self.objective, np.finfo(np.float64).tiny)

    @property
    def converged(self) -> bool:
        """Whether the gap is within the tolerance."""
        return self.gap <= TOLERANCE


def fit(x: Array, y: Array, *, k: int = 0, delta: float = 0.0) -> Fit:
    """Fit the linear model with the smallest squared error under the worst perturbation of each example.

    min_w Σ_i max (y_i − x̃_iᵀw − b)², where x̃_i is x_i with at most k of its inputs dropped (adversarial dropout), or
    with every input moved by at most δ (adversarial training). Both are convex quadratic programs. Their solution takes
    about a second for some hundred examples of ten features; the memory grows with N·D².

    Args:
        x: finite, ``(N, D)``.
        y: finite, ``(N,)``.
        k: the number of inputs that may be dropped, from 0 to D.
        delta: δ; give either this or ``k``. Without both, the fit is ordinary least squares.

    >>> x = np.array([[1.0, 1.0], [-1.0, -1.0], [1.0, 1.1], [-1.0, -1.1]])
    >>> y = np.array([1.0, -1.0, 1.0, -1.0])
    >>> fit(x, y, k=0).coefficients.round(6) + 0.0
    array([1., 0.])
    >>> fit(x, y, k=1).coefficients.round(2)  # either input may be dropped, so both get a weight
    array([0.65, 0.65])
    """
    design = np.column_stack([x, np.ones(len(x))])
    if not (k or delta):
        w = np.asarray(np.linalg.lstsq(design, y, rcond=None)[0], dtype=np.float64)
        error = squared_error(design, y, w)
        return Fit(w[:-1], float(w[-1]), error, error)
    scale = float(np.abs(y).max()) or 1.0
    program = _dropout_program(x, design, y / scale, k) if k else _training_program(design, y / scale, delta)
    solution, bound = least_squares(len(x), *program)
    w, b = scale * solution[: x.shape[1]], float(scale * solution[x.shape[1]])
    objective = worst_case(x, y - b, w, k=k, delta=delta)
    perfect = 1e-12 * float(np.square(y).sum())  # below this an objective is rounding error
    return Fit(w, b, objective, objective if objective <= perfect else bound * scale**2)


def worst_case(x: Array, y: Array, w: Array, *, k: int = 0, delta: float = 0.0) -> float:
    """The largest squared error if k inputs of each example may be dropped, or all of them moved by δ."""
    if k:
        return squared_error(worst_mask(x, y, w, k) * x, y, w)
    return float(np.square(np.abs(y - x @ w) + delta * np.abs(w).sum()).sum())


def least_squares(count: int, matrix: Any, levels: Array) -> tuple[Array, float]:
    """Minimize Σ t² over the variables (z, t) with A·(z, t) ≥ b.

    Args:
        count: the number of variables t, which are the last ones.
        matrix: A, sparse.
        levels: b.

    Returns:
        the variables, and the value of the dual problem, a lower bound; 0 if the solver did not finish.
    """
    import clarabel

    free = matrix.shape[1] - count
    cost = sparse.diags(np.repeat([0.0, 2.0], [free, count]), format="csc")
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.max_threads = False, 1
    # Clarabel takes these relative to 1 if the objective is smaller.
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    cone = [clarabel.NonnegativeConeT(len(levels))]
    found = clarabel.DefaultSolver(cost, np.zeros(free + count), -matrix, -levels, cone, settings).solve()
    solved = found.status in (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved)
    prices = np.asarray(found.z)
    dual = float(prices @ levels - np.square((matrix.T @ prices)[free:]).sum() / 4)
    return np.asarray(found.x), dual if solved else 0.0


def _dropout_program(x: Array, design: Array, y: Array, k: int) -> tuple[Any, Array]:
    """A and b of A·(w, θ, v, t) ≥ b.

    The sum of the k largest positive parts of z is the minimum of kθ + Σ_j v_j over v_j ≥ z_j − θ and θ, v ≥ 0. The
    largest residual of example i is the larger of two such sums: t_i ≥ ±(y_i − x_iᵀw) + the sum for z = ±x_i ⊙ w.
    """
    (count, features), width = x.shape, design.shape[1]
    each, every = sparse.identity(count), sparse.identity(count * features)
    spread = sparse.kron(each, np.ones((features, 1)))  # from an example to its inputs
    parts = sparse.hstack([sparse.vstack([sparse.diags(row) for row in x]), _empty(count * features, width - features)])

    blocks, levels = [], []
    for side, place in ((1.0, slice(0, 2)), (-1.0, slice(2, 4))):
        sums: list[Any] = [None] * 4  # θ and v of one side, θ and v of the other
        sums[place] = [-k * each, -spread.T]
        bounds: list[Any] = [None] * 4
        bounds[place] = [spread, every]
        blocks += [[side * design, *sums, each], [-side * parts, *bounds, None]]
        levels += [side * y, np.zeros(count * features)]
    free = 2 * count * (1 + features)
    positive = sparse.hstack([_empty(free, width), sparse.identity(free), _empty(free, count)])
    matrix = sparse.vstack([sparse.bmat(blocks), positive], format="csc")
    return matrix, np.concatenate([*levels, np.zeros(free)])


def _training_program(design: Array, y: Array, delta: float) -> tuple[Any, Array]:
    """A and b of A·(w, u, t) ≥ b: u_j ≥ |w_j|, and t_i ≥ ±(y_i − x_iᵀw) + δ Σ_j u_j."""
    count, width = design.shape
    moved, keep = np.full((count, width - 1), -delta), sparse.identity(count)
    weights = sparse.eye(width - 1, width)
    blocks = [[side * design, moved, keep] for side in (1.0, -1.0)]
    blocks += [[side * weights, sparse.identity(width - 1), None] for side in (1.0, -1.0)]
    return sparse.bmat(blocks, format="csc"), np.concatenate([y, -y, np.zeros(2 * (width - 1))])


def _empty(rows: int, columns: int) -> Any:
    return sparse.csr_matrix((rows, columns))
