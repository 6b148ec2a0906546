r"""What a run's queries cost at its own votes: three numbers, each a sum over the queries asked.

PRIVATE: computed from votes; no number here may be published.

    data_dependent_p18     P18 Theorem 6 with Propositions 7 and 10, weighted by expected answers (accounting.p18)
    data_dependent         the one-atom bound at the largest q of these votes and their neighbours, the larger of both
                           directions (accounting.one_atom)
    data_dependent_exact   the worst divergence from and to a neighbour (accounting.exact)

Queries that are fixed beforehand add up; where later queries depend on earlier answers the sum is conditional on the
transcript. Votes come in blocks: equal histograms are looked at once.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from accounting import conversion as convert
from accounting import curves as worst_cases
from accounting import exact, one_atom, outcomes, p18
from accounting.events import InteractiveGNMax, NoisyMax, Thresholded
from accounting.suprema import checked_orders
from data.errors import UserError

Array = NDArray[np.float64]
Curves = Callable[[Array], Array]
T = TypeVar("T")

NUMBERS = ("data_dependent_p18", "data_dependent", "data_dependent_exact")
_ROWS = 1 << 18  # histograms at least between two searches for equal ones
_MOST_ROWS = 1 << 19  # distinct histograms kept as one piece
_BLOCK = 1 << 13  # queries whose costs at all orders are held at once
_SAMPLE = 1 << 14  # different queries beyond which a sample of them tells which orders to look at
_AROUND = 8  # orders of the literature's bound on either side of the sample's best
_THREADS = 4  # each holds some 100 MB
# Orders at which the supremum over all votes is certified, less 1: the textbook's best times these. A lower cost has a
# higher best order.
_CERTIFIED = (0.9, 4.5)


@dataclass(frozen=True)
class Queries:
    """U different queries: votes (U, C), how many there are of each (U,), the student's probabilities or None."""

    votes: Array
    times: Array
    student: Array | None = None


@dataclass(frozen=True)
class Figure:
    """``epsilon`` covers both directions where there are two; ``forward`` is these votes first, None without it."""

    epsilon: float
    order: float
    forward: float | None


def _merged(votes: list[Array], times: list[Array]) -> tuple[Array, Array]:
    rows, inverse = np.unique(np.concatenate(votes), axis=0, return_inverse=True)
    return rows, np.asarray(np.bincount(inverse.ravel(), weights=np.concatenate(times)), dtype=float)


def distinct(blocks: Iterable[object], event: NoisyMax) -> Iterator[Queries]:
    """Different histograms of all blocks, classes in ascending order of their counts, each with how often it occurs.

    Args:
        blocks: tables (Q, C) of votes; for Interactive-GNMax pairs of one and the student's probabilities (Q, C),
            which are not merged.
        event: the mechanism.

    Raises:
        UserError: bad votes, or blocks of different classes or teachers.
    """
    votes: list[Array] = []
    times: list[Array] = []
    shape: tuple[int, float] | None = None
    for block in blocks:
        if isinstance(event, InteractiveGNMax):
            if not isinstance(block, tuple) or len(block) != 2:
                raise UserError("student: Interactive-GNMax needs the student's probabilities beside the votes")
            table, student = block
        else:
            table, student = block, None
        v = p18.checked_votes(table)
        found = (v.shape[1], float(v[0].sum()))
        if shape not in (None, found):
            raise UserError("votes: every row must sum to the number of teachers, over the same classes")
        shape = found
        if student is not None:
            outcomes.margins(v, event, student)
            yield Queries(v, np.ones(len(v)), np.asarray(student, dtype=float))
            continue
        votes.append(np.sort(v, axis=1).astype(np.float32 if found[1] < 2**24 else np.float64))
        times.append(np.ones(len(v)))
        if sum(map(len, votes[1:])) >= _ROWS:
            rows, counts = _merged(votes, times)
            votes, times = [rows], [counts]
            if len(rows) > _MOST_ROWS:
                yield Queries(rows.astype(float), counts)
                votes, times = [], []
    if votes:
        rows, counts = _merged(votes, times)
        yield Queries(rows.astype(float), counts)


def _parts(queries: Queries) -> Iterator[Queries]:
    for start in range(0, len(queries.votes), _BLOCK):
        rows = slice(start, start + _BLOCK)
        student = None if queries.student is None else queries.student[rows]
        yield Queries(queries.votes[rows], queries.times[rows], student)


def _compared(part: Queries, event: NoisyMax) -> Array | None:
    return outcomes.statistic(part.votes, event, part.student) if isinstance(event, Thresholded) else None


def _mapped(of: Callable[[Queries], T], pieces: Sequence[Queries]) -> list[T]:
    """``of`` each part, in order, side by side: nearly all of it happens outside Python's lock."""
    parts = [part for piece in pieces for part in _parts(piece)]
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(max(1, min(cpus, _THREADS, len(parts)))) as threads:
        return list(threads.map(of, parts))


def literature(pieces: Sequence[Queries], event: NoisyMax) -> Curves:
    """Orders (O,) -> (1, O): the total of data_dependent_p18."""

    def total(orders: Array) -> Array:
        def of(part: Queries) -> Array:
            return part.times @ p18.per_query_rdp(part.votes, event, orders, _compared(part, event))

        return np.sum(_mapped(of, pieces), axis=0)[None]

    return total


def one_atom_totals(pieces: Sequence[Queries], event: NoisyMax) -> tuple[Curves, Curves]:
    """Orders (O,) -> (2, O): the totals of data_dependent and of its forward part; q is computed once.

    Then the same without the supremum over all votes, which takes a second for each new order: an upper bound.
    """

    def looked_at(part: Queries) -> tuple[Array, Array | None, Array, Array]:
        nearby, here = outcomes.log_other_nearby(part.votes, event), outcomes.log_other(part.votes, event)
        return part.times, _compared(part, event), nearby, here

    known = _mapped(looked_at, pieces)

    def total(orders: Array, capped: bool) -> Array:
        result = np.zeros((2, len(orders)))
        for times, compared, log_q_nearby, log_q in known:
            result[0] += times @ one_atom.cost(log_q_nearby, event, orders, compared, True, capped)
            result[1] += times @ one_atom.cost(log_q, event, orders, compared, False, capped)
        return result

    return partial(total, capped=True), partial(total, capped=False)


def exact_totals(pieces: Sequence[Queries], event: NoisyMax) -> Curves:
    """Orders (O,) -> (2, O): the totals of data_dependent_exact, symmetrised and forward."""

    def total(orders: Array) -> Array:
        def of(part: Queries) -> Array:
            both = exact.query_cost(part.votes, event, orders, part.student)
            return np.stack([part.times @ way for way in both])

        return np.asarray(np.sum(_mapped(of, pieces), axis=0))

    return total


def totals(blocks: Iterable[object], event: NoisyMax, orders: object) -> dict[str, Array]:
    """The curve of each of :data:`NUMBERS`, (1 or 2, O): the number itself, then its forward part."""
    alpha = checked_orders(orders)
    pieces = list(distinct(blocks, event))
    made = (literature(pieces, event), one_atom_totals(pieces, event)[0], exact_totals(pieces, event))
    return {name: curve(alpha) for name, curve in zip(NUMBERS, made, strict=True)}


def epsilons(
    blocks: Iterable[object],
    event: NoisyMax,
    orders: object,
    delta: float,
    conversion: convert.Conversion = "improved",
) -> dict[str, Figure]:
    """epsilon of each of :data:`NUMBERS` over the queries asked, at the best of the orders. PRIVATE.

    Args:
        blocks: votes as :func:`distinct` takes them.
        event: the mechanism; its caps play no part.
        orders: (O,) above 1.
        delta: in (0, 1).
        conversion: "improved", or "classic" to reproduce papers.
    """
    pieces = list(distinct(blocks, event))
    if not pieces:
        raise UserError("votes: must be a table of queries by classes, with a row and at least 2 classes")
    return figures(pieces, event, orders, delta, conversion)


def figures(
    pieces: Sequence[Queries],
    event: NoisyMax,
    orders: object,
    delta: float,
    conversion: convert.Conversion = "improved",
) -> dict[str, Figure]:
    """:func:`epsilons` of what :func:`distinct` found. PRIVATE."""
    alpha = np.unique(checked_orders(orders))
    queries = round(sum(float(piece.times.sum()) for piece in pieces))
    certified = _certified_orders(queries, event, alpha, delta, conversion)
    different = sum(len(piece.votes) for piece in pieces)
    if different <= _SAMPLE:
        return _figures(pieces, event, alpha, alpha, certified, delta, conversion, None)
    sampled = _sample(pieces, -(-different // _SAMPLE))
    guess = _figures(sampled, event, alpha, alpha, certified, delta, conversion, None)
    centre = int(np.searchsorted(alpha, guess[NUMBERS[0]].order))
    around = alpha[max(centre - _AROUND, 0) : centre + _AROUND + 1]
    return _figures(pieces, event, alpha, around, certified, delta, conversion, guess)


def _sample(pieces: Sequence[Queries], step: int) -> list[Queries]:
    """Every ``step``-th query, that many times as often."""
    return [
        Queries(
            piece.votes[::step], piece.times[::step] * step, None if piece.student is None else piece.student[::step]
        )
        for piece in pieces
    ]


def _figures(
    pieces: Sequence[Queries],
    event: NoisyMax,
    alpha: Array,
    literature_orders: Array,
    certified: Array,
    delta: float,
    conversion: convert.Conversion,
    guess: dict[str, Figure] | None,
) -> dict[str, Figure]:
    """``guess``: whose orders are looked at first, with those beside them. That a number's own curve is higher at both
    shows that it is the best of all (see :func:`smallest`); for its forward part any order gives a valid epsilon."""
    # The literature's bound jumps where its conditions end: no search is safe.
    curve = literature(pieces, event)(literature_orders)[0]
    literature_figure = Figure(*convert.epsilon(curve, literature_orders, delta, conversion, warn=False), None)

    def best(curves: Curves, name: str, among: Array, near: Array | None = None) -> list[tuple[float, float]]:
        if guess is not None:
            centre = int(np.searchsorted(among, guess[name].order))
            beside = among[max(centre - 1, 0) : centre + 2]
            found = _at(curves, beside, delta, conversion) if len(beside) == 3 else []
            if found and found[0][1] == beside[1]:
                return found
        return smallest(curves, among, delta, conversion, near)

    capped, uncapped = one_atom_totals(pieces, event)
    plain = best(uncapped, NUMBERS[1], alpha)
    # The smaller of two convex curves need not be convex: what is found with the supremum is the best, or next to it.
    under = best(capped, NUMBERS[1], certified) if len(certified) else plain
    (bound, order), bound_forward = (min(pair) for pair in zip(under, plain, strict=True))
    # The exact cost is smaller, its best order a little larger.
    near = 1 + (order - 1) * np.array([0.7, 1.1, 1.6, 2.4])
    (worst, worst_order), worst_forward = best(exact_totals(pieces, event), NUMBERS[2], alpha, near)
    return {
        NUMBERS[0]: literature_figure,
        NUMBERS[1]: Figure(bound, order, bound_forward[0]),
        NUMBERS[2]: Figure(worst, worst_order, worst_forward[0]),
    }


def _certified_orders(
    queries: int, event: NoisyMax, alpha: Array, delta: float, conversion: convert.Conversion
) -> Array:
    """Orders at which the supremum over all votes is used. They depend on how many queries there are, not on votes, and
    all are certified here: what is kept of that (accounting.suprema) betrays no choice made by looking at votes."""
    if isinstance(event, Thresholded):
        # A cap on answers says something where the event is about as many queries.
        answers = min(event.answers, queries) if event.queries >= queries and event.answers else queries
        asked: NoisyMax = replace(event, queries=queries, answers=answers)
    else:
        asked = replace(event, answers=queries)
    _, centre = convert.epsilon(worst_cases.rdp(asked, alpha, "textbook"), alpha, delta, conversion, warn=False)
    low, high = (1 + (centre - 1) * factor for factor in _CERTIFIED)
    orders = alpha[(alpha >= low) & (alpha <= high)]
    if len(orders):
        worst_cases.rdp_per_answer(event, orders)
    return orders


def _at(curves: Curves, orders: Array, delta: float, conversion: convert.Conversion) -> list[tuple[float, float]]:
    """(epsilon, order) of each curve, the smallest over these few orders."""
    return [convert.epsilon(row, orders, delta, conversion, warn=False) for row in curves(orders)]


def smallest(
    curves: Curves,
    orders: Array,
    delta: float,
    conversion: convert.Conversion = "improved",
    near: Array | None = None,
) -> list[tuple[float, float]]:
    """(epsilon, order) of each curve, the smallest over ascending orders, few of which are computed.

    (alpha - 1) D_alpha is convex in alpha, so are sums and suprema of such curves, and (alpha - 1) times what
    conversion adds (its second derivative is 1/(beta alpha) > 0): {alpha: epsilon(alpha) <= x} is an interval.
    So an order at which epsilon is smaller than at both orders beside it is the best of all. ``near``: where to look
    first, by default all over.
    """
    log_beta = np.log(orders - 1)
    first = np.arange(log_beta[0], log_beta[-1], 0.55) if near is None else np.log(near - 1)
    wanted = sorted({0, len(orders) - 1, *np.clip(np.searchsorted(log_beta, first), 0, len(orders) - 1).tolist()})
    known: dict[int, Array] = {}
    while wanted:
        rdp = curves(orders[wanted])
        for column, k in enumerate(wanted):
            known[k] = np.array(
                [convert.epsilon(row[column : column + 1], orders[k], delta, conversion, warn=False)[0] for row in rdp]
            )
        wanted = sorted({k for row in range(len(rdp)) for k in _next(known, row, log_beta)} - set(known))
    found = []
    for row in range(len(next(iter(known.values())))):
        best = min(known, key=lambda k: (known[k][row], k))
        found.append((float(known[best][row]), float(orders[best])))
    return found


def _next(known: dict[int, Array], row: int, x: Array) -> list[int]:
    """Orders to look at next: around the vertex of the parabola through the best and its known neighbours."""
    at = sorted(known)
    best = min(at, key=lambda k: (known[k][row], k))
    k = at.index(best)
    left, right = at[max(k - 1, 0)], at[min(k + 1, len(at) - 1)]
    if best - left <= 1 and right - best <= 1:
        return []
    guess = best
    if left < best < right:
        slopes = [(known[b][row] - known[a][row]) / (x[b] - x[a]) for a, b in ((left, best), (best, right))]
        if slopes[1] > slopes[0]:
            vertex = 0.5 * (x[left] + x[best]) - slopes[0] * 0.5 * (x[right] - x[left]) / (slopes[1] - slopes[0])
            guess = int(np.clip(np.searchsorted(x, vertex), left, right))
    around = [i for i in range(guess - 2, guess + 3) if left < i < right and i not in known]
    return around or [i for i in (best - 1, best + 1) if left < i < right and i not in known]
