"""The data-dependent bounds of the literature: the papers' tables, and exact divergences by brute force."""

from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import conversion, p18
from accounting.events import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax
from accounting.orders import paper_orders
from data.errors import UserError
from tests.accounting.oracles import gnmax_law, histograms, lnmax_law, mp_renyi, neighbours, renyi


@pytest.mark.parametrize(
    ("name", "queries", "threshold", "threshold_sigma", "answers", "classic", "improved"),
    [
        ("mnist", 640, 200.0, 150.0, 282.72, (1.9988, 14.0), 1.7119),
        ("adult", 1500, 300.0, 200.0, 538.26, (1.6782, 15.5), 1.4136),
    ],
)
def test_the_tables_of_the_paper_on_its_own_votes(
    test_data: Path,
    name: str,
    queries: int,
    threshold: float,
    threshold_sigma: float,
    answers: float,
    classic: tuple[float, float],
    improved: float,
) -> None:
    """On the published votes the literature's number is the published one, to four digits, at the published order."""
    votes = np.load(test_data / "votes" / f"{name}_250_teachers.npy")[:queries]
    event = ConfidentGNMax(40.0, threshold, threshold_sigma, queries, queries)
    orders = paper_orders()
    curve = p18.data_dependent_rdp(votes, event, orders)
    assert p18.expected_answers(votes, event) == pytest.approx(answers, abs=0.005)
    epsilon, order = conversion.epsilon(curve, orders, 1e-5, "classic")
    assert epsilon == pytest.approx(classic[0], abs=5e-5)
    assert order == classic[1]
    assert conversion.epsilon(curve, orders, 1e-5)[0] == pytest.approx(improved, abs=5e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("teachers", "classes", "sigma"), [(8, 3, 1.0), (9, 2, 1.5)])
def test_gaussian_bound_holds_at_every_histogram(teachers: int, classes: int, sigma: float) -> None:
    """Theorem 6 with Propositions 7 and 10 is never below the exact divergence from this dataset to a neighbour."""
    orders = (1.5, 2.0, 4.0)
    sharper = False
    for votes in histograms(teachers, classes):
        if sorted(votes) != list(votes):
            continue  # the order of classes does not matter
        bound = p18.per_query_rdp([votes], GNMax(sigma, 1), orders)[0]
        sharper |= bool(np.any(bound < 0.5 * np.array(orders) / sigma**2))
        law = gnmax_law(votes, sigma)
        for moved in neighbours(votes):
            exact = [mp_renyi(law, gnmax_law(moved, sigma), alpha) for alpha in orders]
            assert np.all(exact <= bound + 1e-12)
    assert sharper


@pytest.mark.parametrize(("teachers", "classes", "scale"), [(7, 3, 1.0), (9, 2, 2.0)])
def test_laplace_bound_holds_at_every_histogram(teachers: int, classes: int, scale: float) -> None:
    """Theorem 3 of [P17] is never below the exact divergence from this dataset to a neighbour."""
    orders = (2.0, 5.0, 9.0)
    sharper = False
    for votes in histograms(teachers, classes):
        if sorted(votes) != list(votes):
            continue
        bound = p18.per_query_rdp([votes], LNMax(scale, 1), orders)[0]
        sharper |= bool(np.any(bound < 1.0 / scale))
        law = lnmax_law(votes, scale)
        for moved in neighbours(votes):
            exact = [renyi(law, lnmax_law(moved, scale), alpha) for alpha in orders]
            assert np.all(exact <= bound + 1e-9)
    assert sharper


@given(
    log_q=st.floats(-5000, -1e-9),
    sigma=st.floats(0.1, 500),
    order=st.floats(1.001, 1000),
)
@settings(max_examples=300, deadline=None)
def test_the_bound_is_a_number_within_its_range(log_q: float, sigma: float, order: float) -> None:
    """Inside and outside its validity range the bound is between 0 and alpha/sigma^2, never NaN."""
    value = p18.gaussian_rdp(np.array([log_q]), sigma, [order])[0, 0]
    assert 0 <= value <= order / sigma**2 * (1 + 1e-12)
    laplace = p18.laplace_rdp(np.array([log_q]), sigma, [order])[0, 0]
    assert 0 <= laplace <= 2 / sigma * (1 + 1e-12)


@given(votes=st.lists(st.integers(0, 300), min_size=2, max_size=8), sigma=st.floats(0.5, 100))
@settings(deadline=None)
def test_q_bounds_the_probability_of_another_winner(votes: list[int], sigma: float) -> None:
    """A larger lead never raises q; q is at most 1 - 1/C; it is finite where it underflows as a number."""
    histogram = np.array([votes], dtype=float)
    log_q = p18.log_other_outcome(histogram, sigma)[0]
    assert np.isfinite(log_q)
    assert log_q <= np.log(1 - 1 / len(votes)) + 1e-12
    lead = histogram.copy()
    lead[0, int(np.argmax(lead))] += 5
    assert p18.log_other_outcome(lead, sigma)[0] <= log_q


def test_unanimous_votes_cost_next_to_nothing() -> None:
    """250 teachers who agree, noise 40: the answer's cost is far below the worst case."""
    votes = np.zeros((1, 10))
    votes[0, 3] = 250
    assert p18.per_query_rdp(votes, GNMax(40.0, 1), [10.0])[0, 0] < 0.05 * 10 / 1600


def test_the_total_is_the_sum_over_queries() -> None:
    """Queries add up."""
    votes = np.array([[5, 3, 2], [10, 0, 0], [4, 3, 3]])
    event = ConfidentGNMax(2.0, 5.0, 3.0, 3, 3)
    assert p18.data_dependent_rdp(votes, event, [2, 8]) == pytest.approx(
        sum(p18.per_query_rdp(votes[k : k + 1], event, [2, 8])[0] for k in range(3))
    )


def test_interactive_takes_the_statistic_of_its_test() -> None:
    """max_j (v_j - n/C) against T - n/C is max_j v_j against T; without its statistic it has no number."""
    votes = np.array([[5, 3, 1], [9, 0, 0], [4, 3, 2]])
    plain, event = ConfidentGNMax(2.0, 5.0, 3.0, 3, 3), InteractiveGNMax(2.0, 2.0, 3.0, 3, 3)
    shifted = votes.max(axis=1) - 3.0
    assert p18.per_query_rdp(votes, event, [2, 8], shifted) == pytest.approx(p18.per_query_rdp(votes, plain, [2, 8]))
    assert p18.expected_answers(votes, event, shifted) == pytest.approx(p18.expected_answers(votes, plain))
    assert not np.allclose(
        p18.per_query_rdp(votes, event, [2, 8], shifted + 2), p18.per_query_rdp(votes, plain, [2, 8])
    )
    for statistic in (None, shifted[:2], ["many", 1, 2], [np.inf, 1, 2]):
        with pytest.raises(UserError, match="statistic: "):
            p18.per_query_rdp(votes, event, [2.0], statistic)


@pytest.mark.parametrize(
    ("votes", "rule"),
    [
        ([[5.0, float("nan")]], "finite"),
        ([[5.0, float("inf")]], "finite"),
        ([[6.0, -1.0]], "at least 0"),
        ([[4.5, 0.5]], "whole"),
        ([[777, 0], [700, 0]], "sum to the number of teachers"),
        ([[0, 0]], "sum to the number of teachers"),
        ([[777]], "at least 2 classes"),
        ([777, 0], "at least 2 classes"),
        (np.zeros((0, 3)), "a row"),
        ([["many", "few"]], "number"),
    ],
)
def test_bad_votes_are_refused_without_a_word_about_them(votes: object, rule: str) -> None:
    """The error names votes and the rule, and holds no value, row or count: votes are private."""
    with pytest.raises(UserError, match=rule) as caught:
        p18.data_dependent_rdp(votes, GNMax(1.0, 1), [2.0])
    text = str(caught.value)
    assert text.startswith("votes: ")
    assert not any(shown in text for shown in ("777", "700", "4.5", "-1", "nan", "inf", "many"))


@pytest.mark.parametrize(
    ("q", "sigma", "order"), [(1e-6, 2.0, 1.5), (1e-6, 2.0, 4.0), (1e-9, 3.0, 6.0), (1e-3, 40.0, 9.0)]
)
def test_theorem_6_word_for_word(q: float, sigma: float, order: float) -> None:
    """P18 Theorem 6 at the mu1 = mu2 + 1 and mu2 of Proposition 10, in high precision; at small noise mu1 matters."""
    with mpmath.workdps(40):
        small, alpha = mpmath.mpf(q), mpmath.mpf(order)
        mu2 = sigma * mpmath.sqrt(mpmath.log(1 / small))
        mu1 = mu2 + 1
        eps1, eps2 = mu1 / mpmath.mpf(sigma) ** 2, mu2 / mpmath.mpf(sigma) ** 2
        a = (1 - small) / (1 - (small * mpmath.exp(eps2)) ** ((mu2 - 1) / mu2))
        b = mpmath.exp(eps1) / small ** (1 / (mu1 - 1))
        total = (1 - small) * a ** (alpha - 1) + small * b ** (alpha - 1)
        expected = float(mpmath.log(total) / (alpha - 1))
    assert expected < order / sigma**2
    found = p18.gaussian_rdp(np.log([q]), sigma, np.array([order]))[0, 0]
    assert found == pytest.approx(expected, rel=1e-9)
