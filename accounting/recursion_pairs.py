r"""Finitely many pairs of laws that dominate every answer, and every test, on a lattice of likelihood ratios.

A pair (R, R') has the excess curve e(t) = sum_k (R_k - t R'_k)_+ - (1 - t)_+, t > 0. For a convex h with h(0) <= 1,
slope >= -1 and kinks at gamma e^{-i step} only, sum_k R_k h(gamma R'_k / R_k) - h(gamma) is a sum of the e(e^{i step})
with weights >= 0. So a pair may be replaced by a mixture of pairs whose curves together are at least as high at the
points e^{i step}. Such pairs are kept as ``taps``: R-masses at the ratios R/R' = e^{i step}, all at least 0.

Here the plane of locations is cut into cells, and on each cell every curve lies below a mixture of four ("corner")
curves, two for a test (docs/accounting.md, section 16, proves it). A cell is split while its corners would raise the
Rényi cost of the dictionary above its true maximum by more than a tolerance: a matter of tightness, not of validity.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from accounting.gaussian_supremum import LOG_ERROR
from accounting.wedge import outcomes

Array = NDArray[np.float64]
Index = NDArray[np.int64]

# An outcome less likely than this under both laws of a pair is left out, at a price of NEGLIGIBLE (1 + gamma) a step.
NEGLIGIBLE = 1e-16
# Above what sums of up to 250 numbers at most 1 lose in 53 bits.
ROUNDING = 3e-14
SMALLEST_HALF = 1 / 64
# How much dearer, at any order, a pair may be that stands for the corners at one place.
JOINED = 2e-3
_FIRST_HALF = 0.5
_SQRT2 = float(np.sqrt(2.0))


@dataclass(frozen=True)
class Lattice:
    """Likelihood ratios e^{i step}: ``offsets`` are the i > 0 at which pairs may have mass, denser near 0."""

    step: float
    offsets: Index

    @property
    def shifts(self) -> Index:
        """All i, ascending, 0 in the middle: what the columns of taps stand for."""
        return np.concatenate([-self.offsets[::-1], [0], self.offsets])


@dataclass(frozen=True)
class Dictionary:
    """Pairs of laws on a lattice: ``taps`` (J, T) are R-masses at e^{shifts step}, ``lost`` (J,) those at infinity."""

    lattice: Lattice
    taps: Array
    lost: Array


@dataclass(frozen=True)
class Family:
    """Outcome laws R(m), R'(m) at points m of R^d: (N, d) -> log R, its gradient, log R', its gradient.

    ``bend`` bounds the operator norm of the second derivative of every log R_k - log R'_k; log R_k is concave.
    Outside [-edge, edge]^d some outcome is negligible under both laws.
    """

    locate: Callable[[Array], tuple[Array, Array, Array, Array]]
    dimension: int
    bend: float
    edge: int


def lattice(step: float, farthest: float) -> Lattice:
    """A lattice whose offsets thin out beyond 24, 48 and 80 steps and reach the log ratio ``farthest``."""
    offsets: list[int] = []
    i = 0
    while not offsets or offsets[-1] * step < farthest:
        i += 1 if i < 24 else 2 if i < 48 else 4 if i < 80 else 8
        offsets.append(i)
    return Lattice(step, np.array(offsets))


def argmax_family(shift: float) -> Family:
    """R(a, b) against R(a - shift, b + shift): i wins, j wins, another wins."""

    def locate(m: Array) -> tuple[Array, Array, Array, Array]:
        a, b = m[:, 0], m[:, 1]
        return *outcomes(a, b), *outcomes(a - shift, b + shift)

    return Family(locate, 2, min(1.0, 2 * _SQRT2 * shift), int(np.ceil(8.3 + shift)))


def _bit(t: Array) -> tuple[Array, Array]:
    log_p = np.stack([log_ndtr(t), log_ndtr(-t)], axis=1)
    log_phi = -0.5 * t * t - 0.5 * np.log(2 * np.pi)
    return log_p, np.stack([np.exp(log_phi - log_p[:, 0]), -np.exp(log_phi - log_p[:, 1])], axis=1)[..., None]


def bit_family(shift: float) -> Family:
    """Bern(Phi(t)) against Bern(Phi(t + shift))."""

    def locate(m: Array) -> tuple[Array, Array, Array, Array]:
        return *_bit(m[:, 0]), *_bit(m[:, 0] + shift)

    return Family(locate, 1, min(1.0, 2 * shift), int(np.ceil(8.3 + shift)))


def split(grid: Lattice, up_mass: Array, up: Array, down_mass: Array, down: Array) -> tuple[Array, Array, Array]:
    """Taps (N, T), mass at infinity and R'-mass at 0, (N,) each, of pairs above given hinges.

    A pair is given by (N, K) atoms: for t > 1 the hinges up_mass (1 - t e^{-up})_+, up >= 0; for t < 1 the hinges
    down_mass (t e^{-down} - 1)_+, down <= 0. At every lattice point the curve of the result is at least their sum:
    an atom between lattice points is split among them (the chord of a hinge); both sides are raised to one value at
    t = 1 and masses above 1 are scaled to 1, by moving atoms outwards. What is not moved has ratio 1.
    """
    offsets, step = grid.offsets, grid.step
    z_up, z_down = -np.expm1(-np.maximum(up, 0.0)), np.expm1(-np.minimum(down, 0.0))
    # The two sides meet at t = 1 by moving the likeliest atom of the lower one, which costs least.
    row = np.arange(len(up_mass))
    likeliest_up, likeliest_down = up_mass.argmax(axis=1), down_mass.argmax(axis=1)
    gap = (up_mass * z_up).sum(axis=1) - (down_mass * z_down).sum(axis=1)
    z_up[row, likeliest_up] += np.maximum(-gap, 0.0) / up_mass[row, likeliest_up]
    z_down[row, likeliest_down] += np.maximum(gap, 0.0) / down_mass[row, likeliest_down]
    # Within one step of 1 only the value at t = 1 counts.
    first_up, first_down = -np.expm1(-step), np.expm1(step)
    up_mass, z_up = np.where(z_up < first_up, up_mass * z_up / first_up, up_mass), np.maximum(z_up, first_up)
    down_mass = np.where(z_down < first_down, down_mass * z_down / first_down, down_mass)
    z_down = np.maximum(z_down, first_down)
    # Masses above 1 in all: the largest of each side, or all, are divided and moved outwards as much.
    largest_up, largest_down = up_mass.max(axis=1), down_mass.max(axis=1)
    rest = up_mass.sum(axis=1) + down_mass.sum(axis=1) - largest_up - largest_down
    few = rest < 0.9
    largest = np.maximum((largest_up + largest_down) / np.where(few, 1 - rest, 1.0), 1.0) * (1 + ROUNDING)
    every = np.maximum(rest + largest_up + largest_down, 1.0) * (1 + ROUNDING)
    divide_up = np.where(few[:, None], np.where(up_mass == largest_up[:, None], largest[:, None], 1.0), every[:, None])
    divide_down = np.where(
        few[:, None], np.where(down_mass == largest_down[:, None], largest[:, None], 1.0), every[:, None]
    )
    z_up, z_down = z_up * divide_up, z_down * divide_down
    up_mass, down_mass = up_mass / divide_up, down_mass / divide_down

    middle, last = len(offsets), len(offsets) - 1
    taps = np.zeros((len(up_mass), 2 * len(offsets) + 1))
    lost, zero = np.zeros(len(up_mass)), np.zeros(len(up_mass))
    knots_up = np.append(-np.expm1(-offsets * step), 1.0)
    knots_down = np.expm1(offsets * step)
    for k in range(up_mass.shape[1]):
        left = np.clip(np.searchsorted(knots_up, z_up[:, k], side="right") - 1, 0, last)
        share = (z_up[:, k] - knots_up[left]) / (knots_up[left + 1] - knots_up[left])
        share = np.clip(share, 0.0, 1.0)
        np.add.at(taps, (row, middle + 1 + left), up_mass[:, k] * (1 - share))
        beyond = left == last
        inner = ~beyond
        np.add.at(taps, (row[inner], middle + 2 + left[inner]), (up_mass[:, k] * share)[inner])
        # The last knot is infinity, where a mass m counts m; an atom beyond it needs more than its mass.
        lost += np.where(beyond, up_mass[:, k] * (share + np.maximum(z_up[:, k] - 1, 0.0)), 0.0)
        left = np.clip(np.searchsorted(knots_down, z_down[:, k], side="right") - 1, 0, last)
        beyond = left == last
        inner = ~beyond
        right = np.minimum(left + 1, last)
        width = np.where(beyond, 1.0, knots_down[right] - knots_down[left])
        share = np.where(beyond, 0.0, np.clip((z_down[:, k] - knots_down[left]) / width, 0.0, 1.0))
        np.add.at(taps, (row, middle - 1 - left), down_mass[:, k] * (1 - share))
        np.add.at(taps, (row[inner], middle - 2 - left[inner]), (down_mass[:, k] * share)[inner])
        zero += np.where(beyond, down_mass[:, k] * np.maximum(z_down[:, k] - knots_down[last], 0.0), 0.0)
    taps[:, middle] = 1.0 - taps.sum(axis=1) - lost
    return taps, lost, zero


def renyi_weights(grid: Lattice, beta: Array) -> Array:
    """(T, 2B): h(f) = e^{beta f} - 1 + beta (e^{-f} - 1) at the taps, f + e^{-f} - 1 (its limit / beta) at beta 0.

    The second half is e^{-f} h(-f): the same for the exchanged pair.
    """
    f = (grid.shifts * grid.step)[:, None]
    with np.errstate(over="ignore"):
        ways = [
            np.where(beta > 0, np.expm1(beta * x) + beta * np.expm1(-x), x + np.expm1(-x)) * factor
            for x, factor in ((f, 1.0), (-f, np.exp(-f)))
        ]
    # Not infinite: a mass of 0 there is to weigh nothing.
    return np.minimum(np.concatenate(ways, axis=1), 1e250)


def enclose(family: Family, grid: Lattice, beta: Array, tolerance: Array) -> Dictionary:
    """Pairs such that every pair of the family has, on the lattice, a curve below a mixture of theirs.

    Left out are locations where an outcome is negligible (see :data:`NEGLIGIBLE`); for an argmax they belong to the
    two-outcome limits, which are to be added as a dictionary of their own.

    Args:
        family: what to enclose.
        grid: where.
        beta: (B,) orders less 1 (0 is allowed) at which the dictionary should be tight.
        tolerance: (B,) relative excess allowed there before a cell is split, down to half sides of SMALLEST_HALF.
    """
    dimension, half = family.dimension, _FIRST_HALF
    axis = np.arange(-family.edge, family.edge) + 0.5
    centres = np.stack(np.meshgrid(*[axis] * dimension, indexing="ij"), axis=-1).reshape(-1, dimension)
    signs = np.stack(np.meshgrid(*[[-1.0, 1.0]] * dimension, indexing="ij"), axis=-1).reshape(-1, dimension)
    weights, tolerance = renyi_weights(grid, beta), np.tile(tolerance, 2)
    best = np.zeros(len(tolerance))
    taps_kept: list[Array] = []
    spilt_kept: list[Array] = []
    floor = np.log(NEGLIGIBLE)
    while len(centres):
        log_p, g, log_q, h = family.locate(centres)
        if dimension > 1:
            highest = np.maximum(log_p + half * np.abs(g).sum(axis=2), log_q + half * np.abs(h).sum(axis=2))
            some = ~(highest + LOG_ERROR < floor).any(axis=1)
            centres, log_p, g, log_q, h = centres[some], log_p[some], g[some], log_q[some], h[some]
        f = log_p - log_q
        here, _ = _split_corners(grid, _Corners(centres, log_p, f, log_p, f))
        best = np.maximum(best, (here @ weights).max(axis=0, initial=0.0))
        blend = half * half * (np.abs(g - h) * np.maximum(np.abs(g), np.abs(h))).sum(axis=2)
        rho = 0.5 * dimension * half * half * family.bend + blend + 8 * LOG_ERROR
        fine = np.ones(len(centres), dtype=bool)
        corners = []
        for sign in signs:
            mass, ratio = log_p + half * (g @ sign) + 2 * LOG_ERROR, f + half * ((g - h) @ sign)
            corners.append(_Corners(centres + half * sign, mass, ratio + rho, mass - rho, ratio - rho))
            taps, spilt = _split_corners(grid, corners[-1])
            fine &= np.all(taps @ weights <= best * (1 + tolerance), axis=1)
            fine &= (taps[:, len(grid.offsets)] >= 0) & (spilt <= NEGLIGIBLE)
        if half <= SMALLEST_HALF:
            fine[:] = True
        pairs, beyond = _tapped(grid, [corner.only(fine) for corner in corners], weights, best * (1 + tolerance))
        taps_kept.append(pairs)
        spilt_kept.append(beyond)
        centres = (centres[~fine][:, None, :] + 0.5 * half * signs).reshape(-1, dimension)
        half *= 0.5
    taps, spilt = np.concatenate(taps_kept), np.concatenate(spilt_kept)
    if (taps < 0).any() or (spilt > 100 * NEGLIGIBLE).any():
        raise ArithmeticError("pairs do not fit on the lattice")
    return Dictionary(grid, taps, spilt)


@dataclass(frozen=True)
class _Corners:
    """Hinges e^up (1 - t e^{-up_ratio})_+ for t > 1, e^down (t e^{-down_ratio} - 1)_+ for t < 1: (N, K); at: (N, d)."""

    at: Array
    up: Array
    up_ratio: Array
    down: Array
    down_ratio: Array

    def only(self, some: NDArray[np.bool_]) -> "_Corners":
        """Those marked."""
        return _Corners(self.at[some], self.up[some], self.up_ratio[some], self.down[some], self.down_ratio[some])


def _tapped(grid: Lattice, corners: list[_Corners], weights: Array, most: Array) -> tuple[Array, Array]:
    """Taps of corners; those at one place are joined to one pair above them all where that costs hardly more.

    Neighbouring cells have their corners in common, with nearly the same hinges.
    """
    names = ("at", "up", "up_ratio", "down", "down_ratio")
    each = _Corners(*(np.concatenate([getattr(corner, name) for corner in corners]) for name in names))
    if not len(each.at):
        return _split_corners(grid, each)
    # Corners are multiples of a power of two: exact.
    _, place = np.unique(each.at, axis=0, return_inverse=True)
    place = place.ravel()
    order = np.argsort(place, kind="stable")
    first = np.flatnonzero(np.diff(place[order], prepend=-1))
    ways = (np.maximum, np.maximum, np.maximum, np.maximum, np.minimum)
    joined = _Corners(*(way.reduceat(getattr(each, name)[order], first) for name, way in zip(names, ways, strict=True)))
    taps, spilt = _split_corners(grid, joined)
    each_taps, each_spilt = _split_corners(grid, each)
    dearest = np.maximum(np.maximum.reduceat((each_taps @ weights)[order], first), most)
    good = np.all(taps @ weights <= dearest * (1 + JOINED), axis=1) & (spilt <= NEGLIGIBLE)
    apart = ~good[place]
    apart_taps, apart_spilt = each_taps[apart], each_spilt[apart]
    return np.concatenate([taps[good], apart_taps]), np.concatenate([spilt[good], apart_spilt])


def _split_corners(grid: Lattice, corners: _Corners) -> tuple[Array, Array]:
    """Taps, and what of the masses lies beyond the lattice."""
    taps, lost, zero = split(grid, np.exp(corners.up), corners.up_ratio, np.exp(corners.down), corners.down_ratio)
    return taps, lost + zero
