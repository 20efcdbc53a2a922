"""The paper's theorem: what adversarial training and adversarial dropout regularize in linear regression.

With l(w) = Σ_i (y_i − x_iᵀw)² and ∇_{x_i} l = −2 (y_i − x_iᵀw) w, the section "Discussion" and Appendix E of the paper
say what is minimized when the inputs are perturbed against the loss::

    l_AT(w)  = l(w) + Σ_ij |δ ∇_{x_ij} l| + δ² wᵀ Γ_AT w             r_i = δ sign(∇_{x_i} l)
    l_AdD(w) = l(w) + Σ_i Σ_{j in S_i} |x_ij ∇_{x_ij} l| + wᵀ Γ_AdD w    S_i = the inputs that are dropped, k at most

:func:`adversarial_training` and :func:`adversarial_dropout` have both sides of these. What is printed needs repair in
four places:

- *The orientation of Γ.* It is printed as Σ_i aᵀa. For the column vectors that the paper defines (x_i in R^D, and x_iᵀw
  a number) that is one number; what the proof needs is the D × D matrix Σ_i a aᵀ.
- *The k-th lowest element.* An input is dropped where x_ij ∇_{x_ij} l ≤ min(s_ik, 0), s_ik the k-th lowest element of
  its row. With ties at s_ik that drops more than k of them, which breaks the constraint that it is said to satisfy;
  with fewer than k negative elements the bound is 0, and every element that is exactly 0 is dropped as well, again more
  than k if there are many. For k = 0 there is no s_ik. Here: the k lowest of the negative elements, the first ones of
  equals, and none that is 0.
- *The constraint.* ‖ε − 1‖₂ ≤ k allows k² zeros as it is written. k is meant as their number.
- *The argmax.* The mask is defined as the one with the largest loss, and then given by Algorithm 1, which linearizes
  at ε = 1. These are not the same: the linearized mask only ever makes the residual larger on the side where it is,
  and if it is small, dropping inputs of the other sign and overshooting to the other side can do more.
  :func:`worst_mask` is the true argmax, and :func:`fit` uses it. (For adversarial training the two agree, except where
  a residual is exactly zero: the sign of a zero gradient moves nothing.)

With the true maximum both objectives are convex, being maxima of squares of affine functions of w. With the linearized
mask that of adversarial dropout is not: it jumps where a residual changes its sign.

References: Park et al. (2018), "Discussion" and Appendix E. Xu, Caramanis and Mannor, "Robust regression and lasso",
IEEE Transactions on Information Theory 56 (2010), have the case in which all examples are perturbed together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from advdrop.lab.studies.quadratic_program import interior_point

Array = npt.NDArray[np.float64]

TOLERANCE = 1e-8
"""Of the duality gap, relative to the objective."""


@dataclass(frozen=True)
class Decomposition:
    """An adversarial loss as the theorem takes it apart.

    Args:
        loss: l(w).
        first: the L1 term, Σ|·∇l|.
        second: the L2 term, wᵀΓw.
        gamma: Γ, ``(D, D)``.
    """

    loss: float
    first: float
    second: float
    gamma: Array

    @property
    def total(self) -> float:
        """What the theorem says the adversarial loss is."""
        return self.loss + self.first + self.second


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


def adversarial_training(x: Array, y: Array, w: Array, delta: float) -> Decomposition:
    """L_AT = l + Σ_ij |δ ∇_{x_ij} l| + δ² wᵀ Γ_AT w with Γ_AT = Σ_i sign(∇_{x_i} l) sign(∇_{x_i} l)ᵀ.

    Its total is ``squared_error(x + sign_perturbation(...), y, w)``. Where no residual is zero, the two terms are
    2δ‖w‖₁ Σ|y_i − x_iᵀw| and δ² N ‖w‖₁².
    """
    gradient = input_gradient(x, y, w)
    gamma = np.sign(gradient).T @ np.sign(gradient)
    return Decomposition(squared_error(x, y, w), float(np.abs(delta * gradient).sum()), delta**2 * w @ gamma @ w, gamma)


def linearized_mask(x: Array, y: Array, w: Array, k: int) -> Array:
    """ε_i of Algorithm 1 from εs = 1, ``(N, D)``: drops the k lowest elements of x_i ⊙ ∇_{x_i} l, if negative.

    >>> linearized_mask(np.array([[1.0, 2.0, -3.0]]), np.array([9.0]), np.ones(3), k=1)
    array([[1., 0., 1.]])
    """
    return 1.0 - _dropped(-x * input_gradient(x, y, w), k)


def worst_mask(x: Array, y: Array, w: Array, k: int) -> Array:
    """ε_i = argmax (y_i − (ε ⊙ x_i)ᵀw)² over the masks with k zeros at most, ``(N, D)``; exact.

    Dropping the inputs S changes the residual by Σ_{j in S} x_ij w_j, so the best S is the k largest of these, or the
    k smallest, whichever ends farther from zero.
    """
    residual, parts = y - x @ w, x * w
    up, down = _dropped(parts, k), _dropped(-parts, k)
    higher = np.abs(residual + (parts * up).sum(1)) >= np.abs(residual + (parts * down).sum(1))
    return 1.0 - np.where(higher[:, None], up, down)


def adversarial_dropout(x: Array, y: Array, w: Array, mask: Array) -> Decomposition:
    """L_AdD = l + Σ_i Σ_{j in S_i} |x_ij ∇_{x_ij} l| + wᵀ Γ_AdD w, Γ_AdD = Σ_i ((1 − ε_i) ⊙ x_i)((1 − ε_i) ⊙ x_i)ᵀ.

    Its total is ``squared_error(mask * x, y, w)`` for every mask whose dropped inputs have x_ij ∇_{x_ij} l ≤ 0, as
    those of :func:`linearized_mask` do. One that overshoots does not, and the middle term then counts it with the
    wrong sign.
    """
    dropped = (1.0 - mask) * x
    gamma = dropped.T @ dropped
    first = float(np.abs(dropped * input_gradient(x, y, w)).sum())
    return Decomposition(squared_error(x, y, w), first, float(w @ gamma @ w), gamma)


@dataclass(frozen=True)
class Fit:
    """A linear model that was fitted against an adversary.

    Args:
        coefficients: w, ``(D,)``.
        intercept: never perturbed and never dropped.
        objective: Σ_i max (y_i − x̃_iᵀw − intercept)² at the end.
        bound: no linear model has a smaller objective than this.
        steps: Newton steps taken.
        converged: whether the gap between objective and bound is within the tolerance.
    """

    coefficients: Array
    intercept: float
    objective: float
    bound: float
    steps: int
    converged: bool

    @property
    def gap(self) -> float:
        """How far the objective can be from the best, relative to it."""
        return (self.objective - self.bound) / max(self.objective, np.finfo(np.float64).tiny)

    def predict(self, x: Any) -> Array:
        """xᵀw + intercept, ``(N,)``."""
        x = _matrix("X", x)
        if x.shape[1] != len(self.coefficients):
            raise ValueError(f"X has {x.shape[1]} features, and the model was fitted to {len(self.coefficients)}")
        return np.asarray(x @ self.coefficients + self.intercept)


def fit(
    x: Any,
    y: Any,
    *,
    k: int | None = None,
    delta: float | None = None,
    intercept: bool = True,
    tolerance: float = TOLERANCE,
    steps: int = 200,
) -> Fit:
    """The linear model with the smallest squared error under the worst that can happen to each example by itself.

    min_w Σ_i max (y_i − x̃_iᵀw)², where x̃_i is x_i with k of its inputs dropped at most (adversarial dropout), or
    moved by δ at most in every input (adversarial training). Both are convex quadratic programs, solved by an
    interior-point method. It takes seconds for some hundred examples of ten features; its memory grows with N·D².

    Args:
        x: ``(N, D)``. Bring the features to one scale first, as for lasso or ridge: δ is in their units, and what is
            lost with an input is measured from zero.
        y: ``(N,)``.
        k: the number of inputs that may be dropped from each example, 0 to D.
        delta: how far each input may be moved.
        intercept: whether there is one.
        tolerance: of the duality gap, relative to the objective.
        steps: Newton steps at most; ``converged`` tells whether they were enough.

    >>> x = np.array([[1.0, 1.0], [-1.0, -1.0], [1.0, 1.1], [-1.0, -1.1]])
    >>> y = np.array([1.0, -1.0, 1.0, -1.0])
    >>> fit(x, y, k=0).coefficients.round(6) + 0.0
    array([1., 0.])
    >>> fit(x, y, k=1).coefficients.round(2)  # either input may be lost, so it leans on both
    array([0.65, 0.65])
    """
    x, y = _matrix("X", x), np.asarray(y, dtype=np.float64)
    if y.shape != (len(x),):
        raise ValueError(f"y must have one number for each of the {len(x)} rows of X, got shape {y.shape}")
    if not np.isfinite(y).all():
        raise ValueError(f"y must be finite, got {y[~np.isfinite(y)][0]} in row {int(np.argmin(np.isfinite(y)))}")
    if (k is None) == (delta is None):
        raise ValueError("give k, for adversarial dropout, or delta, for adversarial training: one of them")
    if delta is not None and not 0.0 <= delta < np.inf:
        raise ValueError(f"delta must be finite and not negative, got {delta!r}")
    if intercept:
        refuse_constant(x)
    if k is not None and (isinstance(k, bool) or not isinstance(k, int | np.integer) or not 0 <= k <= x.shape[1]):
        raise ValueError(f"k must be a whole number of inputs from 0 to the {x.shape[1]} there are, got {k!r}")
    design = np.column_stack([x, np.ones(len(x))]) if intercept else x
    if not (k or delta):
        w = np.linalg.lstsq(design, y, rcond=None)[0]
        error = squared_error(design, y, w)
        return Fit(w[: x.shape[1]], float(w[-1]) if intercept else 0.0, error, error, 0, True)
    scale = float(np.abs(y).max()) or 1.0
    program = _dropout_program(x, design, y / scale, int(k)) if k else _training_program(x, design, y / scale, delta)
    solution, bound, taken = interior_point(len(x), *program, tolerance / 10, steps)
    w, b = scale * solution[: x.shape[1]], float(scale * solution[x.shape[1]]) if intercept else 0.0
    objective, bound = worst_case(x, y - b, w, k=k, delta=delta), bound * scale**2
    enough = tolerance * max(objective, 1e-12 * float(np.square(y).sum()))  # a perfect fit leaves rounding
    return Fit(w, b, objective, bound, taken, objective - bound <= enough)


def worst_case(x: Array, y: Array, w: Array, *, k: int | None = None, delta: float | None = None) -> float:
    """The largest squared error when k inputs of each example may be dropped, or all of them moved by δ."""
    if k is not None:
        return squared_error(worst_mask(x, y, w, int(k)) * x, y, w)
    return float(np.square(np.abs(y - x @ w) + (delta or 0.0) * np.abs(w).sum()).sum())


def _dropout_program(x: Array, design: Array, y: Array, k: int) -> tuple[Any, Array, int]:
    """A and b of A·(w, θ, v, t) ≥ b, and the number of variables that cost nothing.

    The sum of the k largest positive parts of z is the least of kθ + Σ_j v_j with v_j ≥ z_j − θ and θ, v ≥ 0, and the
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
    return matrix, np.concatenate([*levels, np.zeros(free)]), width + free


def _empty(rows: int, columns: int) -> Any:
    return sparse.csr_matrix((rows, columns))


def _training_program(x: Array, design: Array, y: Array, delta: float | None) -> tuple[Any, Array, int]:
    """The same for A·(w, u, t) ≥ b: u_j ≥ |w_j|, and t_i ≥ ±(y_i − x_iᵀw) + δ Σ_j u_j."""
    (count, features), width = x.shape, design.shape[1]
    moved, keep = np.full((count, features), -float(delta or 0.0)), sparse.identity(count)
    weights = sparse.eye(features, width)
    blocks = [[side * design, moved, keep] for side in (1.0, -1.0)]
    blocks += [[side * weights, sparse.identity(features), None] for side in (1.0, -1.0)]
    return sparse.bmat(blocks, format="csc"), np.concatenate([y, -y, np.zeros(2 * features)]), width + features


def _dropped(gains: Array, k: int) -> Array:
    """1 where an input has one of the k largest gains of its example, and a positive one; the first ones of equals."""
    chosen, largest = np.zeros_like(gains), np.argsort(-gains, axis=1, kind="stable")[:, :k]
    np.put_along_axis(chosen, largest, 1.0, axis=1)
    return np.asarray(chosen * (gains > 0))


def refuse_constant(x: Array, names: Sequence[str] = ()) -> None:
    """An error if a feature is the same in every row, as an intercept is."""
    constant = np.ptp(x, axis=0) <= 1e-12 * np.abs(x).max(axis=0)
    if len(x) > 1 and constant.any():
        place = int(np.argmax(constant))
        name = names[place] if names else f"in column {place}"
        raise ValueError(f"the feature {name} is constant, {x[0, place]:g} in every row; leave it out")


def _matrix(name: str, values: Any) -> Array:
    matrix = np.asarray(values, dtype=np.float64)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"{name} must be (N, D), one row an example, got shape {matrix.shape}")
    if not np.isfinite(matrix).all():
        row, column = np.argwhere(~np.isfinite(matrix))[0]
        raise ValueError(f"{name} must be finite, got {matrix[row, column]} in row {row}, column {column}")
    return matrix
