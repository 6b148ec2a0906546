r"""Certified data-independent Rényi cost of one Laplace noisy max answer (LNMax).

As for Gaussian noise the cost is at most sup_{a,b} D_alpha(R(a, b) || R(a - s, b + s)), s = 1/scale, with the three
outcomes of scores a + Lap(1), b + Lap(1) and 0; docs/accounting.md has the proof, the bounds outside the searched box
and those of the second derivatives. Where the search is too long, what is known of the histogram stands.
"""

import numpy as np
from numpy.typing import NDArray

from accounting.branch_and_bound import Geometry, divergence, excess, supremum

Array = NDArray[np.float64]

# Rounding of log R_k and its slopes, which are sums of a few positive exponentials.
LOG_ERROR = 1e-11
# Outside these bounds of s = 1/scale and of 2 s (alpha - 1) the search is not worth its time.
SMALLEST_SHIFT = 0.009
LARGEST_SHIFT = 3.0
LARGEST_TILT = 8.0
# Relative excess allowed: the remainder of a cell does not shrink with s, so small s is searched less finely.
TOLERANCE, TOLERANCE_TIMES_SHIFT = 0.006, 3e-4


def _exp_excess(x: Array) -> Array:
    """e^x - 1 - x >= 0, without cancellation near 0 (a series with remainder below 1e-17 of it)."""
    y = np.clip(x, -0.02, 0.02)
    near = y * y / 2 * (1 + y / 3 * (1 + y / 4 * (1 + y / 5 * (1 + y / 6 * (1 + y / 7 * (1 + y / 8))))))
    return np.where(np.abs(x) < 0.02, near, np.expm1(x) - x)


def laplace_mechanism(shift: float, orders: Array) -> Array:
    """D_alpha of Lap(1) from Lap(1) + shift (Mironov 2017, Proposition 6):

    (1/beta) log(alpha/(2 alpha - 1) e^(beta shift) + beta/(2 alpha - 1) e^(-alpha shift)), beta = alpha - 1, at most
    shift. For small shifts 1 is taken out of the logarithm's argument by hand, since rounding would eat the rest.
    """
    beta, whole = orders - 1, 2 * orders - 1
    far = np.logaddexp(np.log(orders / whole) + beta * shift, np.log(beta / whole) - orders * shift)
    x = np.minimum(beta * shift, 1.0)
    near = np.log1p((orders * _exp_excess(x) + beta * _exp_excess(-orders * shift)) / whole)
    return np.minimum(np.where(beta * shift < 1.0, near, far) / beta, shift)


def randomized_response(epsilon: float, orders: Array) -> Array:
    """D_alpha of the two laws of a bit told truly with odds e^epsilon, at most epsilon.

    Every epsilon-DP pair is a post-processing of this one (Kairouz, Oh and Viswanath 2015, Theorem 10 of arXiv
    1311.0776).
    """
    beta = orders - 1
    far = np.logaddexp(orders * epsilon, -beta * epsilon) - np.logaddexp(0.0, epsilon)
    true, x = 1 / (1 + np.exp(-epsilon)), np.minimum(beta * epsilon, 1.0)
    near = np.log1p(true * _exp_excess(x) + (1 - true) * _exp_excess(-x) + np.tanh(epsilon / 2) * x)
    return np.minimum(np.where(beta * epsilon < 1.0, near, far) / beta, epsilon)


def laplace_bound(scale: float, orders: Array) -> Array:
    """What is known of LNMax without looking at the argmax: the smaller of the noisy histogram, where two counts move
    by 1 each, and of randomized response of 2/scale."""
    return np.minimum(2 * laplace_mechanism(1.0 / scale, orders), randomized_response(2.0 / scale, orders))


def _tail(x: Array) -> Array:
    """Pr[Lap(1) <= -x]."""
    return np.where(x >= 0, 0.5 * np.exp(-np.abs(x)), 1 - 0.5 * np.exp(-np.abs(x)))


def _difference_tail(x: Array) -> Array:
    """Pr[Lap(1) - Lap(1) > x] = e^-x (1 + x/2)/2 for x >= 0."""
    y = np.abs(x)
    rare = 0.5 * np.exp(-y) * (1 + y / 2)
    return np.where(x >= 0, rare, 1 - rare)


def _wins(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """(log W, d log W/da, d log W/db), W = Pr[a + Lap > max(b + Lap, 0)] = int_0^inf p(x - a) F(x - b) dx, exactly.

    The line is cut at a and b where they are positive; no piece loses more than a bit by its subtraction.
    """
    first, second = np.maximum(np.minimum(a, b), 0.0), np.maximum(np.maximum(a, b), 0.0)
    length = second - first
    below_both = 0.125 * (np.exp(2 * first - a - b) - np.exp(np.where(first > 0, -a - b, 2 * first - a - b)))
    b_first = 0.5 * (np.exp(np.minimum(second - a, 0.0)) - np.exp(np.minimum(first - a, 0.0)))
    between_b = b_first - 0.25 * np.exp(-np.abs(a - b)) * length
    flat = 0.25 * np.exp(-np.abs(a - b)) * length
    above = 0.5 * np.exp(a - second) - 0.125 * np.exp(a + b - 2 * second)
    w = below_both + np.where(a > b, np.where(a > 0, between_b, 0.0), flat) + above
    diagonal = below_both + flat + 0.125 * np.exp(a + b - 2 * second)
    axis = 0.5 * np.exp(-np.abs(a)) * _tail(b)
    return np.log(w), (axis + diagonal) / w, -diagonal / w


def _outcomes(a: Array, b: Array) -> tuple[Array, Array]:
    """log probabilities (N, 3) and gradients (N, 3, 2), in the order of :func:`accounting.wedge.outcomes`."""
    log_i, i_a, i_b = _wins(a, b)
    log_j, j_b, j_a = _wins(b, a)
    none_a, none_b = _tail(a), _tail(b)
    log_p = np.stack([log_i, log_j, np.log(none_a) + np.log(none_b)], axis=1)
    slope_a, slope_b = -0.5 * np.exp(-np.abs(a)) / none_a, -0.5 * np.exp(-np.abs(b)) / none_b
    pairs = [np.stack(pair, axis=1) for pair in ((i_a, i_b), (j_a, j_b), (slope_a, slope_b))]
    return log_p, np.stack(pairs, axis=1)


def _locate(shift: float, points: Array, half: float) -> Geometry:
    a, b = points[:, 0], points[:, 1]
    log_p, grad = _outcomes(a, b)
    log_q, grad_q = _outcomes(a - shift, b + shift)
    # second derivatives of log R in [-4, 0], |d|^2 <= 2 half^2; slopes of f at most 4 sqrt 2 shift, |d| <= sqrt 2 half
    remainder = np.full(len(points), min(4 * half * half, 16 * shift * half) + LOG_ERROR)
    return Geometry(log_p, grad, log_p - log_q, grad - grad_q, remainder)


def _locate_two(shift: float, points: Array, half: float) -> Geometry:
    """Two classes: Pr[difference > -t] and its complement, t moving to t - 2 shift."""

    def law(t: Array) -> tuple[Array, Array]:
        p = np.stack([_difference_tail(-t), _difference_tail(t)], axis=1)
        density = 0.25 * np.exp(-np.abs(t)) * (1 + np.abs(t))
        return np.log(p), (np.stack([density, -density], axis=1) / p)[..., None]

    log_p, grad = law(points[:, 0])
    log_q, grad_q = law(points[:, 0] - 2 * shift)
    # second derivatives of log R in [-2, 0] along one count, |d| <= half; slopes of f at most 4 shift
    remainder = np.full(len(points), min(half * half, 8 * shift * half) + LOG_ERROR)
    return Geometry(log_p, grad, log_p - log_q, grad - grad_q, remainder)


def _two_classes(shift: float, alpha: Array) -> tuple[Array, Array]:
    """(upper bound, a value that is attained) of the two-class divergence, (O,) each."""
    beta = alpha - 1
    t = np.linspace(-2, 2 + 2 * shift, 400)[:, None]
    there = _locate_two(shift, t, 0.0)
    mass = (np.exp(there.log_p)[:, :, None] * excess(there.ratio[:, :, None], beta)).sum(axis=1)
    attained = divergence(mass.max(axis=0), beta)
    reach = 4 + 2 * shift
    while True:
        # t >= reach: the second outcome is rare; t <= -reach: the first is, and it is at most e^{2s} rarer.
        rare = _difference_tail(np.array(reach - 2 * shift))
        above = np.expm1(-beta * np.log1p(-rare)) + rare
        below = np.exp(2 * shift * beta) * _difference_tail(np.array(reach))
        floor = divergence(np.maximum(above, below), beta)
        if np.all(floor <= attained) or reach > 60:
            break
        reach += 1
    edge = int(np.ceil(reach))
    centres = np.arange(-edge, edge, dtype=float)[:, None] + 0.5
    member = np.ones((len(centres), len(alpha)), dtype=bool)
    bound = supremum(lambda m, half: _locate_two(shift, m, half), centres, member, alpha, floor, tolerance=1e-3)
    return bound, attained


def _region(shift: float, alpha: float, two: float, attained: float, one: float) -> tuple[int, int, float]:
    """(L, U, bound), as for Gaussian noise; ``one`` is the RDP of a single Laplace mechanism of this shift."""
    beta, s = alpha - 1, shift
    ratio = float(np.exp(2 * s * beta))

    def div(mass: float) -> float:
        return float(np.log1p(mass) / beta)

    def low_and_corner(edge: int) -> tuple[float, float]:
        rare, rarest = 0.5 * np.exp(s - edge), 0.5 * np.exp(-s - edge)
        a_low = np.expm1(beta * (one - np.log1p(-rarest))) + ratio * 0.5 * np.exp(-edge)
        b_low = np.expm1(beta * (one - np.log1p(-rare))) + 0.5 * np.exp(-edge)
        corner = np.expm1(beta * (two - np.log1p(-rare))) + ratio * 0.25 * np.exp(-2 * edge)
        return max(div(a_low), div(b_low)), div(corner)

    def strips(edge: int, far: int) -> float:
        lost = float(_difference_tail(np.array(far - edge - 2 * s))) + 0.5 * float(np.exp(s - far))
        if not lost < 1:
            return np.inf
        rare = float(_difference_tail(np.array(far - edge)))
        a_high = np.expm1(-beta * np.log1p(-lost)) + ratio * 0.5 * np.exp(-far) + rare
        b_high = ratio * (rare + 0.5 * np.exp(-far))
        return max(div(a_high), div(b_high))

    edge = 4 + int(np.ceil(s))
    while edge < 60:
        low, corner = low_and_corner(edge)
        if low <= attained and corner <= two * 1.001:
            break
        edge += 1
    far = edge + 4 + int(np.ceil(2 * s))
    while far < 150 and strips(edge, far) > attained:
        far += 1
    low, corner = low_and_corner(edge)
    return edge, far, max(low, corner, strips(edge, far), 0.0)


@np.errstate(over="ignore")
def laplace_supremum(scale: float, orders: Array) -> Array:
    """Upper bounds of the Rényi cost of one LNMax answer, (O,) -> (O,); at most :func:`laplace_bound`, so 2/scale.

    Args:
        scale: b of Lap(b) on each count, in votes.
        orders: Rényi orders above 1.
    """
    orders, shift = np.asarray(orders, dtype=float), 1.0 / scale
    result = laplace_bound(scale, orders)
    todo = np.flatnonzero(2 * shift * (orders - 1) <= LARGEST_TILT)
    if not len(todo) or not SMALLEST_SHIFT <= shift <= LARGEST_SHIFT:
        return result
    alpha = orders[todo]
    two, attained = _two_classes(shift, alpha)
    one = laplace_mechanism(1.0 / scale, alpha)
    rows = zip(alpha.tolist(), two.tolist(), attained.tolist(), one.tolist(), strict=True)
    near, far, floor = (np.array(c) for c in zip(*[_region(shift, *row) for row in rows], strict=True))
    axis = np.arange(-near.max(), far.max()) + 0.5
    centres = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    a, b = centres[:, :1], centres[:, 1:]
    member = (a > -near) & (b > -near) & (a < far) & (b < far) & ~((a > near) & (b > near))
    keep = member.any(axis=1)
    bound = supremum(
        lambda m, half: _locate(shift, m, half),
        centres[keep],
        member[keep],
        alpha,
        floor.astype(float),
        max_cells=1_500_000,
        tolerance=max(TOLERANCE, TOLERANCE_TIMES_SHIFT / shift),
    )
    result[todo] = np.minimum(bound, result[todo])
    return result
