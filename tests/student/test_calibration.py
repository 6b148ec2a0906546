"""Calibration: the numbers are scikit-learn's, and the intervals hold the truth as often as they say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from student.calibration import brier_score, calibration
from tests.student import evaluation_oracle as oracle


def _drawn(seed: int, n: int, classes: int, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(classes, 0.7), n)
    p = np.round(p, 1) if ties else p
    p = (p / p.sum(1, keepdims=True)).astype(np.float32)
    return p, np.array([rng.choice(classes, p=row / row.sum()) for row in p.astype(float)])


@settings(max_examples=15)
@given(st.integers(0, 999), st.sampled_from([1, 7, 60, 300, 401]), st.sampled_from([2, 4]), st.booleans())
def test_numbers_are_scikit_learns(seed: int, n: int, classes: int, ties: bool) -> None:
    """Bins, error, Brier score and both intervals, for few and many inputs, with and without equal confidences."""
    p, y = _drawn(seed, n, classes, ties)
    found, score = calibration(p, y, seed), brier_score(p, y, seed)
    error, bins = oracle.calibration_error(p, y, seed)
    assert [(b.right.correct, b.right.total) for b in found.bins] == [(k, n) for _, k, n in bins]
    assert [b.confidence for b in found.bins] == pytest.approx([c for c, _, _ in bins])
    assert (found.error.value, found.error.low, found.error.high) == pytest.approx(error[:3])
    value, low, high, count = oracle.brier(p, y, seed)
    assert (score.value, score.count) == (pytest.approx(value, abs=1e-6), count)
    assert (score.low is None, score.high is None) == (low is None, high is None)
    if low is not None:
        assert (score.low, score.high) == pytest.approx((low, high))
        assert low <= score.value <= (high or 0)


@pytest.mark.parametrize("n", [10, 200, 1000])
@pytest.mark.parametrize("excess", [0.0, 0.1], ids=["calibrated", "overconfident"])
def test_the_errors_interval_covers_the_true_error(n: int, excess: float) -> None:
    """In at least 95% of test parts, also for a perfectly calibrated model, whose estimate is always too large."""
    rng, held, above, trials = np.random.default_rng(n), 0, 0, 200
    for trial in range(trials):
        confidence = 0.6 + 0.4 * rng.beta(4, 1.5, n)
        chance = confidence - excess
        y = np.where(rng.random(n) < chance, 0, 1)
        found = calibration(np.stack([confidence, 1 - confidence], 1), y, trial).error
        # The distance has one sign everywhere, so that the true error is the same whatever the bins.
        assert found.low is not None
        assert found.high is not None
        held += found.low <= excess + 1e-12 <= found.high + 1e-12
        above += found.low > 0
    assert held >= 0.93 * trials
    assert above == 0.0 or above <= (0.07 * trials if excess == 0 else trials)
    if excess and n == 1000:
        assert above >= 0.95 * trials


def test_a_model_that_is_never_wrong_may_still_be_overconfident() -> None:
    """With no mistake seen the interval leaves room for some: a hundred right answers do not prove 99.9%."""
    p = np.tile([0.999, 0.001], (100, 1))
    found = calibration(p, np.zeros(100, int), 0).error
    assert found.low == 0.0
    assert found.high is not None
    assert found.high > 0.02
    assert brier_score(p, np.zeros(100, int), 0).low is None


def test_the_brier_scores_interval_covers_the_true_score() -> None:
    """Nearly 95% of test parts: the bootstrap is approximate."""
    rng, held, trials, n = np.random.default_rng(2), 0, 150, 300
    for trial in range(trials):
        chance = 0.5 + 0.5 * rng.beta(2, 2, n)
        y = np.where(rng.random(n) < chance, 0, 1)
        found = brier_score(np.stack([chance, 1 - chance], 1), y, trial)
        # E p(1 − p) for p = (1 + b)/2 with b of Beta(2, 2): (1 − E b²)/4, and E b² = 0.3.
        assert found.low is not None
        assert found.high is not None
        held += found.low <= (1 - 0.3) / 4 <= found.high
    assert 0.89 * trials <= held < trials


def test_the_same_seed_gives_the_same_interval() -> None:
    """What is simulated is drawn from the given stream alone."""
    p, y = _drawn(1, 300, 3, ties=False)
    assert calibration(p, y, 5) == calibration(p, y, 5) != calibration(p, y, 6)
    assert brier_score(p, y, 5) == brier_score(p, y, 5) != brier_score(p, y, 6)
