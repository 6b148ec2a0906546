"""The noisy-max mechanisms: vote counts in, labels and abstentions out, under an event of ``accounting.events``.

LNMax (arXiv 1610.05755, section 2), GNMax, Confident-GNMax and Interactive-GNMax (arXiv 1802.08908, Algorithms 1 and
2). Everything random comes from ``aggregation.noise``. What is returned may be released once the event is on the
ledger; nothing else that is computed here leaves.
"""

import os

import numpy as np
from numpy.typing import NDArray

from accounting.events import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax, NoisyMax, Thresholded
from aggregation.noise import Source, argmax, at_least
from data.errors import UserError

ABSTAINED = -1
WHOLE = 1 << 20
"""A student's probability is a whole number of parts, WHOLE of them being 1."""
_MOST_TEACHERS = 2**32


def parts(probabilities: NDArray[np.floating]) -> NDArray[np.int64]:
    """A student's probabilities (q, C), each rounded to whole multiples of 1/WHOLE, as these whole numbers."""
    shown = np.asarray(probabilities, dtype=np.float64)
    if shown.ndim != 2 or not np.all((shown >= 0) & (shown <= 1)):
        raise UserError("student: probabilities must be queries x classes, each a number between 0 and 1")
    return np.rint(shown * WHOLE).astype(np.int64)


def answer(
    votes: NDArray[np.integer],
    event: NoisyMax,
    remaining: int,
    source: Source = os.urandom,
    *,
    student: NDArray[np.int64] | None = None,
) -> NDArray[np.int32]:
    """Outcomes of the first queries of a batch: the label, or ABSTAINED where the test failed.

    votes: q x C counts per class, one row a query. remaining: how many answers may still be given. The batch
    ends with the query that receives the last of them, so fewer than q rows may come back (none for
    remaining = 0): the other queries were not asked and cost nothing. Errors show no count: votes are private.

    One query, T = event.threshold: abstain unless max_j v_j + N(0, threshold_sigma^2) >= T, else answer
    argmax_j v_j + N(0, sigma^2), the noise independent of the test's. GNMax and LNMax answer every query.
    Interactive-GNMax tests max_j (v_j - n p_j): ``student`` (q, C) holds p in :func:`parts`, fixed by what was released
    before; without it p = 0, for want of a student, and the test is Confident-GNMax's. Whether the student's own label
    stands where the test failed is a function of p and of that (:func:`aggregation.rounds.released`).

    The law is that of asking the queries one by one. There, query i is asked iff fewer than ``remaining`` tests
    before it passed, which the tests alone decide, and all noise is independent. To draw the tests of the whole
    batch first, and then the answers of the queries up to the cut-off, is the same independent draws in another
    order, and the rows returned are the same function of them. A test drawn for a query beyond the cut-off
    enters nothing that is returned; it is forgotten, so it is neither a release nor a cost.
    """
    counts = _counts(votes)
    if student is not None and not isinstance(event, InteractiveGNMax):
        raise UserError("student: only interactive-gnmax compares votes with a student")
    if (
        isinstance(remaining, bool)
        or not isinstance(remaining, int | np.integer)
        or not 0 <= remaining <= event.answers
    ):
        raise UserError(
            f"remaining = {remaining!r}: must be a whole number from 0 to the event's {event.answers} answers"
        )
    match event:
        case LNMax():
            return argmax(counts[:remaining], event.scale, "laplace", source)
        case GNMax():
            return argmax(counts[:remaining], event.sigma, "gaussian", source)
        case ConfidentGNMax():
            return _tested(counts, counts.max(axis=1), event, int(remaining), source)
        case InteractiveGNMax():
            return _tested(counts, disagreement(counts, student), event, int(remaining), source)


def disagreement(counts: NDArray[np.int64], student: NDArray[np.int64] | None) -> NDArray[np.float64]:
    """max_j (v_j - n p_j) of each query, (q,), exact: WHOLE v_j - n (WHOLE p_j) is a whole number below 2^53.

    PRIVATE. It moves by at most 1 where a vote moves, in the program as in the proof (docs/accounting.md, section 17).
    """
    if student is None:
        student = np.zeros_like(counts)
    if student.shape != counts.shape or not np.issubdtype(student.dtype, np.integer):
        raise UserError("student: must give each query a whole number of parts for each class")
    if student.size and not (student.min() >= 0 and student.max() <= WHOLE):
        raise UserError(f"student: every probability must be from 0 to {WHOLE} parts")
    teachers = counts[:1].sum()
    if not np.all(counts.sum(axis=1) == teachers) or teachers > _MOST_TEACHERS:
        raise UserError("votes: every row must sum to the number of teachers, at most 2^32")
    return (WHOLE * counts - teachers * student).max(axis=1) / WHOLE


def _tested(
    counts: NDArray[np.int64],
    statistic: NDArray[np.integer] | NDArray[np.floating],
    event: Thresholded,
    remaining: int,
    source: Source,
) -> NDArray[np.int32]:
    if len(counts) > event.queries:
        raise UserError(f"votes: {len(counts)} queries, must be at most the event's {event.queries}")
    passed = at_least(statistic, event.threshold, event.threshold_sigma, source)
    asked = _asked(passed, remaining)
    outcomes = np.full(asked, ABSTAINED, dtype=np.int32)
    answered = passed[:asked]
    outcomes[answered] = argmax(counts[:asked][answered], event.sigma, "gaussian", source)
    return outcomes


def _asked(passed: NDArray[np.bool_], remaining: int) -> int:
    """How many queries are asked: up to and with the one whose test is the ``remaining``-th to pass."""
    if remaining == 0:
        return 0
    passes = np.flatnonzero(passed)
    return len(passed) if len(passes) < remaining else int(passes[remaining - 1]) + 1


def _counts(votes: NDArray[np.integer]) -> NDArray[np.int64]:
    votes = np.asarray(votes)
    if votes.ndim != 2 or votes.shape[1] < 2:
        raise UserError(f"votes of shape {votes.shape}: must be queries x classes, at least 2 classes")
    if not np.issubdtype(votes.dtype, np.integer):
        raise UserError(f"votes of type {votes.dtype}: must be whole numbers (an integer type)")
    if votes.size and votes.min() < 0:
        raise UserError("votes: every count must be at least 0")
    if votes.size and votes.max() > 2**53:
        raise UserError("votes: every count must be at most 2^53")
    return votes.astype(np.int64)
