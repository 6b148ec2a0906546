"""The exact cost of a query: the definition over all neighbours, and its place below every bound."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import curves, exact, one_atom, outcomes
from accounting.events import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax, NoisyMax
from data.errors import UserError
from tests.accounting import laws
from tests.accounting.oracles import histograms


@pytest.mark.slow
@pytest.mark.parametrize("event", laws.EVENTS, ids=str)
def test_it_is_the_definition(event: NoisyMax) -> None:
    """All histograms of 5 teachers and 3 classes: the worst neighbour, both ways, by brute force in 30 digits."""
    orders = (1.5, 4.0, 60.0)
    student = (0.55, 0.25, 0.2) if isinstance(event, InteractiveGNMax) else None
    for votes in histograms(5, 3):
        if student is None and list(votes) != sorted(votes):
            continue
        both, forward = exact.query_cost([votes], event, orders, None if student is None else [student])
        expected = np.array([laws.worst(votes, event, order, student) for order in orders])
        assert forward[0] == pytest.approx(expected[:, 0], rel=1e-8, abs=1e-14)
        assert both[0] == pytest.approx(expected.max(axis=1), rel=1e-8, abs=1e-14)


@pytest.mark.parametrize(
    "event", [GNMax(0.4, 1), ConfidentGNMax(2.0, 5.0, 2.0, 1, 1), InteractiveGNMax(2.0, 1.0, 2.0, 1, 1)]
)
def test_four_classes_and_ties(event: NoisyMax) -> None:
    """Classes of equal counts are one outcome several times; predictions make them differ."""
    student = (0.1, 0.2, 0.3, 0.4) if isinstance(event, InteractiveGNMax) else None
    for votes in [(2, 2, 2, 2), (6, 1, 1, 0)]:
        both, forward = exact.query_cost([votes], event, [3.0], None if student is None else [student])
        there, back = laws.worst(votes, event, 3.0, student)
        assert forward[0, 0] == pytest.approx(there, rel=1e-8)
        assert both[0, 0] == pytest.approx(max(there, back), rel=1e-8)


@given(
    votes=st.lists(st.integers(0, 40), min_size=2, max_size=6).filter(any),
    sigma=st.sampled_from([1.0, 5.0, 40.0]),
    threshold=st.integers(0, 60),
    kind=st.sampled_from(["gnmax", "confident", "interactive"]),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_it_is_below_every_bound(
    votes: list[int], sigma: float, threshold: int, kind: str, data: st.DataObject
) -> None:
    """exact <= one-atom, each way, and exact <= certified worst case <= textbook; the order of classes is nothing."""
    orders = np.array([2.0, 17.7806])
    student = None
    event: NoisyMax = GNMax(sigma, 1)
    statistic = None
    if kind == "confident":
        event = ConfidentGNMax(sigma, threshold, 5.0, 1, 1)
    if kind == "interactive":
        weights = np.array(data.draw(st.lists(st.floats(0.01, 1), min_size=len(votes), max_size=len(votes))))
        student = (weights / weights.sum())[None]
        event = InteractiveGNMax(sigma, threshold / 3, 5.0, 1, 1)
        statistic = outcomes.statistic([votes], event, student)
    both, forward = exact.query_cost([votes], event, orders, student)
    slack = 1e-13
    assert np.all(forward <= both)
    assert np.all(forward <= one_atom.query_cost([votes], event, orders, False, statistic) * (1 + 1e-9) + slack)
    assert np.all(both <= one_atom.query_cost([votes], event, orders, True, statistic) * (1 + 1e-9) + slack)
    independent, textbook = curves.rdp(event, orders), curves.rdp(event, orders, "textbook")
    assert np.all(both[0] <= independent * (1 + 1e-9))
    assert np.all(independent <= textbook)
    order = data.draw(st.permutations(range(len(votes))))
    shuffled = exact.query_cost(
        [[votes[k] for k in order]], event, orders, None if student is None else student[:, list(order)]
    )
    assert shuffled[0] == pytest.approx(both, rel=1e-7, abs=1e-13)
    assert shuffled[1] == pytest.approx(forward, rel=1e-7, abs=1e-13)


def test_the_way_back_is_counted() -> None:
    """50 votes to none: the symmetrised cost exceeds J at this dataset's q, the forward one does not."""
    event, votes = ConfidentGNMax(3.0, 30.0, 5.0, 1, 1), [[50, 0, 0]]
    both, forward = exact.query_cost(votes, event, [2.0])
    one_way = one_atom.query_cost(votes, event, [2.0], two_sided=False)
    assert forward[0, 0] <= one_way[0, 0] < both[0, 0] / 1.5


def test_predictions_that_are_uniform_only_move_the_threshold() -> None:
    """max_j (v_j - n/C) >= T - n/C is max_j v_j >= T."""
    votes = np.array([[9, 7, 4, 0], [5, 5, 5, 5], [20, 0, 0, 0], [10, 10, 0, 0]])
    plain = exact.query_cost(votes, ConfidentGNMax(3.0, 8.0, 2.0, 1, 1), [2.0, 9.0])
    against = exact.query_cost(votes, InteractiveGNMax(3.0, 3.0, 2.0, 1, 1), [2.0, 9.0], np.full((4, 4), 0.25))
    assert np.array(against) == pytest.approx(np.array(plain), rel=1e-9)


@pytest.mark.parametrize("event", [GNMax(40.0, 1), GNMax(200.0, 1), LNMax(500.0, 1)])
def test_many_teachers(event: NoisyMax) -> None:
    """Votes by the ten thousand, rows in any type: what matters are gaps, a common shift of all votes is nothing."""
    votes = np.array([[5000, 4990, 4900], [9000, 5000, 890]], dtype=np.float32)
    found = exact.query_cost(votes, event, [2.0, 8.0])
    alone = exact.query_cost((votes[:1] - 4900).astype(np.int64), event, [2.0, 8.0])
    assert np.array(found)[:, 0] == pytest.approx(np.array(alone)[:, 0], rel=1e-8)
    assert np.all(np.array(found) <= curves.rdp_per_answer(event, [2.0, 8.0], "textbook"))


@pytest.mark.parametrize("votes", [[[5.0, float("nan")]], [[6.0, -1.0]], [[4.5, 0.5]], [[7, 0], [6, 0]], [[777]], []])
def test_bad_votes_are_refused(votes: object) -> None:
    """The same one line as everywhere, without a value."""
    with pytest.raises(UserError, match="votes: ") as caught:
        exact.query_cost(votes, GNMax(1.0, 1), [2.0])
    assert "777" not in str(caught.value)
