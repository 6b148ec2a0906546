"""Outcome laws by definition, in mpmath: what the quadrature and the bounds of the package are compared with."""

import functools

import mpmath as mp

from accounting.events import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax, NoisyMax
from tests.accounting.oracles import neighbours

DIGITS = 30

EVENTS: list[NoisyMax] = [
    GNMax(1.0, 1),
    GNMax(0.25, 1),
    GNMax(40.0, 1),
    ConfidentGNMax(1.5, 4.0, 2.0, 1, 1),
    ConfidentGNMax(10.0, 5.0, 0.5, 1, 1),
    InteractiveGNMax(2.0, 1.0, 0.7, 1, 1),
    LNMax(0.7, 1),
    LNMax(30.0, 1),
]
"""Little and much noise, for five teachers."""


@functools.cache
def gaussian_winner(votes: tuple[int, ...], sigma: float) -> list[mp.mpf]:
    """Pr[class j wins]; the trapezoidal rule about the integrand's mode, exact to e^-54 at this step for C <= 4."""
    with mp.workdps(DIGITS):
        result = []
        for vote in votes:
            gaps = [mp.mpf(vote - other) / mp.mpf(sigma) for other in votes]
            gaps.remove(0)
            centre, step = max(mp.mpf(0), -min(gaps) / 2), mp.mpf("0.3")
            points = [centre + k * step for k in range(-34, 35)]
            result.append(step * mp.fsum(mp.npdf(z) * mp.fprod(mp.ncdf(z + g) for g in gaps) for z in points))
        return result


@functools.cache
def laplace_winner(votes: tuple[int, ...], scale: float) -> list[mp.mpf]:
    """Pr[class j wins], Gauss-Legendre between the kinks."""

    def cdf(x: mp.mpf) -> mp.mpf:
        return mp.exp(x) / 2 if x < 0 else 1 - mp.exp(-x) / 2

    with mp.workdps(DIGITS):
        result = []
        for vote in votes:
            gaps = [mp.mpf(vote - other) / mp.mpf(scale) for other in votes]
            gaps.remove(0)
            kinks = sorted({mp.mpf(0), *(-g for g in gaps)})
            edges = [kinks[0] - 70, kinks[0] - 9, kinks[0] - 2, *kinks, kinks[-1] + 2, kinks[-1] + 9, kinks[-1] + 70]
            result.append(
                mp.quad(
                    lambda z, gaps=gaps: mp.exp(-abs(z)) / 2 * mp.fprod(cdf(z + g) for g in gaps),
                    edges,
                    method="gauss-legendre",
                )
            )
        return result


def statistic(votes: tuple[int, ...], student: tuple[float, ...] | None) -> mp.mpf:
    """What the test compares."""
    n = sum(votes)
    return max(
        mp.mpf(v) - (0 if student is None else n * mp.mpf(p)) for v, p in zip(votes, student or votes, strict=True)
    )


def law(votes: tuple[int, ...], event: NoisyMax, student: tuple[float, ...] | None = None) -> list[mp.mpf]:
    """The joint law of test and answer; no answer last."""
    if isinstance(event, LNMax):
        return laplace_winner(votes, event.scale)
    answer = gaussian_winner(votes, event.sigma)
    if not isinstance(event, ConfidentGNMax | InteractiveGNMax):
        return answer
    with mp.workdps(DIGITS):
        t = (statistic(votes, student) - mp.mpf(event.threshold)) / mp.mpf(event.threshold_sigma)
        return [p * mp.ncdf(t) for p in answer] + [mp.ncdf(-t)]


def renyi(p: list[mp.mpf], q: list[mp.mpf], order: float) -> float:
    """The definition of D_alpha."""
    with mp.workdps(DIGITS):
        a = mp.mpf(order)
        return float(mp.log(mp.fsum(x**a * y ** (1 - a) for x, y in zip(p, q, strict=True))) / (a - 1))


def worst(
    votes: tuple[int, ...], event: NoisyMax, order: float, student: tuple[float, ...] | None = None
) -> tuple[float, float]:
    """The largest divergence to any neighbour, and from any."""
    here = law(votes, event, student)
    others = [law(moved, event, student) for moved in neighbours(votes)]
    return max(renyi(here, q, order) for q in others), max(renyi(q, here, order) for q in others)
