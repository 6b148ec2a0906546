"""The choice of queries: from public inputs alone, repeatable, distinct, and better than chance."""

import dataclasses
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st

from data.errors import UserError
from data.examples import Examples
from student.queries import choose
from student.settings import QuerySettings
from tests.student.digits_data import parts

Strategy = Literal["all", "random", "prototypes"]
STRATEGIES: tuple[Strategy, ...] = ("all", "random", "prototypes")


def table(rows: int, width: int, seed: int) -> Examples:
    features = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
    return Examples(features, np.arange(rows) * 7)


@given(st.sampled_from(STRATEGIES), st.integers(1, 30), st.integers(1, 4), st.integers(0, 2**40), st.data())
@budget(max_examples=40, deadline=None)
def test_every_query_is_a_distinct_public_row(
    strategy: Strategy, rows: int, width: int, seed: int, data: st.DataObject
) -> None:
    """Whatever the pool, exactly the asked number of distinct public rows is chosen, the same ones every time."""
    count = data.draw(st.integers(1, rows))
    public = table(rows, width, seed % 1000)
    chosen = choose(public, QuerySettings(strategy=strategy, count=count), seed)
    assert chosen.shape == (count,)
    assert len(np.unique(chosen)) == count
    assert chosen.min() >= 0
    assert chosen.max() < rows
    assert np.array_equal(chosen, choose(public, QuerySettings(strategy=strategy, count=count), seed))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_labels_and_ids_have_no_say(strategy: Strategy) -> None:
    """A choice reads features only: other labels or ids leave it as it is."""
    public, labels, _ = parts(0)
    settings = QuerySettings(strategy=strategy, count=25)
    other = dataclasses.replace(public, labels=labels, ids=public.ids[::-1])
    assert np.array_equal(choose(public, settings, 3), choose(other, settings, 3))


def test_all_keeps_the_order_and_random_permutes() -> None:
    """``all`` asks in the source's order; ``random`` asks each row once, in an order that the seed decides."""
    public = table(50, 3, 0)
    everything = choose(public, QuerySettings(strategy="all"), 0)
    assert np.array_equal(everything, np.arange(50))
    assert np.array_equal(choose(public, QuerySettings(strategy="all", count=8), 0), np.arange(8))
    first, second = (choose(public, QuerySettings(strategy="random"), seed) for seed in (0, 1))
    assert np.array_equal(np.sort(first), np.arange(50))
    assert not np.array_equal(first, np.arange(50))
    assert not np.array_equal(first, second)
    assert np.array_equal(choose(public, QuerySettings(strategy="random", count=8), 0), first[:8])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_more_queries_than_public_inputs_are_refused(strategy: Strategy) -> None:
    """The error names the field, the value and the most that is allowed."""
    with pytest.raises(UserError, match=r"queries\.count = 11: must be at most 10"):
        choose(table(10, 2, 0), QuerySettings(strategy=strategy, count=11), 0)


def test_prototypes_cover_the_classes_better_than_random() -> None:
    """With 16 queries on digits, prototypes meet more of the ten classes than random inputs do."""
    covered: dict[str, list[int]] = {"random": [], "prototypes": []}
    for seed in range(5):
        public, labels, _ = parts(seed)
        for strategy in ("random", "prototypes"):
            rows = choose(public, QuerySettings(strategy=strategy, count=16), seed)
            covered[strategy].append(len(np.unique(labels[rows])))
    assert np.mean(covered["prototypes"]) >= np.mean(covered["random"]) + 0.5


def test_an_early_stop_leaves_the_prototypes_that_speak_for_most() -> None:
    """The first half of the prototypes are the nearest of more inputs than the second half."""
    public, _, _ = parts(0)
    rows = choose(public, QuerySettings(strategy="prototypes", count=20), 0)
    pixels = public.features.reshape(400, -1).astype(float)
    nearest = ((pixels[:, None] - pixels[rows][None]) ** 2).sum(2).argmin(1)
    assert (nearest < 10).mean() > 0.55


def test_repeated_inputs_still_give_distinct_rows() -> None:
    """Where inputs repeat there are fewer clusters than queries; the rows are distinct all the same."""
    public = Examples(np.repeat(np.eye(3, dtype=np.float32), 10, axis=0), np.arange(30))
    rows = choose(public, QuerySettings(strategy="prototypes", count=12), 0)
    assert len(np.unique(rows)) == 12
    assert {int(row) // 10 for row in rows[:3]} == {0, 1, 2}


@pytest.mark.slow
def test_a_large_pool_is_clustered_in_mini_batches() -> None:
    """Beyond twenty thousand inputs prototypes still find every cluster, and repeatably."""
    rng = np.random.default_rng(0)
    cluster = rng.integers(0, 8, 25_000)
    features = (10 * np.eye(8)[cluster] + rng.normal(size=(25_000, 8))).astype(np.float32)
    public = Examples(features, np.arange(25_000))
    rows = choose(public, QuerySettings(strategy="prototypes", count=24), 5)
    assert set(cluster[rows]) == set(range(8))
    assert np.array_equal(rows, choose(public, QuerySettings(strategy="prototypes", count=24), 5))
