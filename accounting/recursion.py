r"""The privacy profile of a whole GNMax or Confident-GNMax run at its caps, as a proven upper bound.

With m tests and k answers left let H_{m,k}(gamma) = sup sum (P - gamma P')_+ over the laws P, P' of what the rest of a
run releases at neighbours. H_{m,0} = (1 - gamma)_+, and

    H_{m,k} = max over the next step, a test or an answer, of sup over its pairs of sum_o R_o H(gamma R'_o / R_o),

H the profile after it. epsilon is the log of the smallest gamma with H(gamma) <= delta: smaller than RDP's epsilon,
which converts a bound of moments. What is computed are functions above H_{m,k}, namely B^m S H_k: H_k bounds a run of k
answers alone, S and B are pairs of laws that act by convolution, S once and B once a test.

H_k is stepped for the first answers over a dictionary that dominates every answer (accounting.recursion_pairs). Then
one pair, shown to dominate the dictionary on the profile reached, stands for each of the next answers, as many as
there were so far (accounting.recursion_steps). Convolutions commute with steps, so what is shown once holds for all;
in the same way B is shown to dominate every test on each S H_k. docs/accounting.md, section 16, has the proof.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from accounting.gaussian_mechanism import gaussian_epsilon
from accounting.recursion_pairs import (
    NEGLIGIBLE,
    ROUNDING,
    Dictionary,
    Lattice,
    argmax_family,
    bit_family,
    enclose,
    lattice,
)
from accounting.recursion_steps import (
    Kernel,
    apply,
    base,
    dominating_kernel,
    exchangeable,
    next_profile,
    power,
)

Array = NDArray[np.float64]

# Lattice points to sqrt(2) shift, the largest typical privacy loss of an answer.
POINTS = 16
# Answers that are stepped over the dictionary one by one.
STEPPED = 8
# Tests of even odds that smooth profiles before a kernel stands for the others.
SMOOTHING = (6, 25)
# Part of delta that all slacks of one kind may take together.
SLACK = 1e-4
# Tilts (alpha - 1) shift at which dictionaries are tight, and how tight.
_TILTS = np.array([0.0, 0.1, 0.25, 0.5, 1.0, 1.5])
_TOLERANCE = np.array([0.005, 0.005, 0.005, 0.0075, 0.02, 0.05])
_SQRT2 = math.sqrt(2.0)
# Beyond these the recursion is not tried: noise below 1.5 votes; lattices of more points than this; tests with so
# little noise that they need a far larger lattice than answers.
LARGEST_SHIFT = 0.67
LARGEST_LATTICE = 6000
LARGEST_TEST = 4.0  # test shift over answer shift
SMALLEST_TOTAL = 1e-100  # of all shifts together: squares stay above 0


@dataclass(frozen=True)
class Rung:
    """H_count <= profile + added; from there each answer is one step of ``kernel``, plus ``excess``.

    What is added everywhere stays apart: a step leaves it as it is.
    """

    count: int
    profile: Array
    added: float
    kernel: Kernel
    excess: float

    def after(self, more: int, last: int, step: float) -> tuple[Array, float]:
        """(profile at j = 0 ... last, what is to be added to it) ``more`` answers later."""
        kernel = power(self.kernel, more, last)
        return apply(kernel, self.profile, step, 0, last), self.added + more * self.excess + kernel.lost


@dataclass(frozen=True)
class Ladder:
    """Upper bounds of H_0 ... H_K: ``stepped`` one by one, then by rungs."""

    grid: Lattice
    stepped: tuple[Array, ...]
    rungs: tuple[Rung, ...]

    def profile(self, count: int, last: int) -> Array:
        """H_count at j = 0 ... last."""
        if count < len(self.stepped):
            known = self.stepped[count]
            return known[np.minimum(np.arange(last + 1), len(known) - 1)]
        rung = max((r for r in self.rungs if r.count <= count), key=lambda r: r.count)
        profile, added = rung.after(count - rung.count, last, self.grid.step)
        return profile + added


def answer_dictionaries(shift: float, grid: Lattice) -> tuple[Dictionary, ...]:
    """Pairs that dominate every answer's: three outcomes, and two where one is negligible."""
    beta = _TILTS / shift
    return (
        enclose(argmax_family(shift), grid, beta, _TOLERANCE),
        enclose(bit_family(_SQRT2 * shift), grid, beta, _TOLERANCE),
    )


def ladder(shift: float, grid: Lattice, answers: int, beta: float, slack: float) -> Ladder:
    """The recursion over answers alone, up to ``answers``.

    Args:
        shift: 1/sigma.
        grid: of likelihood ratios and of gamma.
        answers: the cap K.
        beta: order less 1 at which kernels are chosen: about that of the result.
        slack: what a step may add to every value of a profile.
    """
    dictionaries = answer_dictionaries(shift, grid)

    def last_point(count: int) -> int:
        return _far_point(math.sqrt(2.0 * count) * shift, 1e-3 * slack, grid.step)

    last = last_point(min(STEPPED, max(answers, 1)))
    stepped = [np.zeros(last + 1)]
    for _ in range(min(answers, STEPPED)):
        stepped.append(next_profile(dictionaries, stepped[-1]))
    rungs: list[Rung] = []
    count, profile, added = STEPPED, stepped[-1], 0.0
    while count < answers:
        reached = base(dictionaries, profile, slack)
        kernel, excess = dominating_kernel(grid, [reached], beta, slack)
        rungs.append(Rung(count, profile, added, kernel, excess))
        profile, added = rungs[-1].after(count, last_point(2 * count), grid.step)
        count *= 2
    return Ladder(grid, tuple(stepped), tuple(rungs))


def epsilon_of(profile: Array, step: float, delta: float) -> float:
    """The smallest epsilon >= 0 with profile <= delta, by chords in gamma, which lie above a convex function."""
    below = np.flatnonzero(profile <= delta)
    if not len(below):
        return math.inf
    j = int(below[0])
    if j == 0:
        return 0.0
    share = (profile[j - 1] - delta) / (profile[j - 1] - profile[j])
    low, high = math.exp((j - 1) * step), math.exp(j * step)
    return math.log(low + share * (high - low)) + 1e-12


def _far_point(mu: float, delta: float, step: float) -> int:
    """A lattice point where the profile of N(0, 1) against N(mu, 1) is below delta: Phi(mu/2 - epsilon/mu) is."""
    return math.ceil((mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))) / step)


@dataclass(frozen=True)
class TestsBound:
    """What ``queries`` threshold tests are bounded by: ``first`` once, then ``kernel`` and ``excess`` for each."""

    first: Kernel
    kernel: Kernel
    excess: float
    queries: int

    def applied(self, profile: Array, last: int, step: float) -> Array:
        """The profile of a run with these tests, from that of its answers alone, at j = 0 ... last."""
        many = power(self.kernel, self.queries, last)
        return apply(many, apply(self.first, profile, step, 0, last), step, 0, last) + (
            self.queries * self.excess + many.lost + self.first.lost
        )


def kernel_of_tests(
    shift: float, queries: int, answers: Ladder, beta: float, slack: float, smoothing: int = SMOOTHING[0]
) -> TestsBound:
    """A kernel that dominates every test on every profile of the ladder, smoothed by a few tests of even odds.

    Args:
        shift: 1/threshold_sigma.
        queries: the cap Q.
        answers: the profiles of the answers alone.
        beta: as for the ladder.
        slack: likewise.
        smoothing: tests of even odds taken first; any number is valid.
    """
    grid = answers.grid
    dictionary = enclose(bit_family(shift), grid, _TILTS / shift, _TOLERANCE)
    even = _even_test(shift, grid)
    first = power(even, smoothing, LARGEST_LATTICE)
    bases = []
    for profile in (*answers.stepped, *(rung.profile for rung in answers.rungs[1:])):
        smooth = apply(first, profile, grid.step, 0, len(profile) - 1 + first.width)
        bases.append(base([dictionary], smooth, slack))
    kernel, excess = dominating_kernel(grid, bases, beta, slack)
    return TestsBound(first, kernel, excess, queries)


def _even_test(shift: float, grid: Lattice) -> Kernel:
    """Bern(Phi(shift/2)) against Bern(Phi(-shift/2)), on the lattice."""
    ratio = float(log_ndtr(shift / 2) - log_ndtr(-shift / 2))
    mass = math.exp(log_ndtr(shift / 2))
    z, knots = -math.expm1(-ratio), -np.expm1(-grid.offsets * grid.step)
    masses = np.zeros(len(knots))
    right = int(np.searchsorted(knots, z))
    if right == 0:
        masses[0] = mass * z / knots[0]
    else:
        share = (z - knots[right - 1]) / (knots[right] - knots[right - 1])
        masses[right - 1 : right + 1] = mass * (1 - share), mass * share
    return exchangeable(grid, masses * (1 - 4 * ROUNDING))


def epsilons(
    sigma: float, answers: Sequence[int], delta: float, threshold_sigma: float | None = None, queries: int = 0
) -> list[float]:
    """epsilon of runs with these caps on answers.

    Never above that of the Gaussian mechanism that all noisy counts together are (all noise of all caps), which it is
    where the recursion is not tried or fails.

    Args:
        sigma: noise of the answers, in votes.
        answers: caps, each at least 1; numbers for smaller ones come with those for the largest.
        delta: in (0, 1).
        threshold_sigma: noise of the tests, in votes; None where there are none.
        queries: the cap on tests.
    """
    shift, most = 1 / sigma, max(answers)
    test_shift = 0.0 if threshold_sigma is None else 1 / threshold_sigma

    def total(cap: int) -> float:
        return math.hypot(math.sqrt(2 * cap) * shift, math.sqrt(queries) * test_shift)

    def gaussian(cap: int) -> float:
        return gaussian_epsilon(total(cap) * (1 + 1e-14), delta)

    if gaussian(most) == 0:
        return [0.0 for _ in answers]
    mu, with_tests = total(most), queries > 0 and test_shift > 0
    step = _SQRT2 * shift / POINTS
    if with_tests:
        # A test's log ratios, 0.8 shift, should not be far below a step.
        step = min(step, max(0.5 * test_shift, 0.5 * step))
    last = _far_point(mu, 1e-3 * delta, step)
    if mu < SMALLEST_TOTAL:
        return [gaussian(cap) for cap in answers]
    if max(shift, test_shift) > LARGEST_SHIFT or test_shift > LARGEST_TEST * shift or last > LARGEST_LATTICE:
        return [gaussian(cap) for cap in answers]
    grid = lattice(step, 10.5 * max(_SQRT2 * shift, test_shift))
    # Near the result the profile falls about as that of a Gaussian of 0.64 times the variance.
    variance = 0.64 * mu * mu
    beta = max(gaussian_epsilon(math.sqrt(variance), delta) / variance - 0.5, 0.5)
    try:
        found = ladder(shift, grid, most, beta, _slack(delta, most))
        tests = [
            kernel_of_tests(test_shift, queries, found, beta, _slack(delta, queries), smoothing)
            for smoothing in SMOOTHING
            if with_tests
        ]
    except ArithmeticError:
        return [gaussian(cap) for cap in answers]
    gamma = np.exp(np.arange(last + 1) * step)
    result = []
    for cap in answers:
        profile = found.profile(cap, last)
        if tests:
            profile = np.min([each.applied(profile, last, step) for each in tests], axis=0)
        left_out = 2 * NEGLIGIBLE * (cap + queries) * (1 + gamma)
        result.append(min(epsilon_of(profile + left_out, step, delta), gaussian(cap)))
    return result


def _slack(delta: float, steps: int) -> float:
    return max(SLACK * delta / steps, 20 * ROUNDING)
