"""Independent computations of what the package computes cleverly: adaptive quadrature, definitions, brute force."""

import functools
import itertools
from collections.abc import Iterator

import mpmath as mp
import numpy as np
from scipy.integrate import quad
from scipy.special import logsumexp, ndtr

HALF_PI_ROOT = np.sqrt(2 * np.pi)


def renyi(p: np.ndarray, q: np.ndarray, alpha: float) -> float:
    """The definition, for laws on finitely many outcomes: log(sum p^alpha q^(1 - alpha)) / (alpha - 1)."""
    with np.errstate(divide="ignore"):
        log_p, log_q = np.log(np.asarray(p, float)), np.log(np.asarray(q, float))
    some = np.isfinite(log_p)  # 0^alpha times anything finite is 0
    return float(logsumexp(alpha * log_p[some] + (1 - alpha) * log_q[some]) / (alpha - 1))


def argmax_triple(a: float, b: float) -> np.ndarray:
    """Pr[i wins], Pr[j wins], Pr[another wins] with scores N(a, 1), N(b, 1) and 0, by adaptive quadrature."""

    def wins(x0: float, y0: float) -> float:
        def density(x: float) -> float:
            return float(np.exp(-((x - x0) ** 2) / 2) / HALF_PI_ROOT * ndtr(x - y0))

        return quad(density, 0, max(0.0, x0, y0) + 10, points=[max(x0, 0.0)], epsabs=0, epsrel=1e-11, limit=200)[0]

    return np.array([wins(a, b), wins(b, a), ndtr(-a) * ndtr(-b)])


def argmax_divergence(a: float, b: float, shift: float, alpha: float) -> float:
    """D_alpha of the pair that section 4's supremum ranges over."""
    return renyi(argmax_triple(a, b), argmax_triple(a - shift, b + shift), alpha)


def histograms(teachers: int, classes: int) -> Iterator[tuple[int, ...]]:
    """All vote histograms."""
    for cuts in itertools.combinations(range(teachers + classes - 1), classes - 1):
        edges = (-1, *cuts, teachers + classes - 1)
        yield tuple(edges[k + 1] - edges[k] - 1 for k in range(classes))


def neighbours(votes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All histograms with one vote moved."""
    for i, j in itertools.permutations(range(len(votes)), 2):
        if votes[i]:
            moved = list(votes)
            moved[i] -= 1
            moved[j] += 1
            yield tuple(moved)


def gnmax_law(votes: tuple[int, ...], sigma: float) -> list[mp.mpf]:
    """Pr[class j wins] under Gaussian noise on every count, with 25 digits."""
    ordered = tuple(sorted(votes))
    law = _sorted_gnmax_law(ordered, sigma)
    return [law[ordered.index(v)] for v in votes]


@functools.cache
def _sorted_gnmax_law(votes: tuple[int, ...], sigma: float) -> list[mp.mpf]:
    with mp.workdps(25):

        def wins(j: int) -> mp.mpf:
            others = [mp.mpf(votes[j] - votes[k]) / sigma for k in range(len(votes)) if k != j]
            return mp.quad(
                lambda z: mp.npdf(z) * mp.fprod(mp.ncdf(z + gap) for gap in others), [-12, -6, -3, 0, 3, 6, 12]
            )

        return [wins(j) for j in range(len(votes))]


def laplace_cdf(x: float) -> float:
    """Pr[Lap(1) <= x]."""
    return float(0.5 * np.exp(x) if x < 0 else 1 - 0.5 * np.exp(-x))


def lnmax_law(votes: tuple[int, ...], scale: float) -> np.ndarray:
    """Pr[class j wins] under Laplace noise on every count; the integrand is split where it has kinks."""

    def wins(j: int) -> float:
        gaps = [(votes[j] - votes[k]) / scale for k in range(len(votes)) if k != j]
        kinks = sorted({0.0, *(-g for g in gaps)})
        edges = [kinks[0] - 45, *kinks, kinks[-1] + 45]
        pieces = (
            quad(
                lambda z: 0.5 * np.exp(-abs(z)) * np.prod([laplace_cdf(z + g) for g in gaps]),
                lo,
                hi,
                epsabs=0,
                epsrel=1e-11,
            )[0]
            for lo, hi in itertools.pairwise(edges)
        )
        return float(sum(pieces))

    return np.array([wins(j) for j in range(len(votes))])


def mp_renyi(p: list[mp.mpf], q: list[mp.mpf], alpha: float) -> float:
    """The definition of D_alpha in mpmath."""
    with mp.workdps(25):
        total = mp.fsum(x**alpha * y ** (1 - alpha) for x, y in zip(p, q, strict=True))
        return float(mp.log(total) / (alpha - 1))
