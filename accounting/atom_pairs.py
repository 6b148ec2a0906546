r"""What the one-atom bound needs of the pair of laws (p, p') that an answer post-processes: masses of two tails.

r = p'/p is the likelihood ratio. Of all events of p-mass 1 - q the middle of r's law matters: outside it are a lower
tail (r small) and an upper tail (r large) whose p-masses add up to q.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri_exp

from accounting.gaussian_supremum import gaussian_bound
from accounting.laplace_supremum import laplace_bound

Array = NDArray[np.float64]

# The share of q in the lower tail, as logits; a point more has an empty upper tail.
SHARES = np.concatenate([np.arange(-9.0, -3.0), np.arange(-3.0, 6.0, 0.16), np.arange(6.0, 15.5, 0.75)])
_LOG_LOWER = np.concatenate([-np.logaddexp(0.0, -SHARES), [0.0]])
_LOG_UPPER = np.concatenate([-np.logaddexp(0.0, SHARES), [-np.inf]])
# Half the cells of the Laplace pair's privacy loss, at least and at most.
_HALF_CELLS = (50, 300)


@dataclass(frozen=True)
class Tails:
    """K values of q, S shares, O orders.

    Attributes:
        log_ratio: (K, S) log r where the lower tail ends.
        width: (K, S) how much larger log r is where the upper tail begins; inf if that is empty.
        moved: (K, S) p'-mass of both tails.
        log_outside: (K, S, O) log of the integral of p^alpha p'^{1 - alpha} over both tails.
        most_moved: (K,) p'-mass of an upper tail alone of p-mass q, the largest that p-mass q can have.
        most_ratio: (K,) r where that begins: the derivative of most_moved in q, which is concave.
        rounding: (K, O) relative error of all these, in units of 1e-12.
    """

    log_ratio: Array
    width: Array
    moved: Array
    log_outside: Array
    most_moved: Array
    most_ratio: Array
    rounding: Array


@dataclass(frozen=True)
class GaussianPair:
    """N(0, 1) against N(shift, 1)."""

    shift: float

    def divergence(self, orders: Array) -> Array:
        """alpha shift^2/2, at most which an answer costs."""
        return gaussian_bound(self.shift, orders)

    def tails(self, log_q: Array, orders: Array) -> Tails:
        """r = e^{shift x - shift^2/2}: the lower tail is x < a, the upper x > b."""
        mu, tilt = self.shift, (orders - 1) * self.shift
        a = ndtri_exp(_LOG_LOWER + log_q[:, None])
        b = -ndtri_exp(_LOG_UPPER + log_q[:, None])
        alone = -ndtri_exp(log_q)
        grown = orders * (orders - 1) * mu * mu / 2
        log_outside = np.logaddexp(log_ndtr(a[..., None] + tilt), log_ndtr(-b[..., None] - tilt)) + grown
        return Tails(
            mu * a - mu * mu / 2,
            mu * (b - a),
            np.exp(log_ndtr(a - mu)) + np.exp(log_ndtr(mu - b)),
            log_outside,
            np.exp(log_ndtr(mu - alone)),
            np.exp(mu * alone - mu * mu / 2),
            1 + (grown - log_q[:, None]) / 500,
        )


@dataclass(frozen=True)
class LaplacePair:
    """Two independent Laplace variables of scale 1, one moved up by ``shift`` and one down.

    The privacy loss of each is shift with probability 1/2, -shift with probability e^{-shift}/2, else spread between:
    with t = shift - loss/2 of their sum, t has atoms of 1/4, e^{-shift}/2 and e^{-2 shift}/4 at 0, shift and 2 shift
    and the density e^{-t} (2 + min(t, 2 shift - t))/4; p'(t) = p(2 shift - t). The density of a cell of t is moved to
    its ends so that its p- and p'-mass stay: (p, p') post-processes the pair that results.
    """

    shift: float

    def divergence(self, orders: Array) -> Array:
        """What LNMax costs at most (accounting.laplace_supremum)."""
        return laplace_bound(1 / self.shift, orders)

    def _atoms(self) -> tuple[Array, Array]:
        """(log r, p-mass) of the discrete pair, ascending in r."""
        s = self.shift
        cells = 2 * int(np.clip(200 * s, *_HALF_CELLS))
        t = np.linspace(0.0, 2 * s, cells + 1)
        # -e^{-t} k(t)/4 is the integral of the density, k(t) = 3 + t up to s and 1 + 2 s - t beyond.
        rises = np.arange(cells) < cells // 2
        first = np.where(rises, 3 + t[:-1], 1 + 2 * s - t[:-1])
        last = np.where(rises, 3 + t[1:], 1 + 2 * s - t[1:])
        mass = np.exp(-t[:-1]) * (first - np.exp(-np.diff(t)) * last) / 4
        moved = mass[::-1]
        log_r = 2 * t - 2 * s
        r = np.exp(log_r)
        high = np.clip((moved - mass * r[:-1]) / np.diff(r), 0.0, mass)
        atoms = np.concatenate([mass - high, [0.0]]) + np.concatenate([[0.0], high])
        atoms[0] += 0.25
        atoms[len(atoms) // 2] += math.exp(-s) / 2
        atoms[-1] += math.exp(-2 * s) / 4
        return log_r, atoms

    def tails(self, log_q: Array, orders: Array) -> Tails:
        """Quantiles of the discrete pair; an atom may be cut, as data processing allows it."""
        log_r, p = self._atoms()
        beta = orders - 1
        lower_end, upper_end = np.cumsum(p), np.cumsum(p[::-1])
        log_top = 2 * self.shift * beta
        power = np.exp(-beta * log_r[:, None] - log_top)

        def tail(log_mass: Array, ends: Array, step: int) -> tuple[Array, Array, Array]:
            ratios, masses, powers = log_r[::step], p[::step], power[::step]
            mass = np.exp(log_mass)
            at = np.minimum(np.searchsorted(ends, mass), len(p) - 1)
            rest = mass - np.where(at > 0, ends[at - 1], 0.0)
            moved = np.concatenate([[0.0], np.cumsum(masses * np.exp(ratios))])
            tilted = np.concatenate([np.zeros((1, len(beta))), np.cumsum(masses[:, None] * powers, axis=0)])
            return ratios[at], moved[at] + rest * np.exp(ratios[at]), tilted[at] + rest[..., None] * powers[at]

        low_r, low_moved, low_power = tail(_LOG_LOWER + log_q[:, None], lower_end, 1)
        high_r, high_moved, high_power = tail(_LOG_UPPER + log_q[:, None], upper_end, -1)
        alone_r, alone_moved, _ = tail(log_q, upper_end, -1)
        width = np.maximum(high_r - low_r, 0.0)
        width[:, -1] = np.inf
        with np.errstate(divide="ignore"):
            log_outside = np.log(low_power + high_power) + log_top
        cell = log_r[1] - log_r[0]
        rounding = np.broadcast_to(20 + 1e-3 / cell + log_top / 500, (len(log_q), len(beta)))
        return Tails(low_r, width, low_moved + high_moved, log_outside, alone_moved, np.exp(alone_r), rounding)


Pair = GaussianPair | LaplacePair
