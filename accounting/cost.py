"""The guarantee that one event carries: the epsilon at its caps, fixed before the first private query."""

from dataclasses import dataclass

import numpy as np
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from accounting import conversion as convert
from accounting import curves
from accounting.events import DPSGD, Event
from accounting.orders import default_orders

# Privacy losses are rounded up to multiples of this: pessimistic, by about steps^(1/2) times as much.
PLD_INTERVAL = 1e-4


@dataclass(frozen=True)
class Guarantee:
    """``name`` says which of the numbers this is: they are never mixed up, and only some may be published.

    ``order`` is the Rényi order that gave epsilon, None where there is none (privacy loss distributions).
    """

    name: str
    epsilon: float
    delta: float
    order: float | None
    conversion: str


def dpsgd_epsilon(event: DPSGD, delta: float, interval: float = PLD_INTERVAL) -> float:
    """epsilon of DP-SGD by privacy loss distributions, the larger of adding and of removing a unit.

    The two directions are composed apart and compared at the end (dp_accounting's PLD accountant); their losses are
    rounded up, so a coarser ``interval`` is faster and never too small.
    """
    convert.checked_delta(delta)
    if not event.steps:
        return 0.0
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=interval)
    step = PoissonSampledDpEvent(event.sampling_rate, GaussianDpEvent(event.noise_multiplier))
    accountant.compose(SelfComposedDpEvent(step, event.steps))
    return max(0.0, float(accountant.get_epsilon(delta)))


def guarantee(
    event: Event,
    delta: float,
    number: curves.Number = "data_independent",
    conversion: convert.Conversion = "improved",
) -> Guarantee:
    """The guarantee of one event at its caps; safe to publish.

    Args:
        event: what is released.
        delta: in (0, 1).
        number: "data_independent", or "textbook" (P18 Proposition 8). DP-SGD has one number whatever this says.
        conversion: "improved", or "classic" to reproduce papers.

    Raises:
        UserError: delta, number or conversion out of range.
    """
    if isinstance(event, DPSGD):
        return Guarantee(number, dpsgd_epsilon(event, delta), float(delta), None, "pld")
    orders = np.array(default_orders())
    if number == "data_independent":
        near = _promising(event, orders, delta, conversion)
        found, order = convert.epsilon(curves.rdp(event, near, number), near, delta, conversion, warn=False)
        if near[0] < order < near[-1]:
            return Guarantee(number, found, float(delta), order, conversion)
    found, order = convert.epsilon(curves.rdp(event, orders, number), orders, delta, conversion)
    return Guarantee(number, found, float(delta), order, conversion)


def _promising(event: Event, orders: np.ndarray, delta: float, conversion: convert.Conversion) -> np.ndarray:
    """Orders around the textbook's best one. Any subset of orders gives a valid epsilon; certifying fewer is faster.

    The cost per answer is between 0.6 and 1 times the textbook's, which moves the best order by less than 1.5.
    """
    textbook = curves.rdp(event, orders, "textbook")
    _, centre = convert.epsilon(textbook, orders, delta, conversion, warn=False)
    return orders[(orders >= 1 + (centre - 1) / 1.6) & (orders <= 1 + (centre - 1) * 2.2)]
