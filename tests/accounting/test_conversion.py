"""From RDP to (epsilon, delta), checked against dp_accounting, and the quantities that a ledger fixes at opening."""

import math
import warnings

import numpy as np
import pytest
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta, compute_epsilon
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import conversion
from accounting.orders import default_orders, paper_orders
from data.errors import UserError

DELTAS = st.floats(1e-12, 0.1)


@given(rho=st.floats(1e-6, 20), bump=st.floats(0, 1), delta=DELTAS)
@settings(deadline=None)
def test_epsilon_is_that_of_dp_accounting(rho: float, bump: float, delta: float) -> None:
    """For any curve the improved conversion gives dp_accounting's epsilon."""
    orders = np.array(default_orders())
    curve = rho * orders + bump * np.log(orders)
    expected, _ = compute_epsilon(orders, curve, delta)
    found, order = conversion.epsilon(curve, orders, delta, warn=False)
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert order in orders


@given(rho=st.floats(1e-4, 5), epsilon=st.floats(0.01, 20))
@settings(deadline=None)
def test_delta_is_that_of_dp_accounting_or_larger(rho: float, epsilon: float) -> None:
    """The inverse conversion never understates delta, and agrees where dp_accounting uses the same formula."""
    orders = np.array(default_orders())
    orders = orders[orders > 1.011]  # dp_accounting leaves out what is nearer to 1
    expected, _ = compute_delta(orders, rho * orders, epsilon)
    found, _ = conversion.delta(rho * orders, orders, epsilon)
    assert found >= expected * (1 - 1e-9)
    if found < math.sqrt(-math.expm1(-rho)):
        assert found == pytest.approx(expected, rel=1e-9)


@given(rho=st.floats(0.001, 5), delta=DELTAS)
def test_delta_and_epsilon_are_inverse(rho: float, delta: float) -> None:
    """At the epsilon of a delta, the delta is that one again."""
    orders = np.array(default_orders())
    epsilon, _ = conversion.epsilon(rho * orders, orders, delta, warn=False)
    if epsilon > 0:
        assert conversion.delta(rho * orders, orders, epsilon)[0] == pytest.approx(delta, rel=1e-6)


def test_classic_is_the_papers_formula_and_never_smaller() -> None:
    """conversion="classic" is r - log(delta)/(alpha - 1), as in the papers' tables, and gives more."""
    assert conversion.epsilon([1.0], [11.0], 1e-5, "classic")[0] == pytest.approx(1.0 + math.log(1e5) / 10)
    orders = np.array(paper_orders())
    assert (
        conversion.epsilon(orders / 100, orders, 1e-5, "classic")[0] > conversion.epsilon(orders / 100, orders, 1e-5)[0]
    )


def test_whole_orders_and_whole_costs_are_numbers() -> None:
    """Integer arrays do not wrap around: the papers' code once made an order -2^63 of them."""
    as_ints = conversion.epsilon(np.array([3, 5, 90]), np.array([2, 3, 64]), 1e-5)
    as_floats = conversion.epsilon(np.array([3.0, 5.0, 90.0]), np.array([2.0, 3.0, 64.0]), 1e-5)
    assert as_ints == as_floats
    assert as_ints[0] > 0


def test_infinite_costs_are_skipped_or_reported() -> None:
    """An order without a bound does not matter if another has one; with none, epsilon is infinite."""
    assert conversion.epsilon([math.inf, 1.0, math.inf], [2.0, 16.0, 99.0], 1e-5)[1] == 16.0
    assert conversion.epsilon([math.inf, math.inf], [2.0, 3.0], 1e-5)[0] == math.inf


def test_nothing_released_costs_nothing() -> None:
    """A curve of zeros is epsilon 0, not a negative number."""
    assert conversion.epsilon(np.zeros(3), [2.0, 16.0, 99.0], 1e-5)[0] == 0.0
    assert conversion.epsilon([1e-9], [1e6], 0.01)[0] == 0.0


def test_the_end_of_the_grid_warns() -> None:
    """If the best order is the last one, a wider grid would give less, and the caller is told."""
    with pytest.warns(UserWarning, match="end of the grid"):
        conversion.epsilon([0.001, 0.002], [2.0, 3.0], 1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        conversion.epsilon([0.001], [2.0], 1e-5)
        conversion.epsilon(0.01 * np.array(default_orders()), default_orders(), 1e-5)


def test_the_default_grid_reaches_small_and_large_epsilons() -> None:
    """The grid is ascending, above 1, dense, holds the papers' orders, and reaches at least 500."""
    grid = np.array(default_orders())
    assert np.all(np.diff(grid) > 0)
    assert grid[0] < 1.05
    assert grid[-1] >= 500
    assert set(paper_orders()) <= set(default_orders())
    assert (np.diff(grid) / grid[:-1]).max() < 0.15


@given(order=st.floats(1.01, 500), epsilon=st.floats(0.001, 50), delta=DELTAS)
def test_the_budget_of_an_order_converts_back_to_at_most_epsilon(order: float, epsilon: float, delta: float) -> None:
    """Spending rdp_budget costs at most epsilon; spending a little more costs more."""
    budget = conversion.rdp_budget(order, epsilon, delta)
    assert budget >= 0
    if budget > 0:
        assert conversion.epsilon([budget], [order], delta)[0] <= epsilon
        assert conversion.epsilon([budget + epsilon * 1e-6 + 2 * delta**2], [order], delta)[0] > epsilon


def test_an_order_that_cannot_meet_the_target_has_no_budget() -> None:
    """Order 1.5 at delta 1e-5 costs 20 for nothing at all: its budget for epsilon 1 is 0, not negative."""
    assert conversion.rdp_budget(1.5, 1.0, 1e-5) == 0.0


@given(epsilon=st.floats(0.05, 20), delta=st.sampled_from([1e-3, 1e-5, 1e-8]))
@settings(max_examples=30, deadline=None)
def test_the_ledgers_order_is_where_a_gaussian_of_that_budget_converts_best(epsilon: float, delta: float) -> None:
    """At best_gaussian_order a Gaussian affords within 0.1% of the most it could afford at any order."""
    order = conversion.best_gaussian_order(epsilon, delta)
    affordable = conversion.rdp_budget(order, epsilon, delta) / order
    most = max(conversion.rdp_budget(a, epsilon, delta) / a for a in default_orders())
    assert affordable >= most * 0.999
    grid = np.array(default_orders())
    cost, best = conversion.epsilon(affordable * grid, grid, delta, warn=False)
    assert cost == pytest.approx(epsilon, rel=2e-3)
    assert best == pytest.approx(order, rel=0.2)


@pytest.mark.parametrize("bad", [0.0, 1.0, -1e-5, float("nan"), 2.0])
def test_bad_delta_is_named(bad: float) -> None:
    """delta outside (0, 1) is an error that names it."""
    for call in (
        lambda: conversion.epsilon([1.0], [2.0], bad),
        lambda: conversion.rdp_budget(2.0, 1.0, bad),
        lambda: conversion.best_gaussian_order(1.0, bad),
    ):
        with pytest.raises(UserError, match=r"^delta = .*must be above 0 and below 1"):
            call()


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_epsilon_is_named(bad: float) -> None:
    """A target epsilon that is not a finite positive number is an error that names it."""
    for call in (lambda: conversion.rdp_budget(2.0, bad, 1e-5), lambda: conversion.best_gaussian_order(bad, 1e-5)):
        with pytest.raises(UserError, match="^epsilon = "):
            call()


@pytest.mark.parametrize(
    ("rdp", "orders", "word"),
    [
        ([float("nan")], [2.0], "rdp"),
        ([-0.1], [2.0], "rdp"),
        ([1.0, 2.0], [2.0], "rdp"),
        ([1.0], [1.0], "orders"),
        ([1.0], [float("nan")], "orders"),
    ],
)
def test_a_curve_with_nonsense_is_refused(rdp: list[float], orders: list[float], word: str) -> None:
    """NaN or negative RDP, an order of 1, or lengths that differ never become an epsilon."""
    with pytest.raises(UserError, match=f"^{word}"):
        conversion.epsilon(rdp, orders, 1e-5)


def test_an_unknown_conversion_is_refused() -> None:
    """Only improved and classic exist."""
    with pytest.raises(UserError, match="^conversion = 'best'"):
        conversion.epsilon([1.0], [2.0], 1e-5, "best")  # type: ignore[arg-type]
