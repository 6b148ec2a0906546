r"""The data-dependent RDP of the literature: P18 Theorem 6 with Propositions 7 and 10, and P17 Theorem 3.

PRIVATE: computed from votes. Nothing here may be published; the numbers reproduce the papers' tables, in which the
cost of an answer is weighted by the probability that the query is answered.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp, ndtr

from accounting.events import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax, NoisyMax, Thresholded
from accounting.gaussian_supremum import gaussian_bound
from accounting.laplace_supremum import laplace_bound
from accounting.suprema import checked_orders
from data.errors import UserError

Array = NDArray[np.float64]

# Whole numbers up to here are exact as floats.
_LARGEST = 2.0**53


def checked_votes(votes: object) -> Array:
    """Vote histograms (Q, C) as floats.

    UserError (which names the rule and no value, row or count: votes are private) unless there are at least two
    classes and every entry is a whole number of at least 0, the rows all summing to the number of teachers.
    """
    try:
        v = np.asarray(votes, dtype=float)
    except (TypeError, ValueError):
        raise UserError("votes: every entry must be a number") from None
    if v.ndim != 2 or v.shape[1] < 2 or not len(v):
        raise UserError("votes: must be a table of queries by classes, with a row and at least 2 classes")
    if not np.all(np.isfinite(v)):
        raise UserError("votes: every count must be a finite number")
    if not np.all(v >= 0):
        raise UserError("votes: every count must be at least 0")
    if not np.all(v == np.round(v)):
        raise UserError("votes: every count must be a whole number")
    if not np.all(v <= _LARGEST):
        raise UserError("votes: every count must be at most 2^53")
    teachers = v.sum(axis=1)
    if not np.all(teachers == teachers[0]) or not teachers[0] > 0:
        raise UserError("votes: every row must sum to the number of teachers")
    return v


def _gaps(votes: Array) -> Array:
    """Winner's votes minus those of each other class, (Q, C-1), of one winner where several tie."""
    ordered = np.sort(votes, axis=1)
    return ordered[:, -1:] - ordered[:, :-1]


def log_other_outcome(votes: Array, sigma: float) -> Array:
    """log q, (Q,): q = min(sum_j Pr[N(0, 2 sigma^2) >= gap_j], 1 - 1/C) bounds Pr[another class wins] (Prop. 7)."""
    classes = votes.shape[1]
    union = logsumexp(log_ndtr(-_gaps(votes) / (np.sqrt(2.0) * sigma)), axis=1)
    return np.minimum(union, np.log1p(-1 / classes))


def gaussian_rdp(log_q: Array, sigma: float, orders: Array) -> Array:
    """P18 Theorem 6 with mu2 = sigma sqrt(log 1/q), mu1 = mu2 + 1 (Proposition 10), (Q,) x (O,) -> (Q, O).

    Never above alpha/sigma^2, which also stands wherever the theorem's conditions fail: alpha > mu1,
    q > e^{(mu2 - 1) eps2} / (mu1/(mu1 - 1) mu2/(mu2 - 1))^{mu2}, or q e^{eps2} >= 1.
    """
    alpha = checked_orders(orders)
    log_q = np.atleast_1d(np.asarray(log_q, dtype=float))[:, None]
    independent = np.broadcast_to(gaussian_bound(np.sqrt(2.0) / sigma, alpha), (len(log_q), len(alpha)))
    beta = alpha - 1
    with np.errstate(all="ignore"):
        mu2 = sigma * np.sqrt(-log_q)
        mu1 = mu2 + 1
        eps2, eps1 = mu2 / sigma**2, mu1 / sigma**2
        limit = (mu2 - 1) * eps2 - mu2 * (np.log1p(1 / (mu1 - 1)) + np.log1p(1 / (mu2 - 1)))
        valid = (mu2 > 1) & (alpha <= mu1) & (log_q <= limit) & (-log_q > eps2)
        log_p = np.log1p(-np.exp(log_q))
        log_a = beta * (log_p - np.log1p(-np.exp((log_q + eps2) * (1 - 1 / mu2))))
        log_b = beta * (eps1 - log_q / (mu1 - 1))
        bound = np.logaddexp(log_p + log_a, log_q + log_b) / beta
    valid &= np.isfinite(bound)
    result = np.where(valid, np.minimum(np.maximum(bound, 0.0), independent), independent)
    # q below the smallest number: the other outcomes have no mass that arithmetic could see, and neither has the cost.
    return np.where(np.isneginf(log_q), 0.0, result)


def laplace_rdp(log_q: Array, scale: float, orders: Array) -> Array:
    """P17 Theorem 3 with gamma = 1/scale at l = alpha - 1, (Q,) x (O,) -> (Q, O); never above the pure-DP bound.

    alpha(l) <= log((1 - q) ((1 - q)/(1 - e^{2 gamma} q))^l + q e^{2 gamma l})
    for q < (e^{2 gamma} - 1)/(e^{4 gamma} - 1).
    """
    alpha = checked_orders(orders)
    log_q = np.atleast_1d(np.asarray(log_q, dtype=float))[:, None]
    independent = np.broadcast_to(laplace_bound(scale, alpha), (len(log_q), len(alpha)))
    gamma2, beta = 2.0 / scale, alpha - 1
    # (e^{2g} - 1)/(e^{4g} - 1) = 1/(e^{2g} + 1)
    valid = np.broadcast_to(log_q < -np.logaddexp(gamma2, 0.0), independent.shape)
    with np.errstate(all="ignore"):
        log_p = np.log1p(-np.exp(log_q))
        stay = log_p + beta * (log_p - np.log1p(-np.exp(log_q + gamma2)))
        bound = np.logaddexp(stay, log_q + gamma2 * beta) / beta
    return np.where(valid & np.isfinite(bound), np.minimum(np.maximum(bound, 0.0), independent), independent)


def log_other_outcome_laplace(votes: Array, scale: float) -> Array:
    """log q, (Q,): q = sum_j (2 + gamma gap_j)/(4 e^{gamma gap_j}), gamma = 1/scale (P17, Lemma 4), at most 1 - 1/C."""
    gaps = _gaps(votes) / scale
    return np.minimum(logsumexp(np.log((2 + gaps) / 4) - gaps, axis=1), np.log1p(-1 / votes.shape[1]))


def tested(votes: Array, event: Thresholded, statistic: object) -> Array:
    """What the test compares with its threshold, (Q,): ``statistic``, or max_j v_j of Confident-GNMax if it is None."""
    if statistic is None:
        if isinstance(event, InteractiveGNMax):
            raise UserError("statistic: Interactive-GNMax tests max_j (v_j - n p_j), which must be given")
        return np.asarray(votes.max(axis=1))
    try:
        s = np.asarray(statistic, dtype=float)
    except (TypeError, ValueError):
        raise UserError("statistic: every value must be a number") from None
    if s.shape != (len(votes),) or not np.all(np.isfinite(s)):
        raise UserError("statistic: must be a finite number for each query")
    return s


def _passes(statistic: Array, event: Thresholded) -> Array:
    return ndtr((statistic - event.threshold) / event.threshold_sigma)


def answer_probability(votes: object, event: NoisyMax, statistic: object = None) -> Array:
    """Pr[the test passes], (Q,): Phi((statistic - T)/sigma_T); 1 for mechanisms without a test. PRIVATE."""
    v = checked_votes(votes)
    return _passes(tested(v, event, statistic), event) if isinstance(event, Thresholded) else np.ones(len(v))


def expected_answers(votes: object, event: NoisyMax, statistic: object = None) -> float:
    """Expected number of answers over these queries, were there no cap on answers. PRIVATE."""
    return float(answer_probability(votes, event, statistic).sum())


def _test_rdp(statistic: Array, event: Thresholded, orders: Array) -> Array:
    """Cost of the tests, (Q, O): Theorem 6 for the two outcomes pass and fail.

    A bit released from one Gaussian of sensitivity 1: in Theorem 6's terms a noisy maximum of sigma sqrt 2.
    """
    x = (statistic - event.threshold) / event.threshold_sigma
    return gaussian_rdp(np.minimum(log_ndtr(x), log_ndtr(-x)), np.sqrt(2.0) * event.threshold_sigma, orders)


def per_query_rdp(votes: object, event: NoisyMax, orders: object, statistic: object = None) -> Array:
    """Data-dependent RDP of each query, (Q, O), as the literature counts it. PRIVATE.

    Args:
        votes: (Q, C) histograms of the queries asked.
        event: its caps play no part; an answer that a test precedes is weighted by the test's chance of passing.
        orders: (O,) above 1.
        statistic: (Q,) what the test compares; by default max_j v_j, required for Interactive-GNMax.
    """
    v, alpha = checked_votes(votes), checked_orders(orders)
    match event:
        case LNMax(scale=scale):
            return laplace_rdp(log_other_outcome_laplace(v, scale), scale, alpha)
        case GNMax(sigma=sigma):
            return gaussian_rdp(log_other_outcome(v, sigma), sigma, alpha)
        case ConfidentGNMax(sigma=sigma) | InteractiveGNMax(sigma=sigma):
            answers = gaussian_rdp(log_other_outcome(v, sigma), sigma, alpha)
            compared = tested(v, event, statistic)
            return _test_rdp(compared, event, alpha) + _passes(compared, event)[:, None] * answers


def data_dependent_rdp(votes: object, event: NoisyMax, orders: object, statistic: object = None) -> Array:
    """Total over the queries of :func:`per_query_rdp`, (O,). PRIVATE: never publish it, nor an epsilon from it."""
    return np.asarray(per_query_rdp(votes, event, orders, statistic).sum(axis=0))
