r"""The sanitised cost as the authors of [P18] computed it: UNSOUND, private, only to reproduce their tables.

Two faults, neither of which can be repaired here: Theorem 23 states too small a cost for the release (two Gaussians of
different scales diverge by more; :mod:`accounting.smooth_gaussian`), and beta and sigma_ss are chosen by looking at
votes. Answers moreover are weighted by the probability that these votes get one, which its sensitivity ignores.

Per query and order, with r the bound of Theorem 6 (union-bound q) and BL, BU what q moves to with one vote:
LS(q) = max(r(BU(q)) - r(q), r(q) - r(BL(q))), evaluated at q1 = BL(q0) for q in [q1, q0], q0 the largest q whose r is
below alpha/sigma^2. LS at distance d is LS after d moves of a vote from the runner-up to the winner where q > q0, the
other way where q < q1, and LS(q1) from where it is reached ([P18], Algorithms 3 to 5). The test's cost changes by the
larger of its two neighbours' differences at c - d and c + d.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri_exp

from accounting import conversion, p18
from accounting.events import ConfidentGNMax, GNMax
from accounting.orders import paper_orders
from accounting.smooth_gaussian import stated_in_p18

Array = NDArray[np.float64]


@dataclass(frozen=True)
class UnsoundPlan:
    """What the authors' procedure prints. Not a bound, not private, never to be published."""

    epsilon: float
    noise_std: float
    order: float
    beta: float
    sigma_ss: float
    smooth_sensitivity: float


def plan(votes: object, event: GNMax | ConfidentGNMax, delta: float) -> UnsoundPlan:
    """The figures of [P18]'s tables, by the classic conversion. UNSOUND: see the module.

    Args:
        votes: (Q, C) histograms of the queries asked.
        event: GNMax or ConfidentGNMax; its caps play no part.
        delta: in (0, 1).
    """
    table = p18.checked_votes(votes)
    orders = np.array(paper_orders())
    _, order = conversion.epsilon(p18.data_dependent_rdp(table, event, orders), orders, delta, "classic", warn=False)
    rdp = float(p18.data_dependent_rdp(table, event, [order])[0])
    local = _local_sensitivities(table, event, order)
    discount = np.arange(len(local))
    best = math.inf, 0.0, 0.0, 0.0, 0.0
    # The grid of the authors' script.
    for beta in np.arange(0.3 / order, 0.495 / order, 0.01 / order).tolist():
        smooth = float((np.exp(-beta * discount) * local).max())
        sigma = (order * math.exp(2 * beta) / smooth) ** (1 / 3)
        release = stated_in_p18(order, beta, sigma)
        best = min(best, (rdp + release + 2 * smooth * sigma, beta, sigma, smooth, release))
    _, beta, sigma, smooth, release = best
    epsilon = conversion.epsilon([rdp + release], [order], delta, "classic", warn=False)[0]
    return UnsoundPlan(epsilon, smooth * sigma, order, beta, sigma, smooth)


@dataclass(frozen=True)
class _Answer:
    """One GNMax answer at one order; log q0 and log q1 of the module's text."""

    sigma: float
    order: float
    classes: int
    log_q0: float
    log_q1: float


def _answer(sigma: float, order: float, classes: int) -> _Answer:
    q0 = _log_q0(sigma, order)
    return _Answer(sigma, order, classes, q0, float(_moved(np.array([q0]), classes, -1.0, sigma)[0]))


def _local_sensitivities(votes: Array, event: GNMax | ConfidentGNMax, order: float) -> Array:
    """Sum over queries of LS at each distance 0, ..., n - 1, an answer's weighted by its probability, (n,)."""
    teachers, answer = int(votes[0].sum()), _answer(event.sigma, order, votes.shape[1])
    weights = p18.answer_probability(votes, event) if isinstance(event, ConfidentGNMax) else np.ones(len(votes))
    histograms, at = np.unique(np.sort(votes, axis=1)[:, ::-1], axis=0, return_inverse=True)
    total = np.zeros(teachers)
    for histogram, weight in zip(histograms, np.bincount(at.reshape(-1), weights), strict=True):
        total += weight * _answer_sensitivities(histogram, answer, teachers)
    if isinstance(event, ConfidentGNMax):
        total += _test_sensitivities(event, order, teachers)[votes.max(axis=1).astype(int)].sum(axis=0)
    return total


def _rdp(log_q: Array, sigma: float, order: float) -> Array:
    return p18.gaussian_rdp(log_q, sigma, np.array([order]))[:, 0]


def _moved(log_q: Array, classes: int, moves: float, sigma: float) -> Array:
    """BL (moves = -1) or BU (moves = 1): (C - 1) Phi(Phi^-1(q/(C - 1)) +- sqrt(2)/sigma), at most 1."""
    rest = math.log(classes - 1)
    moved = rest + log_ndtr(ndtri_exp(np.asarray(log_q) - rest) + moves * math.sqrt(2) / sigma)
    # Theorem 6 is not asked at q = 1, where it says nothing.
    return np.minimum(moved, -1e-12)


def _log_q0(sigma: float, order: float) -> float:
    """The largest log q at which Theorem 6, where it is valid, is below alpha/sigma^2."""
    worst = order / sigma**2

    def below(log_q: float) -> float:
        return float(_rdp(np.array([log_q]), sigma, order)[0]) / worst - 1 + 1e-9

    # Theorem 6 needs mu1 >= alpha, and mu2 > 1 for its own validity.
    high = -((max(order - 1, 1.0) / sigma) ** 2)
    low = 2 * high
    while below(low) > 0:
        low *= 1.5
    return float(brentq(below, low, high)) if below(high) > 0 else high


def _step(log_q: Array, answer: _Answer) -> Array:
    """LS(q) of one answer at these q."""
    at = np.where((log_q >= answer.log_q1) & (log_q <= answer.log_q0), answer.log_q1, log_q)
    here, up, down = (
        _rdp(q, answer.sigma, answer.order)
        for q in (at, *(_moved(at, answer.classes, moves, answer.sigma) for moves in (1.0, -1.0)))
    )
    return np.maximum(up - here, here - down)


def _answer_sensitivities(votes: Array, answer: _Answer, teachers: int) -> Array:
    """LS of one answer at distances 0, ..., n - 1, (n,); votes in descending order."""
    q0, q1 = answer.log_q0, answer.log_q1
    start = float(p18.log_other_outcome(votes[None], answer.sigma)[0])
    result = np.full(teachers, float(_step(np.array([q1]), answer)[0]))
    if q1 <= start <= q0:
        return result
    log_q = p18.log_other_outcome(_path(votes, towards_winner=start > q0), answer.sigma)
    on_the_way = log_q > q0 if start > q0 else log_q < q1
    # The step that leaves the way is still evaluated where it arrives.
    reached = min(len(log_q) - 1 if on_the_way.all() else int(np.argmin(on_the_way)), teachers - 1)
    result[: reached + 1] = _step(log_q[: reached + 1], answer)
    return result


def _path(votes: Array, towards_winner: bool) -> Array:
    """Histograms after 0, 1, ... moves of one vote between runner-up and winner, in descending order each."""
    path = [votes]
    while (path[-1][1] > 0) if towards_winner else (path[-1][0] > path[-1][1] + 1):
        moved = path[-1].copy()
        moved[0] += 1 if towards_winner else -1
        moved[1] -= 1 if towards_winner else -1
        path.append(np.sort(moved)[::-1])
    return np.array(path)


def _test_sensitivities(event: ConfidentGNMax, order: float, teachers: int) -> Array:
    """LS of one test at largest count c = 0, ..., n and distances 0, ..., n - 1, (n + 1, n)."""
    counts = np.arange(teachers + 1.0)
    x = (counts - event.threshold) / event.threshold_sigma
    rdp = _rdp(np.minimum(log_ndtr(x), log_ndtr(-x)), math.sqrt(2) * event.threshold_sigma, order)
    change = np.abs(np.diff(rdp))
    largest = np.maximum(np.append(change, 0.0), np.insert(change, 0, 0.0))
    distance, count = np.arange(teachers)[None, :], np.arange(teachers + 1)[:, None]
    up = np.where(count + distance <= teachers, largest[np.minimum(count + distance, teachers)], 0.0)
    down = np.where(count >= distance, largest[np.maximum(count - distance, 0)], 0.0)
    return np.asarray(np.maximum(up, down))
