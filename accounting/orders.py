"""The Rényi orders that costs are computed at."""

import numpy as np

# P18's own grid: 2, 2.5, ..., 100, then logarithmic up to 500; below 2 fractional orders for large epsilons.
_NEAR_ONE = (1.01, 1.02, 1.03, 1.05, 1.07, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.6, 1.75)


def paper_orders() -> tuple[float, ...]:
    """2, 2.5, ..., 100, then 100 log-spaced to 500: the grid of the tables this project compares itself with."""
    return tuple(np.concatenate([np.arange(2, 100.5, 0.5), np.geomspace(100, 500, 100)[1:]]).tolist())


def certified_orders() -> tuple[float, ...]:
    """The coarse grid at which suprema are certified; in between (alpha - 1) D_alpha is bounded by its chord.

    Neighbours differ by at most 12% in alpha (a quarter below 1.1), so a chord is at most ~0.3% too high.
    """
    upper = np.geomspace(2.0, 4096.0, 69)
    return tuple(np.round(np.concatenate([_NEAR_ONE, upper]), 4).tolist())


def default_orders() -> tuple[float, ...]:
    """The dense grid of conversions: 1.01 to 4096, ascending; it holds every certified order and paper_orders()."""
    fractional = np.round(1 + np.geomspace(0.01, 8, 120), 4).tolist()
    return tuple(sorted({*fractional, *certified_orders(), *paper_orders()}))
