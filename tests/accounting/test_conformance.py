"""What every noisy-max mechanism must satisfy, whichever it is: one suite for all of them."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import curves, exact, one_atom, p18
from accounting.cost import guarantee
from accounting.events import (
    ConfidentGNMax,
    GNMax,
    InteractiveGNMax,
    LNMax,
    NoisyMax,
    Thresholded,
    event_from_dict,
    event_to_dict,
)
from data.errors import UserError

EVENTS: tuple[NoisyMax, ...] = (
    LNMax(6.0, 4),
    GNMax(5.0, 4),
    ConfidentGNMax(5.0, 12.0, 7.0, 6, 4),
    InteractiveGNMax(5.0, 6.0, 7.0, 6, 4),
)
ORDERS = np.array([1.5, 4.0, 12.0])
each = pytest.mark.parametrize("event", EVENTS, ids=[event_to_dict(event)["mechanism"] for event in EVENTS])


def _one_query(event: NoisyMax, number: curves.Number) -> np.ndarray:
    """The worst case of one query asked and answered, (O,)."""
    cost = curves.rdp_per_answer(event, ORDERS, number)
    return cost + curves.rdp_per_test(event, ORDERS, number) if isinstance(event, Thresholded) else cost


@each
def test_it_is_stored_and_read_back(event: NoisyMax) -> None:
    assert event_from_dict(event_to_dict(event)) == event


@each
def test_its_worst_cases_are_ordered_and_grow_with_the_caps(event: NoisyMax) -> None:
    certified, textbook = (curves.rdp(event, ORDERS, number) for number in ("data_independent", "textbook"))
    assert np.all((certified > 0) & (certified <= textbook * (1 + 1e-12)))
    more = dataclasses.replace(event, answers=event.answers + 1)
    assert np.all(curves.rdp(more, ORDERS) > certified)
    assert guarantee(more, 1e-5).epsilon > guarantee(event, 1e-5).epsilon
    assert guarantee(event, 1e-5).epsilon <= guarantee(event, 1e-5, "textbook").epsilon
    nothing = dataclasses.replace(event, answers=0, **({"queries": 0} if isinstance(event, Thresholded) else {}))
    assert not curves.rdp(nothing, ORDERS).any()
    assert guarantee(nothing, 1e-5).epsilon == 0.0


@each
@settings(max_examples=12, deadline=None)
@given(votes=st.lists(st.integers(0, 15), min_size=2, max_size=5).filter(any), seed=st.integers(0, 2**32 - 1))
def test_the_numbers_of_a_query_are_ordered(event: NoisyMax, votes: list[int], seed: int) -> None:
    """exact ≤ one-atom, one way and both; both ways ≤ certified ≤ textbook; permuting classes changes nothing."""
    generator = np.random.default_rng(seed)
    table = np.array([votes], dtype=float)
    student = generator.dirichlet(np.ones(len(votes)), 1) if isinstance(event, InteractiveGNMax) else None
    statistic = None if student is None else (table - table.sum() * student).max(axis=1)
    both, forward = exact.query_cost(table, event, ORDERS, student)
    slack = 1 + 1e-9
    assert np.all(forward <= both * slack)
    assert np.all(forward <= one_atom.query_cost(table, event, ORDERS, False, statistic) * slack + 1e-13)
    two_sided = one_atom.query_cost(table, event, ORDERS, True, statistic)
    assert np.all(both <= two_sided * slack + 1e-13)
    assert np.all(both[0] <= _one_query(event, "data_independent") * slack)
    assert np.all(_one_query(event, "data_independent") <= _one_query(event, "textbook") * slack)
    assert np.all(p18.per_query_rdp(table, event, ORDERS, statistic)[0] <= _one_query(event, "textbook") * slack)

    order = generator.permutation(len(votes))
    again = exact.query_cost(table[:, order], event, ORDERS, None if student is None else student[:, order])
    assert np.allclose(again[0], both, rtol=1e-9, atol=1e-13)
    assert np.allclose(one_atom.query_cost(table[:, order], event, ORDERS, True, statistic), two_sided, rtol=1e-9)


def _bad_noise() -> list[tuple[NoisyMax, str, float]]:
    fields = ("sigma", "scale", "threshold", "threshold_sigma")
    values = (float("nan"), float("inf"), 0.0, -1.0)
    return [
        (event, field, value)
        for event in EVENTS
        for field in fields
        for value in values
        # A threshold may be any finite number.
        if hasattr(event, field) and not (field == "threshold" and np.isfinite(value))
    ]


@pytest.mark.parametrize(("event", "field", "value"), _bad_noise())
def test_bad_noise_is_refused_by_name(event: NoisyMax, field: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"^{field} = "):
        dataclasses.replace(event, **{field: value})
