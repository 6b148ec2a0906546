"""The student's accuracy and the interval that goes with it."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from data.errors import UserError
from student.evaluation import as_record, by_group, check_groups, evaluate
from student.rates import rate


@given(st.integers(1, 5_000), st.data())
def test_the_interval_is_the_exact_binomial_one(total: int, data: st.DataObject) -> None:
    """It agrees with scipy's exact interval, the ends included."""
    correct = data.draw(st.integers(0, total))
    expected = binomtest(correct, total).proportion_ci(0.95, method="exact")
    found = rate(correct, total)
    assert found.accuracy == correct / total
    assert found.low == pytest.approx(expected.low, abs=1e-9)
    assert found.high == pytest.approx(expected.high, abs=1e-9)


@pytest.mark.parametrize("accuracy", [0.5, 0.9, 0.99])
def test_the_interval_covers_the_truth_as_often_as_it_says(accuracy: float) -> None:
    """For 200 test inputs the interval holds the true accuracy with probability of at least 95%, and not always."""
    held = [rate(k, 200) for k in range(201)]
    inside = np.array([r.low is not None and r.high is not None and r.low <= accuracy <= r.high for r in held])
    covered = float(binom.pmf(np.arange(201), 200, accuracy)[inside].sum())
    assert 0.95 <= covered < 0.995


def test_per_class_rates_add_up_to_the_whole() -> None:
    """Each class is counted over its own test inputs; a class without any has no accuracy rather than a made-up one."""
    labels = np.array([0, 0, 1, 1, 1, 3])
    predicted = np.array([0, 1, 1, 1, 0, 3])
    result = evaluate(np.eye(4)[predicted], labels)
    assert [(r.correct, r.total) for r in result.per_class] == [(1, 2), (2, 3), (0, 0), (1, 1)]
    assert (result.overall.correct, result.overall.total) == (4, 6)
    assert result.per_class[2].accuracy is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.overall = rate(1, 1)  # type: ignore[misc]


@pytest.mark.parametrize(("correct", "total", "confidence"), [(3, 2, 0.95), (-1, 2, 0.95), (1, 2, 1.0), (1, 2, np.nan)])
def test_impossible_counts_and_levels_are_refused(correct: int, total: int, confidence: float) -> None:
    """Counts that cannot be and levels outside (0, 1), NaN included, are errors."""
    with pytest.raises(UserError, match="must"):
        rate(correct, total, confidence)


def test_rows_and_labels_must_match() -> None:
    """Probabilities of other inputs than the labels' are an error, not a wrong number."""
    with pytest.raises(UserError, match="must be"):
        evaluate(np.eye(3), np.array([0, 1]))


def test_subgroups_are_counted_apart_and_the_gap_is_between_best_and_worst() -> None:
    """Each value of a column over its own inputs; missing is a value; one value has no gap."""
    labels = np.zeros(10, int)
    predicted = np.array([0, 0, 0, 1, 0, 1, 1, 1, 0, 0])
    values = np.array(["a"] * 4 + ["b"] * 4 + ["", ""])
    found = evaluate(np.eye(2)[predicted], labels, {"ward": values, "one": np.full(10, "x")})
    ward, one = found.subgroups
    assert ward.values == ("", "a", "b")
    assert [(r.correct, r.total) for r in ward.rates] == [(2, 2), (3, 4), (1, 4)]
    assert ward.gap == pytest.approx(0.75)
    assert 0 <= ward.gap_low <= ward.gap <= ward.gap_high <= 1
    assert (one.gap, one.gap_low, one.gap_high) == (0, 0, 0)
    record = as_record(found)["subgroups"][0]
    assert [each["count"] for each in record["values"]] == [2, 4, 4]
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize("truth", [(0.9, 0.9, 0.9), (0.95, 0.7, 0.8), (0.5, 0.9, 0.5)])
def test_the_gaps_interval_covers_the_true_gap(truth: tuple[float, ...]) -> None:
    """In at least 95% of test parts, with no true gap (where the observed one is always too large) and with one."""
    rng = np.random.default_rng(5)
    sizes, trials, held = (40, 150, 60), 300, 0
    for _ in range(trials):
        right = np.concatenate([rng.random(n) < p for n, p in zip(sizes, truth, strict=True)])
        found = by_group(right, "g", np.repeat(["a", "b", "c"], sizes))
        held += found.gap_low <= max(truth) - min(truth) <= found.gap_high
    assert held >= 0.95 * trials


def test_a_column_that_numbers_its_rows_is_no_subgroup() -> None:
    """Refused before anything is charged, naming the column and what is allowed."""
    check_groups({"ward": np.array(["a", "b"] * 100)})
    with pytest.raises(UserError, match="data.subgroup = 'who': has over 50 values"):
        check_groups({"who": np.arange(51).astype(str)})
