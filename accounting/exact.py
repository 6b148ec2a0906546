r"""The exact Rényi cost of a query at its votes: the worst divergence of its outcome law from a neighbour's.

PRIVATE: computed from votes; nothing here may be published.

    max over v' = v - e_i + e_j of D_alpha(P(v) || P(v')) and of D_alpha(P(v') || P(v)),

P the joint law of test and answer. Only the votes of the two classes matter, so neighbours are enumerated by pairs of
distinct counts. Ratios come from moments, not from differences: with A_k the law of the winning noisy score given that
k wins, P_k(v')/P_k(v) = E_{A_k}[prod of F(x - v'_l)/F(x - v_l)] (docs/accounting.md, "The exact cost of a query").
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accounting import outcomes, p18
from accounting.events import InteractiveGNMax, NoisyMax, Thresholded
from accounting.one_atom import log_power_excess, log_tested_excess
from accounting.outcomes import Tables
from accounting.suprema import checked_orders

Array = NDArray[np.float64]
Index = NDArray[np.intp]

# Beyond such logarithms of ratios their moments are summed in logarithms.
_LARGEST_LOG = 150.0
_LARGEST_POWER = 600.0


@dataclass(frozen=True)
class Histograms:
    """U histograms of D distinct counts each: the counts (U, D), ascending, and how many classes have them (U, D).

    ``rank`` (U, C): which of the counts a class has.
    """

    counts: Array
    classes: NDArray[np.int64]
    rank: Index


@dataclass(frozen=True)
class Moves:
    """N neighbours: a vote goes from a class of count ``source`` to one of count ``target``, indices of the D counts.

    ``histogram`` (N,), ascending, says whose. Outcomes: the D counts' other classes, the source, the target; ``log_p``
    (N, D + 2) is a class's log probability, ``ratio`` log(P/P') of it, ``classes`` how many there are.
    """

    histogram: Index
    source: Index
    target: Index
    log_p: Array
    ratio: Array
    classes: NDArray[np.int64]


def _by_distinct_counts(votes: Array) -> Iterator[tuple[Index, Histograms]]:
    """(rows, their histograms) for each number D of distinct counts."""
    order = np.argsort(votes, axis=1, kind="stable")
    ascending = np.take_along_axis(votes, order, axis=1)
    rank_sorted = np.zeros(votes.shape, dtype=np.intp)
    np.cumsum(ascending[:, 1:] != ascending[:, :-1], axis=1, out=rank_sorted[:, 1:])
    rank = np.empty_like(rank_sorted)
    np.put_along_axis(rank, order, rank_sorted, axis=1)
    distinct = rank_sorted[:, -1] + 1
    for d in np.unique(distinct).tolist():
        rows = np.flatnonzero(distinct == d)
        counts, classes = np.empty((len(rows), d)), np.zeros((len(rows), d), dtype=np.int64)
        at = np.arange(len(rows))[:, None]
        counts[at, rank[rows]] = votes[rows]
        np.add.at(classes, (at, rank[rows]), 1)
        yield rows, Histograms(counts, classes, rank[rows])


def _answer_ratios(counts: Array, classes: NDArray[np.int64], made: Tables) -> tuple[Array, Array, Array, Array]:
    """log P_k (U, D) and log(P'_k/P_k) by (source, target): of another class k, (U, D, D, D); the two moved, (U, D, D).

    Entries of moves that do not exist have no meaning.
    """
    at, less, more = made.index(counts), made.index(counts - 1), made.index(counts + 1)
    cdf, density = made.log_cdf, made.log_density
    together = (classes[..., None] * cdf[at]).sum(axis=1) + made.grid.log_weights
    given = together[:, None, :] + density[at] - cdf[at]
    top = given.max(axis=2, keepdims=True)
    given = np.exp(given - top)
    total = given.sum(axis=2, keepdims=True)
    log_p = (top + np.log(total))[..., 0]
    given /= total
    down, up = cdf[less] - cdf[at], cdf[more] - cdf[at]
    own_down, own_up = density[less] - density[at], density[more] - density[at]
    if max(np.abs(part).max() for part in (down, up, own_down, own_up)) * 2 < _LARGEST_LOG:
        down, up = np.exp(down), np.exp(up)
        users, d, _ = given.shape
        both = (down[:, :, None, :] * up[:, None, :, :]).reshape(users, d * d, -1)
        others = np.log(both @ given.transpose(0, 2, 1)).reshape(users, d, d, d)
        source = np.log((given * np.exp(own_down)) @ up.transpose(0, 2, 1))
        target = np.log(down @ (given * np.exp(own_up)).transpose(0, 2, 1))
        return log_p, others, source, target
    # In logarithms, where a ratio might overflow or what it multiplies underflow.
    log_given = together[:, None, :] + density[at] - cdf[at] - log_p[..., None]
    both = down[:, :, None, :] + up[:, None, :, :]
    others = np.stack([_log_sum(both + log_given[:, None, None, k]) for k in range(counts.shape[1])], axis=-1)
    source = _log_sum((log_given + own_down)[:, :, None] + up[:, None])
    return log_p, others, source, _log_sum(down[:, :, None] + (log_given + own_up)[:, None])


def _log_sum(exponent: Array) -> Array:
    top = exponent.max(axis=-1)
    return top + np.log(np.exp(exponent - top[..., None]).sum(axis=-1))


def _moves(part: Histograms, made: Tables) -> Moves:
    log_p, others, source_ratio, target_ratio = _answer_ratios(part.counts, part.classes, made)
    d = part.counts.shape[1]
    allowed = np.broadcast_to((part.counts > 0)[:, :, None], (len(part.counts), d, d)) & (
        ~np.eye(d, dtype=bool) | (part.classes > 1)[:, :, None]
    )
    h, x, y = np.nonzero(allowed)
    n = np.arange(len(h))
    classes = np.concatenate([part.classes[h], np.ones((len(h), 2), dtype=np.int64)], axis=1)
    classes[n, x] -= 1
    classes[n, y] -= 1
    log_p_all = np.concatenate([log_p[h], log_p[h, x][:, None], log_p[h, y][:, None]], axis=1)
    moved = np.concatenate([others[h, x, y], source_ratio[h, x, y][:, None], target_ratio[h, x, y][:, None]], axis=1)
    return Moves(h, x, y, log_p_all, -moved, classes)


@np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore")
def _log_excesses(moves: Moves, starts: Index, orders: Array) -> tuple[Array, Array]:
    """log(sum p^alpha p'^{1-alpha} - 1) of the answer and of the reverse; the largest of each group, (G, O).

    sum p h(f), h(f) = e^{beta f} - 1 + beta (e^{-f} - 1) and f = log(p/p'): no cancellation with the sum of p.
    """
    with np.errstate(divide="ignore"):
        log_p = moves.log_p + np.log(moves.classes)
    f = np.where(moves.classes > 0, moves.ratio, 0.0)
    log_moved = log_p - f
    p, moved = np.exp(log_p), np.exp(log_moved)
    gained, lost = (p * np.expm1(-f)).sum(axis=1), (moved * np.expm1(f)).sum(axis=1)
    steepest = np.abs(f).max(axis=1)
    forward, reverse = np.empty((len(starts), len(orders))), np.empty((len(starts), len(orders)))
    for column, beta in enumerate((orders - 1).tolist()):
        there = np.log(np.einsum("nk,nk->n", p, np.expm1(beta * f)) + beta * gained)
        back = np.log(np.einsum("nk,nk->n", moved, np.expm1(-beta * f)) + beta * lost)
        large = np.flatnonzero(max(beta, 1.0) * steepest > _LARGEST_POWER)
        if len(large):
            there[large] = _log_sum(log_p[large] + log_power_excess(f[large], np.array([beta]))[..., 0])
            back[large] = _log_sum(log_moved[large] + log_power_excess(-f[large], np.array([beta]))[..., 0])
        for result, values in ((forward, there), (reverse, back)):
            # Rounding below 0 of what is next to nothing.
            result[:, column] = np.maximum.reduceat(np.where(np.isnan(values), -np.inf, values), starts)
    return forward, reverse


def _moved_statistic(part: Histograms, moves: Moves) -> Array:
    """max_j v'_j, (N,)."""
    counts, n = part.counts[moves.histogram], np.arange(len(moves.histogram))
    rest = np.where(moves.classes[:, :-2] > 0, counts, -np.inf).max(axis=1)
    return np.maximum(rest, np.maximum(counts[n, moves.source] - 1, counts[n, moves.target] + 1))


def _moved_margins(part: Histograms, margins: Array) -> tuple[Array, Array]:
    """Least and largest max_j (v'_j - n p_j) over the pairs of classes that have two counts, (U, D, D) each."""
    (users, c), d = margins.shape, part.counts.shape[1]
    padded = np.concatenate([margins, np.full((users, 1), -np.inf)], axis=1)
    order = np.argsort(-padded, axis=1, kind="stable")[:, :3]
    first, second, third = (order[:, k, None, None] for k in range(3))
    source, target = np.arange(c)[None, :, None], np.arange(c)[None, None, :]
    # The largest of the three highest margins that is neither's.
    other = np.where(
        (first != source) & (first != target),
        first,
        np.where((second != source) & (second != target), second, third),
    )
    rest = padded[np.arange(users)[:, None, None], other]
    moved = np.maximum(rest, np.maximum(margins[:, :, None] - 1, margins[:, None, :] + 1))
    u, i, j = np.nonzero(np.broadcast_to(source != target, moved.shape))
    at, values = (u, part.rank[u, i], part.rank[u, j]), moved[u, i, j]
    least, largest = np.full((users, d, d), np.inf), np.full((users, d, d), -np.inf)
    np.minimum.at(least, at, values)
    np.maximum.at(largest, at, values)
    return least, largest


def _starts(sorted_keys: Index) -> Index:
    return np.flatnonzero(np.concatenate([[True], np.diff(sorted_keys) != 0]))


def _take(moves: Moves, rows: Index) -> Moves:
    return Moves(
        moves.histogram[rows],
        moves.source[rows],
        moves.target[rows],
        moves.log_p[rows],
        moves.ratio[rows],
        moves.classes[rows],
    )


def _block_cost(
    part: Histograms, made: Tables, event: NoisyMax, orders: Array, margins: Array | None
) -> tuple[Array, Array]:
    """(forward, reverse) log(sum p^alpha p'^{1-alpha} - 1), the largest over all neighbours, (U, O) each."""
    moves = _moves(part, made)
    if not isinstance(event, Thresholded):
        return _log_excesses(moves, _starts(moves.histogram), orders)
    if margins is None:
        # The statistic moves by -1, 0 or 1: neighbours that move it alike are one group.
        here, there = part.counts[moves.histogram, -1], _moved_statistic(part, moves)
        order = np.lexsort((there, moves.histogram))
        moves, here, there = _take(moves, order), here[order], there[order]
        starts = _starts(moves.histogram * 3 + (there - here).astype(np.intp) + 1)
        answer, back = _log_excesses(moves, starts, orders)
        histogram, here, there = moves.histogram[starts], here[starts], there[starts]
    else:
        least, largest = _moved_margins(part, margins)
        key = (moves.histogram, moves.source, moves.target)
        answer, back = _log_excesses(moves, np.arange(len(moves.histogram)), orders)
        # The sum of powers is convex in the neighbour's chance to pass: the least and the largest statistic are worst.
        wide = np.flatnonzero(least[key] < largest[key])
        order = np.argsort(np.concatenate([moves.histogram, moves.histogram[wide]]), kind="stable")
        there = np.concatenate([largest[key], least[key][wide]])[order]
        answer, back = (np.concatenate([a, a[wide]])[order] for a in (answer, back))
        histogram = np.concatenate([moves.histogram, moves.histogram[wide]])[order]
        here = margins.max(axis=1)[histogram]
    groups = _starts(histogram)
    forward = log_tested_excess(here, there, event, answer, orders)
    reverse = log_tested_excess(there, here, event, back, orders)
    return np.maximum.reduceat(forward, groups), np.maximum.reduceat(reverse, groups)


def query_cost(votes: object, event: NoisyMax, orders: object, student: object = None) -> tuple[Array, Array]:
    """(symmetrised, forward) exact cost of every query asked, (Q, O) each. PRIVATE. Fixed queries add up.

    Args:
        votes: (Q, C).
        event: its caps play no part.
        orders: (O,) above 1.
        student: (Q, C) the student's probabilities, for Interactive-GNMax only.
    """
    v, alpha = p18.checked_votes(votes), checked_orders(orders)
    margins = outcomes.margins(v, event, student) if isinstance(event, InteractiveGNMax) else None
    rows, inverse = v, np.arange(len(v))
    if margins is None:
        # The order of classes does not matter; equal histograms are looked at once.
        rows, inverse = np.unique(np.sort(v, axis=1), axis=0, return_inverse=True)
    forward, reverse = np.empty((len(rows), len(alpha))), np.empty((len(rows), len(alpha)))
    for members, found in _by_distinct_counts(rows):
        d = found.counts.shape[1]
        for some, made in outcomes.blocks(rows[members], event, 1, d * (d + 2)):
            part = Histograms(found.counts[some], found.classes[some], found.rank[some])
            asked = members[some]
            forward[asked], reverse[asked] = _block_cost(
                part, made, event, alpha, None if margins is None else margins[asked]
            )
    beta = alpha - 1
    one_way = (np.logaddexp(0.0, forward) / beta)[inverse.ravel()]
    return np.maximum(one_way, (np.logaddexp(0.0, reverse) / beta)[inverse.ravel()]), one_way
