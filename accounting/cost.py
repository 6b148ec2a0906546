"""The guarantee that one event carries: the epsilon at its caps, fixed before the first private query."""

import dataclasses
import math
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from accounting import conversion as convert
from accounting import curves
from accounting.events import DPSGD, Event, Gaussian, Generic, NoisyMax, PureDP, Tested
from accounting.gaussian_mechanism import gaussian_epsilon, shift
from accounting.orders import default_orders
from accounting.profiles import chart_caps, recursion_chart, recursion_epsilon
from data.errors import UserError

Method = Literal["best", "rdp"]

# Privacy losses are put on a grid of this step, pessimistically ("connect the dots", Doroshenko et al. 2022).
PLD_INTERVAL = 1e-4
# dp_accounting convolves by fast Fourier transforms of floats, whose rounding enters the profile: deltas were seen too
# small by up to about 1e-11 against the exact Gaussian. So a profile is asked for this much less than delta, and not
# at all for deltas that are not far above.
FFT_MARGIN = 1e-10
SMALLEST_PLD_DELTA = 1e-8


@dataclass(frozen=True)
class Guarantee:
    """``name`` says which of the numbers this is: they are never mixed up, and only some may be published.

    ``method`` is how epsilon was found: "rdp" at ``order``; without an order (None) by "recursion" (the certified
    profile of a run's released prefix), an exact or composed "profile", or as a "pure" sum.
    """

    name: str
    epsilon: float
    delta: float
    order: float | None
    conversion: str
    method: str = "rdp"


# A pure function of numbers that a run asks for several times.
@lru_cache(maxsize=256)
def dpsgd_epsilon(event: DPSGD, delta: float, interval: float = PLD_INTERVAL) -> float:
    """epsilon of DP-SGD, the larger of adding and of removing a unit.

    At sampling rate 1 it is one Gaussian mechanism of sensitivity sqrt(steps)/noise_multiplier, whose profile is exact
    (Balle and Wang 2018, Theorem 8). Else by privacy loss distributions (dp_accounting; the two directions composed
    apart and compared at the end), less :data:`FFT_MARGIN`; below :data:`SMALLEST_PLD_DELTA` by RDP. A coarser
    ``interval`` is faster and never too small.
    """
    small = convert.checked_delta(delta)
    if not event.steps:
        return 0.0
    if event.sampling_rate == 1:
        return gaussian_epsilon(shift(1.0, event.noise_multiplier, event.steps), small)
    if small < SMALLEST_PLD_DELTA:
        orders = np.array(default_orders())
        return convert.epsilon(curves.rdp(event, orders), orders, small, warn=False)[0]
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=interval)
    step = PoissonSampledDpEvent(event.sampling_rate, GaussianDpEvent(event.noise_multiplier))
    accountant.compose(SelfComposedDpEvent(step, event.steps))
    return max(0.0, float(accountant.get_epsilon(small - FFT_MARGIN)))


def guarantee(
    event: Event,
    delta: float,
    number: curves.Number = "data_independent",
    conversion: convert.Conversion = "improved",
    method: Method = "best",
) -> Guarantee:
    """The guarantee of one event at its caps; safe to publish.

    Args:
        event: what is released.
        delta: in (0, 1).
        number: "data_independent", or "textbook" (P18 Proposition 8). DP-SGD has one number whatever this says.
        conversion: "improved", or "classic" to reproduce papers.
        method: "best": data_independent is the smaller of RDP and, for Gaussian noisy maxima, the certified recursion
            (seconds when it is not in the cache); "rdp" leaves it out. Both are valid.

    Raises:
        UserError: delta, number, conversion or method out of range.
    """
    if method not in ("best", "rdp"):
        raise UserError(f"method = {method!r}: must be best or rdp")
    found = _without_recursion(event, delta, number, conversion)
    if method == "best" and number == "data_independent" and conversion == "improved":
        epsilon = recursion_epsilon(event, found.delta)
        if epsilon < found.epsilon:
            return Guarantee(number, epsilon, found.delta, None, "profile", "recursion")
    return found


def chart(event: NoisyMax, delta: float) -> dict[int, float]:
    """The guarantee's epsilon by cap on answers, from 1 to the event's own, all else equal; computed with the last."""
    last = guarantee(event, delta)
    known = recursion_chart(event, last.delta)
    found = {}
    with warnings.catch_warnings():
        # With few answers the best order is the end of the grid: valid, and close enough for a chart.
        warnings.simplefilter("ignore")
        for cap in chart_caps(event.answers) if event.answers else []:
            rdp = guarantee(dataclasses.replace(event, answers=cap), delta, method="rdp").epsilon
            found[cap] = min(rdp, known.get(cap, math.inf))
    return found


def _without_recursion(event: Event, delta: float, number: curves.Number, conversion: convert.Conversion) -> Guarantee:
    if isinstance(event, DPSGD):
        return Guarantee(number, dpsgd_epsilon(event, delta), float(delta), None, "profile", "profile")
    if isinstance(event, Generic):
        return _generic(event, delta, number, conversion)
    if isinstance(event, Tested):
        return _tested(event, delta, number, conversion)
    orders = np.array(default_orders())
    if number == "data_independent":
        near = _promising(event, orders, delta, conversion)
        found, order = convert.epsilon(curves.rdp(event, near, number), near, delta, conversion, warn=False)
        if near[0] < order < near[-1]:
            return Guarantee(number, found, float(delta), order, conversion)
    found, order = convert.epsilon(curves.rdp(event, orders, number), orders, delta, conversion)
    return Guarantee(number, found, float(delta), order, conversion)


def _generic(event: Generic, delta: float, number: curves.Number, conversion: convert.Conversion) -> Guarantee:
    """Gaussian noise: the exact profile. Pure mechanisms: the smaller of their sum, which needs no delta, and RDP."""
    small = convert.checked_delta(delta)
    if isinstance(event, Gaussian):
        mu = shift(event.sensitivity, event.sigma, event.count)
        return Guarantee(number, gaussian_epsilon(mu, small) if mu else 0.0, small, None, "profile", "profile")
    one = event.epsilon if isinstance(event, PureDP) else event.sensitivity / event.scale
    orders = np.array(default_orders())
    found, order = convert.epsilon(curves.rdp(event, orders, number), orders, small, conversion, warn=False)
    if event.count * one <= found:
        return Guarantee(number, event.count * one, small, None, "pure", "pure")
    return Guarantee(number, found, small, order, conversion)


def _tested(event: Tested, delta: float, number: curves.Number, conversion: convert.Conversion) -> Guarantee:
    """At its one order; what the test may fail with is part of delta."""
    rest = convert.checked_delta(delta) - event.delta
    if not rest > 0:
        raise UserError(f"delta = {delta!r}: must be above {event.delta!r}, what the test itself may fail with")
    curve = curves.rdp(event, [event.order], number)
    found, order = convert.epsilon(curve, [event.order], rest, conversion, warn=False)
    return Guarantee(number, found, float(delta), order, conversion)


def _promising(event: Event, orders: np.ndarray, delta: float, conversion: convert.Conversion) -> np.ndarray:
    """Orders around the textbook's best one. Any subset of orders gives a valid epsilon; certifying fewer is faster.

    The cost per answer is between 0.6 and 1 times the textbook's, which moves the best order by less than 1.5.
    """
    textbook = curves.rdp(event, orders, "textbook")
    _, centre = convert.epsilon(textbook, orders, delta, conversion, warn=False)
    return orders[(orders >= 1 + (centre - 1) / 1.6) & (orders <= 1 + (centre - 1) * 2.2)]
