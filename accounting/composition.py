r"""What several events together cost by each composition theorem, side by side.

basic      (sum epsilon_i, sum delta_i) of the events' own statements (Dwork, McSherry, Nissim and Smith 2006).
advanced   each event at delta/(2k), the rest of delta for the theorem. Equal pure or approximate epsilons: the optimum
           of [KOV, arXiv 1311.0776, Theorem 3.3]; else [Dwork, Rothblum and Vadhan 2010] with the mean loss of KOV,
           sum epsilon_i tanh(epsilon_i/2) + sqrt(2 sum epsilon_i^2 log(1/delta')), never above the sum.
zcdp       rho_i with D_alpha <= rho_i alpha for every alpha (Bun and Steinke 2016), added and converted.
rdp        Renyi divergences added at every order, converted at the best (Mironov 2017).
pld        privacy loss distributions, composed for adding and removing apart.

All of these take the list of events as fixed beforehand: their number, noise and caps. What the mechanisms are run on
may have been chosen after earlier outcomes. The ledger's own number is not among them: see accounting.ledger.
Every method accounts for everything by itself; no number of one is added to that of another.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from accounting import conversion as convert
from accounting import curves
from accounting.cost import guarantee
from accounting.events import Event, Laplace, LNMax, PureDP, Tested
from accounting.loss_distributions import gaussian_square, pld_epsilon
from accounting.orders import default_orders

METHODS = ("basic", "advanced", "zcdp", "rdp", "pld")
FIXED = "all events (their number, noise and caps) had been fixed beforehand"


@dataclass(frozen=True)
class Composition:
    """(epsilon, delta) of all events by one method; both None where a mechanism has no such number.

    ``theorem``: what it rests on. ``assumes``: what must hold for it beside the events' own guarantees.
    """

    method: str
    epsilon: float | None
    delta: float | None
    theorem: str
    assumes: str = FIXED


def compositions(
    events: Sequence[Event], delta: float, stated: Sequence[tuple[float, float]] | None = None
) -> list[Composition]:
    """Every method's number for ``events``, in the order of this module's description.

    Args:
        events: what is released, at the caps.
        delta: in (0, 1); the total of all methods but basic.
        stated: (epsilon, delta) of each event's statement, for basic; default: its guarantee at ``delta``.
    """
    small = convert.checked_delta(delta)
    releasing = [event for event in events if _releases(event)]
    if not releasing:
        return [Composition(method, 0.0, 0.0, "nothing is released") for method in METHODS]
    return [
        basic(stated or list(zip(*_statements(releasing, small), strict=True))),
        advanced(releasing, small),
        zcdp(releasing, small),
        rdp(releasing, small),
        loss_distributions(releasing, small),
    ]


def basic(stated: Sequence[tuple[float, float]]) -> Composition:
    """The sums of what the events' statements say, given as (epsilon, delta) each."""
    epsilon, delta = (math.fsum(values) for values in zip(*stated, strict=True))
    return Composition("basic", epsilon, delta, "sums of ε and δ (Dwork et al. 2006)")


def advanced(events: Sequence[Event], delta: float) -> Composition:
    """Advanced composition at a total of ``delta``; the theorem used is named."""
    each = delta / (2 * len(events))
    if any(isinstance(event, Tested) and event.delta >= each for event in events):
        return Composition("advanced", None, None, f"a test may fail with more than δ/{2 * len(events)}")
    epsilons, deltas = _statements(events, each)
    # 1 - (1 - rest) prod(1 - delta_i) <= delta holds with a rest of delta - sum delta_i: products beat sums.
    rest = (delta - math.fsum(deltas)) * (1 - 1e-12)
    if len(set(epsilons)) == 1:
        found = homogeneous_epsilon(epsilons[0], len(epsilons), rest)
        return Composition("advanced", found, delta, "optimal for equal ε (Kairouz, Oh and Viswanath, Theorem 3.3)")
    found = heterogeneous_epsilon(epsilons, rest)
    return Composition("advanced", found, delta, "Dwork, Rothblum and Vadhan, mean loss of Kairouz, Oh and Viswanath")


def heterogeneous_epsilon(epsilons: Sequence[float], delta: float) -> float:
    """sum e_i tanh(e_i/2) + sqrt(2 sum e_i^2 log(1/delta)), or the plain sum where that is less.

    Each loss is at most that of randomized response: in [-e_i, e_i] with mean e_i tanh(e_i/2); Hoeffding's inequality
    bounds the sum. It holds under adaptive choice of what is run, the e_i being fixed.
    """
    mean = math.fsum(e * math.tanh(e / 2) for e in epsilons)
    spread = math.sqrt(2 * math.fsum(e * e for e in epsilons) * -math.log(delta))
    return min(math.fsum(epsilons), mean + spread)


def homogeneous_epsilon(epsilon: float, count: int, delta: float) -> float:
    """The smallest epsilon', from above, of ``count`` mechanisms of ``epsilon`` at ``delta``.

    Randomized response dominates each, so this is the exact profile of its ``count``-fold composition
    [KOV, Theorem 3.3, which gives it at (count - 2i) epsilon].
    """
    if not epsilon > 0:
        return 0.0
    low, high = 0.0, epsilon * count
    if homogeneous_delta(epsilon, count, low) <= delta:
        return 0.0
    while high - low > 1e-10 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if homogeneous_delta(epsilon, count, middle) <= delta else (middle, high)
    return high


def homogeneous_delta(epsilon: float, count: int, total: float) -> float:
    """delta at epsilon' = ``total`` of ``count`` randomized responses with odds e^epsilon; rounded up.

    sum over i < (count - total/epsilon)/2 of C(count, i) (e^((count - i) epsilon) - e^(total + i epsilon)) /
    (1 + e^epsilon)^count, i the number of lies.
    """
    lies = np.arange(count + 1)
    # log of the ratio of the two terms, with what its rounding may have lost
    gain = (count - 2 * lies) * epsilon - total + 1e-15 * (count * epsilon + total)
    some = gain > 0
    lies, gain = lies[some], gain[some]
    log_law = gammaln(count + 1) - gammaln(lies + 1) - gammaln(count - lies + 1)
    log_law = log_law - count * np.logaddexp(0.0, -epsilon) - lies * epsilon
    # A few units in the last place of the largest terms above, which grow with the count.
    rounding = 2.0**-49 * (3 * gammaln(count + 2) + count * (1 + epsilon))
    return float(np.sum(np.exp(log_law + rounding) * -np.expm1(-gain))) * (1 + 1e-10)


def zcdp(events: Sequence[Event], delta: float) -> Composition:
    """rho added up; converted like any Renyi curve, or to rho + 2 sqrt(rho log(1/delta)) where that is less."""
    rhos = [rho for event in events if (rho := zcdp_rho(event)) is not None]
    if len(rhos) < len(events):
        return Composition("zcdp", None, None, "a mechanism here has no useful ρ: it samples, or shows what votes cost")
    total = math.fsum(rhos) * (1 + 1e-14)
    orders = np.array(default_orders())
    found = convert.epsilon(total * orders, orders, delta, warn=False)[0]
    plain = total + 2 * math.sqrt(total * -math.log(delta))
    return Composition(
        "zcdp", min(found, plain), delta, f"zero-concentrated DP, ρ = {total:.4g} (Bun and Steinke 2016)"
    )


def zcdp_rho(event: Event) -> float | None:
    """rho with D_alpha <= rho alpha at every alpha > 1; None where there is none that is of use.

    mu^2/2 of a dominating Gaussian; epsilon^2/2 of a pure mechanism (Bun and Steinke, Proposition 1.4), LNMax being
    read from two Laplace counts of epsilon = 1/scale.
    """
    square = gaussian_square(event)
    if square is not None:
        return square / 2
    match event:
        case LNMax():
            return event.answers / event.scale**2
        case Laplace():
            return event.count * (event.sensitivity / event.scale) ** 2 / 2
        case PureDP():
            return event.count * event.epsilon**2 / 2
        case _:
            return None


def rdp(events: Sequence[Event], delta: float) -> Composition:
    """Renyi divergences added at every order; the best order is chosen at the end. What tests may fail with adds up."""
    orders = np.array(default_orders())
    # Certifying every order of every noise takes long: first where the textbook's costs say that the best one lies.
    rest = delta - math.fsum(event.delta for event in events if isinstance(event, Tested))
    if not rest > 0:
        return Composition("rdp", None, None, "tests may fail with more than δ in all")
    rough = _total(events, orders, "textbook")
    _, centre = convert.epsilon(rough, orders, rest, warn=False)
    near = orders[(orders >= 1 + (centre - 1) / 1.6) & (orders <= 1 + (centre - 1) * 2.2)]
    found, order = convert.epsilon(_total(events, near, "data_independent"), near, rest, warn=False)
    if not near[0] < order < near[-1]:
        found, order = convert.epsilon(_total(events, orders, "data_independent"), orders, rest, warn=False)
    return Composition("rdp", found, delta, f"Rényi divergences added, best order {order:g} (Mironov 2017)")


def loss_distributions(events: Sequence[Event], delta: float) -> Composition:
    """Privacy loss distributions, see :mod:`accounting.loss_distributions`."""
    found = pld_epsilon(events, delta)
    if found is None:
        return Composition("pld", None, None, "a mechanism here has no loss distribution, or δ is too small for one")
    return Composition("pld", found, delta, "privacy loss distributions; noisy maxima by the noise on their counts")


def _total(events: Sequence[Event], orders: np.ndarray, number: curves.Number) -> np.ndarray:
    return np.sum([curves.rdp(event, orders, number) for event in events], axis=0)


def _statements(events: Sequence[Event], delta: float) -> tuple[list[float], list[float]]:
    """(epsilons, deltas) of the events' guarantees at ``delta``; a pure one has delta 0."""
    found = [guarantee(event, delta) for event in events]
    return [g.epsilon for g in found], [0.0 if g.conversion == "pure" else g.delta for g in found]


def _releases(event: Event) -> bool:
    return bool(curves.repetitions(event)) or bool(getattr(event, "queries", 0))
