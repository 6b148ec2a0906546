r"""A table of what one query costs, on cells of (largest count, chance of another winner) that a changed vote shifts.

PRIVATE where it is evaluated at votes. One unit of privacy moves one vote of every query. It moves the largest count
c by at most 1 and, with q = Pr[GNMax answers another class than the plurality's], z = Phi^-1(q) by at most
s = sqrt(2)/sigma (docs/accounting.md, "Cells"). So cells are unit steps in c and steps of s/m in z: whatever the
votes, a changed vote moves a query by at most 1 row and m columns, and what lies within d changed votes lies in the
rectangle of d rows and d m columns around its cell. These rectangles nest in whole numbers, not up to rounding: s is
taken :data:`SLACK` larger than it is, which covers the rounding of z.

Entries are the forward cost J (:func:`accounting.one_atom.cost`) of the query at the largest q of the cell, rounded up
to whole units of 2^-k, so that sums are exact in any order. How many queries lie in each cell is all that is needed of
the votes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import maximum_filter1d
from scipy.special import log_ndtr, ndtri, ndtri_exp

from accounting import one_atom, outcomes
from accounting.events import ConfidentGNMax, Event, GNMax
from accounting.p18 import checked_votes
from accounting.suprema import checked_orders
from data.errors import UserError

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
FixedQueries = GNMax | ConfidentGNMax

SLACK = 1e-7
"""Added to s: above twice the rounding error of z, which is below 4e-8 for up to 100 000 classes."""
# q below e^-690 is treated as that: an upper bound, and where floats end.
_DEEPEST, _LOG_DEEPEST = -37.0, -690.0
# Columns whose answer costs less than this share of the worst answer are one column.
_NEGLIGIBLE = 1e-9
_TOTAL_BITS = 51
_FINEST_UNIT = 40
# What the slack was derived for, what a table may hold, and what rounding may do to a sum of powers.
_MOST_CLASSES, _MOST_CELLS, _MOST_ROUNDING = 100_000, 20_000_000, 1e-3
_BLOCK = 65_536


@dataclass(frozen=True)
class Grid:
    """``rows`` values of c from ``least`` up (one row, for any c, where nothing depends on it); ``columns`` of z.

    Column j holds top - (j + 1) width < z <= top - j width; the last one everything below too. ``step`` columns are
    one changed vote.
    """

    teachers: int
    classes: int
    sigma: float
    least: int
    rows: int
    top: float
    width: float
    columns: int
    step: int


@dataclass(frozen=True)
class Table:
    """``units`` (rows, columns): the cost of one query of a cell, from above, in units of 2^-``bits``."""

    grid: Grid
    units: Counts
    bits: int

    def value(self, units: int) -> float:
        """A sum of units as a number, exactly."""
        return math.ldexp(float(units), -self.bits)


@dataclass(frozen=True)
class Positions:
    """The queries' largest counts and z = Phi^-1(q), (Q,) each. PRIVATE."""

    teachers: int
    classes: int
    largest: Array
    z: Array

    def __len__(self) -> int:
        return len(self.z)


@dataclass(frozen=True)
class Occupied:
    """How many queries lie in each cell that holds one: (N,) rows, columns and counts. PRIVATE."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    counts: Counts

    def total(self, units: Counts) -> int:
        """Sum over the queries of their cells' entries."""
        return int((self.counts * units[self.rows, self.columns]).sum())


def fixed_queries(event: Event) -> FixedQueries:
    """The event, if its cost is a function of (c, q) and its queries can be fixed beforehand; else UserError."""
    if not isinstance(event, GNMax | ConfidentGNMax):
        raise UserError(
            f"mechanism = {type(event).__name__}: must be GNMax or ConfidentGNMax; what is published of a cost that "
            "depends on votes is proven for these alone"
        )
    return event


def _columns_per_vote(teachers: int) -> int:
    """How finely z is cut: chosen by the number of teachers so that a table has a few million cells at most."""
    return 8 if teachers <= 500 else 4 if teachers <= 2000 else 2


def grid_for(event: FixedQueries, teachers: int, classes: int, order: float) -> Grid:
    """The cells for this mechanism, number of teachers and classes, and Rényi order: nothing of the votes.

    Raises:
        UserError: more classes or cells than a table is made for, or a test whose noise is too small for floats.
    """
    if classes > _MOST_CLASSES:
        raise UserError(f"votes: a cost that may be published is computed for at most {_MOST_CLASSES} classes")
    if not _rounding(event, teachers, order) <= _MOST_ROUNDING:
        assert isinstance(event, ConfidentGNMax)
        raise UserError(
            f"threshold_sigma = {event.threshold_sigma!r}: too small beside the threshold and the number of teachers "
            "for a cost that may be published"
        )
    sigma, step = event.sigma, _columns_per_vote(teachers)
    move = math.sqrt(2) / sigma
    width = (move * (1 + 1e-9) + SLACK) / step
    top = float(ndtri(1 - 1 / classes))
    # The runner-up alone wins with Phi(-gap / (sqrt 2 sigma)), and no gap is above the number of teachers.
    bottom = max(-teachers * move / 2, _DEEPEST)
    columns = int((top - bottom) / width) + 2
    least, rows = 0, 1
    if isinstance(event, ConfidentGNMax):
        least = -(-teachers // classes)
        rows = teachers - least + 1
    _refuse_beyond(columns, event)
    # B alone: which columns there are is free to choose.
    log_q = _log_q(_edges(top, width, columns), classes)
    answer = np.logaddexp(0.0, one_atom.log_excess(log_q, one_atom.pair(event), [order])[:, 0])
    columns = min(columns, int(np.count_nonzero(answer > _NEGLIGIBLE * answer[0])) + 1)
    _refuse_beyond(rows * columns, event)
    return Grid(teachers, classes, sigma, least, rows, top, width, columns, step)


def _refuse_beyond(count: int, event: FixedQueries) -> None:
    if count > _MOST_CELLS:
        raise UserError(f"sigma = {event.sigma!r}: with this many teachers its cost takes too large a table to publish")


def _rounding(event: FixedQueries, teachers: int, order: float) -> float:
    """How far, relatively, rounding may put a sum of powers of a test's chances off: 2^-52 of exponents, doubled.

    Their logarithms are at most half the square of the farthest statistic from the threshold, times the order.
    """
    if isinstance(event, GNMax):
        return 0.0
    reach = (teachers + 1 + abs(event.threshold)) / event.threshold_sigma
    return 2.0**-50 * order * (1 + reach * reach)


def _edges(top: float, width: float, columns: int) -> Array:
    """The largest z of each column, descending; never below what rounding may have put there."""
    return top + SLACK - width * np.arange(columns, dtype=float)


def _log_q(edges: Array, classes: int) -> Array:
    """log q at the columns' upper edges, (K,)."""
    return np.asarray(np.minimum(log_ndtr(edges), math.log1p(-1 / classes) + SLACK))


def tabulate(event: FixedQueries, grid: Grid, order: float, queries: int) -> Table:
    """J of every cell from above, in units so fine that sums over ``queries`` are exact in 53 bits.

    GNMax: J is an answer's cost. Confident-GNMax: the worst of c' = c - 1 and c + 1, as in
    :func:`accounting.one_atom.cost`.
    """
    alpha = checked_orders(order)
    log_q = _log_q(_edges(grid.top, grid.width, grid.columns), grid.classes)
    excess = one_atom.answer_excess(log_q, event, alpha)[None]
    if isinstance(event, ConfidentGNMax):
        counts = grid.least + np.arange(grid.rows, dtype=float)[:, None]
        excess = np.maximum(
            one_atom.log_tested_excess(counts, counts - 1, event, excess, alpha),
            one_atom.log_tested_excess(counts, counts + 1, event, excess, alpha),
        )
    excess = excess[..., 0] + _rounding(event, grid.teachers, float(alpha[0]))
    costs = np.logaddexp(0.0, excess) / (alpha[0] - 1) * (1 + 1e-9)
    bits = min(_FINEST_UNIT, _TOTAL_BITS - math.ceil(math.log2(max(queries, 1) * max(float(costs.max()), 1e-6))))
    units = np.ceil(np.ldexp(costs, bits)).astype(np.int64) + 1
    # Falls from column to column but for rounding; the bound is non-decreasing in q, so the largest may stand.
    return Table(grid, np.maximum.accumulate(units[:, ::-1], axis=1)[:, ::-1], bits)


def positions(votes: object, event: FixedQueries) -> Positions:
    """Where the queries that the event may ask lie; votes (Q, C) histograms, a block of rows at a time. PRIVATE."""
    table = checked_votes(votes)
    teachers, classes = int(table[0].sum()), table.shape[1]
    table = table[: event.queries if isinstance(event, ConfidentGNMax) else event.answers]
    if not len(table):
        raise UserError(f"{type(event).__name__}: its cap must be at least 1 query")
    log_q = [_log_other(table[k : k + _BLOCK], event) for k in range(0, len(table), _BLOCK)]
    return Positions(teachers, classes, table.max(axis=1), ndtri_exp(np.concatenate(log_q)))


def _log_other(votes: Array, event: FixedQueries) -> Array:
    """log q, (Q,), at least e^-690; equal histograms but for the order of classes are looked at once."""
    ordered, at = np.unique(np.sort(votes, axis=1), axis=0, return_inverse=True)
    return np.maximum(outcomes.log_other(ordered, event), _LOG_DEEPEST)[at.reshape(-1)]


def occupied(queries: Positions, grid: Grid) -> Occupied:
    """Count the queries of each cell. PRIVATE."""
    z = np.clip(queries.z, _DEEPEST, grid.top)
    column = np.minimum(np.floor((grid.top - z) / grid.width), grid.columns - 1).astype(np.int64)
    row = queries.largest.astype(np.int64) - grid.least if grid.rows > 1 else np.zeros_like(column)
    cells, counts = np.unique(row * grid.columns + column, return_counts=True)
    return Occupied(cells // grid.columns, cells % grid.columns, counts)


def changes(table: Table) -> Counts:
    """The largest change of each cell's entry that one changed vote can bring, (rows, columns)."""
    up, down = _widened(table.units, table.grid), -_widened(-table.units, table.grid)
    return np.asarray(np.maximum(up - table.units, table.units - down))


def _widened(entries: Counts, grid: Grid) -> Counts:
    """The largest entry within one changed vote of each cell. (The filters compute in 53 bits, which suffice.)"""
    rows = maximum_filter1d(entries, 3, axis=0, mode="nearest") if grid.rows > 1 else entries
    return np.asarray(maximum_filter1d(rows, 2 * grid.step + 1, axis=1, mode="nearest"))


def sums_within(entries: Counts, grid: Grid, queries: Occupied) -> Iterator[int]:
    """For d = 0, 1, ..., n: the sum over queries of the largest entry within d changed votes of each. PRIVATE.

    The d-th number at one set of votes is at most the (d+1)-th at a neighbouring one, since rectangles nest; the
    last is the same for all votes, as n changed votes lead anywhere.
    """
    for _ in range(grid.teachers):
        yield queries.total(entries)
        entries = _widened(entries, grid)
    yield int(queries.counts.sum()) * int(entries.max())
