r"""Certified suprema at any order: computed once on a coarse grid of orders, kept on disk, joined by chords.

alpha -> (alpha - 1) D_alpha(P || Q) is convex (van Erven and Harremoes 2014, Corollary 2, arXiv 1206.2459), so its
supremum over pairs is convex too, and it is 0 at alpha = 1: between two orders it lies below the chord of upper
bounds, from 1 to the first order as well. The files hold numbers that depend on the noise alone; for which noise and
orders they were asked must not depend on votes either, as the folder is not private.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from accounting import certified_cache
from accounting.gaussian_supremum import argmax_supremum, bit_supremum, gaussian_bound
from accounting.laplace_supremum import laplace_bound, laplace_supremum
from accounting.orders import certified_orders
from data.errors import UserError

Array = NDArray[np.float64]

# Raised whenever a certified number changes: older files are then not read.
VERSION = 3


def _certified(noise: str, orders: Array, certify: Callable[[Array], Array], kept: bool) -> Array:
    if not kept:
        return certify(orders)
    stored = certified_cache.read("suprema", noise, VERSION)
    keys = [repr(order) for order in orders.tolist()]
    missing = [key for key in keys if key not in stored]
    if missing:
        fresh = certify(np.array([float(key) for key in missing]))
        stored |= dict(zip(missing, fresh.tolist(), strict=True))
        certified_cache.write("suprema", noise, VERSION, stored)
    return np.array([stored[key] for key in keys])


def checked_orders(orders: object) -> Array:
    """Orders as floats, (O,); UserError unless each is finite and above 1. Integers become floats first."""
    try:
        alpha = np.atleast_1d(np.asarray(orders, dtype=float))
    except (TypeError, ValueError):
        raise UserError(f"orders = {orders!r}: must be numbers above 1") from None
    if alpha.ndim != 1 or not alpha.size or not np.all(np.isfinite(alpha) & (alpha > 1)):
        bad = next((a for a in alpha.ravel().tolist() if not (math.isfinite(a) and a > 1)), orders)
        raise UserError(f"orders = {bad!r}: every Rényi order must be a finite number above 1")
    return alpha


def _joined(
    noise: str,
    orders: object,
    certify: Callable[[Array], Array],
    bound: Callable[[Array], Array],
    kept: bool = True,
) -> Array:
    alpha = checked_orders(orders)
    grid = np.array(certified_orders())
    inside = alpha <= grid[-1]
    right = np.searchsorted(grid, np.where(inside, alpha, grid[-1]))
    needed = np.unique(np.concatenate([right[inside], np.maximum(right[inside & (alpha != grid[right])] - 1, 0)]))
    result = bound(alpha)
    if not len(needed):
        return result
    known = _certified(noise, grid[needed], certify, kept)
    # (alpha - 1) D at the grid, with the point (1, 0) that every curve starts from.
    x = np.concatenate([[1.0], grid[needed]])
    y = np.concatenate([[0.0], (grid[needed] - 1) * known])
    chords = np.interp(alpha, x, y) / (alpha - 1)
    exact = dict(zip(grid[needed].tolist(), known.tolist(), strict=True))
    chords = np.array([exact.get(a, c) for a, c in zip(alpha.tolist(), chords.tolist(), strict=True)])
    return np.where(inside, np.minimum(chords, result), result)


def _checked_noise(name: str, value: float) -> float:
    if not value > 0 or math.isinf(value):
        raise UserError(f"{name} = {value!r}: must be a finite number above 0")
    return float(value)


def gaussian_argmax(sigma: float, orders: object) -> Array:
    """Upper bounds of g_sigma(alpha), the RDP of one GNMax answer, at any orders above 1."""
    sigma = _checked_noise("sigma", sigma)
    return _joined(
        f"gaussian-argmax {sigma!r}",
        orders,
        lambda alpha: argmax_supremum(sigma, alpha),
        lambda alpha: gaussian_bound(math.sqrt(2.0) / sigma, alpha),
    )


def threshold_test(threshold_sigma: float, orders: object, kept: bool = True) -> Array:
    """Upper bounds of the RDP of one released bit max_j v_j + N(0, threshold_sigma^2) >= T, for any T.

    Not ``kept``: computed anew and not stored, for noise that may have been planned on votes.
    """
    threshold_sigma = _checked_noise("threshold_sigma", threshold_sigma)
    return _joined(
        f"gaussian-bit {threshold_sigma!r}",
        orders,
        lambda alpha: bit_supremum(1 / threshold_sigma, alpha),
        lambda alpha: gaussian_bound(1 / threshold_sigma, alpha),
        kept,
    )


def laplace_argmax(scale: float, orders: object) -> Array:
    """Upper bounds of the RDP of one LNMax answer, never above 2 / scale."""
    scale = _checked_noise("scale", scale)
    return _joined(
        f"laplace-argmax {scale!r}",
        orders,
        lambda alpha: laplace_supremum(scale, alpha),
        lambda alpha: laplace_bound(scale, alpha),
    )
