r"""Certified suprema of Rényi divergences between outcome laws that are Gaussian (or log-concave) shifts.

For outcomes k with probabilities R_k(m) at a location m and R'_k(m) = R_k(m - shift) at the shifted one, and
beta = alpha - 1,

    e^{beta D_alpha} - 1 = sum_k R_k h(f_k),   f_k = log(R_k / R'_k),   h(f) = e^{beta f} - 1 + beta (e^{-f} - 1) >= 0.

h is convex with minimum 0 at 0, so nothing cancels. On a cell with centre m0 and half side r write d = m - m0:

* log R_k is concave:  R_k(m) <= e^{l(d)},  l(d) = log R_k(m0) + g.d,  g its gradient;
* f_k(m) lies within rho of phi(d) = f_k(m0) + q.d,  q its gradient, rho the caller's bound of the remainder.

So the sum is at most sum_k e^{l} (h(phi) + rho max|h'|), and a second-order Taylor bound of sum_k e^{l} h(phi), with
the second derivatives (g.d)^2 h + 2 (g.d)(q.d) h' + (q.d)^2 h'' bounded at the ends of phi's range (h and h'' are
convex, h' is monotone), bounds the cell. Cells whose bound is not within the tolerance of the best value seen are
split; what is returned is the largest bound of a cell that was not split: a proven upper bound.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Rounding of e^l h, its sums and exponentials, relative: far above what 53 bits and a few hundred operations lose.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Geometry:
    """Outcome laws at N points: shapes (N, K), (N, K, d), (N, K), (N, K, d) and the remainder (N,).

    ``remainder`` bounds |f_k(m) - phi(m - m0)| on the cell of the half side asked for, rounding of f included.
    """

    log_p: Array
    grad: Array
    ratio: Array
    ratio_grad: Array
    remainder: Array


LocateCells = Callable[[Array, float], Geometry]


def excess(ratio: Array, beta: Array) -> Array:
    """h(f) = e^{beta f} - 1 + beta (e^{-f} - 1), at least 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.maximum(np.expm1(beta * ratio) + beta * np.expm1(-ratio), 0.0)


def _cell_bounds(cells: Geometry, index: NDArray[np.int64], beta: Array, half: float) -> tuple[Array, Array]:
    """(value at the centre, upper bound on the cell) of sum_k R_k h(f_k) for the pairs (index, beta), shape (M,)."""
    p = np.exp(cells.log_p)[index]
    g, q = cells.grad[index], cells.ratio_grad[index]
    f, rho = cells.ratio[index], cells.remainder[index][:, None]
    b = beta[:, None]
    up, down = np.exp(b * f), np.exp(-f)
    value = excess(f, b)
    slope = b * (up - down)
    centre = (p * value).sum(axis=1)
    linear = half * np.abs((p[..., None] * (g * value[..., None] + q * slope[..., None])).sum(axis=1)).sum(axis=1)
    g_reach, q_reach = half * np.abs(g).sum(axis=2), half * np.abs(q).sum(axis=2)
    reach = q_reach + rho
    grow_up, grow_down = np.exp(b * reach), np.exp(reach)
    up_high, up_low = up * grow_up, up / grow_up
    down_high, down_low = down / grow_down, down * grow_down
    value_max = np.maximum(excess(f + reach, b), excess(f - reach, b))
    slope_max = np.maximum(np.abs(b * (up_high - down_high)), np.abs(b * (up_low - down_low)))
    curve_max = b * np.maximum(b * up_high + down_high, b * up_low + down_low)
    quadratic = 0.5 * (g_reach**2 * value_max + 2 * g_reach * q_reach * slope_max + q_reach**2 * curve_max)
    spread = (p * np.exp(g_reach) * (quadratic + rho * slope_max)).sum(axis=1)
    bound = (centre + linear + spread) * (1 + ROUNDING)
    return centre, np.where(np.isnan(bound), np.inf, bound)


def divergence(excess_mass: Array, beta: Array) -> Array:
    """D_alpha = log(1 + sum) / (alpha - 1)."""
    return np.log1p(excess_mass) / beta


def supremum(
    locate: LocateCells,
    centres: Array,
    member: NDArray[np.bool_],
    orders: Array,
    floor: Array,
    half: float = 0.5,
    tolerance: float = 0.002,
    max_cells: int = 400_000,
) -> Array:
    """Upper bounds of sup D_alpha over the union of cells, one per order; inf where ``max_cells`` did not suffice.

    Args:
        locate: the outcome laws at (N, d) points for cells of a half side.
        centres: (N, d) first cells of half side ``half``.
        member: (N, O) whether a cell belongs to the region of an order; orders do not influence each other.
        orders: (O,) above 1.
        floor: (O,) divergences that are attained (or are bounds the result includes anyway): cells below are dropped.
        tolerance: relative to the divergence; the result exceeds the largest value seen by no more than this.
        max_cells: per order.
    """
    beta = orders - 1.0
    best = floor.copy()
    result = floor.copy()
    spent = np.zeros(len(orders), dtype=np.int64)
    d = centres.shape[1]
    offsets = np.stack(np.meshgrid(*[[-0.5, 0.5]] * d, indexing="ij"), axis=-1).reshape(-1, d)
    while len(centres):
        value = np.full(member.shape, -np.inf)
        bound = np.full(member.shape, -np.inf)
        for start in range(0, len(centres), 4096):
            part = slice(start, start + 4096)
            geometry = locate(centres[part], half)
            index, column = np.nonzero(member[part])
            with np.errstate(over="ignore", invalid="ignore", under="ignore"):
                low, high = _cell_bounds(geometry, index, beta[column], half)
            value[start + index, column] = divergence(low, beta[column])
            bound[start + index, column] = divergence(high, beta[column])
        best = np.maximum(best, value.max(axis=0, where=np.isfinite(value), initial=-np.inf))
        spent += member.sum(axis=0)
        open_cell = member & (bound > best * (1 + tolerance))
        result = np.maximum(result, bound.max(axis=0, where=member & ~open_cell, initial=-np.inf))
        gave_up = open_cell.any(axis=0) & (spent + len(offsets) * open_cell.sum(axis=0) > max_cells)
        result[gave_up] = np.inf
        open_cell[:, gave_up] = False
        keep = open_cell.any(axis=1)
        centres = (centres[keep][:, None, :] + half * offsets).reshape(-1, d)
        member = np.repeat(open_cell[keep], len(offsets), axis=0)
        half *= 0.5
    return result
