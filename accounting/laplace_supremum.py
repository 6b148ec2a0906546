r"""Data-independent Rényi cost of one Laplace noisy max answer (LNMax)."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def histogram_bound(scale: float, orders: Array) -> Array:
    """RDP of the noisy histogram: two counts move by 1 each (Mironov 2017, Proposition 6, twice)."""
    s, beta = 1.0 / scale, orders - 1
    log_mass = np.logaddexp(np.log(orders / (2 * orders - 1)) + beta * s, np.log(beta / (2 * orders - 1)) - orders * s)
    return 2 * log_mass / beta


def pure_bound(scale: float, orders: Array) -> Array:
    """RDP of randomized response of epsilon = 2/scale, of which every (2/scale)-DP pair is a post-processing.

    (Kairouz, Oh and Viswanath 2015, Theorem 10 of arXiv 1311.0776 for the dominance.)
    """
    epsilon = 2.0 / scale
    log_mass = np.logaddexp(orders * epsilon, (1 - orders) * epsilon) - np.logaddexp(0.0, epsilon)
    return np.minimum(log_mass / (orders - 1), epsilon)


def laplace_bound(scale: float, orders: Array) -> Array:
    """The smaller of the two: what is known without looking at the argmax."""
    return np.minimum(histogram_bound(scale, orders), pure_bound(scale, orders))


def laplace_supremum(scale: float, orders: Array) -> Array:
    return laplace_bound(scale, np.asarray(orders, dtype=float))
