"""A run's own numbers: published votes, blocks, and the search for the best order."""

from pathlib import Path

import numpy as np
import pytest

from accounting import conversion, data_dependent, exact, one_atom, outcomes, p18
from accounting.events import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax
from accounting.orders import default_orders, paper_orders
from data.errors import UserError


@pytest.mark.parametrize(
    ("name", "queries", "threshold", "threshold_sigma", "literature", "bound", "worst"),
    [
        ("mnist", 640, 200.0, 150.0, 1.7119, (1.1309, 1.1172), (0.9227, 0.9140)),
        ("adult", 1500, 300.0, 200.0, 1.4136, (1.0397, 1.0290), (0.9575, 0.9500)),
    ],
)
def test_published_votes(
    test_data: Path,
    name: str,
    queries: int,
    threshold: float,
    threshold_sigma: float,
    literature: float,
    bound: tuple[float, float],
    worst: tuple[float, float],
) -> None:
    """What independent prototypes found on the published votes, and the order of the numbers."""
    votes = np.load(test_data / "votes" / f"{name}_250_teachers.npy")[:queries]
    event = ConfidentGNMax(40.0, threshold, threshold_sigma, queries, queries)
    found = data_dependent.epsilons([votes], event, paper_orders(), 1e-5)
    assert list(found) == list(data_dependent.NUMBERS)
    assert found["data_dependent_p18"].epsilon == pytest.approx(literature, abs=5e-5)
    assert found["data_dependent_p18"].forward is None
    assert found["data_dependent"].epsilon == pytest.approx(bound[0], rel=1e-3)
    assert found["data_dependent"].forward == pytest.approx(bound[1], rel=1e-3)
    assert found["data_dependent_exact"].epsilon == pytest.approx(worst[0], rel=0.001)
    assert found["data_dependent_exact"].order == 17.5
    assert found["data_dependent_exact"].forward == pytest.approx(worst[1], rel=0.001)


@pytest.mark.parametrize("conversion_name", ["improved", "classic"])
@pytest.mark.parametrize("event", [ConfidentGNMax(12.0, 30.0, 20.0, 1, 1), GNMax(9.0, 1), LNMax(8.0, 1)])
def test_few_orders_find_the_best_of_all(event: GNMax, conversion_name: conversion.Conversion) -> None:
    """The search agrees with the whole grid to 0.05%, for few and many queries."""
    votes = np.random.default_rng(1).multinomial(60, [0.6, 0.2, 0.1, 0.1], size=40)
    orders = np.array(default_orders())[::5]
    for times in (1, 30):
        blocks = [votes] * times
        found = data_dependent.epsilons(blocks, event, orders, 1e-5, conversion_name)
        for name, curve in data_dependent.totals(blocks, event, orders).items():
            best = [conversion.epsilon(row, orders, 1e-5, conversion_name, warn=False)[0] for row in curve]
            assert best[0] <= found[name].epsilon * (1 + 1e-9) <= best[0] * 1.0005
            if len(best) == 2:
                assert found[name].forward == pytest.approx(best[1], rel=5e-4)


def test_blocks_and_equal_histograms_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Totals are the sums over queries, however they are cut, in whatever type, and where little is held at once."""
    votes = np.random.default_rng(2).multinomial(12, [0.5, 0.3, 0.2], size=300)
    event, orders = ConfidentGNMax(3.0, 6.0, 4.0, 1, 1), [2.0, 7.0]
    expected = {
        "data_dependent_p18": [p18.data_dependent_rdp(votes, event, orders)],
        "data_dependent": [one_atom.query_cost(votes, event, orders, way).sum(axis=0) for way in (True, False)],
        "data_dependent_exact": [way.sum(axis=0) for way in exact.query_cost(votes, event, orders)],
    }
    cuts = [
        [votes],
        [votes[:7].astype(np.float32), votes[7:].astype(np.uint8)],
        (votes[k : k + 50] for k in range(0, 300, 50)),
    ]
    for cut in cuts:
        for name, curve in data_dependent.totals(cut, event, orders).items():
            assert curve == pytest.approx(np.array(expected[name]), rel=1e-9)
    monkeypatch.setattr(data_dependent, "_ROWS", 40)
    monkeypatch.setattr(data_dependent, "_MOST_ROWS", 5)
    monkeypatch.setattr(data_dependent, "_BLOCK", 16)
    pieces = list(data_dependent.distinct([votes[k : k + 50] for k in range(0, 300, 50)], event))
    assert len(pieces) > 1
    assert sum(piece.times.sum() for piece in pieces) == 300
    for name, curve in data_dependent.totals([votes[:150], votes[150:]], event, orders).items():
        assert curve == pytest.approx(np.array(expected[name]), rel=1e-9)


def test_interactive_blocks_carry_predictions() -> None:
    """Each block is votes and the student's probabilities; totals are the sums over queries."""
    rng = np.random.default_rng(4)
    votes, student = rng.multinomial(20, [0.5, 0.3, 0.2], size=50), rng.dirichlet([1, 1, 1], size=50)
    event, orders = InteractiveGNMax(4.0, 5.0, 6.0, 1, 1), [3.0, 9.0]
    found = data_dependent.totals([(votes[:20], student[:20]), (votes[20:], student[20:])], event, orders)
    compared = outcomes.statistic(votes, event, student)
    assert found["data_dependent_p18"][0] == pytest.approx(p18.data_dependent_rdp(votes, event, orders, compared))
    both = one_atom.query_cost(votes, event, orders, True, compared).sum(axis=0)
    assert found["data_dependent"][0] == pytest.approx(both, rel=1e-9)
    assert found["data_dependent_exact"][1] == pytest.approx(
        exact.query_cost(votes, event, orders, student)[1].sum(axis=0), rel=1e-9
    )
    with pytest.raises(UserError, match="student: "):
        data_dependent.totals([votes], event, orders)


def test_blocks_that_do_not_belong_together_are_refused() -> None:
    """Another number of teachers or classes in a later block, or nothing at all, is an error that names the rule."""
    for blocks in ([[[3, 1]], [[4, 1]]], [[[3, 1]], [[3, 1, 0]]], []):
        with pytest.raises(UserError, match="votes: "):
            data_dependent.epsilons(blocks, GNMax(1.0, 1), [2.0, 3.0], 1e-5)
