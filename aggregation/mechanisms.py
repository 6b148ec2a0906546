"""The noisy-max mechanisms: vote counts in, labels and abstentions out, under an event of ``accounting.events``.

LNMax (arXiv 1610.05755, section 2), GNMax and Confident-GNMax (arXiv 1802.08908, Algorithm 1). Everything random
comes from ``aggregation.noise``. What is returned may be released once the event is on the ledger; nothing else
that is computed here leaves.
"""

import os

import numpy as np
from numpy.typing import NDArray

from accounting.events import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax, NoisyMax
from aggregation.noise import Source, argmax, at_least
from data.errors import UserError

ABSTAINED = -1


def answer(
    votes: NDArray[np.integer], event: NoisyMax, remaining: int, source: Source = os.urandom
) -> NDArray[np.int32]:
    """Outcomes of the first queries of a batch: the label, or ABSTAINED where Confident-GNMax's test failed.

    votes: q x C counts per class, one row a query. remaining: how many answers may still be given. The batch
    ends with the query that receives the last of them, so fewer than q rows may come back (none for
    remaining = 0): the other queries were not asked and cost nothing. Errors show no count: votes are private.

    One query, T = event.threshold: abstain unless max_j v_j + N(0, threshold_sigma^2) >= T, else answer
    argmax_j v_j + N(0, sigma^2), the noise independent of the test's. GNMax and LNMax answer every query.

    The law is that of asking the queries one by one. There, query i is asked iff fewer than ``remaining`` tests
    before it passed, which the tests alone decide, and all noise is independent. To draw the tests of the whole
    batch first, and then the answers of the queries up to the cut-off, is the same independent draws in another
    order, and the rows returned are the same function of them. A test drawn for a query beyond the cut-off
    enters nothing that is returned; it is forgotten, so it is neither a release nor a cost.
    """
    counts = _counts(votes)
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
            return _confident(counts, event, int(remaining), source)
        case InteractiveGNMax():
            raise UserError("mechanism = 'interactive-gnmax': its test needs the student's predictions too")


def _confident(counts: NDArray[np.int64], event: ConfidentGNMax, remaining: int, source: Source) -> NDArray[np.int32]:
    if len(counts) > event.queries:
        raise UserError(f"votes: {len(counts)} queries, must be at most the event's {event.queries}")
    passed = at_least(counts.max(axis=1), event.threshold, event.threshold_sigma, source)
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
