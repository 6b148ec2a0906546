"""The answering loop: votes in, outcomes out, each batch journalled before anything is released.

Neighbours: one teacher's votes changed from any class to any class, in every query (v' = v - e_i + e_j). Released: for
each query asked, a label or an abstention, by the noisy max of the event. The stop at the cap on answers is a function
of what was released. The event at its caps pays, whatever was asked and answered.
"""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from accounting.events import NoisyMax, Thresholded
from aggregation import journal
from aggregation.mechanisms import ABSTAINED, answer
from aggregation.noise import Source
from data.errors import UserError

BATCH = 256


def most_asked(event: NoisyMax) -> int:
    """The cap on queries that the event was charged for."""
    return event.queries if isinstance(event, Thresholded) else event.answers


def answer_all(
    votes: np.ndarray,
    event: NoisyMax,
    journal_path: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
    source: Source = os.urandom,
) -> np.ndarray:
    """Outcomes (<= Q,) int32 of the votes (Q, C): labels, -1 for an abstention; nothing follows the last answer.

    Continues the journal at ``journal_path`` (which :func:`aggregation.journal.start` began): outcomes that it holds
    are replayed, others are drawn and journalled.
    """
    state = journal.read(journal_path)
    if state is None:
        raise UserError(f"{journal_path}: no such file")
    asked = votes[: most_asked(event)]
    return answer_some(asked, event, journal_path, 0, state[1], event.answers, progress=progress, source=source)


def answer_some(
    votes: np.ndarray,
    event: NoisyMax,
    journal_path: Path,
    first: int,
    outcomes: np.ndarray,
    answers: int,
    *,
    student: np.ndarray | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    source: Source = os.urandom,
) -> np.ndarray:
    """Outcomes (<= Q,) int32 of the queries ``first``, ``first`` + 1, … of the journal, at most ``answers`` answered.

    votes: (Q, C). outcomes: those of these queries that the journal, which ends with them, holds already. student:
    (Q, C) parts, for Interactive-GNMax.
    """
    queries = len(votes)
    if len(outcomes) > queries:
        raise UserError(f"{journal_path}: holds more outcomes than queries; restore it, or delete it and rerun")
    while len(outcomes) < queries:
        remaining = answers - int((outcomes != ABSTAINED).sum())
        if remaining <= 0:
            break
        batch = slice(len(outcomes), min(len(outcomes) + BATCH, queries))
        compared = None if student is None else student[batch]
        drawn = answer(votes[batch], event, remaining, source, student=compared)
        journal.append(journal_path, first + len(outcomes), drawn)
        outcomes = np.concatenate([outcomes, drawn])
        progress(len(outcomes), queries)
    return outcomes
