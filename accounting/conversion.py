r"""From Rényi differential privacy to (epsilon, delta).

improved [CKS, Proposition 12]:  epsilon = r(alpha) + log(1 - 1/alpha) - (log delta + log alpha)/(alpha - 1)
classic  [Mironov 2017, Prop. 3]: epsilon = r(alpha) - log delta/(alpha - 1), which the tables of [P18] use.
"""

import math
import warnings
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from accounting.suprema import checked_orders
from data.errors import UserError

Array = NDArray[np.float64]
Conversion = Literal["improved", "classic"]


def checked_delta(delta: float) -> float:
    """delta as a float; UserError unless 0 < delta < 1."""
    if not 0 < delta < 1:
        raise UserError(f"delta = {delta!r}: must be above 0 and below 1")
    return float(delta)


def checked_epsilon(epsilon: float) -> float:
    """epsilon as a float; UserError unless it is finite and above 0."""
    if not epsilon > 0 or math.isinf(epsilon):
        raise UserError(f"epsilon = {epsilon!r}: must be a finite number above 0")
    return float(epsilon)


def _penalty(alpha: Array, delta: float, conversion: Conversion) -> Array:
    """What conversion adds to the RDP of each order."""
    if conversion == "improved":
        return np.log1p(-1 / alpha) - (math.log(delta) + np.log(alpha)) / (alpha - 1)
    if conversion == "classic":
        return -math.log(delta) / (alpha - 1)
    raise UserError(f"conversion = {conversion!r}: must be improved or classic")


def _checked_rdp(rdp: object, alpha: Array) -> Array:
    r = np.atleast_1d(np.asarray(rdp, dtype=float))
    if r.shape != alpha.shape:
        raise UserError(f"rdp: {r.size} values for {alpha.size} orders; there must be one per order")
    if not np.all(r >= 0):
        raise UserError("rdp: every value must be a number, at least 0")
    return r


def epsilon(
    rdp: object, orders: object, delta: float, conversion: Conversion = "improved", warn: bool = True
) -> tuple[float, float]:
    """(epsilon, order): the smallest epsilon over the orders, at least 0, and the order that gives it.

    Args:
        rdp: (O,) RDP at each order, at least 0; inf where it is unknown (all inf gives epsilon inf).
        orders: (O,) above 1; integers are taken as floats.
        delta: in (0, 1).
        conversion: "improved", or "classic" to reproduce papers.

        warn: say so where the best order is the first or last of several: a wider grid would give less.

    >>> e, order = epsilon([0.5, 1.0, 4.0], [8.0, 16.0, 64.0], 1e-5)
    >>> round(e, 4), order
    (1.5182, 16.0)
    """
    alpha, delta = checked_orders(orders), checked_delta(delta)
    r = _checked_rdp(rdp, alpha)
    # Bretagnolle and Huber: total variation <= sqrt(1 - e^-KL) and KL <= r, so such an r is (0, delta) already.
    free = -np.expm1(-r) <= delta * delta
    if conversion == "improved" and free.any():
        return 0.0, float(alpha[int(np.argmax(free))])
    candidates = r + _penalty(alpha, delta, conversion)
    best = int(np.argmin(candidates))
    found = float(candidates[best])
    at_end = best in (int(np.argmin(alpha)), int(np.argmax(alpha)))
    if warn and at_end and len(alpha) > 1 and 0 < found < math.inf:
        warnings.warn(
            f"the best Rényi order {alpha[best]:g} is the end of the grid: epsilon is valid but not the smallest",
            stacklevel=2,
        )
    return max(found, 0.0), float(alpha[best])


def delta(rdp: object, orders: object, epsilon: float) -> tuple[float, float]:
    """(delta, order): the smallest delta at this epsilon by the improved conversion, at most 1 [CKS, Prop. 12]."""
    alpha = checked_orders(orders)
    r = _checked_rdp(rdp, alpha)
    if not epsilon >= 0:
        raise UserError(f"epsilon = {epsilon!r}: must be at least 0")
    log_delta = (alpha - 1) * (r - epsilon + np.log1p(-1 / alpha)) - np.log(alpha)
    best = int(np.argmin(log_delta))
    return float(math.exp(min(log_delta[best], 0.0))), float(alpha[best])


def rdp_budget(order: float, epsilon: float, delta: float) -> float:
    """The largest RDP at one order whose improved conversion is at most (epsilon, delta); 0 if there is none.

    Rounded down, so that converting it back never exceeds epsilon.
    """
    alpha = checked_orders(order)
    target = checked_epsilon(epsilon)
    penalty = float(_penalty(alpha, checked_delta(delta), "improved")[0])
    budget = target - penalty
    while budget > 0 and budget + penalty > target:
        budget = math.nextafter(budget, 0.0)
    return max(budget, 0.0)


def best_gaussian_order(epsilon: float, delta: float) -> float:
    """The order at which a Gaussian mechanism that costs exactly (epsilon, delta) by RDP converts best.

    A Gaussian has r(alpha) = rho alpha and meets the target iff rho <= rdp_budget(alpha) / alpha for some alpha, so
    the largest affordable rho is the maximum of that quotient and the order is where it is attained. Computed from
    (epsilon, delta) alone: a ledger fixes it when it is opened.

    >>> best_gaussian_order(1.0, 1e-5)
    17.8
    """
    target, small = checked_epsilon(epsilon), checked_delta(delta)
    alpha = 1 + np.geomspace(1e-3, 1e7, 20_001)
    quotient = (target - _penalty(alpha, small, "improved")) / alpha
    best = float(alpha[int(np.argmax(quotient))])
    # Three digits are plenty (the maximum is flat) and make a ledger's order readable.
    return float(f"{best:.3g}") if best >= 1.1 else round(best, 4)
