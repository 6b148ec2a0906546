r"""A data-dependent cost with noise on it: an estimate that may be published, once its release is paid for.

f = sum of J over fixed queries at one Rényi order (:mod:`accounting.cells`) bounds D_alpha from these votes to every
neighbour. Its smooth sensitivity is

    S = max_d e^{-beta d} LS(d),   LS(d) = sum over queries of the largest one-vote change of J within d changed votes,

with LS(d) at one set of votes at most LS(d + 1) at a neighbour, hence |f - f'| <= min(S, S') and S <= e^beta S'.
Released is f + S sigma_ss N(0, 1), the event ``Sanitized``. The figure shown is the conversion at that order of f plus
what releasing it costs. It estimates what the members of this dataset lost: it is no bound, and no (epsilon, delta) of
the procedure. Labels and figure together cost the labels' data-independent RDP plus the event's.

PRIVATE: whatever is computed here from votes, a plan included. Order, beta and sigma_ss must be fixed without looking
at votes. By default beta = 1/(4 order), so that s of :mod:`accounting.smooth_gaussian` is about a half, and
sigma_ss = 4 sqrt(order), so that releasing f costs about 0.07 at any order.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from accounting import cells, conversion, curves
from accounting.cells import FixedQueries, Positions
from accounting.events import Sanitized

ORDERS = (4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 12.0, 14.0, 16.0, 20.0, 25.0, 32.0, 40.0)
"""What a plan chooses from when no order is given."""
_THREADS = 2  # each holds a table


@dataclass(frozen=True)
class Figure:
    """f and its smooth sensitivity S, as exact floats. PRIVATE."""

    rdp: float
    smooth_sensitivity: float


@dataclass(frozen=True)
class Plan:
    """What a release would show without its noise, and the noise's standard deviation, both in epsilon. PRIVATE.

    ``rdp`` is f at ``order``, ``release_rdp`` what releasing it costs there, ``log_smooth_sensitivity`` ln S.
    """

    epsilon: float
    noise_std: float
    delta: float
    order: float
    beta: float
    sigma_ss: float
    sigma_log_scale: float | None
    rdp: float
    release_rdp: float
    log_smooth_sensitivity: float


def event(
    order: float, beta: float | None = None, sigma_ss: float | None = None, sigma_log_scale: float | None = None
) -> Sanitized:
    """The release at one order, by default with beta = 1/(4 order) and sigma_ss = 4 sqrt(order).

    >>> event(16.0)
    Sanitized(order=16.0, beta=0.015625, sigma_ss=16.0, sigma_log_scale=None)
    """
    return Sanitized(
        order,
        0.25 / order if beta is None else beta,
        4 * math.sqrt(order) if sigma_ss is None else sigma_ss,
        sigma_log_scale,
    )


def figure(queries: Positions, mechanism: FixedQueries, sanitized: Sanitized) -> Figure:
    """f and S of these queries. PRIVATE.

    The terms of S from d on are at most e^{-beta d} times the largest entry for all queries: it stops where no larger
    one can follow.
    """
    grid = cells.grid_for(mechanism, queries.teachers, queries.classes, sanitized.order)
    table = cells.tabulate(mechanism, grid, sanitized.order, len(queries))
    occupied = cells.occupied(queries, grid)
    changes = cells.changes(table)
    most = table.value(len(queries) * int(changes.max()))
    # At least one unit, so that there is noise where no vote matters; a constant makes no ratio worse.
    smooth = table.value(1)
    for distance, units in enumerate(cells.sums_within(changes, grid, occupied)):
        weight = math.exp(-sanitized.beta * distance)
        if weight * most <= smooth:
            break
        smooth = max(smooth, weight * table.value(units))
    return Figure(table.value(occupied.total(table.units)), smooth)


def release_rdp(sanitized: Sanitized) -> float:
    """What the release costs at its own order."""
    return float(curves.rdp(sanitized, sanitized.order)[0])


def estimate(rdp: float, sanitized: Sanitized, delta: float) -> float:
    """The figure that f, or a noisy f, is shown as: epsilon at the event's order of f plus the release's cost."""
    total = max(rdp, 0.0) + release_rdp(sanitized)
    return conversion.epsilon([total], [sanitized.order], delta, warn=False)[0]


def plan(
    votes: object,
    mechanism: FixedQueries,
    delta: float,
    order: float | None = None,
    *,
    beta: float | None = None,
    sigma_ss: float | None = None,
    sigma_log_scale: float | None = None,
) -> Plan:
    """What a release would show on these very votes. PRIVATE.

    Args:
        votes: (Q, C) histograms of the queries asked, fixed beforehand; or where these lie among the cells.
        mechanism: GNMax or ConfidentGNMax; queries beyond its cap are left out.
        delta: of the conversion.
        order: Rényi order; None takes the one of :data:`ORDERS` with the smallest epsilon + noise_std, which is a
            choice made by looking at votes: an order to draw at must come from elsewhere.
        beta, sigma_ss, sigma_log_scale: of the event; see :func:`event`.

    Raises:
        UserError: another mechanism, bad votes, or a parameter out of range.
    """
    mechanism = cells.fixed_queries(mechanism)
    queries = votes if isinstance(votes, Positions) else cells.positions(votes, mechanism)
    orders = ORDERS if order is None else (order,)

    def planned(each: float) -> Plan:
        return _planned(queries, mechanism, delta, event(each, beta, sigma_ss, sigma_log_scale))

    with ThreadPoolExecutor(_THREADS) as threads:
        plans = list(threads.map(planned, orders))
    return min(plans, key=lambda found: found.epsilon + found.noise_std)


def _planned(queries: Positions, mechanism: FixedQueries, delta: float, sanitized: Sanitized) -> Plan:
    found = figure(queries, mechanism, sanitized)
    return Plan(
        epsilon=estimate(found.rdp, sanitized, delta),
        noise_std=found.smooth_sensitivity * sanitized.sigma_ss,
        delta=delta,
        order=sanitized.order,
        beta=sanitized.beta,
        sigma_ss=sanitized.sigma_ss,
        sigma_log_scale=sanitized.sigma_log_scale,
        rdp=found.rdp,
        release_rdp=release_rdp(sanitized),
        log_smooth_sensitivity=math.log(found.smooth_sensitivity),
    )
