"""Additive noise: calibrated against dp_accounting and 60-digit arithmetic, never below the exact value."""

import math

import mpmath as mp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian, get_sigma_gaussian
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.cost import guarantee
from accounting.curves import rdp
from accounting.events import (
    ConfidentGNMax,
    Gaussian,
    InteractiveGNMax,
    Laplace,
    PureDP,
    event_from_dict,
    event_to_dict,
)
from accounting.gaussian_mechanism import (
    analytic_epsilon,
    analytic_sigma,
    classic_sigma,
    gaussian_delta,
    gaussian_epsilon,
    laplace_scale,
)
from accounting.laplace_supremum import laplace_mechanism, randomized_response
from data.errors import UserError

DELTAS = st.floats(-30, -0.1).map(lambda power: 10.0**power)
EPSILONS = st.floats(-3, 2.5).map(lambda power: 10.0**power)


def exact_delta(mu: float, epsilon: float) -> mp.mpf:
    """Balle and Wang, Theorem 8, in mpmath, with digits enough for the difference."""
    with mp.workdps(80 + int(epsilon / mu)):
        m, e = mp.mpf(mu), mp.mpf(epsilon)
        tail = lambda x: mp.erfc(x / mp.sqrt(2)) / 2  # noqa: E731
        return tail(e / m - m / 2) - mp.exp(e) * tail(e / m + m / 2)


@given(mu=st.floats(0.01, 30), epsilon=st.floats(0, 40))
@settings(max_examples=60)
def test_the_profile_is_the_exact_one_from_above(mu: float, epsilon: float) -> None:
    """delta(epsilon) is never below the exact value and at most 1e-9 of it above."""
    exact = exact_delta(mu, epsilon)
    found = gaussian_delta(mu, epsilon)
    assert exact <= found <= exact * (1 + mp.mpf(10) ** -9) + mp.mpf(10) ** -320


@given(epsilon=EPSILONS, delta=DELTAS, sensitivity=st.floats(0.01, 100))
@settings(max_examples=60)
def test_the_analytic_sigma_meets_its_target_and_little_less_does_not(
    epsilon: float, delta: float, sensitivity: float
) -> None:
    """The noise meets (epsilon, delta) in exact arithmetic; a billionth less does not; dp_accounting agrees."""
    sigma = analytic_sigma(epsilon, delta, sensitivity)
    assert exact_delta(sensitivity / sigma, epsilon) <= delta
    assert exact_delta(sensitivity / sigma * (1 + 1e-8), epsilon) > delta
    assert analytic_epsilon(sigma, delta, sensitivity) == pytest.approx(epsilon, rel=1e-7)
    assert sigma == pytest.approx(sensitivity * get_sigma_gaussian(epsilon, delta), rel=1e-6)


@given(mu=st.floats(0.01, 50), delta=DELTAS)
@settings(max_examples=60)
def test_the_analytic_epsilon_is_the_smallest(mu: float, delta: float) -> None:
    """epsilon holds in exact arithmetic, a little less does not, and dp_accounting agrees."""
    found = gaussian_epsilon(mu, delta)
    assert exact_delta(mu, found) <= delta
    if found > 1e-6:
        assert exact_delta(mu, found * (1 - 1e-8)) > delta
    assert found == pytest.approx(get_epsilon_gaussian(1 / mu, delta), rel=1e-6, abs=1e-7)


def test_noise_next_to_nothing_has_no_finite_epsilon() -> None:
    """Where epsilon is beyond floats it is infinite, and found."""
    assert gaussian_epsilon(1e170, 1e-5) == math.inf


def test_the_classic_sigma_is_the_textbooks_and_more_than_needed() -> None:
    """sqrt(2 ln(1.25/delta))/epsilon; the analytic calibration needs less."""
    assert classic_sigma(0.5, 1e-5, 3.0) == pytest.approx(3 * math.sqrt(2 * math.log(1.25e5)) / 0.5)
    for epsilon in (0.01, 0.5, 0.999):
        for delta in (1e-9, 1e-5, 0.5):
            assert analytic_sigma(epsilon, delta) < classic_sigma(epsilon, delta)


def test_the_classic_sigma_is_refused_where_it_is_not_proven() -> None:
    """From epsilon = 1 on it is refused: at large epsilons its noise is too small."""
    for epsilon in (1.0, 2.0, 50.0):
        with pytest.raises(UserError, match="^epsilon = .*only below 1"):
            classic_sigma(epsilon, 1e-5)
    too_small = math.sqrt(2 * math.log(1.25 / 1e-5)) / 50
    assert gaussian_delta(1 / too_small, 50.0) > 1e-5


@given(epsilon=st.floats(1e-6, 1e6), sensitivity=st.floats(1e-6, 1e6))
def test_the_laplace_scale_is_enough(epsilon: float, sensitivity: float) -> None:
    """Delta/b is at most epsilon in exact arithmetic."""
    with mp.workdps(40):
        scale = mp.mpf(laplace_scale(epsilon, sensitivity))
        exact = mp.mpf(sensitivity) / mp.mpf(epsilon)
        assert exact <= scale <= exact * (1 + mp.mpf(2) ** -51)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_values_are_named(bad: float) -> None:
    """Every parameter out of range is refused by its name."""
    for call, name in (
        (lambda: classic_sigma(bad, 1e-5), "epsilon"),
        (lambda: classic_sigma(0.5, bad), "delta"),
        (lambda: analytic_sigma(bad, 1e-5), "epsilon"),
        (lambda: analytic_sigma(0.5, bad), "delta"),
        (lambda: analytic_sigma(0.5, 1e-5, bad), "sensitivity"),
        (lambda: analytic_epsilon(bad, 1e-5), "sigma"),
        (lambda: laplace_scale(bad), "epsilon"),
        (lambda: laplace_scale(1.0, bad), "sensitivity"),
        (lambda: Gaussian(bad, 1.0, 1), "sigma"),
        (lambda: Laplace(1.0, bad, 1), "sensitivity"),
        (lambda: PureDP(bad, 1), "epsilon"),
        (lambda: InteractiveGNMax(1.0, bad or math.inf, 0.0, 1, 1), "thr"),
    ):
        with pytest.raises(UserError, match=f"^{name}"):
            call()


@pytest.mark.parametrize("shift", [1e-9, 1e-6, 1e-3, 0.1, 0.999, 1.0, 5.0, 80.0])
def test_the_divergences_of_pure_mechanisms_are_exact_at_every_scale(shift: float) -> None:
    """Laplace noise and randomized response, in 60 digits: rounding eats nothing of a tiny cost."""
    orders = np.array([1.01, 1.5, 2.0, 17.8, 500.0, 4096.0])
    with mp.workdps(60):
        e = mp.mpf(shift)
        for order, laplace, bit in zip(
            orders, laplace_mechanism(shift, orders), randomized_response(shift, orders), strict=True
        ):
            a = mp.mpf(float(order))
            noise = mp.log(a / (2 * a - 1) * mp.exp((a - 1) * e) + (a - 1) / (2 * a - 1) * mp.exp(-a * e)) / (a - 1)
            told = mp.log((mp.exp(a * e) + mp.exp((1 - a) * e)) / (1 + mp.exp(e))) / (a - 1)
            assert laplace == pytest.approx(float(noise), rel=1e-12)
            assert bit == pytest.approx(float(told), rel=1e-12)


def test_generic_events_cost_what_dp_accounting_says() -> None:
    """A Gaussian event's RDP, and the exact profile of its sum; a Laplace event's profile is below its guarantee."""
    event = Gaussian(sigma=10.0, sensitivity=2.0, count=7)
    accountant = RdpAccountant([2.0, 9.5], NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(GaussianDpEvent(5.0), 7)
    assert rdp(event, [2.0, 9.5]) == pytest.approx(accountant.rdp)
    assert guarantee(event, 1e-5).epsilon == pytest.approx(get_epsilon_gaussian(5 / math.sqrt(7), 1e-5), rel=1e-7)
    many = Laplace(scale=10.0, sensitivity=1.0, count=40)
    profile = pld.from_laplace_mechanism(10.0).self_compose(40).get_epsilon_for_delta(1e-5)
    assert profile < guarantee(many, 1e-5).epsilon < 40 * 0.1


def test_few_pure_releases_cost_their_sum() -> None:
    """Where the plain sum is smaller than what RDP gives, the sum is the guarantee, and it needs no order."""
    found = guarantee(PureDP(0.1, 2), 1e-5)
    assert (found.epsilon, found.order, found.conversion) == (0.2, None, "pure")
    assert guarantee(PureDP(0.1, 40), 1e-5).epsilon < 4.0


def test_an_interactive_test_costs_what_a_confident_one_does() -> None:
    """Its statistic moves by at most 1 as well; both events come back from their stored form."""
    interactive, confident = (kind(40.0, 100.0, 150.0, 64, 28) for kind in (InteractiveGNMax, ConfidentGNMax))
    assert (rdp(interactive, [5.0]) == rdp(confident, [5.0])).all()
    assert guarantee(interactive, 1e-5) == guarantee(confident, 1e-5)
    for event in (interactive, Gaussian(1.0, 2.0, 3), Laplace(1.0, 2.0, 3), PureDP(0.5, 3)):
        assert event_from_dict(event_to_dict(event)) == event
