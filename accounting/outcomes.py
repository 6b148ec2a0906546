r"""The exact outcome law of one query: who wins a noisy argmax, and whether a threshold test lets it answer.

PRIVATE: computed from votes; nothing here may be published.

    P_j(v) = int f(x - v_j) prod_{k != j} F(x - v_k) dx,      f, F the density and distribution function of the noise.

Quadrature to a relative error below 1e-12 of every P_j, however small, on one grid for all histograms of a block, from
tables of log f and log F at whole votes. Gaussian noise: the trapezoidal rule, whose error is at most
2 e^{C y^2/2 - 2 pi y/h} of the integral for every y (|F(x + iy)| <= e^{y^2/2} F(x)), least at y = 2 pi/(hC). Laplace
noise: between kinks, which are at votes, every derivative is at most C^r times the integrand; Gauss-Legendre panels
there, and both tails in closed form (docs/accounting.md, "The law of one query").
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp

from accounting.events import InteractiveGNMax, LNMax, NoisyMax, Thresholded
from accounting.p18 import checked_votes
from data.errors import UserError

Array = NDArray[np.float64]


BLOCK = 2_000_000  # numbers in a temporary array
_LONG_GRID = 4096  # nodes up to which a grid is shared
_LARGEST_GRID = 1e7  # teachers times classes over the noise
_PRECISION = 1e-14  # of the quadrature, relative
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_REACH = 8.6  # standard deviations beyond which less than e^-36 of an integral lies


@dataclass(frozen=True)
class Grid:
    """Quadrature in votes above the first value: int g dx = sum of exp(log_weights) g(nodes), (M,) each."""

    nodes: Array
    log_weights: Array


@dataclass(frozen=True)
class Tables:
    """log F(x - v) and log f(x - v) at the grid for the whole numbers v in ``values`` (V,), (V, M) each."""

    grid: Grid
    values: Array
    log_cdf: Array
    log_density: Array

    def index(self, votes: Array) -> NDArray[np.intp]:
        """Rows of the tables."""
        return np.searchsorted(self.values, votes)


def tables(values: Array, classes: int, event: NoisyMax) -> Tables:
    """For histograms of these values (ascending, with those of the neighbours looked at)."""
    # From the lowest count up, so that digits are not lost to a large one.
    above = values - values[0]
    if isinstance(event, LNMax):
        grid = _laplace_grid(above, classes, event.scale)
        t = (grid.nodes - above[:, None]) / event.scale
        log_density = -np.abs(t) - math.log(2 * event.scale)
        with np.errstate(divide="ignore"):
            log_cdf = np.where(t < 0, t - math.log(2.0), np.log1p(-0.5 * np.exp(-np.abs(t))))
        return Tables(grid, values, log_cdf, log_density)
    grid = _gaussian_grid(above, classes, event.sigma)
    t = (grid.nodes - above[:, None]) / event.sigma
    return Tables(grid, values, log_ndtr(t), -0.5 * t * t - _LOG_SQRT_2PI - math.log(event.sigma))


def _gaussian_grid(above: Array, classes: int, sigma: float) -> Grid:
    # 2 e^{-2 pi^2/(C h^2)} is the relative error of step h (in standard deviations).
    step = sigma * math.pi * math.sqrt(2 / (classes * math.log(2 / _PRECISION)))
    high = above[-1] + (_REACH + math.sqrt(2 * math.log(classes))) * sigma
    nodes = np.arange(-_REACH * sigma, high + step, step)
    return Grid(nodes, np.full(len(nodes), math.log(step)))


def _laplace_grid(above: Array, classes: int, scale: float) -> Grid:
    # Below the lowest vote all factors are exponentials: the integral is scale/C times its value there. Above the
    # highest, in y = e^{-(x - highest)/scale}, the integrand is a polynomial of degree C - 1.
    y, weights = np.polynomial.legendre.leggauss((classes + 1) // 2)
    y = 0.5 * (y + 1)
    nodes = [above[:1], above[-1] - scale * np.log(y)]
    log_weights = [np.array([math.log(scale / classes)]), np.log(0.5 * weights * scale / y)]
    for width in np.unique(np.diff(above)):
        starts = above[:-1][np.diff(above) == width]
        panels = max(1, math.ceil(width / scale * classes / 8))
        half = 0.5 * width / panels
        x, w = np.polynomial.legendre.leggauss(_laplace_order(classes * half / scale))
        inside = (half * (2 * np.arange(panels)[:, None] + 1 + x)).ravel()
        nodes.append((starts[:, None] + inside).ravel())
        log_weights.append(np.tile(np.log(half * w), panels * len(starts)))
    return Grid(np.concatenate(nodes), np.concatenate(log_weights))


def _laplace_order(rate: float) -> int:
    """Gauss-Legendre nodes for an integrand whose r-th derivative is at most rate^r of it, on [-1, 1]."""
    for n in range(2, 40):
        log_error = (
            (2 * n + 1) * math.log(2)
            + 4 * math.lgamma(n + 1)
            - math.log(2 * n + 1)
            - 3 * math.lgamma(2 * n + 1)
            + 2 * n * math.log(rate)
            + 2 * rate
        )
        if log_error < math.log(_PRECISION):
            return n
    raise AssertionError(rate)


def nodes_needed(values: Array, classes: int, event: NoisyMax) -> int:
    """Size of the grid that :func:`tables` would make."""
    if isinstance(event, LNMax):
        return len(_laplace_grid(values - values[0], classes, event.scale).nodes)
    return int(((values[-1] - values[0]) / event.sigma + 2 * _REACH + 4) * math.sqrt(classes) / 0.77)


def blocks(votes: Array, event: NoisyMax, nearby: int, per_node: int) -> Iterator[tuple[slice, Tables]]:
    """Rows of ``votes`` with tables for them and for votes at most ``nearby`` away.

    ``per_node``: numbers that the caller needs for one histogram and node at once; it sets the rows of a block.
    """

    def surroundings(part: Array) -> Array:
        values = np.unique(part)
        return np.unique(np.add.outer(values, np.arange(-nearby, nearby + 1.0)))

    every = surroundings(votes)
    classes = votes.shape[1]
    name, noise = ("scale", event.scale) if isinstance(event, LNMax) else ("sigma", event.sigma)
    if votes[0].sum() * classes / noise > _LARGEST_GRID:
        raise UserError(f"{name} = {noise!r}: too small beside the number of teachers for the law of an outcome")
    shared = nodes_needed(every, classes, event)
    rows = max(1, BLOCK // (min(shared, _LONG_GRID) * per_node))
    if shared <= _LONG_GRID and shared * len(every) <= 2 * BLOCK:
        made = tables(every, classes, event)
        for start in range(0, len(votes), rows):
            yield slice(start, start + rows), made
        return
    # Many different counts, or far from each other: tables for a few rows at a time, or for each.
    few = min(rows, max(1, 2 * BLOCK // (shared * classes * (2 * nearby + 1)))) if shared <= _LONG_GRID else 1
    for start in range(0, len(votes), few):
        part = slice(start, start + few)
        yield part, tables(surroundings(votes[part]), classes, event)


def log_winner(votes: object, event: NoisyMax) -> Array:
    """log Pr[class j wins], (Q, C): of the answer, given that there is one."""
    v = checked_votes(votes)
    result = np.empty_like(v)
    for rows, made in blocks(v, event, 0, v.shape[1]):
        at = made.index(v[rows])
        together = made.log_cdf[at].sum(axis=1) + made.grid.log_weights
        exponent = together[:, None, :] + (made.log_density - made.log_cdf)[at]
        top = exponent.max(axis=2)
        result[rows] = top + np.log(np.exp(exponent - top[..., None]).sum(axis=2))
    return result


def winner(votes: Array) -> NDArray[np.intp]:
    """The plurality's class, (Q,); of several the first."""
    return np.argmax(votes, axis=1)


def _without(log_p: Array, excluded: NDArray[np.intp]) -> Array:
    others = log_p.copy()
    others[np.arange(len(log_p)), excluded] = -np.inf
    return np.asarray(logsumexp(others, axis=1))


def log_other(votes: object, event: NoisyMax) -> Array:
    """log q, (Q,): the chance that another class wins than the plurality's; a sum over those, never 1 - P."""
    v = checked_votes(votes)
    return _without(log_winner(v, event), winner(v))


def log_other_nearby(votes: object, event: NoisyMax) -> Array:
    """log of the largest q over these votes and all their neighbours, (Q,), q of the class that wins *here*.

    It is attained where the winner's vote moves to the runner-up: q falls as any gap grows, and as log F is concave
    one more vote for k lowers F(x - v_k), relatively, most where v_k is largest.
    """
    v = checked_votes(votes)
    rows, first = np.arange(len(v)), winner(v)
    rest = v.copy()
    rest[rows, first] = -1
    moved = v.copy()
    moved[rows, first] -= 1
    moved[rows, winner(rest)] += 1
    return _without(log_winner(moved, event), first)


def statistic(votes: object, event: NoisyMax, student: object = None) -> Array:
    """What the test compares with its threshold, (Q,): max_j v_j, or max_j (v_j - n p_j) for Interactive-GNMax.

    Args:
        votes: (Q, C).
        event: ConfidentGNMax or InteractiveGNMax.
        student: (Q, C) the student's probabilities, for InteractiveGNMax only.
    """
    v = checked_votes(votes)
    return np.asarray(margins(v, event, student).max(axis=1))


def margins(votes: Array, event: NoisyMax, student: object) -> Array:
    """v_j, less n p_j for Interactive-GNMax, (Q, C): the test's statistic is the largest."""
    if not isinstance(event, InteractiveGNMax):
        return votes
    try:
        p = np.asarray(student, dtype=float)
    except (TypeError, ValueError):
        raise UserError("student: every probability must be a number") from None
    if p.shape != votes.shape:
        raise UserError("student: must give each query a probability for each class")
    if not np.all((p >= 0) & (p <= 1)):
        raise UserError("student: every probability must be between 0 and 1")
    return votes - votes[:1].sum() * p


def log_test(values: Array, event: Thresholded) -> tuple[Array, Array]:
    """(log Pr[fails], log Pr[passes]) of the test at these values of its statistic."""
    t = (values - event.threshold) / event.threshold_sigma
    return log_ndtr(-t), log_ndtr(t)


def log_law(votes: object, event: NoisyMax, student: object = None) -> Array:
    """log of the outcome law: (Q, C) for mechanisms that always answer, else (Q, C + 1), the last column no answer."""
    v = checked_votes(votes)
    answer = log_winner(v, event)
    if not isinstance(event, Thresholded):
        return answer
    fails, passes = log_test(statistic(v, event, student), event)
    return np.concatenate([answer + passes[:, None], fails[:, None]], axis=1)
