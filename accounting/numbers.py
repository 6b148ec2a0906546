r"""Every number that a run's votes can be given, side by side and never mixed up: one pass over the votes.

    textbook, data_independent     worst cases at the caps, from the mechanism alone: may be published
    data_dependent_p18, data_dependent, data_dependent_exact     sums over the queries asked (accounting.data_dependent)
    tested, sanitized              planned on these very votes (accounting.tested, accounting.sanitized)
    sanitized_p18                  unsound, to reproduce tables (accounting.sanitized_p18)

PRIVATE: all but the first two are computed from votes. What is drawn and charged: aggregation.testing.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from accounting import cells, cost, data_dependent, p18, sanitized, sanitized_p18, tested
from accounting import conversion as convert
from accounting.cells import Positions
from accounting.conversion import Conversion
from accounting.data_dependent import Queries
from accounting.events import NoisyMax, Tested, Thresholded
from accounting.orders import default_orders, paper_orders
from accounting.outcomes import statistic
from data.errors import UserError

NAMES = (
    "textbook",
    "data_independent",
    "tested",
    "data_dependent_p18",
    "data_dependent",
    "data_dependent_exact",
    "sanitized",
    "sanitized_p18",
)
"""In the order in which they are shown."""
MOST_UNSOUND = 20_000
"""Queries for which the tables' procedure is repeated: it holds every query's cost at every order."""


@dataclass(frozen=True)
class Votes:
    """The votes of Q queries, without their order. PRIVATE. ``pieces`` hold each different histogram once."""

    queries: int
    teachers: int
    classes: int
    pieces: tuple[Queries, ...]


@dataclass(frozen=True)
class Number:
    """One number. ``order`` is the Rényi order that gave it, None where there is none; ``more`` belongs to its kind:

    forward (data_dependent, data_dependent_exact), method (data_independent), noise_std, beta, sigma_ss (sanitized,
    sanitized_p18), rho, sigma_d, test_delta, pass_probability (tested).
    """

    epsilon: float
    order: float | None
    publishable: bool
    more: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Wanted:
    """Which numbers are asked for besides the five that every run has, and how all are converted.

    ``order``, ``sigma_d`` and ``test_delta`` bind sanitized and tested alone; None lets their plan choose.
    """

    sanitized: bool = False
    tested: bool = False
    unsound_p18: bool = False
    order: float | None = None
    sigma_d: float | None = None
    test_delta: float | None = None
    conversion: Conversion = "improved"


def read(blocks: Iterable[object], kind: NoisyMax) -> Votes:
    """The votes of all blocks, (Q, C) tables of whole numbers; for Interactive-GNMax with the student's probabilities.

    Raises:
        UserError: bad votes (see :func:`accounting.p18.checked_votes`), or none.
    """
    pieces = tuple(data_dependent.distinct(blocks, kind))
    if not pieces:
        raise UserError("votes: must be a table of queries by classes, with a row and at least 2 classes")
    first = pieces[0].votes
    return Votes(round(sum(piece.times.sum() for piece in pieces)), int(first[0].sum()), first.shape[1], pieces)


def expected_answered(votes: Votes, event: NoisyMax) -> float:
    """How many of the queries are answered on average, were there no cap on answers. PRIVATE."""
    total = 0.0
    for piece in votes.pieces:
        compared = statistic(piece.votes, event, piece.student) if isinstance(event, Thresholded) else None
        total += float(piece.times @ p18.answer_probability(piece.votes, event, compared))
    return total


def positions(votes: Votes, event: NoisyMax) -> Positions:
    """Where the queries lie among the cells of :mod:`accounting.cells`. PRIVATE.

    Args:
        votes: all of which are asked: the event's cap must not be below their number.
        event: GNMax or Confident-GNMax.
    """
    mechanism = cells.fixed_queries(event)
    largest, z = [], []
    for piece in votes.pieces:
        found, times = cells.positions(piece.votes, mechanism), piece.times.astype(np.int64)
        largest.append(np.repeat(found.largest, times))
        z.append(np.repeat(found.z, times))
    return Positions(votes.teachers, votes.classes, np.concatenate(largest), np.concatenate(z))


def numbers(votes: Votes, event: NoisyMax, delta: float, wanted: Wanted) -> dict[str, Number]:
    """Every number by its name, in the order of :data:`NAMES`. PRIVATE, whatever ``publishable`` says of each.

    Args:
        votes: the queries asked, all within the event's caps.
        event: the mechanism at its caps, which the two worst cases take; the others sum over ``votes``.
        delta: in (0, 1).
        wanted: the optional numbers.

    Raises:
        UserError: a parameter out of range; sanitized or tested of a mechanism that has none.
    """
    found = {**worst_cases(event, delta, wanted.conversion), **of_votes(votes, event, delta, wanted)}
    return {name: found[name] for name in NAMES if name in found}


def of_votes(votes: Votes, event: NoisyMax, delta: float, wanted: Wanted) -> dict[str, Number]:
    """:func:`numbers` without the two that any votes have. PRIVATE."""
    found = data_dependent_numbers(votes, event, delta, wanted.conversion)
    if wanted.tested or wanted.sanitized:
        where = positions(votes, event)
        if wanted.tested:
            found["tested"] = _tested(where, event, delta, wanted)
        if wanted.sanitized:
            found["sanitized"] = _sanitized(where, event, delta, wanted)
    if wanted.unsound_p18:
        found["sanitized_p18"] = _unsound(votes, event, delta)
    return {name: found[name] for name in NAMES if name in found}


def worst_cases(event: NoisyMax, delta: float, conversion_name: Conversion) -> dict[str, Number]:
    """textbook and data_independent: from the mechanism and its caps alone."""
    textbook = cost.guarantee(event, delta, "textbook", conversion_name)
    independent = cost.guarantee(event, delta, "data_independent", conversion_name)
    return {
        "textbook": Number(textbook.epsilon, textbook.order, True),
        "data_independent": Number(independent.epsilon, independent.order, True, {"method": independent.method}),
    }


def data_dependent_numbers(
    votes: Votes, event: NoisyMax, delta: float, conversion_name: Conversion
) -> dict[str, Number]:
    """The three sums over the queries asked. PRIVATE."""
    # The tables that the classic conversion reproduces have their own orders.
    orders = paper_orders() if conversion_name == "classic" else default_orders()
    figures = data_dependent.figures(votes.pieces, event, orders, delta, conversion_name)
    return {
        name: Number(figure.epsilon, figure.order, False, {} if figure.forward is None else {"forward": figure.forward})
        for name, figure in figures.items()
    }


def _tested(where: Positions, event: NoisyMax, delta: float, wanted: Wanted) -> Number:
    plan = tested.plan(
        where,
        cells.fixed_queries(event),
        delta,
        wanted.order,
        sigma_d=wanted.sigma_d,
        test_delta=wanted.test_delta,
    )
    release = Tested(plan.order, plan.rho, plan.sigma_d, plan.test_delta)
    more = {name: getattr(plan, name) for name in ("rho", "sigma_d", "test_delta", "pass_probability")}
    return Number(cost.guarantee(release, delta, conversion=wanted.conversion).epsilon, plan.order, False, more)


def _sanitized(where: Positions, event: NoisyMax, delta: float, wanted: Wanted) -> Number:
    plan = sanitized.plan(where, cells.fixed_queries(event), delta, wanted.order)
    total = [plan.rdp + plan.release_rdp]
    epsilon, _ = convert.epsilon(total, [plan.order], delta, wanted.conversion, warn=False)
    more = {"noise_std": plan.noise_std, "beta": plan.beta, "sigma_ss": plan.sigma_ss}
    return Number(epsilon, plan.order, False, more)


def _unsound(votes: Votes, event: NoisyMax, delta: float) -> Number:
    if votes.queries > MOST_UNSOUND:
        raise UserError(f"sanitized_p18: reproduces tables of at most {MOST_UNSOUND} queries")
    table = np.concatenate([np.repeat(piece.votes, piece.times.astype(int), axis=0) for piece in votes.pieces])
    plan = sanitized_p18.plan(table, cells.fixed_queries(event), delta)
    more = {"noise_std": plan.noise_std, "beta": plan.beta, "sigma_ss": plan.sigma_ss}
    return Number(plan.epsilon, plan.order, False, more)
