"""The RDP of a whole event at its caps: numbers that do not depend on the data, so they may be published."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Literal

import numpy as np
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri

from accounting.events import (
    DPSGD,
    ConfidentGNMax,
    Event,
    Gaussian,
    GNMax,
    InteractiveGNMax,
    Laplace,
    LNMax,
    PureDP,
    Sanitized,
    Tested,
    Thresholded,
)
from accounting.gaussian_supremum import gaussian_bound
from accounting.laplace_supremum import laplace_bound, laplace_mechanism, randomized_response
from accounting.smooth_gaussian import ROUNDING
from accounting.smooth_gaussian import rdp as smooth_gaussian_rdp
from accounting.suprema import checked_orders, gaussian_argmax, laplace_argmax, threshold_test
from data.errors import UserError

Array = NDArray[np.float64]
Number = Literal["textbook", "data_independent"]


def rdp_per_answer(event: Event, orders: object, number: Number = "data_independent") -> Array:
    """RDP of one answer (of DP-SGD: one step; of a generic mechanism: one release), (O,).

    textbook: alpha / sigma^2 (P18, Proposition 8); for Laplace noise the smaller of two Laplace mechanisms and
    2/b-DP (P17). data_independent: the certified supremum over all votes. DP-SGD: the Poisson-subsampled Gaussian
    of dp_accounting, which covers adding and removing a unit. Generic mechanisms: Mironov 2017, Propositions 6 and 7;
    a pure one costs what randomized response of its epsilon does, which dominates it. For these three both numbers
    are the same.
    """
    alpha = checked_orders(orders)
    if number not in ("textbook", "data_independent"):
        raise UserError(f"number = {number!r}: must be textbook or data_independent")
    exact = number == "data_independent"
    match event:
        case GNMax(sigma=sigma) | ConfidentGNMax(sigma=sigma) | InteractiveGNMax(sigma=sigma):
            return gaussian_argmax(sigma, alpha) if exact else gaussian_bound(2**0.5 / sigma, alpha)
        case LNMax(scale=scale):
            return laplace_argmax(scale, alpha) if exact else laplace_bound(scale, alpha)
        case DPSGD():
            return _subsampled_gaussian(event, alpha)
        case Gaussian():
            return gaussian_bound(event.sensitivity / event.sigma, alpha)
        case Laplace():
            return laplace_mechanism(event.sensitivity / event.scale, alpha)
        case PureDP():
            return randomized_response(event.epsilon, alpha)
        case Sanitized():
            return _sanitized(event, alpha)
        case Tested():
            return _tested(event, alpha, exact)


def _sanitized(event: Sanitized, alpha: Array) -> Array:
    """The noisy number and, where it is released, the noisy logarithm of its scale, which moves by at most beta."""
    cost = smooth_gaussian_rdp(alpha, event.beta, event.sigma_ss)
    if event.sigma_log_scale is not None:
        cost = cost + gaussian_bound((1 + ROUNDING / event.beta) / event.sigma_log_scale, alpha)
    return np.asarray(cost)


def _tested(event: Tested, alpha: Array, exact: bool) -> Array:
    """rho and the test; or, for votes that the test should refuse and outside probability delta does, the refusal.

    The distance moves by at most 1, so the test is one released bit. Orders above the event's are not covered: inf.
    """
    # A plan on votes chooses sigma_d by looking at them: no trace of it may be kept.
    test = threshold_test(event.sigma_d, alpha, kept=False) if exact else gaussian_bound(1 / event.sigma_d, alpha)
    refusal = -float(log_ndtr(-ndtri(event.delta) - 1 / event.sigma_d))
    return np.where(alpha <= event.order, np.maximum(event.rho + test, refusal), np.inf)


@contextlib.contextmanager
def _unsaid() -> Iterator[None]:
    """dp_accounting logs every order whose series does not converge; here each of them is dealt with."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _subsampled_gaussian(event: DPSGD, alpha: Array) -> Array:
    """RDP of one DP-SGD step. Where dp_accounting's series for a fractional order does not converge, (alpha - 1) D,
    which is convex, is bounded by its chord between the whole orders around it."""

    def direct(at: Array) -> Array:
        accountant = RdpAccountant(at, NeighboringRelation.ADD_OR_REMOVE_ONE)
        with _unsaid():
            accountant.compose(PoissonSampledDpEvent(event.sampling_rate, GaussianDpEvent(event.noise_multiplier)))
        return np.asarray(accountant.rdp, dtype=float)

    step = direct(alpha)
    failed = np.flatnonzero(~np.isfinite(step) & (alpha != np.floor(alpha)))
    if len(failed):
        low, share = np.floor(alpha[failed]), alpha[failed] - np.floor(alpha[failed])
        below = np.where(low > 1, (low - 1) * direct(np.maximum(low, 2.0)), 0.0)
        step[failed] = ((1 - share) * below + share * low * direct(low + 1)) / (alpha[failed] - 1)
    return step


def rdp_per_test(event: Thresholded, orders: object, number: Number = "data_independent") -> Array:
    """RDP of one threshold test, (O,): alpha / (2 sigma_T^2), or the certified supremum over its released bit.

    Its statistic, max_j v_j or max_j (v_j - n p_j), is any real number and moves by at most 1.
    """
    alpha = checked_orders(orders)
    if number == "data_independent":
        return threshold_test(event.threshold_sigma, alpha)
    return gaussian_bound(1 / event.threshold_sigma, alpha)


def repetitions(event: Event) -> int:
    """How often the event pays :func:`rdp_per_answer`: its cap on answers, its steps, or its count."""
    match event:
        case DPSGD():
            return event.steps
        case Gaussian() | Laplace() | PureDP():
            return event.count
        case Sanitized() | Tested():
            return 1
        case _:
            return event.answers


def rdp(event: Event, orders: object, number: Number = "data_independent") -> Array:
    """RDP of the event at its caps, (O,): answers times the cost of one, plus queries times the cost of a test.

    Valid although the run adapts: whether the next step is a test or an answer, and when the run stops, follows from
    what was released, every path holds at most ``queries`` tests and ``answers`` answers, and at one order RDP adds
    up over adaptively chosen steps (Mironov 2017, Proposition 1; Feldman and Zrnic 2020 for the caps).

    Raises:
        UserError: an order that is not above 1, or an unknown number.
    """
    alpha = checked_orders(orders)
    count = repetitions(event)
    total = np.zeros(len(alpha))
    # 0 answers at an infinite cost would be NaN: nothing done costs nothing.
    if count:
        total = total + count * rdp_per_answer(event, alpha, number)
    if isinstance(event, Thresholded) and event.queries:
        total = total + event.queries * rdp_per_test(event, alpha, number)
    return total
