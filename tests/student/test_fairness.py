"""Gaps between groups and between models: values by brute force, intervals by how often they hold the truth."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from data.errors import UserError
from student.comparison import paired_difference
from student.fairness import largest_gap, worst
from student.measures import measure
from tests.student import evaluation_oracle as oracle

COUNTS = st.lists(
    st.integers(0, 40).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))), min_size=1, max_size=5
)


@given(COUNTS, COUNTS)
def test_the_gap_is_that_of_the_two_groups_furthest_apart(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    """Over all pairs of groups that have any input; of two families the larger; none with fewer than two groups."""
    found = largest_gap(first, second)
    families = [[(k / n, 0.0, 0.0, n) for k, n in family if n] for family in (first, second)]
    if all(len(family) < 2 for family in families):
        assert found is None
        return
    assert found is not None
    assert (found.value, found.low, found.high, found.count) == pytest.approx(oracle.gap(*families))
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low <= found.value <= found.high <= 1


@pytest.mark.parametrize("truth", [(0.8, 0.8), (0.9, 0.7), (0.05, 0.3)])
def test_intervals_of_gap_and_worst_group_hold_exactly(truth: tuple[float, float]) -> None:
    """Summed over every outcome of two groups of 25 and 40: probability of at least 95%, for both."""
    sizes = (25, 40)
    laws = [binom.pmf(np.arange(n + 1), n, p) for n, p in zip(sizes, truth, strict=True)]
    covered = {"gap": 0.0, "worst": 0.0}
    for a, b in itertools.product(*(range(n + 1) for n in sizes)):
        counts, weight = [(a, sizes[0]), (b, sizes[1])], laws[0][a] * laws[1][b]
        if weight < 1e-9:
            continue
        spread, least = largest_gap(counts), worst(counts)
        assert spread is not None
        assert least is not None
        for name, found, true in (("gap", spread, abs(truth[0] - truth[1])), ("worst", least[1], min(truth))):
            assert found.low is not None
            assert found.high is not None
            covered[name] += weight * (found.low <= true <= found.high)
    assert min(covered.values()) >= 0.95


@pytest.mark.parametrize("chances", [(0.1, 0.1), (0.3, 0.05), (0.0, 0.2), (0.02, 0.01)])
def test_the_paired_interval_holds_exactly(chances: tuple[float, float]) -> None:
    """Summed over every outcome of 30 inputs: probability of at least 95% that it has the true difference."""
    n, (first, second) = 30, chances
    covered = 0.0
    for a in range(n + 1):
        for b in range(n + 1 - a):
            weight = math.comb(n, a) * math.comb(n - a, b) * first**a * second**b * (1 - first - second) ** (n - a - b)
            if weight > 1e-9:
                found = paired_difference(a, b, n)
                assert found.low is not None
                assert found.high is not None
                assert found.low <= found.value <= found.high
                covered += weight * (found.low <= first - second <= found.high)
    assert covered >= 0.95


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 500))
def test_the_paired_interval_agrees_with_mcnemars_exact_test(first: int, second: int, ties: int) -> None:
    """It leaves 0 out just where the test of the inputs on which one model alone is right rejects at 4.5%."""
    if first + second + ties == 0:
        return
    found = paired_difference(first, second, first + second + ties)
    assert found.low is not None
    assert found.high is not None
    apart = first + second
    # Twice the smaller tail, the test that the exact interval inverts.
    tails = [binomtest(first, apart, alternative=side).pvalue for side in ("less", "greater")] if apart else [1.0]
    assert (not found.low <= 0 <= found.high) == (2 * min(tails) < 0.045)


@pytest.mark.parametrize(("n", "classes", "alone"), [(250, 2, False), (90, 3, True), (12, 2, False)])
def test_every_row_is_recomputed(n: int, classes: int, alone: bool) -> None:
    """Against scikit-learn's metrics and exact intervals, with groups of a single input and classes without any."""
    seed = n
    rng = np.random.default_rng(seed)
    models = {name: rng.dirichlet(np.ones(classes), n) for name in (("student",) if alone else ("student", "baseline"))}
    y = rng.integers(0, classes - (n == 90), n)
    groups = {"ward": rng.choice(["north", "south", ""], n), "one": np.array(["x"] * (n - 1) + ["lone"])}
    names = [f"class {c}" for c in range(classes)]
    rows = measure(models, y, groups, tuple(names), seed)
    records = [{**vars(row), "class": row.class_name} for row in rows]
    assert oracle.differences(records, oracle.expected(models, y, groups, names, seed), 1e-6) == []


def test_probabilities_of_other_inputs_are_refused() -> None:
    """And so is a test part without inputs."""
    for p, y in ((np.eye(2), np.zeros(3, int)), (np.zeros((0, 2)), np.zeros(0, int)), (np.eye(3), np.zeros(3, int))):
        with pytest.raises(UserError, match="probabilities"):
            measure({"student": p}, y, {}, ("a", "b"), 0)
