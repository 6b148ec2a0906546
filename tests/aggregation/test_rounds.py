"""Rounds: the law of Interactive-GNMax, caps over all rounds, what a choice may see, and replay after any crash."""

import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from accounting.events import ConfidentGNMax, GNMax, InteractiveGNMax, NoisyMax, event_to_dict
from accounting.exact import query_cost
from accounting.outcomes import log_law, statistic
from aggregation import answering, journal
from aggregation.journal import Asked, Round
from aggregation.mechanisms import ABSTAINED, WHOLE, answer, disagreement, parts
from aggregation.rounds import Allowance, allowances, answer_rounds, released, trimmed
from data.errors import UserError

Source = Callable[[int], bytes]
RISK = 1e-6
CLASSES = 3


# --- the mechanism -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("student", [[[0.9, 0.05, 0.05]], [[0.2, 0.5, 0.3]], None])
def test_interactive_gnmax_has_the_law_that_is_accounted(
    student: list[list[float]] | None, noise_source: Source
) -> None:
    """Outcomes of one query follow Pr[test passes] · Pr[class wins]; the test is of v_j - n p_j, p = 0 without one."""
    votes, draws = np.array([[6, 3, 1]]), 20_000
    event = InteractiveGNMax(sigma=2.0, threshold=2.5, threshold_sigma=1.5, queries=draws, answers=draws)
    p = np.zeros((1, CLASSES)) if student is None else np.array(student)
    law = np.exp(log_law(votes, event, p))[0]
    assert law.sum() == pytest.approx(1)
    given = None if student is None else np.repeat(parts(p), draws, axis=0)
    outcomes = answer(np.repeat(votes, draws, axis=0), event, draws, noise_source, student=given)
    seen = np.array([(outcomes == j).sum() for j in (0, 1, 2, ABSTAINED)])
    assert ((seen - draws * law) ** 2 / (draws * law)).sum() < stats.chi2.isf(RISK, CLASSES)


def test_a_batch_has_the_law_of_asking_one_by_one(noise_source: Source) -> None:
    """With a cap of one answer the joint law of a batch is the sequential one, by enumeration."""
    votes, p, draws = np.array([[5, 1], [3, 3], [2, 4]]), np.array([[0.5, 0.5], [0.9, 0.1], [0.25, 0.75]]), 8_000
    event = InteractiveGNMax(sigma=1.5, threshold=1.0, threshold_sigma=1.0, queries=3, answers=3)
    each = np.exp(log_law(votes, event, p))
    law, waiting = {}, 1.0
    for i in range(3):
        before = (ABSTAINED,) * i
        law |= {(*before, j): waiting * each[i, j] for j in (0, 1)}
        waiting *= each[i, 2]
    law[(ABSTAINED,) * 3] = waiting
    seen = Counter(tuple(answer(votes, event, 1, noise_source, student=parts(p)).tolist()) for _ in range(draws))
    assert set(seen) <= set(law)
    assert sum((seen[o] - draws * q) ** 2 / (draws * q) for o, q in law.items()) < stats.chi2.isf(RISK, len(law) - 1)


@given(st.integers(2, 2**32), st.integers(2, 6), st.integers(0, 2**32))
@settings(max_examples=60)
def test_the_statistic_is_exact_and_moves_by_at_most_one(teachers: int, classes: int, seed: int) -> None:
    """In the program, not only on paper: one vote moved moves max_j (v_j - n p_j) by at most 1, to the last bit."""
    generator = np.random.default_rng(seed)
    votes = np.sort(generator.integers(0, teachers, classes - 1, endpoint=True))
    votes = np.diff(np.concatenate([[0], votes, [teachers]]))[None]
    student = parts(generator.dirichlet(np.ones(classes))[None])
    i = generator.choice(np.flatnonzero(votes[0]))
    moved = votes.copy()
    moved[0, i] -= 1
    moved[0, generator.integers(classes)] += 1
    here, there = (disagreement(v, student)[0] for v in (votes, moved))
    whole = max(WHOLE * int(v) - teachers * int(k) for v, k in zip(votes[0], student[0], strict=True))
    assert here == whole / WHOLE
    assert int(here * WHOLE) == whole
    assert abs(here - there) <= 1
    if teachers < 10**6:
        event = InteractiveGNMax(1.0, 0.0, 1.0, 1, 1)
        assert here == statistic(votes, event, student / WHOLE)[0]


def test_a_query_never_costs_more_than_the_events_test_and_answer() -> None:
    """Exact costs over all histograms of 6 votes and some students stay below tau + g, the figure that is published."""
    from accounting.curves import rdp_per_answer, rdp_per_test

    event = InteractiveGNMax(sigma=1.5, threshold=1.0, threshold_sigma=1.2, queries=1, answers=1)
    votes = np.array([(a, b, 6 - a - b) for a in range(7) for b in range(7 - a)])
    orders = [2.0, 6.0]
    most = rdp_per_answer(event, orders) + rdp_per_test(event, orders)
    for p in ([0.0, 0.0, 0.0], [0.97, 0.02, 0.01], [0.3, 0.3, 0.4]):
        cost, _ = query_cost(votes, event, orders, np.broadcast_to(p, votes.shape))
        assert np.all(cost <= most * (1 + 1e-9))


@pytest.mark.parametrize(
    ("student", "expected"),
    [
        (np.zeros((2, 3), np.int64), "a whole number of parts for each class"),
        (np.full((1, 3), 0.2), "a whole number of parts for each class"),
        (np.full((1, 3), WHOLE + 1), "every probability must be from 0"),
    ],
)
def test_a_student_that_does_not_fit_is_refused(student: np.ndarray, expected: str) -> None:
    """Before anything is drawn."""
    event = InteractiveGNMax(1.0, 1.0, 1.0, 5, 5)
    with pytest.raises(UserError, match=expected):
        answer(np.array([[3, 2, 1]]), event, 5, lambda size: pytest.fail("drew"), student=student)
    with pytest.raises(UserError, match="only interactive-gnmax"):
        answer(np.array([[3, 2, 1]]), GNMax(1.0, 5), 5, student=np.zeros((1, 3), np.int64))
    with pytest.raises(UserError, match="every row must sum"):
        answer(np.array([[3, 2, 1], [1, 1, 1]]), event, 5, student=np.zeros((2, 3), np.int64))


def test_bad_probabilities_are_refused() -> None:
    """Not numbers, or no probabilities."""
    for bad in (np.array([[np.nan, 0.5]]), np.array([[1.5, 0.0]]), np.array([[-0.1, 1.0]]), np.array([0.5, 0.5])):
        with pytest.raises(UserError, match="between 0 and 1"):
            parts(bad)


# --- rounds ------------------------------------------------------------------------------------------------------


def world(rows: int, seed: int, teachers: int = 20) -> np.ndarray:
    """Votes (N, 3) on every public row."""
    return np.random.default_rng(seed).multinomial(teachers, [0.6, 0.3, 0.1], size=rows)


def chooser(rows: int) -> Callable[[int, tuple[Round, ...], int], Asked]:
    """A choice that depends on all that was released: rows not asked yet, shuffled by the outcomes; a student too."""

    def choose(number: int, rounds: tuple[Round, ...], count: int) -> Asked:
        seen = [(each.asked.rows.tolist(), each.outcomes.tolist()) for each in rounds]
        generator = np.random.default_rng(zlib.crc32(str(seen).encode()))
        left = np.setdiff1d(np.arange(rows), [row for asked, _ in seen for row in asked])
        chosen = generator.permutation(left)[:count]
        student = parts(generator.dirichlet(np.ones(CLASSES), len(chosen))) if number else None
        return Asked(number, chosen, student)

    return choose


def steady(path: Path, seed: int) -> Source:
    """Noise that is a function of what the journal holds: a resumed run meets that of an uninterrupted one."""
    state: dict[str, object] = {}

    def source(size: int) -> bytes:
        held = journal.read(path)
        assert held is not None
        if state.get("held") != len(held[1]):
            state["held"], state["bytes"] = len(held[1]), np.random.default_rng([seed, len(held[1])]).bytes
        drawn: Source = state["bytes"]  # type: ignore[assignment]
        return drawn(size)

    return source


def begun(path: Path, event: NoisyMax) -> Path:
    journal.start(path, journal.Header("reservation", "binding", event_to_dict(event)))
    return path


EVENTS: list[NoisyMax] = [
    GNMax(2.0, 13),
    ConfidentGNMax(2.0, 11.0, 3.0, 20, 9),
    InteractiveGNMax(2.0, 6.0, 3.0, 20, 9),
]


def run(
    event: NoisyMax, path: Path, seed: int, finished: Callable[[tuple[Round, ...]], None] = lambda rounds: None
) -> tuple[Round, ...]:
    """Three rounds over 30 public rows, 20 queries at most."""
    interactive = isinstance(event, InteractiveGNMax)
    choose, votes = chooser(30), world(30, seed)

    def fitting(number: int, rounds: tuple[Round, ...], count: int) -> Asked:
        asked = choose(number, rounds, count)
        return asked if interactive else Asked(number, asked.rows)

    return answer_rounds(
        event,
        allowances(event, 20, 3),
        path,
        fitting,
        lambda asked: votes[asked.rows],
        finished,
        source=steady(path, seed),
    )


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("seed", range(6))
def test_caps_hold_over_all_rounds(event: NoisyMax, seed: int, tmp_path: Path) -> None:
    """Through round r at most ceil(Q r / R) queries and ceil(K r / R) answers; rows are distinct; both caps bind."""
    plan = allowances(event, 20, 3)
    asked, answered, rows = 0, 0, []
    for each in run(event, begun(tmp_path / "journal", event), seed):
        asked += len(each.outcomes)
        answered += int((each.outcomes != ABSTAINED).sum())
        rows += each.asked.rows.tolist()
        assert asked <= plan[each.asked.number].queries
        assert answered <= plan[each.asked.number].answers
        # A round ends early only at its last answer.
        assert asked == plan[each.asked.number].queries or answered == plan[each.asked.number].answers
    assert len(rows) == len(set(rows)) == asked


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 12))
def test_allowances_rise_to_the_caps(queries: int, answers: int, rounds: int) -> None:
    """They never fall and end at the caps of the run; the split is even to within one."""
    event = ConfidentGNMax(1.0, 1.0, 1.0, max(queries, answers), answers)
    found = allowances(event, queries, rounds)
    assert found[-1] == Allowance(queries, answers)
    for name in ("queries", "answers"):
        steps = np.diff([0, *(getattr(each, name) for each in found)])
        assert steps.min() >= 0
        assert steps.max() - steps.min() <= 1


class Crashed(BaseException):
    """A kill: no handler of the program sees it."""


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("torn", [False, True])
def test_a_crash_at_any_write_is_replayed_and_ends_as_without_it(
    event: NoisyMax, torn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at each write of the journal, before it, within it or after it; what is drawn in the end is the same."""
    monkeypatch.setattr(answering, "BATCH", 3)
    whole = run(event, begun(tmp_path / "whole", event), 5)
    expected = (tmp_path / "whole").read_bytes()
    writes, real = expected.count(b"\n") - 1, journal._add
    assert writes >= 6
    for moment in range(writes):
        path, left = begun(tmp_path / f"killed-{moment}", event), [moment]

        def add(at: Path, line: str, left: list[int] = left) -> None:
            if left[0] == 0:
                if torn:
                    with at.open("ab") as stream:
                        stream.write(line.encode()[: len(line) // 2])
                raise Crashed
            left[0] -= 1
            real(at, line)

        with monkeypatch.context() as patched:
            patched.setattr(journal, "_add", add)
            with pytest.raises(Crashed):
                run(event, path, 5)
        again = run(event, path, 5)
        assert path.read_bytes() == expected
        assert [each.outcomes.tolist() for each in again] == [each.outcomes.tolist() for each in whole]


def test_a_round_is_recorded_before_anything_is_computed_from_it(tmp_path: Path) -> None:
    """``finished`` comes after the round's last outcome is journalled, before the next choice; a refusal ends all."""
    event, path, order = EVENTS[1], begun(tmp_path / "journal", EVENTS[1]), []
    choose, votes = chooser(30), world(30, 1)

    def noted(number: int, rounds: tuple[Round, ...], count: int) -> Asked:
        order.append(("choose", number))
        return Asked(number, choose(number, rounds, count).rows)

    def finished(rounds: tuple[Round, ...]) -> None:
        state = journal.read_rounds(path)
        assert state is not None
        assert trimmed(state[1][-1]).outcomes.tolist() == rounds[-1].outcomes.tolist()
        order.append(("finished", len(rounds) - 1))
        if len(rounds) == 2:
            raise UserError("refused")

    with pytest.raises(UserError, match="refused"):
        answer_rounds(event, allowances(event, 20, 3), path, noted, lambda asked: votes[asked.rows], finished)
    assert order == [("choose", 0), ("finished", 0), ("choose", 1), ("finished", 1)]


def test_the_students_label_stands_where_the_test_failed_and_it_is_sure() -> None:
    """Teachers' answers are never replaced; at the confidence itself the student is not sure enough; p = 0 never is."""
    student = parts(np.array([[0.95, 0.05], [0.1, 0.9], [0.5, 0.5], [0.02, 0.98]]))
    rounds = (
        Round(Asked(0, np.array([4, 2])), np.array([1, ABSTAINED], np.int32)),
        Round(Asked(1, np.array([7, 8, 9, 1]), student), np.array([ABSTAINED, ABSTAINED, ABSTAINED, 0], np.int32)),
    )
    found = released(rounds, 0.9)
    assert found.rows.tolist() == [4, 2, 7, 8, 9, 1]
    assert found.labels.tolist() == [1, -1, 0, -1, -1, 0]
    assert found.sources.tolist() == ["teachers", "abstained", "student", "abstained", "abstained", "teachers"]
    assert found.rounds.tolist() == [0, 0, 1, 1, 1, 1]
    assert released(rounds, 0.8).labels.tolist() == [1, -1, 0, 1, -1, 0]


def test_a_journal_with_a_broken_or_repeated_round_is_refused(tmp_path: Path) -> None:
    """A changed line, or a round that is not after the one before, is one line that says what to do."""
    path = begun(tmp_path / "journal", EVENTS[0])
    run(EVENTS[0], path, 1)
    lines = path.read_text().splitlines()
    changed = [line.replace('"rows": [', '"rows": [1, ', 1) for line in lines]
    for damaged in (changed, [*lines, lines[1]], [lines[0], *lines[2:3], *lines[1:2]]):
        path.write_text("\n".join(damaged) + "\n")
        with pytest.raises(UserError, match="is corrupt"):
            journal.read_rounds(path)
