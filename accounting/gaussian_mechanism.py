r"""Calibration of additive noise for one release: Gaussian noise, classic and analytic, and Laplace noise.

A release is f(data) + noise, where one unit moves f by at most Delta (``sensitivity``: L2 for Gaussian noise, L1 for
Laplace noise). With mu = Delta/sigma, N(0, sigma^2) gives (epsilon, delta) if and only if

    delta >= Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)          (Balle and Wang 2018, Theorem 8)

which falls as epsilon or sigma grows. The right side is enclosed in ball arithmetic (Arb), so its rounding is in the
result: an epsilon or sigma given here is never below the exact one, and at most 1e-9 of it above.
"""

import math
from fractions import Fraction

from flint import arb, ctx

from data.errors import UserError

PRECISION = 1e-10
# Digits of the profile grow until its relative error is below 2^-40; a difference of tails needs a few hundred bits.
_RELATIVE_BITS, _MOST_BITS = 40, 1 << 14


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The smallest delta, from above, of N(mu, 1) against N(0, 1) at ``epsilon`` >= 0.

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    return min(math.nextafter(float(_profile(mu, epsilon).upper()), math.inf), 1.0)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon >= 0, from above, of N(mu, 1) against N(0, 1) at ``delta``.

    Args:
        mu: sensitivity over standard deviation, above 0. Adaptively composed Gaussians of mu_i are one of
            sqrt(sum mu_i^2).
        delta: in (0, 1).
    """

    def exceeds(epsilon: float) -> bool:
        return not _profile(mu, epsilon).upper() <= arb(delta)

    if not exceeds(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while exceeds(high):
        low, high = high, 2 * high
        if math.isinf(high):
            return high
    while high - low > PRECISION * high and high > 1e-300:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return high


def shift(sensitivity: float, sigma: float, count: int = 1) -> float:
    """mu of ``count`` releases with noise sigma, rounded up."""
    return sensitivity / sigma * math.sqrt(count) * (1 + 1e-15)


def classic_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Delta sqrt(2 ln(1.25/delta)) / epsilon (Dwork and Roth 2014, Theorem A.1), proven for epsilon < 1 only.

    Raises:
        UserError: a value out of range; an epsilon of 1 or more, where this noise can be too small.

    >>> round(classic_sigma(0.5, 1e-5), 4)
    9.6896
    """
    _check(epsilon, delta, sensitivity)
    if epsilon >= 1:
        raise UserError(
            f"epsilon = {epsilon!r}: the classic calibration holds only below 1; the analytic one always does"
        )
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def analytic_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The smallest sigma, from above, that gives (epsilon, delta): valid for every epsilon > 0.

    Raises:
        UserError: a value out of range.
    """
    _check(epsilon, delta, sensitivity)

    def meets(mu: float) -> bool:
        return bool(_profile(mu, epsilon).upper() <= arb(delta))

    low, high = 1.0, 1.0
    while not meets(low):
        low, high = low / 2, low
    while meets(high):
        low, high = high, 2 * high
    while high - low > PRECISION * low:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if meets(middle) else (low, middle)
    # A little more, so that the mu computed back from sigma, rounded up, is still one that meets the target.
    return sensitivity / low * (1 + 4e-15)


def analytic_epsilon(sigma: float, delta: float, sensitivity: float = 1.0) -> float:
    """The smallest epsilon, from above, at ``delta`` of one release with N(0, sigma^2); 0 where sigma is that large.

    Raises:
        UserError: a value out of range.
    """
    _check(1.0, delta, sensitivity)
    _positive("sigma", sigma)
    return gaussian_epsilon(shift(sensitivity, sigma), delta)


def laplace_scale(epsilon: float, sensitivity: float = 1.0) -> float:
    """b = Delta/epsilon, rounded up: Lap(b) on every coordinate is (epsilon, 0)-DP.

    >>> laplace_scale(0.5, 2.0)
    4.0
    """
    _check(epsilon, 0.5, sensitivity)
    scale = sensitivity / epsilon
    enough = Fraction(scale) * Fraction(epsilon) >= Fraction(sensitivity)
    return scale if enough else math.nextafter(scale, math.inf)


def _profile(mu: float, epsilon: float) -> arb:
    """The right side of the module's inequality, as a ball that holds it."""
    bits = 128
    while True:
        with ctx.workprec(bits):
            m, e = arb(mu), arb(epsilon)
            found = _tail(e / m - m / 2) - e.exp() * _tail(e / m + m / 2)
            if found.rel_accuracy_bits() >= _RELATIVE_BITS or bits >= _MOST_BITS:
                return found
        bits *= 2


def _tail(x: arb) -> arb:
    return (x / arb(2).sqrt()).erfc() / 2


def _positive(name: str, value: float) -> None:
    if not value > 0 or math.isinf(value):
        raise UserError(f"{name} = {value!r}: must be a finite number above 0")


def _check(epsilon: float, delta: float, sensitivity: float) -> None:
    _positive("epsilon", epsilon)
    if not 0 < delta < 1:
        raise UserError(f"delta = {delta!r}: must be above 0 and below 1")
    _positive("sensitivity", sensitivity)
