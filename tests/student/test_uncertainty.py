"""Later rounds ask what the student is unsure of, spread over the inputs, and depend on released labels alone."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st

from aggregation.mechanisms import WHOLE
from data.examples import Examples
from student import interim
from student.interim import next_round
from student.settings import QuerySettings, StudentSettings
from student.uncertainty import CANDIDATES, uncertainty, unsure_and_diverse
from tests.student.digits_data import parts

STUDENT = StudentSettings(method="supervised", model="logistic", epochs=5)
QUERIES = QuerySettings(strategy="random", count=60, rounds=3)


@given(st.integers(1, 60), st.integers(2, 5), st.integers(0, 2**32), st.data())
@budget(max_examples=40, deadline=None)
def test_rows_are_distinct_repeatable_and_among_the_most_uncertain(
    rows: int, classes: int, seed: int, data: st.DataObject
) -> None:
    """Whatever the pool, exactly the asked number, the same every time, from the CANDIDATES · count unsurest."""
    count = data.draw(st.integers(1, rows))
    generator = np.random.default_rng(seed)
    features = generator.integers(0, 3, (rows, 2)).astype(np.float32)
    belief = generator.dirichlet(np.ones(classes), rows)
    chosen = unsure_and_diverse(features, belief, count, seed)
    assert chosen.dtype == np.int64
    assert len(np.unique(chosen)) == len(chosen) == count
    bar = np.sort(uncertainty(belief))[::-1][: CANDIDATES * count].min()
    assert uncertainty(belief)[chosen].min() >= bar
    assert np.array_equal(chosen, unsure_and_diverse(features, belief, count, seed))


def test_near_copies_of_one_hard_input_are_not_all_asked() -> None:
    """20 copies of the most uncertain input and 18 others nearly so: margins alone would ask copies only."""
    generator = np.random.default_rng(0)
    copies = generator.normal(0, 0.01, (20, 2))
    others = np.concatenate([generator.normal(centre, 0.05, (6, 2)) for centre in ((9, 0), (0, 9), (9, 9))])
    features = np.concatenate([copies, others]).astype(np.float32)
    top = np.concatenate([np.full(20, 0.5), np.full(18, 0.52)])
    chosen = unsure_and_diverse(features, np.stack([top, 1 - top], axis=1), 4, 0)
    assert (chosen < 20).sum() == 1
    assert len({tuple(np.abs(np.round(features[row] / 9)).tolist()) for row in chosen}) == 4


def test_weights_draw_the_centres_to_uncertain_inputs() -> None:
    """Of two inputs in one cluster the one that the student is unsure of is asked."""
    features = np.array([[0.0], [1.0], [50.0], [51.0]] * 3, dtype=np.float32)
    top = np.array([0.5, 0.999, 0.999, 0.5] * 3)
    chosen = unsure_and_diverse(features, np.stack([top, 1 - top], axis=1), 2, 1)
    assert sorted(features[chosen, 0]) == [0.0, 51.0]


def asked(public: Examples, rows: np.ndarray, labels: np.ndarray, number: int = 1, count: int = 20, **changes: bool):  # type: ignore[no-untyped-def]
    predictions = changes.get("predictions", True)
    return next_round(public, rows, labels, number, count, QUERIES, STUDENT, 7, 10, predictions=predictions)


def test_a_round_asks_new_rows_and_brings_the_students_predictions() -> None:
    """Nothing is asked twice; predictions are whole parts that sum to about 1; without need of them there are none."""
    public, truth, _ = parts(0)
    rows = np.random.default_rng(1).permutation(400)[:30]
    found = asked(public, rows, truth[rows])
    assert len(np.intersect1d(found.rows, rows)) == 0
    assert len(np.unique(found.rows)) == 20
    assert found.student is not None
    assert found.student.shape == (20, 10)
    assert np.all(np.abs(found.student.sum(axis=1) - WHOLE) <= 10)
    assert asked(public, rows, truth[rows], predictions=False).student is None
    again = asked(public, rows, truth[rows])
    assert np.array_equal(found.rows, again.rows)
    assert np.array_equal(found.student, again.student)


def test_the_choice_follows_the_released_labels_and_reads_no_other() -> None:
    """Other labels ask other rows; the public part's own labels, were they there, have no say."""
    public, truth, _ = parts(0)
    rows = np.arange(30)
    found = asked(public, rows, truth[rows])
    assert np.array_equal(found.rows, asked(dataclasses.replace(public, labels=truth), rows, truth[rows]).rows)
    assert not np.array_equal(found.rows, asked(public, rows, (truth[rows] + np.arange(30)) % 10).rows)


def test_without_a_student_the_first_strategy_goes_on() -> None:
    """When nothing was answered yet a later round is chosen as the first was, among what was not asked."""
    public, _, _ = parts(0)
    rows = np.arange(30)
    found = asked(public, rows, np.full(30, -1))
    assert found.student is None
    assert len(np.unique(found.rows)) == 20
    assert found.rows.min() >= 30
    assert not np.array_equal(found.rows, asked(public, rows, np.full(30, -1), number=2).rows)


def test_a_student_that_predicts_no_numbers_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model gone wrong asks nothing by its predictions, and stops no run that is paid for."""
    public, truth, _ = parts(0)
    monkeypatch.setattr(interim, "probabilities", lambda *_: np.full((370, 10), np.nan))
    assert asked(public, np.arange(30), truth[:30]).student is None


def test_the_last_round_may_ask_all_that_is_left() -> None:
    """With fewer inputs left than the round may ask, all of them are asked."""
    public, truth, _ = parts(0)
    rows = np.arange(390)
    assert sorted(asked(public, rows, truth[rows]).rows) == list(range(390, 400))
