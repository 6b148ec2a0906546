r"""The one-atom bound: the Rényi cost of one query from a single number, the chance q of another winner.

PRIVATE: what it is evaluated at is computed from votes; no number here may be published.

The answer post-processes a pair (p, p') of laws on the line; r = p'/p. With i* the winner and q = Pr[another wins],

    e^{(alpha-1) B(q)} = max of (1-q)^alpha (1-q')^{1-alpha} + N

over all pairs of a lower and an upper tail of r's law of p-mass q together, q' their p'-mass and N their integral of
p^alpha p'^{1-alpha}, bounds D_alpha from these votes to every neighbour (docs/accounting.md, "The one-atom bound").
B is non-decreasing in q and at most D_alpha(p, p'), which is alpha/sigma^2 for Gaussian noise.

The maximum is bounded from above without a search. (q, q') -> (1-q)^alpha (1-q')^{1-alpha} is jointly convex, and N,
the value of a linear program, is jointly concave, so it lies below the planes that its multipliers give. The largest
sum of the convex term and the lower envelope of planes is attained where planes meet, which moves linearly with q: a
convex function of q, which the chord between its values at the ends of an interval of q bounds.

An answer costs no more than the certified supremum over all votes either (:mod:`accounting.suprema`), so
:func:`answer_excess` is the smaller of both: still non-decreasing in q, as the supremum does not depend on it.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from accounting import outcomes, p18
from accounting.atom_pairs import GaussianPair, LaplacePair, Pair
from accounting.events import LNMax, NoisyMax, Thresholded
from accounting.suprema import checked_orders, gaussian_argmax, laplace_argmax

Array = NDArray[np.float64]

# Rounding, relative to the terms that are added: far above what 53 bits and a few hundred operations lose.
ROUNDING = 1e-12
# How far down in log q a table goes, by what is asked; the deepest value serves below.
_DEPTHS = (-60.0, -1000.0, -20000.0)


@dataclass(frozen=True)
class Table:
    """log(e^{(alpha-1) B} - 1) from above at nodes of q: (K,) log q, ascending, and (K, O), non-decreasing."""

    log_q: Array
    log_excess: Array


def pair(event: NoisyMax) -> Pair:
    """The pair that one answer post-processes: v' - v has length sqrt(2), two votes move by 1."""
    return LaplacePair(1 / event.scale) if isinstance(event, LNMax) else GaussianPair(math.sqrt(2.0) / event.sigma)


def nodes(deepest: float) -> Array:
    """log q of the table's nodes, ascending to 1 - 1e-6: 0.05 apart in the logit of q, 1% apart where q is small."""
    low = [-5.0]
    while low[-1] > deepest:
        low.append(low[-1] * 1.01)
    logits = np.concatenate([low[:0:-1], np.arange(-5.0, 14.02, 0.05)])
    return -np.logaddexp(0.0, -logits)


@np.errstate(over="ignore", divide="ignore", invalid="ignore", under="ignore")
def _interval_ends(between: Pair, log_mid: Array, log_ends: Array, alpha: Array) -> Array:
    """log(e^{(alpha-1)B} - 1) from above at the ends (K, 2) of intervals around (K,) log q, (K, 2, O).

    Before the logarithm convex between the ends.
    """
    beta = alpha - 1
    tails = between.tails(log_mid, alpha)
    scale = np.maximum(tails.log_outside.max(axis=1, keepdims=True), 0.0)
    n = np.exp(tails.log_outside - scale)
    power = np.exp(-beta * tails.log_ratio[..., None] - scale)
    # The multipliers: slope r + r^{1-alpha} takes one value, level, where either tail ends.
    width = tails.width[..., None]
    quotient = np.where(width > 0, -np.expm1(-beta * width) / np.expm1(width), beta)
    quotient[:, -1] = 0.0
    slope = power * quotient * np.exp(-tails.log_ratio)[..., None]
    level = power * (1 + quotient)
    result = []
    for end in range(2):
        q = np.exp(log_ends[:, end, None, None])
        shift = q - np.exp(log_mid)[:, None, None]
        intercept = n + level * shift + slope * tails.moved[..., None]
        # q' is at most that of the upper tail alone, a concave function of q, which lies below its tangent.
        most = (tails.most_moved[:, None] + tails.most_ratio[:, None] * shift[:, 0])[:, None, :]
        crossing = np.diff(intercept, axis=1) / np.diff(slope, axis=1)
        crossing = np.where(np.isfinite(crossing), crossing, most)
        # Crossings fall from plane to plane; where rounding breaks the order any ordered breakpoints do.
        crossing = np.clip(np.minimum.accumulate(crossing, axis=1), 0.0, most)
        points = np.concatenate([np.broadcast_to(most, crossing[:, :1].shape), crossing], axis=1)
        plane = intercept - slope * points
        plane[:, 1:] = np.maximum(plane[:, 1:], intercept[:, :-1] - slope[:, :-1] * points[:, 1:])
        size = intercept.copy()
        size[:, 1:] += intercept[:, :-1]
        log_inside = alpha * np.log1p(-q) - beta * np.log1p(-points)
        inside = np.where(scale > 0, np.exp(log_inside - scale) - np.exp(-scale), np.expm1(log_inside))
        margin = ROUNDING * tails.rounding[:, None, :] * (alpha * (q + points) * np.exp(-scale) + size)
        log_total = np.log((inside + plane + margin).max(axis=1)) + scale[:, 0]
        result.append(np.where(np.isnan(log_total), np.inf, log_total))
    return np.stack(result, axis=1)


@lru_cache(maxsize=16)
def table(between: Pair, orders: tuple[float, ...], deepest: float) -> Table:
    """The table of one noise, down to log q = ``deepest``: a pure function of its arguments."""
    alpha = np.array(orders)
    log_q = nodes(deepest)
    mids = 0.5 * (log_q[1:] + log_q[:-1])
    ends = np.stack([log_q[:-1], log_q[1:]], axis=1)
    parts = [_interval_ends(between, mids[k : k + 16], ends[k : k + 16], alpha) for k in range(0, len(mids), 16)]
    excess = np.concatenate(parts)
    values = np.concatenate([excess[:1, 0], np.maximum(excess[:-1, 1], excess[1:, 0]), excess[-1:, 1]])
    # A finite number in the place of inf, which is above the worst case as well.
    return Table(log_q, np.minimum(np.maximum.accumulate(values, axis=0), 1e300))


def _interpolated(known: Table, log_q: Array) -> Array:
    """log excess at (Q,) log q: linear in q between nodes; the first node's below it, inf above the last."""
    at = np.clip(np.searchsorted(known.log_q, log_q, side="left"), 1, len(known.log_q) - 1)
    low, high = known.log_q[at - 1], known.log_q[at]
    with np.errstate(divide="ignore"):
        share = np.expm1(np.clip(log_q, low, high) - low) / np.expm1(high - low)
        log_up, log_down = np.log(share)[:, None], np.log1p(-share)[:, None]
    result = np.logaddexp(log_down + known.log_excess[at - 1], log_up + known.log_excess[at])
    result[log_q > known.log_q[-1]] = np.inf
    return result


def log_excess(log_q: object, between: Pair, orders: object) -> Array:
    """log(e^{(alpha-1) B(q)} - 1) of one answer, (Q,) x (O,) -> (Q, O), from above; see :func:`bound`."""
    alpha = checked_orders(orders)
    values = np.atleast_1d(np.asarray(log_q, dtype=float))
    finite = values[np.isfinite(values)]
    deepest = next((d for d in _DEPTHS if not len(finite) or finite.min() > d), _DEPTHS[-1])
    known = table(between, tuple(alpha.tolist()), deepest)
    excess = np.minimum(_interpolated(known, values), _log_expm1((alpha - 1) * between.divergence(alpha)))
    excess[np.isneginf(values)] = -np.inf
    return excess


def _log_expm1(x: Array) -> Array:
    return np.where(x > 30, x, np.log(np.expm1(np.minimum(x, 30.0))))


def answer_excess(log_q: object, event: NoisyMax, orders: object) -> Array:
    """log(e^{(alpha-1) D} - 1), (Q,) x (O,) -> (Q, O), from above, D the cost of one answer at any neighbour.

    The smaller of B(q) and the supremum over all votes, whose certification takes a second for each new noise and
    order.
    """
    alpha = checked_orders(orders)
    most = laplace_argmax(event.scale, alpha) if isinstance(event, LNMax) else gaussian_argmax(event.sigma, alpha)
    return np.minimum(log_excess(log_q, pair(event), alpha), _log_expm1((alpha - 1) * most))


def bound(log_q: object, sigma: float, orders: object) -> Array:
    """B(q) of GNMax, (Q,) x (O,) -> (Q, O): D_alpha of the answer from these votes to any neighbour, from above.

    Args:
        log_q: log of the chance that another class wins than a fixed one, the plurality's; or any upper bound of it.
        sigma: standard deviation of the noise on each count.
        orders: (O,) above 1.
    """
    alpha = checked_orders(orders)
    return np.logaddexp(0.0, log_excess(log_q, GaussianPair(math.sqrt(2.0) / sigma), alpha)) / (alpha - 1)


def log_power_excess(f: Array, beta: Array) -> Array:
    """log(e^{beta f} - 1 + beta (e^{-f} - 1)) from log ratios (...,): (..., O); nothing cancels, nothing overflows.

    Beyond e^40 the largest of the terms stands for the sum, which is smaller.
    """
    ratio = f[..., None]
    grown = beta * ratio
    with np.errstate(divide="ignore"):
        near = np.log(np.maximum(np.expm1(np.minimum(grown, 40.0)) + beta * np.expm1(np.minimum(-ratio, 40.0)), 0.0))
    return np.where(grown > 40.0, grown, np.where(ratio < -40.0, np.log(beta) - ratio, near))


def log_tested_excess(test: Array, moved: Array, event: Thresholded, answer: Array, orders: Array) -> Array:
    """log(sum p^alpha p'^{1-alpha} - 1) of a test and the answer after it, (..., O).

    Args:
        test: (...,) the test's statistic.
        moved: (...,) at the neighbour.
        answer: (..., O) log(e^{(alpha-1) D} - 1) of the answer alone.

    The sum is that of the test's own outcomes plus p_pass^alpha p'_pass^{1-alpha} (e^{(alpha-1) D} - 1).
    """
    beta = orders - 1
    fails, passes = outcomes.log_test(test, event)
    fails_moved, passes_moved = outcomes.log_test(moved, event)
    pass_ratio = passes - passes_moved
    total = passes[..., None] + beta * pass_ratio[..., None] + answer
    for log_p, ratio in ((fails, fails - fails_moved), (passes, pass_ratio)):
        total = np.logaddexp(total, log_p[..., None] + log_power_excess(ratio, beta))
    return total


def cost(
    log_q: Array, event: NoisyMax, orders: Array, statistic: Array | None, two_sided: bool, capped: bool = True
) -> Array:
    """J(statistic, q), (Q, O), of one query: the worst of both moves of the statistic.

    The sum of powers is convex in the neighbour's chance to pass, so moves by less than 1 cost no more. Without
    ``capped`` an answer costs B(q) alone: an upper bound of J that needs no certified supremum.
    """
    total = answer_excess(log_q, event, orders) if capped else log_excess(log_q, pair(event), orders)
    if isinstance(event, Thresholded) and statistic is not None:
        answer, total = total, np.full_like(total, -np.inf)
        for step in (-1.0, 1.0):
            ways = [(statistic, statistic + step)] + ([(statistic + step, statistic)] if two_sided else [])
            for here, there in ways:
                total = np.maximum(total, log_tested_excess(here, there, event, answer, orders))
    return np.logaddexp(0.0, total) / (orders - 1)


def query_cost(
    votes: object,
    event: NoisyMax,
    orders: object,
    two_sided: bool = True,
    statistic: object = None,
    log_q: object = None,
    capped: bool = True,
) -> Array:
    """J of every query asked, (Q, O). PRIVATE. A run costs the sum over the queries asked, nothing weighted.

    Args:
        votes: (Q, C).
        event: its caps play no part.
        orders: (O,) above 1.
        two_sided: bound D_alpha from these votes to a neighbour and back; else only from these votes.
        statistic: (Q,) what the test compares, for Interactive-GNMax.
        log_q: (Q,) any upper bound of log q (of that at every neighbour too, if two-sided); by default the exact one.
        capped: False leaves the supremum over all votes out (see :func:`cost`).
    """
    v, alpha = p18.checked_votes(votes), checked_orders(orders)
    compared = p18.tested(v, event, statistic) if isinstance(event, Thresholded) else None
    if log_q is None:
        log_q = (outcomes.log_other_nearby if two_sided else outcomes.log_other)(v, event)
    return cost(np.asarray(log_q, dtype=float), event, alpha, compared, two_sided, capped)
