r"""Steps of the recursion for privacy profiles, and linear kernels that stand for many of them.

A profile H(gamma) is kept at the points gamma = e^{j step}, j = 0 ... m. Above them it is at most the last value;
below 1 it is 1 - gamma + gamma H(1/gamma), since neighbours may be exchanged. One step maps H to the largest of
sum_i R_i H(gamma e^{-i step}) over the pairs of a dictionary. A kernel is one pair of laws that is its own exchange: n
of its steps are a convolution. docs/accounting.md, section 16, has the proofs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from accounting.recursion_pairs import NEGLIGIBLE, ROUNDING, Dictionary, Lattice, renyi_weights

Array = NDArray[np.float64]

_BLOCK = 4096


@dataclass(frozen=True)
class Kernel:
    """One pair of laws on the whole lattice: R-masses at e^{(i - width) step}, i = 0 ... 2 width, and at infinity."""

    taps: Array
    lost: float = 0.0

    @property
    def width(self) -> int:
        """The largest offset."""
        return len(self.taps) // 2


def window(profile: Array, step: float, low: int, high: int) -> Array:
    """The profile at e^{j step}, j = low ... high."""
    j = np.arange(low, high + 1)
    above = profile[np.minimum(np.abs(j), len(profile) - 1)]
    back = np.minimum(j, 0) * step
    return np.where(j < 0, np.exp(back) * above - np.expm1(back), above)


def _exchanged_window(profile: Array, step: float, low: int, high: int) -> Array:
    """H(gamma) - (1 - gamma) >= 0 at e^{j step}, j = low ... high: a sum over it loses nothing near gamma = 0."""
    j = np.arange(low, high + 1)
    above = profile[np.minimum(np.abs(j), len(profile) - 1)]
    return np.where(j < 0, np.exp(np.minimum(j, 0) * step) * above, above + np.expm1(np.maximum(j, 0) * step))


def dictionary_step(dictionary: Dictionary, profile: Array, last: int) -> Array:
    """The largest step of a profile over all pairs and their exchanges, at j = 0 ... last, rounded up.

    A pair's step at gamma is sum_i R_i H(gamma e^{-i step}). Its exchange's is gamma (A - 1 + 1/gamma), A the pair's
    own step at 1/gamma.
    """
    shifts, step = dictionary.lattice.shifts, dictionary.lattice.step
    reach = int(shifts[-1])
    j = np.arange(last + 1)
    ahead = window(profile, step, -reach, last + reach)
    behind = _exchanged_window(profile, step, -last - reach, reach)
    moved = np.concatenate(
        [
            ahead[j[None, :] + (reach - shifts)[:, None]],
            np.exp(j * step) * behind[last - j[None, :] + (reach - shifts)[:, None]],
        ],
        axis=1,
    )
    best = np.zeros(2 * len(j))
    for start in range(0, len(dictionary.taps), _BLOCK):
        part = dictionary.taps[start : start + _BLOCK] @ moved + dictionary.lost[start : start + _BLOCK, None]
        best = np.maximum(best, part.max(axis=0))
    return np.maximum(best[: len(j)], best[len(j) :]) * (1 + _sum_error(len(shifts)))


def next_profile(dictionaries: Sequence[Dictionary], profile: Array) -> Array:
    """A profile at least the step and at least the old one, as far out as the old one is given."""
    steps = [dictionary_step(d, profile, len(profile) - 1) for d in dictionaries]
    return np.maximum(np.max(steps, axis=0), profile)


def _sum_error(terms: int) -> float:
    """Above what a sum of so many products >= 0 loses in 53 bits, relative, whatever its order.

    Twice: each weight of 1 less a sum may be as wrong. And 40 for e^{j step}, whose exponents are rounded.
    """
    return 2.0**-52 * (terms + 40)


def apply(kernel: Kernel, profile: Array, step: float, low: int, high: int) -> Array:
    """sum_i R_i H(gamma_j e^{-i step}) for j = low ... high, rounded up, without ``kernel.lost`` (times H(0) <= 1)."""
    values = window(profile, step, low - kernel.width, high + kernel.width)
    return np.convolve(values, kernel.taps, "valid") * (1 + _sum_error(len(kernel.taps)))


def power(kernel: Kernel, count: int, widest: int) -> Kernel:
    """``count`` steps of a kernel as one. Offsets beyond ``widest``, and tiny tails, move to where they count more."""
    result = Kernel(np.ones(1))
    base = kernel
    while count:
        if count & 1:
            result = _composed(result, base, widest)
        count >>= 1
        if count:
            base = _composed(base, base, widest)
    return result


def _composed(one: Kernel, other: Kernel, widest: int) -> Kernel:
    taps = np.convolve(one.taps, other.taps) * (1 + _sum_error(min(len(one.taps), len(other.taps))))
    middle = len(taps) // 2
    some = np.flatnonzero(taps > NEGLIGIBLE**2)
    width = min(widest, int(np.max(np.abs(some - middle))))
    kept = taps[middle - width : middle + width + 1].copy()
    # A mass at a smaller ratio may move up to the window's edge, one at a larger ratio to infinity.
    kept[0] += taps[: middle - width].sum()
    lost = one.lost + other.lost + float(taps[middle + width + 1 :].sum())
    return Kernel(kept, lost * (1 + ROUNDING))


@dataclass(frozen=True)
class Base:
    """A profile and one step of it over dictionaries, at j = 0 ... reach: what a kernel has to stand above.

    Beyond the reach the step is at most its last value, since it falls.
    """

    profile: Array
    stepped: Array


def base(dictionaries: Sequence[Dictionary], profile: Array, slack: float) -> Base:
    """The step as far out as it is above ``slack``, or as it falls."""
    reach = int(np.argmax(profile <= 0.1 * slack)) or len(profile) - 1
    while True:
        stepped = np.max([dictionary_step(d, profile, reach) for d in dictionaries], axis=0)
        stepped = np.maximum(stepped, window(profile, dictionaries[0].lattice.step, 0, reach))
        if stepped[-1] <= slack or reach > len(profile) + int(dictionaries[0].lattice.offsets[-1]):
            return Base(profile, stepped)
        reach = int(reach * 1.25) + 1


def dominating_kernel(grid: Lattice, bases: Sequence[Base], beta: float, slack: float) -> tuple[Kernel, float]:
    """(kernel, excess): a kernel whose step plus ``excess`` is at least every base's, at every point of the lattice.

    Among kernels that equal their exchange the linear programme takes one of least Rényi cost at order 1 + beta; what
    it returns is then measured, and raised until the excess is at most ``slack`` or, where nothing helps, measured.
    """
    i, step = grid.offsets, grid.step
    back = np.exp(-i * step)
    rows = []
    for each in bases:
        farthest = int(i[-1])
        j = np.arange(len(each.stepped))
        values = window(each.profile, step, -farthest, len(j) - 1 + farthest)
        here = values[farthest + j]
        need = each.stepped - here
        ahead = values[farthest + j[:, None] - i] - here[:, None]
        behind = values[farthest + j[:, None] + i] - here[:, None]
        some = need > 0.5 * slack
        rows.append((ahead + back * behind)[some] / need[some, None])
    matrix = np.concatenate(rows)
    weights = renyi_weights(grid, np.array([beta]))[:, 0]
    middle = len(i)
    cost = weights[middle + 1 :] + back * weights[middle - 1 :: -1]
    # In units of what a mass costs: numbers of one size.
    unit = float((matrix / cost).max(axis=1).min()) if len(matrix) else 1.0
    if not unit > 0:
        raise ArithmeticError("no kernel can stand above the step")
    masses = linprog(
        np.ones(len(cost)),
        A_ub=np.concatenate([-matrix / (cost * unit), [(1 + back) / (cost * unit)]]),
        b_ub=np.concatenate([np.full(len(matrix), -1.0), [1 - 1e-3]]),
        bounds=(0, None),
        method="highs",
    )
    if masses.x is None:
        raise ArithmeticError("no kernel found")
    x = np.maximum(masses.x, 0.0) / (cost * unit)
    for raised in (1e-7, 1e-6, 1e-5, 1e-4, 5e-4, 0.0):
        kernel = exchangeable(grid, x * (1 + raised))
        # Unlike max, np.max passes on a NaN, which is no excess that a slack allows.
        excess = float(np.max([_excess(kernel, step, each) for each in bases]))
        if excess <= slack:
            break
    return kernel, excess


def exchangeable(grid: Lattice, masses: Array) -> Kernel:
    """The kernel with R-mass x_i at e^{i step} and e^{-i step} x_i at e^{-i step}: its exchange is itself."""
    width = int(grid.offsets[-1])
    taps = np.zeros(2 * width + 1)
    taps[width + grid.offsets] = masses
    taps[width - grid.offsets] = masses * np.exp(-grid.offsets * grid.step)
    taps[width] = 1 - taps.sum()
    if taps[width] < 0:
        raise ArithmeticError("a kernel has more mass than 1")
    return Kernel(taps)


def _excess(kernel: Kernel, step: float, each: Base) -> float:
    below = apply(kernel, each.profile, step, 0, len(each.stepped) - 1)
    below *= 1 - 3 * _sum_error(len(kernel.taps))
    return float(max((each.stepped - below).max(), each.stepped[-1])) + 4 * ROUNDING
