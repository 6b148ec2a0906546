"""The epsilon of one event at its caps."""

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import conversion, curves
from accounting.cost import dpsgd_epsilon, guarantee
from accounting.events import DPSGD, ConfidentGNMax, GNMax, LNMax
from accounting.orders import paper_orders
from data.errors import UserError

MNIST = ConfidentGNMax(sigma=40.0, threshold=200.0, threshold_sigma=150.0, queries=640, answers=283)
ADULT = ConfidentGNMax(sigma=40.0, threshold=300.0, threshold_sigma=200.0, queries=1500, answers=539)


@pytest.mark.parametrize(("event", "epsilon"), [(MNIST, 2.143), (ADULT, 3.034)])
def test_the_data_independent_epsilon_of_the_papers_runs(event: ConfidentGNMax, epsilon: float) -> None:
    """The guarantee of the argmax by RDP, at the caps, is 2.143 on MNIST and 3.034 on Adult, within 0.2%."""
    found = guarantee(event, 1e-5, method="rdp")
    assert found.epsilon == pytest.approx(epsilon, rel=2e-3)
    assert (found.name, found.delta, found.conversion) == ("data_independent", 1e-5, "improved")


@pytest.mark.parametrize(
    ("event", "answers", "classic", "improved"), [(MNIST, 282.72, 3.157, 2.741), (ADULT, 538.26, 4.402, 3.893)]
)
def test_the_textbook_epsilon_of_the_papers_runs(
    event: ConfidentGNMax, answers: float, classic: float, improved: float
) -> None:
    """Proposition 8 of [P18] at the expected number of answers gives the papers' worst-case epsilons."""
    orders = paper_orders()
    curve = answers * curves.rdp_per_answer(event, orders, "textbook") + event.queries * curves.rdp_per_test(
        event, orders, "textbook"
    )
    assert conversion.epsilon(curve, orders, 1e-5, "classic")[0] == pytest.approx(classic, abs=6e-4)
    assert conversion.epsilon(curve, orders, 1e-5)[0] == pytest.approx(improved, abs=6e-4)


def test_the_argmax_costs_a_quarter_less_than_the_histogram() -> None:
    """87 votes of noise and 100 answers cost 0.50 instead of 0.63 by RDP."""
    event = GNMax(87.0, 100)
    assert guarantee(event, 1e-5, method="rdp").epsilon == pytest.approx(0.500, abs=2e-3)
    assert guarantee(event, 1e-5, "textbook").epsilon == pytest.approx(0.634, abs=1e-3)


@given(
    sigma=st.floats(0.2, 500),
    answers=st.integers(0, 1000),
    order=st.floats(1.05, 200),
)
@settings(max_examples=25, deadline=None)
def test_data_independent_is_never_above_textbook(sigma: float, answers: int, order: float) -> None:
    """Whatever the noise, caps and order: the better number is at most the textbook's, and neither is negative."""
    sigma = float(f"{sigma:.1g}")  # few distinct sigmas: each is certified once
    event = ConfidentGNMax(sigma, 0.0, sigma, answers, answers)
    better = curves.rdp(event, [order])[0]
    assert 0 <= better <= curves.rdp(event, [order], "textbook")[0] * (1 + 1e-12)
    if answers:
        assert better >= 0.6 * curves.rdp(event, [order], "textbook")[0]


def test_costs_add_up_over_answers_and_tests() -> None:
    """An event's RDP is answers times one answer plus queries times one test."""
    one, test = curves.rdp_per_answer(MNIST, [3.0, 9.0]), curves.rdp_per_test(MNIST, [3.0, 9.0])
    assert curves.rdp(MNIST, [3.0, 9.0]) == pytest.approx(283 * one + 640 * test)


@pytest.mark.parametrize(
    "event", [GNMax(1.0, 0), LNMax(1.0, 0), DPSGD(1.0, 0.1, 0), ConfidentGNMax(1.0, 1.0, 1.0, 0, 0)]
)
def test_an_event_that_releases_nothing_costs_nothing(event: GNMax | LNMax | DPSGD | ConfidentGNMax) -> None:
    """No answers, no queries, no steps: epsilon 0."""
    assert guarantee(event, 1e-5).epsilon == 0.0
    assert guarantee(event, 1e-5, "textbook").epsilon == 0.0


def test_dpsgd_states_the_larger_of_adding_and_removing_a_unit() -> None:
    """The PLD epsilon is dp_accounting's two-sided one, is below RDP's, and has no order."""
    event = DPSGD(1.1, 0.02, 300)
    found = guarantee(event, 1e-5)
    step = SelfComposedDpEvent(PoissonSampledDpEvent(0.02, GaussianDpEvent(1.1)), 300)
    pld = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    rdp = RdpAccountant(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    pld.compose(step)
    rdp.compose(step)
    assert found.epsilon == pytest.approx(pld.get_epsilon(1e-5), rel=1e-4)
    assert found.epsilon < rdp.get_epsilon(1e-5)
    assert found.order is None


def test_coarser_losses_never_understate_dpsgd() -> None:
    """Rounding privacy losses to a coarser grid gives a larger epsilon, never a smaller one."""
    event = DPSGD(1.3, 0.05, 100)
    fine, coarse = dpsgd_epsilon(event, 1e-5), dpsgd_epsilon(event, 1e-5, interval=1e-2)
    assert fine <= coarse <= fine * 1.1


def test_the_rdp_of_dpsgd_is_that_of_dp_accounting_at_fractional_orders_too() -> None:
    """A ledger's order is rarely whole: DP-SGD has a cost there, between those of the whole orders around it."""
    event = DPSGD(2.0, 0.01, 50)
    low, between, high = curves.rdp(event, [17.0, 17.8, 18.0])
    accountant = RdpAccountant([17.0, 17.8, 18.0], NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(2.0)), 50))
    assert [low, between, high] == pytest.approx(accountant.rdp)
    assert low < between < high


@pytest.mark.parametrize("noise", [0.3, 0.5])
def test_a_ledgers_order_always_has_a_finite_dpsgd_cost(noise: float) -> None:
    """Where dp_accounting's series for fractional orders fails, the chord between whole orders stands in."""
    event = DPSGD(noise, 0.3, 1)
    low, between, high = curves.rdp(event, [30.0, 30.4, 31.0])
    assert np.isfinite(between)
    assert low <= between <= high


def test_an_unknown_number_is_refused() -> None:
    """Only publishable numbers can be asked for here."""
    with pytest.raises(UserError, match="^number = 'data_dependent'"):
        guarantee(GNMax(1.0, 1), 1e-5, "data_dependent")  # type: ignore[arg-type]


def test_dpsgd_refuses_a_bad_delta() -> None:
    """delta is checked before anything is computed, for DP-SGD as well."""
    with pytest.raises(UserError, match="^delta = "):
        guarantee(DPSGD(1.0, 0.1, 1), 0.0)
