r"""Propose-test-release: labels at a cost that these votes show, or a refusal; a worst-case guarantee either way.

Fixed beforehand: an order alpha, a cost rho, sigma_d and delta'. With F_d the sum over fixed queries of the largest J
within d changed votes (:mod:`accounting.cells`; F_d at one set of votes is at most F_{d+1} at a neighbouring one),
d* = min {d : F_d > rho} moves by at most 1 with one unit. The labels are released iff

    d* + N(0, sigma_d^2) >= sigma_d Phi^-1(1 - delta'),

else the refusal alone. Outside probability delta' the labels come from votes with F_0 <= rho, so the release costs
rho + (the test's bit) at order alpha, at most alpha/(2 sigma_d^2), and converts at delta - delta' (the distance form of
arXiv 2301.00301; proof: docs/accounting.md, "A tested release"). If rho >= F_n every dataset would pass: refused.

PRIVATE: what is computed here from votes, a plan included. What an event guarantees is not:
:func:`accounting.cost.guarantee`.
"""

import math
from dataclasses import dataclass

from scipy.special import ndtr, ndtri

from accounting import cells, conversion
from accounting.cells import FixedQueries, Positions, Table
from accounting.cost import guarantee
from accounting.events import Tested
from data.errors import UserError

ORDERS = (4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 12.0, 14.0, 16.0, 20.0, 25.0, 32.0)
"""What a plan chooses from when no order is given."""
SHARE = 0.1
"""delta' as a share of delta, by default."""


@dataclass(frozen=True)
class Plan:
    """The cheapest test that these votes pass with ``pass_probability``, and the epsilon of its release. PRIVATE."""

    epsilon: float
    delta: float
    order: float
    rho: float
    sigma_d: float
    test_delta: float
    distance: int
    pass_probability: float


def threshold(tested: Tested) -> float:
    """What distance plus noise must reach, rounded up: sigma_d Phi^-1(1 - delta')."""
    return math.nextafter(-float(ndtri(tested.delta)) * tested.sigma_d * (1 + 1e-12), math.inf)


def check(tested: Tested, mechanism: FixedQueries, teachers: int, classes: int, queries: int) -> None:
    """Refuse a rho that every set of votes stays within: its test would test nothing. Nothing here looks at votes."""
    _refuse_vacuous(_table(mechanism, teachers, classes, tested.order, queries), tested.rho, queries)


def distance(queries: Positions, mechanism: FixedQueries, tested: Tested) -> int:
    """d* of these queries, from 0 (the cost is above rho already) to n. PRIVATE.

    Raises:
        UserError: rho is so large that the test is vacuous, whatever the votes (see :func:`check`).
    """
    table = _table(mechanism, queries.teachers, queries.classes, tested.order, len(queries))
    _refuse_vacuous(table, tested.rho, len(queries))
    occupied = cells.occupied(queries, table.grid)
    for found, units in enumerate(cells.sums_within(table.units, table.grid, occupied)):
        if table.value(units) > tested.rho:
            return found
    raise AssertionError("the last sum is above rho")


def _passes(distance: int, tested: Tested) -> float:
    """Pr[the labels are released] at this distance."""
    return float(ndtr((distance - threshold(tested)) / tested.sigma_d))


def plan(
    votes: object,
    mechanism: FixedQueries,
    delta: float,
    order: float | None = None,
    pass_probability: float = 0.977,
    *,
    sigma_d: float | None = None,
    test_delta: float | None = None,
) -> Plan:
    """The cheapest test that these very votes pass with ``pass_probability``. PRIVATE.

    rho, and where not given order and sigma_d, are chosen by looking at votes. A test to draw must have them from
    elsewhere: settings, or a plan on public votes.

    Args:
        votes: (Q, C) histograms of the queries asked, fixed beforehand; or where these lie among the cells.
        mechanism: GNMax or ConfidentGNMax; queries beyond its cap are left out.
        delta: in all, the test's included.
        order: Rényi order; None takes the best of :data:`ORDERS`.
        pass_probability: in (0, 1).
        sigma_d: the test's noise; None takes the best.
        test_delta: delta' of the test, below delta; None takes a tenth of it.

    Raises:
        UserError: another mechanism, bad votes, a parameter out of range, or no test that is not vacuous.
    """
    mechanism = cells.fixed_queries(mechanism)
    small = conversion.checked_delta(delta)
    test = SHARE * small if test_delta is None else test_delta
    if not 0 < test < small:
        raise UserError(f"test_delta = {test!r}: must be above 0 and below delta {small!r}")
    if not 0 < pass_probability < 1:
        raise UserError(f"pass_probability = {pass_probability!r}: must be above 0 and below 1")
    queries = votes if isinstance(votes, Positions) else cells.positions(votes, mechanism)
    proposals = [
        _cheapest(queries, mechanism, alpha, sigma_d, test, pass_probability)
        for alpha in (ORDERS if order is None else (order,))
    ]

    def rough(tested: Tested) -> float:
        return conversion.epsilon([_rough_rdp(tested)], [tested.order], small - test, warn=False)[0]

    # Only the most promising are certified.
    promising = sorted((p for p in proposals if p is not None), key=rough)[:3]
    if not promising:
        raise UserError("tested: any test that these votes pass would be passed by all votes; nothing to test")
    epsilon, chosen = min(((guarantee(p, small).epsilon, p) for p in promising), key=lambda found: found[0])
    reached = distance(queries, mechanism, chosen)
    return Plan(
        epsilon=epsilon,
        delta=small,
        order=chosen.order,
        rho=chosen.rho,
        sigma_d=chosen.sigma_d,
        test_delta=test,
        distance=reached,
        pass_probability=_passes(reached, chosen),
    )


def _rough_rdp(tested: Tested) -> float:
    """About the cost: a released bit costs some two thirds to four fifths of the Gaussian it is made from."""
    return tested.rho + 0.37 * tested.order / tested.sigma_d**2


def _cheapest(
    queries: Positions,
    mechanism: FixedQueries,
    order: float,
    sigma_d: float | None,
    test_delta: float,
    pass_probability: float,
) -> Tested | None:
    """At one order the best of: for a distance d, the largest sigma_d (to 1e-3) whose test d passes, and the smallest
    rho (to 1e-4) for which these queries are that far. None if all are vacuous."""
    margin = float(ndtri(pass_probability) - ndtri(test_delta))
    table = _table(mechanism, queries.teachers, queries.classes, order, len(queries))
    largest = table.value(_largest_units(table, len(queries)))
    best: Tested | None = None
    for d, units in enumerate(cells.sums_within(table.units, table.grid, cells.occupied(queries, table.grid)), start=1):
        rho = math.ceil(table.value(units) * 1e4) / 1e4  # d* >= d iff F_{d-1} <= rho
        # Farther tests have a larger rho, and none is cheaper than its rho.
        if not rho < largest or (best is not None and rho >= _rough_rdp(best)) or d > queries.teachers:
            break
        noise = math.floor(1000 * d / margin) / 1000 if margin > 0 else math.inf
        if sigma_d is not None:
            noise = sigma_d if noise >= sigma_d else 0.0
        if 0 < noise < math.inf:
            proposal = Tested(order, rho, noise, test_delta)
            best = proposal if best is None or _rough_rdp(proposal) < _rough_rdp(best) else best
    return best


def _table(mechanism: FixedQueries, teachers: int, classes: int, order: float, queries: int) -> Table:
    grid = cells.grid_for(cells.fixed_queries(mechanism), teachers, classes, order)
    return cells.tabulate(mechanism, grid, order, queries)


def _largest_units(table: Table, queries: int) -> int:
    """F_n: the same for all votes."""
    return queries * int(table.units.max())


def _refuse_vacuous(table: Table, rho: float, queries: int) -> None:
    largest = table.value(_largest_units(table, queries))
    if not rho < largest:
        raise UserError(f"rho = {rho!r}: must be below {largest:.6g}, which no votes exceed; the test would be vacuous")
