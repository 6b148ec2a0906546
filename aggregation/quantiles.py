"""Where a noise variable lies, given only the first bits of the uniform number it is made from.

Z = F^-1(U) follows the law F when U is uniform on (0, 1). If U is known to ``bits`` bits, that is to lie in
the cell [k / 2^bits, (k + 1) / 2^bits], then Z lies in [F^-1(k / 2^bits), F^-1((k + 1) / 2^bits)], because
F^-1 is monotone. This module encloses that interval and leaves no point of it out: by balls (Arb's ball
arithmetic, whose results are proven to contain the exact value at any working precision), and by a table of
floats for the first bits, each entry of which was compared with such a ball. Both laws are standard: variance 1
for the Gaussian, scale 1 for Laplace.

Nothing here is random and nothing is private.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from flint import arb, ctx
from numpy.typing import NDArray

Law = Literal["gaussian", "laplace"]
LAWS: tuple[Law, ...] = ("gaussian", "laplace")

TABLE_BITS = 14
"""The default table has 2^14 cells. A finer one settles more queries at once but takes longer to verify."""


@dataclass(frozen=True)
class Brackets:
    """``lower[k] <= F^-1(u) <= upper[k]`` for every u in cell k of 2^bits; the two outermost ends are infinite."""

    bits: int
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]

    @property
    def reach(self) -> float:
        """The largest finite bound in magnitude: what rounding errors of ``scale * bound`` scale with."""
        return float(np.abs(self.lower[1:]).max(initial=0.0))


def gaussian_distribution(x: Any) -> Any:
    """A ball around Phi(x) = erfc(-x / sqrt 2) / 2, x an ``arb``, at the precision in force."""
    return (-x / arb(2).sqrt()).erfc() / 2


def quantile(law: Law, numerator: int, bits: int) -> Any:
    """A ball around F^-1(numerator / 2^bits), at the precision in force; 0 < numerator < 2^bits.

    At p <= 1/2 the Gaussian's is -sqrt(2) erfcinv(2p) and Laplace's is log(2p). The upper half is the reflection
    of the lower one, where small probabilities keep their relative precision.
    """
    whole = 1 << bits
    if 2 * numerator == whole:
        return arb(0)
    if 2 * numerator > whole:
        return -quantile(law, whole - numerator, bits)
    twice = arb(2 * numerator) / whole
    return -(arb(2).sqrt() * twice.erfcinv()) if law == "gaussian" else twice.log()


def enclosure(law: Law, cell: int, bits: int) -> Any:
    """A ball around all of F^-1([cell / 2^bits, (cell + 1) / 2^bits]), at the precision in force.

    For the two outermost cells it is the whole line, which contains their half-lines.
    """
    if cell == 0 or cell + 1 == 1 << bits:
        return arb(0, math.inf)
    return quantile(law, cell, bits).union(quantile(law, cell + 1, bits))


def _floats_around(ball: Any) -> tuple[float, float]:
    """Floats proven to lie below and above everything in a ball."""
    below = above = float(ball.mid())
    while not arb(below) <= ball:
        below = math.nextafter(below, -math.inf)
    while not arb(above) >= ball:
        above = math.nextafter(above, math.inf)
    return below, above


@lru_cache(maxsize=8)
def brackets(law: Law, bits: int = TABLE_BITS) -> Brackets:
    """The table for the first ``bits`` bits of U: floats around each F^-1(k / 2^bits), half by reflection."""
    cells = 1 << bits
    below, above = np.full(cells + 1, -math.inf), np.full(cells + 1, math.inf)
    with ctx.workprec(96):
        for k in range(1, cells // 2):
            below[k], above[k] = _floats_around(quantile(law, k, bits))
            below[cells - k], above[cells - k] = -above[k], -below[k]
    if bits:
        below[cells // 2] = above[cells // 2] = 0.0
    lower, upper = below[:-1], above[1:]
    lower.flags.writeable = upper.flags.writeable = False
    return Brackets(bits, lower, upper)
