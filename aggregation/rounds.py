"""A run in rounds: what is asked later depends on what was released before (arXiv 1802.08908, Algorithm 2).

Neighbours: one teacher's votes changed from any class to any class, in every query. Released: the outcomes of every
round, labels and abstentions, by the noisy max of one event at the caps of the whole run. What a round asks, and the
student's predictions that Interactive-GNMax compares with the votes, are functions of public inputs and of outcomes of
earlier rounds: the adaptive composition that the event's cost covers (docs/accounting.md, section 17).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from accounting.events import NoisyMax
from aggregation import journal
from aggregation.answering import answer_some, most_asked
from aggregation.journal import Asked, Round
from aggregation.mechanisms import ABSTAINED, WHOLE
from aggregation.noise import Source
from data.errors import UserError

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Allowance:
    """The most queries asked and answered from the first round through this one."""

    queries: int
    answers: int


@dataclass(frozen=True)
class Released:
    """The queries asked in all rounds, in order, (Q,) each, and what is said of them.

    ``labels``: int32, -1 for none. ``sources``: teachers, student or abstained. ``rounds``: numbers from 0.
    """

    rows: np.ndarray
    labels: np.ndarray
    sources: np.ndarray
    rounds: np.ndarray


def allowances(event: NoisyMax, queries: int, rounds: int) -> tuple[Allowance, ...]:
    """Of each of R rounds: through round r at most ceil(Q r / R) of the Q queries and ceil(K r / R) of the K answers.

    A function of settings alone. What an early round leaves unused, later ones may use.

    >>> from accounting.events import GNMax
    >>> [a.queries for a in allowances(GNMax(1.0, 20), 20, 3)]
    [7, 14, 20]
    """
    asked = min(queries, most_asked(event))
    return tuple(Allowance(-(-asked * r // rounds), -(-event.answers * r // rounds)) for r in range(1, rounds + 1))


def answer_rounds(
    event: NoisyMax,
    plan: tuple[Allowance, ...],
    journal_path: Path,
    choose: Callable[[int, tuple[Round, ...], int], Asked],
    votes: Callable[[Asked], np.ndarray],
    finished: Callable[[tuple[Round, ...]], None],
    progress: Callable[[int], Progress] = lambda number: lambda done, total: None,
    source: Source = os.urandom,
) -> tuple[Round, ...]:
    """The finished rounds; ``rows`` and ``student`` of each hold what was asked, not what was not any more.

    Continues the journal at ``journal_path``: rounds and outcomes that it holds are replayed. ``choose(number,
    finished rounds, count)`` says what the next round asks, at most ``count`` queries: it is told of nothing else that
    depends on votes. It is journalled before ``votes(asked)`` (Q, C) are looked at. ``finished(rounds)`` is called when
    a round ends, replayed or not, and before anything is computed from its outcomes; what it raises ends the run.
    """
    rounds: tuple[Round, ...] = ()
    for number, allowed in enumerate(plan):
        outcomes = np.concatenate([np.zeros(0, np.int32), *(each.outcomes for each in rounds)])
        answered = int((outcomes != ABSTAINED).sum())
        count, answers = allowed.queries - len(outcomes), allowed.answers - answered
        if count <= 0 or answers <= 0:
            continue
        held = _held(journal_path, number)
        if held is None:
            held = Round(choose(number, rounds, count), np.zeros(0, np.int32))
            _check(held.asked, number, count)
            journal.ask(journal_path, held.asked)
        asked = held.asked
        drawn = answer_some(
            votes(asked),
            event,
            journal_path,
            len(outcomes),
            held.outcomes,
            answers,
            student=asked.student,
            progress=progress(number),
            source=source,
        )
        rounds = (*rounds, trimmed(Round(asked, drawn)))
        finished(rounds)
    return rounds


def trimmed(each: Round) -> Round:
    """The round less the queries that were not asked: they may be chosen again."""
    asked, count = each.asked, len(each.outcomes)
    student = None if asked.student is None else asked.student[:count]
    return Round(Asked(asked.number, asked.rows[:count], student), each.outcomes)


def released(rounds: tuple[Round, ...], confidence: float) -> Released:
    """What is said of the queries asked: post-processing of outcomes and of the student's predictions.

    Where the test failed and the student's largest probability is above ``confidence``, its class is the label.
    """
    labels, sources = [np.zeros(0, np.int32)], [np.zeros(0, "U9")]
    for each in rounds:
        label, source = each.outcomes.copy(), np.where(each.outcomes == ABSTAINED, "abstained", "teachers")
        if each.asked.student is not None:
            kept = (label == ABSTAINED) & (each.asked.student.max(axis=1) > confidence * WHOLE)
            label[kept], source[kept] = each.asked.student.argmax(axis=1)[kept], "student"
        labels.append(label)
        sources.append(source)
    numbers = [np.full(len(each.outcomes), each.asked.number, np.int32) for each in rounds]
    rows = [np.zeros(0, np.int64), *(each.asked.rows for each in rounds)]
    return Released(*map(np.concatenate, (rows, labels, sources, [np.zeros(0, np.int32), *numbers])))


def _held(path: Path, number: int) -> Round | None:
    state = journal.read_rounds(path)
    if state is None:
        raise UserError(f"{path}: no such file")
    return next((each for each in state[1] if each.asked.number == number), None)


def _check(asked: Asked, number: int, count: int) -> None:
    if asked.number != number or not 0 < len(asked.rows) <= count:
        raise ValueError(f"round {number} must ask between 1 and {count} queries")
