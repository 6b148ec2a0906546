"""The one sampler of noise: noisy argmax, threshold test and number, under exactly the law that is accounted.

A privacy proof speaks of v_j + sigma * Z_j with real numbers Z_j; floating-point samples of Z_j have holes and
uneven spacing from which v can be read off (Mironov 2012, "On significance of the least significant bits for
differential privacy"). Here no such sample exists. Z_j = F^-1(U_j), where U_j is an infinite sequence of fair
bits of which only the first 16 are drawn; they put Z_j into a proven interval (``aggregation.quantiles``). Where
the intervals already show which v_j + scale * Z_j is the largest, that is the answer. Where they do not, 64
further bits are drawn for each class still in question and appended (nothing is ever drawn again), and the
intervals narrow in ball arithmetic until one class is left. Only the name of the winner, or the bit of the test,
leaves this module; both have exactly the law of the continuous mechanism. Proof: docs/sampling.md.

Why not a sampler of discrete noise: a lattice has another law, whose distance must be charged for, and ties. Nor
is one faster: 16 bits and a table look-up settle nearly every query. Measured on one x86-64 core at sigma 40 and 10
classes: 25 million draws a second, against 93 thousand of OpenDP 0.16's discrete Gaussian on the integers (268
times slower) and 20 thousand of its Gaussian on floats (1264 times); ``benchmarks/noise.py`` repeats it.
How many bits a query took is neither returned, logged nor timed.
"""

import math
import os
from collections.abc import Callable, Sequence

import numpy as np
from flint import arb, ctx
from numpy.typing import NDArray

from aggregation.quantiles import LAWS, TABLE_BITS, Law, brackets, enclosure, gaussian_distribution
from data.errors import UserError

Source = Callable[[int], bytes]
"""``source(n)`` gives n bytes of independent fair bits. Outside tests: the operating system's, os.urandom."""

FIRST_BITS = 16
MORE_BITS = 64
# Beyond this depth two rivals are undecided with probability below 2^-8000 (docs/sampling.md): a broken source.
DEPTH_LIMIT = 8192
# Whole numbers up to here are exact as floats.
LARGEST = 2**53
# Elements per block: keeps the working set in cache and bounds memory when there are many classes.
_BLOCK = 1 << 16


def argmax(
    votes: NDArray[np.integer],
    scale: float,
    law: Law,
    source: Source = os.urandom,
    *,
    table_bits: int = TABLE_BITS,
) -> NDArray[np.int32]:
    """argmax_j v_j + scale * Z_j for every row, Z_j independent and continuous: the winners, Q of them.

    votes: Q x C whole numbers, C >= 2, at most 2^53 in magnitude. law: "gaussian" (scale is sigma: GNMax,
    arXiv 1802.08908, Proposition 8) or "laplace" (scale is b: LNMax, arXiv 1610.05755, section 2). Raises UserError
    for votes or parameters outside this. ``table_bits`` (0 to 16) changes the speed, never the winner: fewer
    bits leave more rows to ball arithmetic.
    """
    votes = np.asarray(votes)
    if votes.ndim != 2 or votes.shape[1] < 2:
        raise UserError(f"votes of shape {votes.shape}: must be queries x classes, at least 2 classes")
    if not np.issubdtype(votes.dtype, np.integer):
        raise UserError(f"votes of type {votes.dtype}: must be whole numbers (an integer type)")
    _check_magnitude("votes", votes)
    _check_tuning(scale, table_bits)
    if law not in LAWS:
        raise UserError(f"law = {law!r}: must be one of {', '.join(LAWS)}")
    queries, classes = votes.shape
    winners = np.empty(queries, dtype=np.int32)
    step = max(1, _BLOCK // classes)
    for start in range(0, queries, step):
        block = votes[start : start + step]
        winners[start : start + step] = _argmax_block(block, float(scale), law, source, table_bits)
    return winners


def at_least(
    values: NDArray[np.integer] | NDArray[np.floating],
    threshold: float,
    scale: float,
    source: Source = os.urandom,
    *,
    table_bits: int = TABLE_BITS,
) -> NDArray[np.bool_]:
    """value + scale * Z >= threshold for each of Q values, Z ~ N(0, 1) independent: the noisy threshold test.

    values: whole numbers or floats (taken as the exact numbers they are), at most 2^53 in magnitude.
    Pr[True] = Phi((value - threshold) / scale), exactly. Raises UserError; ``table_bits`` as in :func:`argmax`.
    """
    values = np.asarray(values)
    kind = values.dtype
    if values.ndim != 1 or not (np.issubdtype(kind, np.integer) or kind in (np.float32, np.float64)):
        raise UserError(f"values of shape {values.shape}, {kind}: must be one row of whole numbers or floats")
    _check_magnitude("values", values)
    _check_tuning(scale, table_bits)
    if not math.isfinite(threshold):
        raise UserError(f"threshold = {threshold!r}: must be a finite number")
    return _at_least(values, float(threshold), float(scale), source, table_bits)


def rounded(value: float, factors: Sequence[float], step: float, source: Source = os.urandom) -> int:
    """The whole number nearest to (value + scale * Z) / step, Z ~ N(0, 1): a noisy number on a fixed lattice.

    ``scale`` is the exact product of ``factors``: it may depend on private data, ``step`` must not. Which number that
    is, is settled in ball arithmetic, so its law is that of the real noisy value, rounded. Raises UserError.
    """
    for name, number in [("value", value), *(("factor", f) for f in factors), ("step", step)]:
        # Without the number itself: value and factors are private.
        if not math.isfinite(number) or (name != "value" and not number > 0):
            raise UserError(f"{name}: must be a finite number{'' if name == 'value' else ' above 0'}")
    cell, bits = 0, 0
    while True:
        _check_depth(bits)
        cell, bits = _extend(source, {0: cell})[0], bits + MORE_BITS
        with ctx.workprec(bits + 128):
            noise = enclosure("gaussian", cell, bits)
            for factor in factors:
                noise = noise * arb(factor)
            found = ((arb(value) + noise) / arb(step) + arb(0.5)).floor().unique_fmpz()
        if found is not None:
            return int(found)


def _check_tuning(scale: float, table_bits: int) -> None:
    if not 0 < scale < math.inf:
        raise UserError(f"scale = {scale!r}: must be a finite number above 0")
    if not 0 <= table_bits <= FIRST_BITS:
        raise UserError(f"table_bits = {table_bits!r}: must be from 0 to {FIRST_BITS}")


def _check_magnitude(name: str, numbers: NDArray[np.generic]) -> None:
    # The message shows no value: they are private. NaN fails both comparisons.
    if numbers.size and not (numbers.min() >= -LARGEST and numbers.max() <= LARGEST):
        raise UserError(f"{name}: must be finite, at most 2^53 in magnitude")


def _take(source: Source, size: int) -> bytes:
    drawn = source(size)
    if len(drawn) != size:
        raise RuntimeError("the source of randomness gave another number of bytes than it was asked for")
    return drawn


def _first(source: Source, shape: tuple[int, ...]) -> NDArray[np.uint16]:
    return np.frombuffer(_take(source, 2 * math.prod(shape)), dtype="<u2").reshape(shape)


def _extend(source: Source, cells: dict[int, int]) -> dict[int, int]:
    """The same uniform numbers known to MORE_BITS bits more: what was drawn stays their leading bits."""
    size = MORE_BITS // 8
    drawn = _take(source, size * len(cells))
    words = [int.from_bytes(drawn[i : i + size], "little") for i in range(0, len(drawn), size)]
    return {key: cell << MORE_BITS | word for (key, cell), word in zip(cells.items(), words, strict=True)}


def _float_scores(
    values: NDArray[np.generic], drawn: NDArray[np.uint16], scale: float, law: Law, table_bits: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Floats around value + scale * Z, and how far each of them may be off.

    A finite bound fl(v + fl(scale * z)), |z| <= reach, misses v + scale * z by less than 2^-51 A, where
    A = max(1, max |v|) + scale * reach: two relative errors of 2^-53, and A >= 1 covers underflow, even if it is
    flushed to zero. 2^-48 A covers both sides of a comparison and its own rounding. If scale * reach overflows
    the slack is infinite and nothing is decided from floats; if it does not, no finite bound overflows.
    """
    table = brackets(law, table_bits)
    exact = values.astype(np.float64)  # magnitudes up to 2^53: nothing is rounded
    cells = drawn >> (FIRST_BITS - table_bits)
    with np.errstate(over="ignore", under="ignore"):
        low = exact + scale * table.lower[cells]
        high = exact + scale * table.upper[cells]
    return low, high, 2.0**-48 * (max(1.0, float(np.abs(exact).max(initial=0.0))) + scale * table.reach)


def _argmax_block(
    votes: NDArray[np.integer], scale: float, law: Law, source: Source, table_bits: int
) -> NDArray[np.int32]:
    drawn = _first(source, votes.shape)
    low, high, slack = _float_scores(votes, drawn, scale, law, table_bits)
    winners = low.argmax(axis=1).astype(np.int32)
    floor = low[np.arange(len(votes)), winners]
    with np.errstate(invalid="ignore"):  # inf - inf is NaN, which is below nothing and so discards no class
        beaten = high + slack < floor[:, None]
    for row in np.flatnonzero(beaten.sum(axis=1) < votes.shape[1] - 1):
        rivals = {int(j): int(drawn[row, j]) for j in np.flatnonzero(~beaten[row])}
        winners[row] = _settle({j: int(votes[row, j]) for j in rivals}, rivals, scale, law, source)
    return winners


def _settle(votes: dict[int, int], cells: dict[int, int], scale: float, law: Law, source: Source) -> int:
    """The winner among the classes of ``cells`` (class -> first bits), drawing further bits until one is left."""
    bits = FIRST_BITS
    # Only differences matter; they stay exact where the votes are large against the scale.
    top = max(votes.values())
    while len(cells) > 1:
        _check_depth(bits)
        cells, bits = _extend(source, cells), bits + MORE_BITS
        with ctx.workprec(bits + 64):
            scores = {j: votes[j] - top + arb(scale) * enclosure(law, cells[j], bits) for j in cells}
            # Any leader would be sound, since a class goes only when certainly below it; this one ends the loop.
            leader = max(scores, key=lambda j: scores[j].mid())
            cells = {j: cell for j, cell in cells.items() if not scores[j] < scores[leader]}
    return next(iter(cells))


def _at_least(
    values: NDArray[np.generic], threshold: float, scale: float, source: Source, table_bits: int
) -> NDArray[np.bool_]:
    drawn = _first(source, values.shape)
    low, high, slack = _float_scores(values, drawn, scale, "gaussian", table_bits)
    slack += 2.0**-48 * abs(threshold)
    passed = low > threshold + slack
    failed = high < threshold - slack
    for index in np.flatnonzero(~passed & ~failed):
        passed[index] = _settle_test(values[index].item(), int(drawn[index]), threshold, scale, source)
    return passed


def _settle_test(value: float, cell: int, threshold: float, scale: float, source: Source) -> bool:
    """value + scale * Z >= threshold, as U >= Phi((threshold - value) / scale): extends U until that is certain."""
    bits = FIRST_BITS
    while True:
        _check_depth(bits)
        cell, bits = _extend(source, {0: cell})[0], bits + MORE_BITS
        with ctx.workprec(bits + 64):
            boundary = gaussian_distribution((arb(threshold) - arb(value)) / arb(scale)) * (1 << bits)
            if arb(cell) >= boundary:
                return True
            if arb(cell + 1) <= boundary:
                return False


def _check_depth(bits: int) -> None:
    if bits > DEPTH_LIMIT:
        raise RuntimeError("the source of randomness repeats itself: no noise can be drawn from it")
