"""The one-atom bound: above the maximum it bounds and close to it; above every divergence by brute force."""

from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr, ndtri_exp

from accounting import conversion, curves, exact, one_atom, outcomes, p18
from accounting.atom_pairs import GaussianPair, LaplacePair
from accounting.events import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax, NoisyMax
from accounting.laplace_supremum import laplace_bound
from accounting.orders import paper_orders
from data.errors import UserError
from tests.accounting import laws
from tests.accounting.oracles import histograms


def attained(log_q: float, sigma: float, order: float) -> float:
    """The largest value over 20 000 intervals: never above the maximum."""
    mu, beta = np.sqrt(2) / sigma, order - 1
    share = np.linspace(-30, 150, 20_001)
    a = ndtri_exp(log_q - np.logaddexp(0, -share))
    b = -ndtri_exp(log_q - np.logaddexp(0, share))
    moved = np.exp(log_ndtr(a - mu)) + np.exp(log_ndtr(mu - b))
    grown = order * beta * mu * mu / 2 + np.logaddexp(log_ndtr(a + beta * mu), log_ndtr(-b - beta * mu))
    excess = np.expm1(order * np.log1p(-np.exp(log_q)) - beta * np.log1p(-moved)) + np.exp(grown)
    return float(np.log1p(excess.max()) / beta)


@pytest.mark.parametrize(
    ("sigma", "order"), [(40.0, 1.5), (40.0, 14.0), (40.0, 100.0), (5.0, 5.0), (200.0, 30.0), (1.0, 3.0)]
)
def test_the_table_is_above_the_maximum_and_within_a_thousandth(sigma: float, order: float) -> None:
    """At and between nodes of q; cells are bounded, not sampled. Below q = 1e-9 costs are next to nothing."""
    log_q = np.linspace(-20, -1e-4, 61)
    found = one_atom.bound(log_q, sigma, [order])[:, 0]
    expected = np.array([attained(x, sigma, order) for x in log_q])
    assert np.all(found >= expected * (1 - 1e-11))  # the comparison's own rounding
    assert np.all(found <= expected * np.where(log_q > -10, 1.001, 1.02))


@pytest.mark.parametrize("order", [2.0, 9.0])
def test_the_maximum_itself_in_high_precision(order: float) -> None:
    """The value at single intervals, by integrals in mpmath: never above the bound, and as large as sampling finds."""
    sigma, q, beta = 3.0, 0.03, order - 1
    bound = one_atom.bound([np.log(q)], sigma, [order])[0, 0]
    best = 0.0
    with mp.workdps(30):
        mu = mp.sqrt(2) / mp.mpf(sigma)
        for share in (0.2, 0.5, 0.8, 0.95, 0.99, 0.999):
            a = mp.mpf(float(ndtri_exp(np.log(q * share))))
            low = mp.ncdf(a)
            b = mp.findroot(
                lambda x, low=low: mp.ncdf(-x) + low - mp.mpf(q), float(-ndtri_exp(np.log(q * (1 - share))))
            )
            stays = mp.ncdf(b - mu) - mp.ncdf(a - mu)

            def power(x: mp.mpf) -> mp.mpf:
                return mp.npdf(x) ** order * mp.npdf(x, mu) ** -beta

            out = mp.quad(power, [-30, -15, -8, a]) + mp.quad(power, [b, 8, 15, 30])
            value = float(mp.log((1 - mp.mpf(q)) ** order * stays**-beta + out) / beta)
            assert value <= bound
            best = max(best, value)
    assert best == pytest.approx(attained(float(np.log(q)), sigma, order), rel=0.02)


def test_values_to_check_by() -> None:
    """B sigma^2/alpha at sigma 40, alpha 10, and the literature's bound beside it."""
    log_q = np.log([1e-4, 1e-3, 1e-2, 0.1])
    scaled = one_atom.bound(log_q, 40.0, [10.0])[:, 0] * 1600 / 10
    assert scaled == pytest.approx([0.0024, 0.0166, 0.0986, 0.463], rel=0.02)
    assert p18.gaussian_rdp(log_q, 40.0, np.array([10.0]))[:, 0] * 160 == pytest.approx(
        [0.0078, 0.0628, 0.467, 1], rel=0.01
    )


@given(
    log_q=st.lists(st.floats(-20_000, 0), min_size=2, max_size=20),
    noise=st.floats(0.05, 2000),
    order=st.sampled_from([1.01, 1.5, 2.0, 8.0, 64.0, 500.0]),
    laplace=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_it_grows_with_q_up_to_the_worst_case(log_q: list[float], noise: float, order: float, laplace: bool) -> None:
    """Any q, any noise, any order: a number, non-decreasing in q, at most the cost without looking at the votes."""
    between = LaplacePair(1 / noise) if laplace else GaussianPair(np.sqrt(2) / noise)
    excess = one_atom.log_excess(np.sort(log_q), between, [order])[:, 0]
    bound = np.logaddexp(0, excess) / (order - 1)
    worst = laplace_bound(noise, np.array([order]))[0] if laplace else order / noise**2
    assert np.all(bound >= 0)
    assert np.all(np.diff(bound) >= 0)
    assert np.all(bound <= worst * (1 + 1e-12))


@pytest.mark.parametrize("event", [GNMax(40.0, 1), LNMax(30.0, 1)])
def test_an_answer_costs_no_more_than_over_all_votes(event: NoisyMax) -> None:
    """The smaller of B(q) and the certified supremum: non-decreasing in q, either of them in its place."""
    log_q, order = np.log(np.linspace(1e-4, 0.9, 40)), 10.0
    alone = np.logaddexp(0, one_atom.log_excess(log_q, one_atom.pair(event), [order])[:, 0]) / (order - 1)
    found = np.logaddexp(0, one_atom.answer_excess(log_q, event, [order])[:, 0]) / (order - 1)
    most = curves.rdp_per_answer(event, [order])[0]
    assert found == pytest.approx(np.minimum(alone, most), rel=1e-12)
    assert np.all(np.diff(found) >= 0)
    assert found[0] == alone[0] < found[-1] < 0.8 * alone[-1]


@given(scale=st.floats(0.05, 500), order=st.floats(1.05, 60))
@settings(max_examples=40, deadline=None)
def test_the_laplace_pair_is_what_it_says(scale: float, order: float) -> None:
    """Its laws have mass 1, and its divergence is above the two Laplace mechanisms' by less than 0.3%."""
    pair = LaplacePair(1 / scale)
    log_r, p = pair._atoms()
    assert p.sum() == pytest.approx(1, abs=1e-12)
    assert (p * np.exp(log_r)).sum() == pytest.approx(1, abs=1e-12)
    with mp.workdps(40):
        a, s = mp.mpf(order), 1 / mp.mpf(scale)
        two = 2 * mp.log(a / (2 * a - 1) * mp.exp(s * (a - 1)) + (a - 1) / (2 * a - 1) * mp.exp(-s * a)) / (a - 1)
    top = 2 / scale * (order - 1)
    found = (np.log(p @ np.exp(-(order - 1) * log_r - top)) + top) / (order - 1)
    assert float(two) * (1 - 1e-7) <= found <= float(two) * 1.003


@pytest.mark.slow
@pytest.mark.parametrize("event", laws.EVENTS, ids=str)
def test_no_neighbour_costs_more(event: NoisyMax) -> None:
    """Every histogram of 5 teachers and 3 classes, every neighbour, by the definition in 30 digits: J is above."""
    orders = (1.5, 4.0, 60.0)
    student = (0.55, 0.25, 0.2) if isinstance(event, InteractiveGNMax) else None
    sharper = False
    for votes in histograms(5, 3):
        if student is None and list(votes) != sorted(votes):
            continue
        compared = None if student is None else [float(laws.statistic(votes, student))]
        forward = one_atom.query_cost([votes], event, orders, two_sided=False, statistic=compared)[0]
        both = one_atom.query_cost([votes], event, orders, two_sided=True, statistic=compared)[0]
        exact = np.array([laws.worst(votes, event, order, student) for order in orders])
        assert np.all(exact[:, 0] <= forward * (1 + 1e-9) + 1e-14)
        assert np.all(exact.max(axis=1) <= both * (1 + 1e-9) + 1e-14)
        assert np.all(forward <= both * (1 + 1e-12))
        sharper |= bool(np.any(forward < 0.7 * one_atom.pair(event).divergence(np.array(orders))))
    assert sharper or event not in (GNMax(1.0, 1), LNMax(0.7, 1))  # noise small enough for 6 votes to show


@given(
    votes=st.lists(st.integers(0, 300), min_size=2, max_size=4).filter(any),
    sigma=st.sampled_from([0.5, 30.0]),
    threshold=st.floats(-1e4, 1e4),
    threshold_sigma=st.floats(0.01, 1e4),
    order=st.sampled_from([1.01, 3.0, 400.0]),
)
@settings(max_examples=40, deadline=None)
def test_a_test_far_from_its_threshold_costs_a_number(
    votes: list[int], sigma: float, threshold: float, threshold_sigma: float, order: float
) -> None:
    """However unlikely to pass or to fail, both ways: at least 0, at most textbook's answer and test together."""
    event = ConfidentGNMax(sigma, threshold, threshold_sigma, 1, 1)
    textbook = curves.rdp(event, [order], "textbook")[0]
    for found in (
        one_atom.query_cost([votes], event, [order], capped=False)[0, 0],
        *exact.query_cost([votes], event, [order]),
    ):
        assert 0 <= found <= textbook * (1 + 1e-9)


def test_the_way_back_may_cost_far_more() -> None:
    """50 votes to none, threshold 30: q is next to nothing here, but not what it takes to tell a neighbour's run."""
    event, votes = ConfidentGNMax(3.0, 30.0, 5.0, 1, 1), (50, 0, 0)
    there, back = laws.worst(votes, event, 2.0)
    forward = one_atom.query_cost([votes], event, [2.0], two_sided=False)[0, 0]
    both = one_atom.query_cost([votes], event, [2.0])[0, 0]
    assert there <= forward
    assert back > 1.5 * forward
    assert back <= both


@given(
    votes=st.lists(st.integers(0, 30), min_size=2, max_size=6).filter(any),
    sigma=st.floats(0.5, 60),
    order=st.sampled_from([1.5, 12.0]),
    data=st.data(),
)
@settings(max_examples=15, deadline=None)
def test_the_order_of_classes_and_a_larger_q(votes: list[int], sigma: float, order: float, data: st.DataObject) -> None:
    """Permuting classes changes nothing; an upper bound of q costs no less than q."""
    sigma = float(np.round(sigma))
    event = ConfidentGNMax(max(sigma, 1.0), 10.0, 7.0, 1, 1)
    found = one_atom.query_cost([votes], event, [order], two_sided=False, capped=False)
    other = data.draw(st.permutations(votes))
    again = one_atom.query_cost([other], event, [order], two_sided=False, capped=False)
    assert again == pytest.approx(found, rel=1e-9, abs=1e-14)
    union = p18.log_other_outcome(np.array([votes], dtype=float), event.sigma)
    assert union[0] >= outcomes.log_other([votes], event)[0] - 1e-12
    above = one_atom.query_cost([votes], event, [order], two_sided=False, log_q=union, capped=False)
    assert np.all(above >= found * (1 - 1e-12))


@pytest.mark.parametrize(
    ("name", "queries", "threshold", "threshold_sigma", "union", "exact", "both"),
    [
        ("mnist", 640, 200.0, 150.0, (1.219, 13.5), (1.159, 14.0), 1.175),
        ("adult", 1500, 300.0, 200.0, (1.066, 15.5), (1.066, 15.5), None),
    ],
)
def test_published_votes(
    test_data: Path,
    name: str,
    queries: int,
    threshold: float,
    threshold_sigma: float,
    union: tuple[float, float],
    exact: tuple[float, float],
    both: float | None,
) -> None:
    """B alone costs what independent prototypes found on the published votes, 0.5%; P18's bound is 1.71 and 1.41."""
    votes = np.load(test_data / "votes" / f"{name}_250_teachers.npy")[:queries]
    event = ConfidentGNMax(40.0, threshold, threshold_sigma, queries, queries)
    orders = np.array(paper_orders())[14:44]
    log_q = p18.log_other_outcome(votes, 40.0)
    curve = one_atom.query_cost(votes, event, orders, two_sided=False, log_q=log_q, capped=False).sum(axis=0)
    assert conversion.epsilon(curve, orders, 1e-5) == (pytest.approx(union[0], rel=0.005), union[1])
    curve = one_atom.query_cost(votes, event, orders, two_sided=False, capped=False).sum(axis=0)
    assert conversion.epsilon(curve, orders, 1e-5) == (pytest.approx(exact[0], rel=0.005), exact[1])
    if both:
        curve = one_atom.query_cost(votes, event, orders, capped=False).sum(axis=0)
        assert conversion.epsilon(curve, orders, 1e-5)[0] == pytest.approx(both, rel=0.005)


def test_a_statistic_is_required_and_checked() -> None:
    """Interactive-GNMax has no statistic in the votes alone; what is given must be one number a query."""
    event = InteractiveGNMax(1.0, 1.0, 1.0, 1, 1)
    for statistic in (None, [1.0, 2.0], [float("nan")], "x"):
        with pytest.raises(UserError, match="statistic: "):
            one_atom.query_cost([[3, 1]], event, [2.0], statistic=statistic)
    with pytest.raises(UserError, match="votes: "):
        one_atom.query_cost([[3, -1]], GNMax(1.0, 1), [2.0])
    with pytest.raises(UserError, match="orders"):
        one_atom.query_cost([[3, 1]], GNMax(1.0, 1), [1])
