r"""The Rényi cost of a number released with Gaussian noise that is scaled to its smooth sensitivity.

Released: f + S sigma N(0, 1), where |f - f'| <= min(S, S') and e^-beta <= S/S' <= e^beta at neighbours (Nissim,
Raskhodnikova and Smith 2007). With s = 1 - alpha (1 - e^{-2 beta}) the divergence of the two Gaussians is at most

    -beta - (2 beta + ln s) / (2 (alpha - 1)) + alpha e^{-2 beta} / (2 sigma^2 s),   infinite unless s > 0

(proof: docs/accounting.md, "A sanitised figure"). Theorem 23 of arXiv 1802.08908 states less than that, and too little:
:func:`stated_in_p18`, kept to reproduce its tables.
"""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Added to beta: S computed in floats may change by this much more.
ROUNDING = 1e-12


def rdp(orders: Array, beta: float, sigma: float) -> Array:
    """The cost at each order, (O,); inf where it is not finite.

    >>> [round(float(cost), 3) for cost in rdp(np.array([14.0, 16.0]), 0.0329, 6.233)]
    [1.606, inf]
    """
    beta = beta + ROUNDING
    s = 1 + orders * math.expm1(-2 * beta)
    with np.errstate(all="ignore"):
        cost = -beta - (2 * beta + np.log(s)) / (2 * (orders - 1)) + orders * math.exp(-2 * beta) / (2 * sigma**2 * s)
    return np.where(s > 0, cost, np.inf)


def stated_in_p18(order: float, beta: float, sigma: float) -> float:
    """What Theorem 23 of [P18] states, for order < 1/(2 beta): NOT a bound."""
    spread = order * beta - 0.5 * math.log1p(-2 * order * beta)
    return order * math.exp(2 * beta) / sigma**2 + spread / (order - 1)
