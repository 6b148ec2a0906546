r"""Certified data-independent Rényi cost of one Gaussian argmax answer and of one threshold test.

Theorem. Let v' = v - e_i + e_j and let P, P' be the laws of argmax_k v_k + N(0, sigma^2) at v and v'. With s = 1/sigma

    D_alpha(P || P') <= g_sigma(alpha) = sup_{a,b} D_alpha(R(a, b) || R(a - s, b + s)),

R(a, b) the law of "i wins, j wins, another wins" for scores N(a, 1), N(b, 1) and 0 (docs/accounting.md has the proof,
the bounds of the unbounded directions used here, and the same for the test: sup_t D_alpha(Bern Phi(t) || Bern
Phi(t + 1/sigma_T))). The functions here return proven upper bounds, about 0.2% above the supremum, or less.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from accounting.branch_and_bound import Geometry, divergence, supremum
from accounting.wedge import outcomes

Array = NDArray[np.float64]

# Absolute error allowed for log R_k and its slopes: quadrature loses below 1e-13, rounding below 1e-11.
LOG_ERROR = 1e-9
# Where certification is not worth its time (or rounding would show) the Gaussian bound is returned instead.
SMALLEST_SHIFT = 1e-5
LARGEST_TILT = 6.0  # of (alpha - 1)/sigma for an argmax: 0.94 of the Gaussian bound by then
LARGEST_BIT_TILT = 60.0  # the same for a bit, whose search has one dimension
_SQRT2 = float(np.sqrt(2.0))


def gaussian_bound(shift: float, orders: Array) -> Array:
    """alpha shift^2 / 2: D_alpha of N(0, 1) from N(shift, 1), which every outcome law here post-processes."""
    return orders * shift * shift / 2


def _certifiable(shift: float, orders: Array, largest_tilt: float) -> NDArray[np.bool_]:
    return (shift >= SMALLEST_SHIFT) & ((orders - 1) * shift <= largest_tilt)


def _bit_outcomes(t: Array) -> tuple[Array, Array]:
    log_p = np.stack([log_ndtr(t), log_ndtr(-t)], axis=1)
    log_phi = -0.5 * t * t - 0.5 * np.log(2 * np.pi)
    return log_p, np.stack([np.exp(log_phi - log_p[:, 0]), -np.exp(log_phi - log_p[:, 1])], axis=1)[..., None]


def _locate_bit(shift: float, points: Array, half: float) -> Geometry:
    log_p, grad = _bit_outcomes(points[:, 0])
    log_q, grad_q = _bit_outcomes(points[:, 0] + shift)
    remainder = np.full(len(points), half * half * min(shift, 0.5) + LOG_ERROR)
    return Geometry(log_p, grad, log_p - log_q, grad - grad_q, remainder)


@np.errstate(over="ignore")
def bit_supremum(shift: float, orders: Array) -> Array:
    """Upper bounds of sup_t D_alpha(Bern(Phi(t)) || Bern(Phi(t + shift))), one per order, (O,) -> (O,).

    It covers both directions (t -> -t - shift exchanges them) and every smaller move of the statistic, real or
    integer (D_alpha(p || q) grows as q moves away from p). At most alpha shift^2 / 2.
    """
    orders = np.asarray(orders, dtype=float)
    textbook = gaussian_bound(shift, orders)
    result = textbook.copy()
    todo = np.flatnonzero(_certifiable(shift, orders, LARGEST_BIT_TILT))
    if not len(todo):
        return result
    alpha, beta = orders[todo], orders[todo] - 1
    attained = divergence(_bit_excess(shift, beta), beta)
    reach, floor = np.zeros(len(todo)), np.zeros(len(todo))
    for k in range(len(todo)):
        for end in range(3, 400):
            rare_below = np.exp(alpha[k] * beta[k] * shift**2 / 2 + log_ndtr(beta[k] * shift - end))
            rare_above = np.expm1(-beta[k] * log_ndtr(end - shift)) + ndtr(-end)
            tail = divergence(np.array([max(rare_below, rare_above)]), beta[k : k + 1])[0]
            if tail <= attained[k]:
                break
        reach[k], floor[k] = end, max(tail, 0.0)
    edge = int(reach.max())
    centres = np.arange(-edge, edge, dtype=float)[:, None] + 0.5
    member = np.asarray(np.abs(centres) < reach)
    bound = supremum(lambda m, half: _locate_bit(shift, m, half), centres, member, alpha, floor)
    result[todo] = np.minimum(bound, textbook[todo])
    return result


def _bit_excess(shift: float, beta: Array) -> Array:
    """The largest e^{beta D} - 1 over a few hundred locations: attained, so a lower bound of the supremum."""
    t = np.linspace(-6 - beta.max() * shift, 6, 400)[:, None]
    log_p, _ = _bit_outcomes(t[:, 0])
    log_q, _ = _bit_outcomes(t[:, 0] + shift)
    f = (log_p - log_q)[:, :, None]
    with np.errstate(over="ignore"):
        mass = (np.exp(log_p)[:, :, None] * (np.expm1(beta * f) + beta * np.expm1(-f))).sum(axis=1)
    return np.asarray(mass.max(axis=0))


def _locate_argmax(shift: float, points: Array, half: float) -> Geometry:
    a, b = points[:, 0], points[:, 1]
    log_p, grad = outcomes(a, b)
    log_q, grad_q = outcomes(a - shift, b + shift)
    # |d|^2 = 2 half^2 at a corner and the second derivative is at most min(1, 2 sqrt 2 shift).
    remainder = np.full(len(points), half * half * min(2 * _SQRT2 * shift, 1.0) + LOG_ERROR)
    return Geometry(log_p, grad, log_p - log_q, grad - grad_q, remainder)


def _argmax_region(shift: float, alpha: float, two_classes: float, attained: float) -> tuple[int, int, float]:
    """(L, U, bound): outside {a, b in [-L, U], not both above L} the divergence is at most ``bound``.

    ``two_classes`` bounds the two-class limit a, b -> inf; ``attained`` is a divergence that some pair attains.
    """
    beta, s = alpha - 1, shift
    gauss = alpha * beta * s * s  # log of E (p/p')^alpha of the two scores together

    def div(mass: float) -> float:
        return float(divergence(np.array([mass]), np.array([beta]))[0])

    def tilted(x: float) -> float:
        return float(np.exp(gauss + log_ndtr(x)))

    def low_and_corner(edge: int) -> tuple[float, float]:
        a_low = np.expm1(gauss / 2 - beta * log_ndtr(edge + s)) + tilted(beta * s - edge)
        b_low = np.expm1(gauss / 2 - beta * log_ndtr(edge - s)) + ndtr(-edge)
        none_left = np.exp(gauss + log_ndtr(-edge - beta * s) + log_ndtr(beta * s - edge))
        corner = np.expm1(beta * (two_classes - log_ndtr(edge - s))) + none_left
        return max(div(a_low), div(b_low)), div(corner)

    def strips(edge: int, far: int) -> float:
        remaining = 1 - ndtr((edge - far + 2 * s) / _SQRT2) - ndtr(s - far)
        if not remaining > 0:
            return np.inf
        a_high = np.expm1(-beta * np.log(remaining)) + tilted(-far - beta * s) + ndtr((edge - far) / _SQRT2)
        b_high = tilted((edge - far + 2 * beta * s) / _SQRT2) + tilted(beta * s - far)
        return max(div(a_high), div(b_high))

    edge = 3
    while edge < 400:
        low, corner = low_and_corner(edge)
        if low <= attained and corner <= two_classes * 1.0003:
            break
        edge += 1
    far = edge + 1
    while far < 2000 and strips(edge, far) > attained:
        far += 1
    low, corner = low_and_corner(edge)
    return edge, far, max(low, corner, strips(edge, far), 0.0)


@np.errstate(over="ignore")
def argmax_supremum(sigma: float, orders: Array) -> Array:
    """Upper bounds of g_sigma(alpha), the Rényi cost of one GNMax answer, (O,) -> (O,); at most alpha / sigma^2.

    Args:
        sigma: standard deviation of the noise on each count, in votes.
        orders: Rényi orders above 1.
    """
    orders = np.asarray(orders, dtype=float)
    shift = 1.0 / sigma
    textbook = gaussian_bound(_SQRT2 * shift, orders)
    result = textbook.copy()
    todo = np.flatnonzero(_certifiable(shift, orders, LARGEST_TILT))
    if not len(todo):
        return result
    alpha, beta = orders[todo], orders[todo] - 1
    two_classes = bit_supremum(_SQRT2 * shift, alpha)
    attained = divergence(_bit_excess(_SQRT2 * shift, beta), beta)
    regions = [
        _argmax_region(shift, *row) for row in zip(alpha.tolist(), two_classes.tolist(), attained.tolist(), strict=True)
    ]
    near, far, floor = (np.array(column) for column in zip(*regions, strict=True))
    axis = np.arange(-near.max(), far.max()) + 0.5
    centres = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    a, b = centres[:, :1], centres[:, 1:]
    member = (a > -near) & (b > -near) & (a < far) & (b < far) & ~((a > near) & (b > near))
    keep = member.any(axis=1)
    bound = supremum(
        lambda m, half: _locate_argmax(shift, m, half), centres[keep], member[keep], alpha, floor.astype(float)
    )
    result[todo] = np.minimum(bound, textbook[todo])
    return result
