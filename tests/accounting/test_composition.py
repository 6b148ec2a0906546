"""Composition theorems side by side, against brute force, dp_accounting and each other."""

import itertools
import math

import mpmath as mp
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant, common
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import conversion, curves
from accounting import events as kinds
from accounting.composition import (
    METHODS,
    advanced,
    basic,
    compositions,
    heterogeneous_epsilon,
    homogeneous_delta,
    homogeneous_epsilon,
    loss_distributions,
    zcdp,
    zcdp_rho,
)
from accounting.cost import guarantee
from accounting.events import DPSGD, ConfidentGNMax, Event, Gaussian, GNMax, Laplace, LNMax, PureDP
from accounting.gaussian_mechanism import gaussian_epsilon
from accounting.loss_distributions import pld_epsilon
from data.errors import UserError

MNIST = ConfidentGNMax(sigma=40.0, threshold=200.0, threshold_sigma=150.0, queries=640, answers=283)
MIXED: list[Event] = [GNMax(87.0, 100), LNMax(20.0, 10), Laplace(10.0, 1.0, 5), PureDP(0.1, 3), Gaussian(9.0, 1.0, 2)]


def by_method(events: list[Event], delta: float = 1e-5) -> dict[str, float | None]:
    """epsilon of each method."""
    return {each.method: each.epsilon for each in compositions(events, delta)}


def test_the_loss_distribution_of_noisy_maxima_is_looser_than_renyi() -> None:
    """On MNIST's run the Gaussian pair gives 2.53 where Renyi divergence of the argmax gives 2.14."""
    found = by_method([MNIST])
    assert found["pld"] == pytest.approx(2.53, abs=5e-3)
    assert found["rdp"] == pytest.approx(2.143, rel=2e-3)
    exact = gaussian_epsilon(math.sqrt(2 * 283 / 40**2 + 640 / 150**2), 1e-5)
    assert found["pld"] == pytest.approx(exact, rel=1e-9)


def exact_homogeneous(epsilon: float, count: int, total: float) -> mp.mpf:
    """The hockey-stick of count randomized responses by enumerating truths and lies, in mpmath."""
    with mp.workdps(40):
        true, lie = 1 / (1 + mp.exp(-mp.mpf(epsilon))), 1 / (1 + mp.exp(mp.mpf(epsilon)))
        result = mp.mpf(0)
        for outcome in itertools.product((0, 1), repeat=count):
            lies = sum(outcome)
            p, q = true ** (count - lies) * lie**lies, true**lies * lie ** (count - lies)
            result += max(p - mp.exp(mp.mpf(total)) * q, mp.mpf(0))
        return result


@given(epsilon=st.floats(0.01, 4), count=st.integers(1, 8), share=st.floats(0, 1))
@settings(max_examples=40)
def test_equal_mechanisms_compose_optimally(epsilon: float, count: int, share: float) -> None:
    """The profile is that of all truths and lies, from above; the epsilon meets its delta and is below the sum."""
    total = share * epsilon * count
    exact = exact_homogeneous(epsilon, count, total)
    found = homogeneous_delta(epsilon, count, total)
    assert exact - mp.mpf(10) ** -25 <= found <= exact * (1 + mp.mpf(10) ** -8) + mp.mpf(10) ** -12
    smallest = homogeneous_epsilon(epsilon, count, 1e-3)
    assert smallest <= epsilon * count
    assert exact_homogeneous(epsilon, count, smallest) <= 1e-3


def test_a_million_equal_mechanisms_are_rounded_up() -> None:
    """Log-factorials of a million have fewer digits after the point: the profile is above 30 digits' all the same."""
    epsilon, count, total = 1e-3, 1_000_000, 3.0
    with mp.workdps(30):
        e, t, lies = mp.mpf(epsilon), mp.mpf(total), 492_000
        truth, exact = mp.exp(e) / (1 + mp.exp(e)), mp.mpf(0)
        term = mp.binomial(count, lies) * truth ** (count - lies) * (1 - truth) ** lies
        while (gain := (count - 2 * lies) * e - t) > 0:
            exact -= term * mp.expm1(-gain)
            term *= mp.mpf(count - lies) / (lies + 1) * (1 - truth) / truth
            lies += 1
    assert exact <= homogeneous_delta(epsilon, count, total) <= exact * (1 + mp.mpf(10) ** -6)


def test_the_optimum_at_the_theorems_own_points() -> None:
    """KOV, Theorem 3.3: (k - 2i) epsilon at delta_i, written as in the paper."""
    epsilon, k = 0.3, 20
    for i in range(k // 2 + 1):
        total = sum(
            math.comb(k, lies) * (math.exp((k - lies) * epsilon) - math.exp((k - 2 * i + lies) * epsilon))
            for lies in range(i)
        )
        assert homogeneous_delta(epsilon, k, (k - 2 * i) * epsilon) == pytest.approx(
            total / (1 + math.exp(epsilon)) ** k, rel=1e-7, abs=1e-15
        )


@given(
    epsilons=st.lists(st.floats(0.01, 1.5), min_size=1, max_size=12),
    delta=st.floats(-9, -1).map(lambda power: 10.0**power),
)
@settings(max_examples=20)
def test_unequal_mechanisms_are_never_understated(epsilons: list[float], delta: float) -> None:
    """The closed form is above the loss distribution of randomized responses, and never above the sum."""
    found = heterogeneous_epsilon(epsilons, delta)
    total = pld.identity(1e-3)
    for epsilon in epsilons:
        # losses are rounded up by at most the grid each, which is taken off below
        total = total.compose(pld.from_privacy_parameters(common.DifferentialPrivacyParameters(epsilon, 0.0), 1e-3))
    assert total.get_epsilon_for_delta(delta) - 1e-3 * len(epsilons) <= found <= math.fsum(epsilons) * (1 + 1e-12)


def test_advanced_composition_beats_the_sum_of_many() -> None:
    """200 mechanisms of 0.1: less than half of the plain sum; the theorem used is named."""
    better = advanced([PureDP(0.1, 1)] * 200, 1e-5)
    assert better.epsilon is not None
    assert better.epsilon < 10
    assert "Theorem 3.3" in better.theorem
    unequal = advanced([PureDP(0.1, 1)] * 100 + [PureDP(0.11, 1)] * 100, 1e-5)
    assert "Dwork, Rothblum and Vadhan" in unequal.theorem
    assert unequal.epsilon is not None
    assert better.epsilon < unequal.epsilon < 20


def test_every_method_is_at_least_the_exact_number_of_gaussians() -> None:
    """For Gaussians the exact profile is known: no theorem may promise less at the same delta."""
    events: list[Event] = [Gaussian(10.0, 1.0, 3), Gaussian(20.0, 3.0, 2)]
    exact = gaussian_epsilon(math.sqrt(3 / 100 + 2 * 9 / 400), 1e-5)
    found = by_method(events)
    assert found["pld"] == pytest.approx(exact, rel=1e-9)
    for method in ("advanced", "zcdp", "rdp"):
        assert found[method] is not None
        assert found[method] > exact  # type: ignore[operator]


def test_dpsgd_keeps_adding_and_removing_apart() -> None:
    """With a noisy maximum beside it the loss distribution is dp_accounting's two-sided one."""
    events: list[Event] = [DPSGD(0.9, 0.05, 60), GNMax(20.0, 40)]
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(PoissonSampledDpEvent(0.05, GaussianDpEvent(0.9)), 60)
    accountant.compose(GaussianDpEvent(20 / math.sqrt(2)), 40)
    assert pld_epsilon(events, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-4)


def test_pure_mechanisms_by_loss_distributions_agree_with_the_optimum() -> None:
    """Thirty equal pure mechanisms: the grid's number is the exact one, from above."""
    exact = homogeneous_epsilon(0.1, 30, 1e-5)
    found = pld_epsilon([PureDP(0.1, 10), PureDP(0.1, 20)], 1e-5)
    assert found is not None
    assert exact * (1 - 1e-6) <= found <= exact * (1 + 1e-3)


def test_a_laplace_maximum_is_never_below_its_pure_sum_or_above_it() -> None:
    """One LNMax answer is 2/b-DP: its loss distribution gives nearly that at a tiny delta, never more."""
    for scale in (0.05, 1.0, 30.0):
        found = pld_epsilon([LNMax(scale, 1)], 2e-8)
        assert found is not None
        assert 0.9 * 2 / scale < found <= 2 / scale * (1 + 1e-3) + 2e-4


def test_where_a_method_has_no_number_it_says_none() -> None:
    """Sampling has no rho; a tiny delta no loss distribution, unless all are Gaussians."""
    sgd: list[Event] = [DPSGD(1.1, 0.02, 10)]
    assert loss_distributions(sgd, 1e-9).epsilon is None
    assert loss_distributions([Gaussian(1.0, 1.0, 1)], 1e-12).epsilon == pytest.approx(gaussian_epsilon(1.0, 1e-12))
    none = zcdp([GNMax(1.0, 1), *sgd], 1e-5)
    assert (none.epsilon, none.delta) == (None, None)
    assert "sampl" in none.theorem


def test_what_a_test_may_fail_with_is_part_of_delta() -> None:
    """A tested release converts at delta less its own; where there is nothing left, there is no number."""
    event = kinds.Tested(order=10.0, rho=0.3, sigma_d=8.0, delta=1e-6)
    alone = guarantee(event, 1e-5)
    expected, _ = conversion.epsilon(curves.rdp(event, [10.0]), [10.0], 1e-5 - 1e-6)
    assert alone.epsilon == pytest.approx(expected)
    found = by_method([event, GNMax(87.0, 100)])
    total = curves.rdp(event, [10.0]) + curves.rdp(GNMax(87.0, 100), [10.0])
    assert found["rdp"] <= conversion.epsilon(total, [10.0], 1e-5 - 1e-6)[0]  # type: ignore[operator]
    many = by_method([event] * 20)
    assert (many["rdp"], many["advanced"], many["pld"]) == (None, None, None)
    with pytest.raises(UserError, match="^delta = "):
        guarantee(event, 1e-6)


def test_rho_bounds_every_renyi_divergence() -> None:
    """D_alpha <= rho alpha at small and large orders, for every kind of event that has a rho."""
    from accounting.curves import rdp

    for event in [*MIXED, MNIST, DPSGD(2.0, 1.0, 5), LNMax(0.7, 3), PureDP(3.0, 1)]:
        rho = zcdp_rho(event)
        assert rho is not None
        for order in (1.01, 2.0, 10.0, 60.0):
            for number in ("textbook", "data_independent"):
                assert rdp(event, [order], number)[0] <= rho * order * (1 + 1e-9)


def test_order_does_not_matter_and_more_events_never_cost_less() -> None:
    """Every method is symmetric in its events and grows with them."""
    whole, turned, fewer = by_method(MIXED), by_method(MIXED[::-1]), by_method(MIXED[:-1])
    for method in METHODS:
        assert whole[method] == pytest.approx(turned[method])
        assert fewer[method] < whole[method]  # type: ignore[operator]


def test_nothing_released_costs_nothing() -> None:
    """No events, or events of no answers: zero by every method."""
    for events in ([], [GNMax(1.0, 0), PureDP(1.0, 0), ConfidentGNMax(1.0, 0.0, 1.0, 0, 0)]):
        assert [(each.epsilon, each.delta) for each in compositions(events, 1e-5)] == [(0.0, 0.0)] * len(METHODS)


def test_basic_composition_adds_what_the_statements_say() -> None:
    """(sum epsilon, sum delta), of given statements or of the guarantees."""
    given = basic([(1.0, 1e-5), (0.5, 1e-5)])
    assert (given.epsilon, given.delta) == (1.5, 2e-5)
    found = compositions([MNIST, GNMax(87.0, 100)], 1e-5)[0]
    assert found.epsilon == pytest.approx(guarantee(MNIST, 1e-5).epsilon + guarantee(GNMax(87.0, 100), 1e-5).epsilon)
    assert found.delta == pytest.approx(2e-5)
