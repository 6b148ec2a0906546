"""The mechanisms answer under their event and stop at its cap, with the law of asking one query after another."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from accounting.events import ConfidentGNMax, GNMax, LNMax
from aggregation.mechanisms import ABSTAINED, answer
from data.errors import UserError

Source = Callable[[int], bytes]

RISK = 1e-6


def two_class_win(gap: float, scale: float, law: str) -> float:
    """Pr[the class ahead by ``gap`` of two wins]."""
    if law == "gaussian":
        return float(stats.norm.cdf(gap / scale / 2**0.5))
    x = gap / scale
    return float(integrate.quad(lambda z: stats.laplace.pdf(z) * stats.laplace.cdf(z + x), -40, 40, points=[-x, 0])[0])


@pytest.mark.parametrize("event", [LNMax(scale=4.0, answers=400_000), GNMax(sigma=4.0, answers=400_000)])
def test_noisy_max_answers_with_its_own_noise(event: LNMax | GNMax, noise_source: Source) -> None:
    """LNMax draws Laplace noise of its scale, GNMax Gaussian noise of its sigma, and neither abstains."""
    gap, draws = 5, 400_000
    own = "laplace" if isinstance(event, LNMax) else "gaussian"
    other = "gaussian" if own == "laplace" else "laplace"
    outcomes = answer(np.broadcast_to([9, 9 - gap], (draws, 2)), event, draws, noise_source)
    rate = (outcomes == 0).mean()
    assert set(outcomes.tolist()) == {0, 1}
    # 5 standard deviations of the rate are .003; the laws compared are .04 and more apart.
    assert abs(rate - two_class_win(gap, 4.0, own)) < 0.003
    assert abs(rate - two_class_win(gap, 4.0, other)) > 0.01


def certain(confident: list[bool]) -> np.ndarray:
    """Votes on 3 classes whose test passes or fails for certain under CERTAIN; the winner is the row number mod 3."""
    votes = np.full((len(confident), 3), 1)
    for i, passes in enumerate(confident):
        votes[i, i % 3] = 90 if passes else 10
    return votes


CERTAIN = ConfidentGNMax(sigma=1e-3, threshold=50.0, threshold_sigma=1e-3, queries=30, answers=30)


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 30))
@settings(max_examples=200, deadline=None)
def test_a_batch_ends_with_the_query_that_gets_the_last_answer(confident: list[bool], remaining: int) -> None:
    """The outcomes are those of a loop that asks one query after another while answers remain."""
    expected: list[int] = []
    left = remaining
    for i, passes in enumerate(confident):
        if left == 0:
            break
        expected.append(i % 3 if passes else ABSTAINED)
        left -= passes
    outcomes = answer(certain(confident).reshape(-1, 3), CERTAIN, remaining)
    assert outcomes.dtype == np.int32
    assert outcomes.tolist() == expected


@pytest.mark.parametrize("event", [GNMax(sigma=1e-3, answers=5), LNMax(scale=1e-3, answers=5)])
@pytest.mark.parametrize(("remaining", "rows"), [(0, 0), (2, 2), (5, 4)])
def test_noisy_max_answers_at_most_what_remains(event: GNMax | LNMax, remaining: int, rows: int) -> None:
    """Without a test every query is answered, up to ``remaining``."""
    votes = certain([True, False, True, False])
    assert answer(votes, event, remaining).tolist() == [0, 1, 2, 0][:rows]


def sequences(votes: list[tuple[int, int]], event: ConfidentGNMax, remaining: int) -> dict[tuple[int, ...], float]:
    """The law of all outcomes of the sequential procedure, by enumeration."""
    if not votes or remaining == 0:
        return {(): 1.0}
    (a, b), rest = votes[0], votes[1:]
    passes = stats.norm.cdf((max(a, b) - event.threshold) / event.threshold_sigma)
    first = two_class_win(a - b, event.sigma, "gaussian")
    law: dict[tuple[int, ...], float] = {}
    for outcome, chance in ((ABSTAINED, 1 - passes), (0, passes * first), (1, passes * (1 - first))):
        for tail, p in sequences(rest, event, remaining - (outcome != ABSTAINED)).items():
            law[(outcome, *tail)] = chance * p
    return law


@pytest.mark.parametrize("remaining", [1, 2, 3])
def test_a_batch_has_the_joint_law_of_asking_one_by_one(remaining: int, noise_source: Source) -> None:
    """Tests drawn first and answers after them give every sequence of outcomes its sequential probability.

    This is also the independence of a query's test and answer: with one noise for both, the joint law would differ.
    """
    votes, draws = [(6, 4), (3, 7), (5, 5)], 8_000
    event = ConfidentGNMax(sigma=2.0, threshold=6.0, threshold_sigma=1.5, queries=3, answers=3)
    law = sequences(votes, event, remaining)
    assert sum(law.values()) == pytest.approx(1)
    seen = Counter(tuple(answer(np.array(votes), event, remaining, noise_source).tolist()) for _ in range(draws))
    assert set(seen) <= set(law)
    squares = sum((seen[outcome] - draws * p) ** 2 / (draws * p) for outcome, p in law.items())
    assert squares < stats.chi2.isf(RISK, len(law) - 1)


def test_the_number_of_answers_on_real_votes_is_the_expected_one(test_data: Path, noise_source: Source) -> None:
    """On the 640 MNIST queries of the literature 282.72 answers are expected, within 5 standard deviations."""
    votes = np.load(test_data / "votes" / "mnist_250_teachers.npy")[:640].astype(np.int64)
    event = ConfidentGNMax(sigma=40.0, threshold=200.0, threshold_sigma=150.0, queries=640, answers=640)
    p = stats.norm.cdf((votes.max(axis=1) - 200) / 150)
    assert p.sum() == pytest.approx(282.72, abs=0.01)
    runs = [answer(votes, event, 640, noise_source) for _ in range(100)]
    answered = np.mean([(run != ABSTAINED).sum() for run in runs])
    assert abs(answered - p.sum()) < 5 * (p * (1 - p)).sum() ** 0.5 / 100**0.5
    capped = answer(votes, event, 100, noise_source)
    assert (capped != ABSTAINED).sum() == 100
    assert capped[-1] != ABSTAINED


def test_bad_votes_are_refused_without_showing_one() -> None:
    """Negative, fractional, missing or misshapen votes are refused in one line that holds no value of theirs."""
    bad = 987654321
    for votes in (
        np.array([[-bad, bad]]),
        np.array([[bad + 0.5, 1.0]]),
        np.array([[np.nan, bad]]),
        np.array([[bad], [bad]]),
        np.array([bad, bad]),
        np.array([[bad * 10**9, 1]]),
    ):
        with pytest.raises(UserError) as caught:
            answer(votes, GNMax(sigma=1.0, answers=3), 3)
        assert "98765" not in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("remaining", [-1, 31, 2.0, True])
def test_answers_beyond_the_events_cap_are_refused(remaining: int) -> None:
    """``remaining`` is a whole number within the cap that was charged."""
    with pytest.raises(UserError, match=r"remaining = .* from 0 to the event's 30 answers"):
        answer(certain([True] * 3), CERTAIN, remaining)


def test_more_queries_than_the_event_allows_are_refused() -> None:
    """A batch longer than the tests that were charged is refused before anything is drawn."""
    with pytest.raises(UserError, match="31 queries, must be at most the event's 30"):
        answer(certain([True] * 31), CERTAIN, 3, lambda size: pytest.fail("drew"))
