"""How many queries a planned mechanism would answer, and how often its label is the teachers' plurality.

From an assumed consensus, or from the votes of a *public* pilot. The mechanism's outcome law is the exact one
(:mod:`accounting.outcomes`); queries are taken to be drawn at random from those described.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from accounting import tested
from accounting.events import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax, NoisyMax
from accounting.outcomes import log_test, log_winner, statistic
from data.errors import UserError
from flows.votes_file import blocks

Array = NDArray[np.float64]


def forecast(
    event: NoisyMax, teachers: int, classes: int, consensus: float | None, pilot: Path | None
) -> dict[str, Any]:
    """{expected_answered, label_agreement, forecast_from}.

    Args:
        event: what is planned; not Interactive-GNMax, whose test depends on a student.
        consensus: the share of votes for the plurality's class in every query; the others split the rest evenly.
        pilot: a file of vote counts, queries by classes, by as many teachers as are planned.
    """
    if isinstance(event, InteractiveGNMax):
        raise UserError("--consensus, --pilot: interactive-gnmax answers by what its student predicts: no forecast")
    if consensus is not None:
        votes = assumed_votes(teachers, classes, consensus)
        said = f"an assumed consensus of {100 * consensus:g}% on every query, the other votes spread evenly"
    else:
        assert pilot is not None
        votes = pilot_votes(pilot, teachers, classes)
        said = f"the {len(votes)} queries of the pilot"
    answered, agreement = outcomes(votes, event)
    return {"expected_answered": answered, "label_agreement": agreement, "forecast_from": said}


def assumed_votes(teachers: int, classes: int, consensus: float) -> Array:
    """One histogram, (1, C): ``consensus`` of the votes, rounded, for one class, the others' as even as possible.

    >>> assumed_votes(250, 4, 0.9).tolist()
    [[225.0, 9.0, 8.0, 8.0]]
    """
    if not 1 / classes < consensus <= 1:
        raise UserError(f"--consensus = {consensus!r}: must be above 1/{classes}, an even vote, and at most 1")
    # At least an even share, which rounding might fall below.
    first = max(round(teachers * consensus), -(-teachers // classes))
    share, more = divmod(teachers - first, classes - 1)
    return np.array([[first, *(share + (k < more) for k in range(classes - 1))]], dtype=float)


def pilot_votes(file: Path, teachers: int, classes: int) -> Array:
    """The pilot's histograms, (Q, C); they must be of the planned numbers of teachers and classes."""
    if not file.is_file():
        raise UserError(f"--pilot = {str(file)!r}: no such file")
    votes = np.concatenate(list(blocks(file)))
    if votes.shape[1] != classes:
        raise UserError(f"--pilot = {str(file)!r}: has {votes.shape[1]} columns, must have --classes = {classes}")
    if not np.all(votes.sum(axis=1) == teachers):
        raise UserError(f"--pilot = {str(file)!r}: every row must sum to --teachers = {teachers}")
    return votes


def tested_release(event: NoisyMax, pilot: Path, delta: float, epsilon: float) -> dict[str, Any] | None:
    """The cheapest propose-test-release that the pilot's votes would pass, and whether it beats ``epsilon``.

    It is planned on public votes, so its parameters may be set for private ones. None where there is no such plan:
    for other mechanisms than gnmax and confident-gnmax, a pilot of fewer queries than the cap, or no test of use.
    """
    if not isinstance(event, GNMax | ConfidentGNMax):
        return None
    queries = event.queries if isinstance(event, ConfidentGNMax) else event.answers
    votes = np.concatenate(list(blocks(pilot, queries)))
    if len(votes) < queries:
        return None
    try:
        found = tested.plan(votes, event, delta)
    except UserError:
        return None
    parameters = ("epsilon", "order", "rho", "sigma_d", "test_delta", "pass_probability")
    return {**{name: getattr(found, name) for name in parameters}, "pays": found.epsilon < epsilon}


def outcomes(votes: Array, event: NoisyMax) -> tuple[float, float | None]:
    """(expected answers at the caps, chance that an answer is the plurality's), queries drawn at random from ``votes``.

    The chance is None where no query would be answered. Where several classes tie at the top, any of them is right.
    """
    wins = np.exp(log_winner(_near_top(votes, event), event))
    right = np.where(votes == votes.max(axis=1, keepdims=True), wins, 0.0).sum(axis=1)
    if not isinstance(event, ConfidentGNMax):
        return float(event.answers), min(float(right.mean()), 1.0)
    passes = np.exp(log_test(statistic(votes, event), event)[1])
    share = float(passes.mean())
    # E min(N, K) = sum over i < K of Pr[N > i], N ~ Binomial(queries, share) tests passed.
    answered = float(binom.sf(np.arange(event.answers), event.queries, share).sum())
    return answered, min(float((passes * right).sum() / passes.sum()), 1.0) if share else None


def _near_top(votes: Array, event: NoisyMax) -> Array:
    """A single histogram with counts so far behind that they never win (e^-60) drawn closer: the quadrature's grid is
    as long as the votes are apart."""
    if len(votes) > 1:
        return votes
    noise = event.scale if isinstance(event, LNMax) else event.sigma
    return np.maximum(votes, votes.max() - np.ceil(60 * noise))
