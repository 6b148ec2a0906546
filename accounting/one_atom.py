r"""The one-atom bound: the Rényi cost of one noisy argmax from a single number, the chance q of another winner.

PRIVATE: what it is evaluated at is computed from votes; no number here may be published.

With i* the winner, q = Pr[another wins] and mu = sqrt(2)/sigma, the answer post-processes the pair N(0,1), N(mu,1), and

    e^{(alpha-1) B(q)} = max over (a, b), Phi(a) + Phi(-b) = q, of (1-q)^alpha (1-q')^{1-alpha} + N,
    q' = Phi(a-mu) + Phi(mu-b),   N = e^{alpha(alpha-1)mu^2/2} (Phi(a + (alpha-1)mu) + Phi(-b - (alpha-1)mu)),

bounds D_alpha from these votes to every neighbour (docs/accounting.md, "The one-atom bound"). B is non-decreasing in
q and at most alpha/sigma^2.

The maximum is bounded from above without a search. (q, q') -> (1-q)^alpha (1-q')^{1-alpha} is jointly convex, and N,
the value of a linear program, is jointly concave, so it lies below the planes that its multipliers give. The largest
sum of the convex term and the lower envelope of planes is attained where planes meet, which moves linearly with q: a
convex function of q, which the chord between its values at the ends of an interval of q bounds.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri_exp

from accounting.gaussian_supremum import gaussian_bound
from accounting.suprema import checked_orders

Array = NDArray[np.float64]

# Rounding, relative to the terms that are added: far above what 53 bits and a few hundred operations lose.
ROUNDING = 1e-12
# The share of q in the lower tail, as logits: the planes' points of tangency.
_SHARES = np.concatenate([np.arange(-9.0, -3.0), np.arange(-3.0, 6.0, 0.16), np.arange(6.0, 15.5, 0.75)])
# How far down in log q a table goes, by what is asked; the deepest value serves below.
_DEPTHS = (-60.0, -1000.0, -20000.0)
_SQRT2 = math.sqrt(2.0)


@dataclass(frozen=True)
class Table:
    """log(e^{(alpha-1) B} - 1) from above at nodes of q: (K,) log q, ascending, and (K, O), non-decreasing."""

    log_q: Array
    log_excess: Array


def nodes(deepest: float) -> Array:
    """log q of the table's nodes, ascending to 1 - 1e-6: 0.05 apart in the logit of q, 1.5% apart where q is small."""
    low = [-5.0]
    while low[-1] > deepest:
        low.append(low[-1] * 1.015)
    logits = np.concatenate([low[:0:-1], np.arange(-5.0, 14.02, 0.05)])
    return -np.logaddexp(0.0, -logits)


def _tails(log_q: Array, mu: float, beta: Array) -> tuple[Array, Array, Array, Array, Array]:
    """At each q's tangency points: log r(a), log r(b)/r(a), q', (K, S) each, and log N, log r(a)^-beta, (K, S, O) each.

    r = p'/p is the likelihood ratio; the last point has an empty upper tail (b = inf).
    """
    lower = np.concatenate([-np.logaddexp(0.0, -_SHARES), [0.0]]) + log_q[:, None]
    upper = -np.logaddexp(0.0, _SHARES) + log_q[:, None]
    a = ndtri_exp(lower)
    b = np.concatenate([-ndtri_exp(upper), np.full((len(log_q), 1), np.inf)], axis=1)
    log_ratio = mu * a - mu * mu / 2
    q_moved = np.exp(log_ndtr(a - mu)) + np.exp(log_ndtr(mu - b))
    tilt = beta * mu
    log_outside = np.logaddexp(log_ndtr(a[..., None] + tilt), log_ndtr(-b[..., None] - tilt))
    log_outside += (beta + 1) * beta * mu * mu / 2
    return log_ratio, mu * (b - a), q_moved, log_outside, -beta * log_ratio[..., None]


@np.errstate(over="ignore", divide="ignore", invalid="ignore", under="ignore")
def _gaussian_excess(log_mid: Array, log_ends: Array, mu: float, alpha: Array) -> Array:
    """log(e^{(alpha-1)B} - 1) from above at the ends of intervals: (K,), (K, 2) -> (K, 2, O), convex in q between."""
    beta = alpha - 1
    log_ratio, width, q_moved, log_n, log_power = _tails(log_mid, mu, beta)
    scale = np.maximum(log_n.max(axis=1, keepdims=True), 0.0)
    n, power = np.exp(log_n - scale), np.exp(log_power - scale)
    # The multipliers: c r + r^{1-alpha} takes the same value, lambda, at both ends of the interval.
    quotient = -np.expm1(-beta * width[..., None]) / np.expm1(width)[..., None]
    quotient[:, -1] = 0.0
    slope = power * quotient * np.exp(-log_ratio)[..., None]
    level = power * (1 + quotient)
    q_mid, q_ends = np.exp(log_mid)[:, None, None], np.exp(log_ends)
    # q' is largest for the upper tail alone: a concave function of q, below its tangent.
    b_only = -ndtri_exp(log_mid)
    q_most = np.exp(log_ndtr(mu - b_only))[:, None]
    ratio_b = np.exp(mu * b_only - mu * mu / 2)[:, None]
    result = []
    for end in range(2):
        q = q_ends[:, end, None, None]
        shift = q - q_mid
        intercept = n + level * shift + slope * q_moved[..., None]
        crossing = np.diff(intercept, axis=1) / np.diff(slope, axis=1)
        most = (q_most + ratio_b * shift[:, 0])[:, None, :]
        crossing = np.where(np.isfinite(crossing), crossing, most)
        # q' falls from plane to plane; where rounding or a far end breaks the order any ordered breakpoints do.
        crossing = np.clip(np.minimum.accumulate(crossing, axis=1), 0.0, most)
        points = np.concatenate([np.broadcast_to(most, crossing[:, :1].shape), crossing], axis=1)
        before = (
            np.concatenate([intercept[:, :1], intercept[:, :-1]], axis=1),
            np.concatenate([slope[:, :1], slope[:, :-1]], axis=1),
        )
        plane = np.maximum(intercept - slope * points, before[0] - before[1] * points)
        log_inside = (beta + 1) * np.log1p(-q) - beta * np.log1p(-points)
        total = np.where(scale > 0, np.exp(log_inside - scale) - np.exp(-scale), np.expm1(log_inside)) + plane
        margin = ROUNDING * ((beta + 1) * (q + points) * np.exp(-scale) + intercept + before[0])
        log_total = np.log((total + margin).max(axis=1)) + scale[:, 0]
        result.append(np.where(np.isnan(log_total), np.inf, log_total))
    return np.stack(result, axis=1)


@lru_cache(maxsize=8)
def gaussian_table(sigma: float, orders: tuple[float, ...], deepest: float = -60.0) -> Table:
    """The table of one noise, down to log q = ``deepest``: a pure function of its arguments."""
    alpha = np.array(orders)
    log_q = nodes(deepest)
    mids = 0.5 * (log_q[1:] + log_q[:-1])
    ends = np.stack([log_q[:-1], log_q[1:]], axis=1)
    parts = [
        _gaussian_excess(mids[k : k + 16], ends[k : k + 16], _SQRT2 / sigma, alpha) for k in range(0, len(mids), 16)
    ]
    excess = np.concatenate(parts)
    values = np.concatenate([excess[:1, 0], np.maximum(excess[:-1, 1], excess[1:, 0]), excess[-1:, 1]])
    return Table(log_q, np.maximum.accumulate(values, axis=0))


def _interpolated(table: Table, log_q: Array) -> Array:
    """log excess at (Q,) log q: linear in q between nodes; the first node's below it, inf above the last."""
    at = np.clip(np.searchsorted(table.log_q, log_q, side="left"), 1, len(table.log_q) - 1)
    low, high = table.log_q[at - 1], table.log_q[at]
    with np.errstate(divide="ignore"):
        share = np.expm1(np.clip(log_q, low, high) - low) / np.expm1(high - low)
        log_up, log_down = np.log(share)[:, None], np.log1p(-share)[:, None]
    result = np.logaddexp(log_down + table.log_excess[at - 1], log_up + table.log_excess[at])
    result[log_q > table.log_q[-1]] = np.inf
    return result


def log_excess(log_q: object, sigma: float, orders: object) -> Array:
    """log(e^{(alpha-1) B(q)} - 1), (Q,) x (O,) -> (Q, O), from above; what :func:`bound` is made of."""
    alpha = checked_orders(orders)
    values = np.atleast_1d(np.asarray(log_q, dtype=float))
    cap = (alpha - 1) * gaussian_bound(_SQRT2 / sigma, alpha)
    log_cap = np.where(cap > 30, cap, np.log(np.expm1(np.minimum(cap, 30.0))))
    finite = values[np.isfinite(values)]
    deepest = next((d for d in _DEPTHS if not len(finite) or finite.min() > d), _DEPTHS[-1])
    table = gaussian_table(float(sigma), tuple(alpha.tolist()), deepest)
    excess = np.minimum(_interpolated(table, values), log_cap)
    excess[np.isneginf(values)] = -np.inf
    return excess


def bound(log_q: object, sigma: float, orders: object) -> Array:
    """B(q), (Q,) x (O,) -> (Q, O): D_alpha of the answer from these votes to any neighbour, from above.

    Args:
        log_q: log of the chance that another class wins than the plurality's, or of any upper bound of it.
        sigma: noise on each count.
        orders: (O,) above 1.
    """
    alpha = checked_orders(orders)
    return np.logaddexp(0.0, log_excess(log_q, sigma, alpha)) / (alpha - 1)
