"""The aggregate stage of a run in several rounds: ask, answer, train a student on what was released, ask again.

Neighbouring datasets differ in one private unit, hence one teacher's votes. One event at the caps of all rounds pays,
charged before the first. Each round is journalled and on the ledger before anything is computed from its outcomes;
``release/`` is written when all are, under the committed charge (docs/accounting.md, section 17).
"""

import functools
from dataclasses import dataclass

import numpy as np

from accounting.events import NoisyMax
from accounting.ledger import Ledger
from accounting.ledger_rows import COMMITTED, DRAWING, Reservation
from accounting.statement import parquet_metadata
from aggregation import journal
from aggregation.journal import Asked, Round
from aggregation.rounds import answer_rounds, released, trimmed
from data.artifacts import read_queries, read_votes, write_labels, write_queries, write_votes
from data.examples import Examples
from data.public import load_public
from flows import charges, encoding
from flows.context import Context
from flows.statement import labels_statement
from flows.voting import rows_with_ids, votes_on

FIRST_QUERIES, FIRST_VOTES = "queries-first.parquet", "votes-first.parquet"
INTERACTIVE = "interactive-gnmax"


@dataclass(frozen=True)
class First:
    """What earlier stages left for the first round: the public part, the rows chosen (Q,), and the votes (Q, C)."""

    public: Examples
    rows: np.ndarray
    votes: np.ndarray


def read_first(context: Context) -> First:
    """Read it. PRIVATE: it holds votes."""
    public = load_public(context.settings.data, context.settings.seed)
    rows = rows_with_ids(public, read_queries(context.run.release / FIRST_QUERIES))
    return First(public, rows, read_votes(context.run.private / FIRST_VOTES))


def outcome(context: Context, reservation: str, rounds: tuple[Round, ...]) -> str:
    """A keyed digest of what was asked and drawn in these rounds."""
    drawn = [
        [
            each.asked.number,
            each.asked.rows.tolist(),
            None if each.asked.student is None else each.asked.student.tolist(),
            each.outcomes.tolist(),
        ]
        for each in rounds
    ]
    return context.keyed("rounds", reservation, drawn)


def known(context: Context, held: Reservation, rounds: tuple[Round, ...]) -> int | None:
    """How many of the journal's rounds the ledger knows of: 0 of a charge without an outcome; None: it knows others.

    A committed charge must know all of them.
    """
    if held.outcome is None:
        return 0
    whole = tuple(map(trimmed, rounds))
    first = len(whole) if held.state == COMMITTED else 1
    found = (k for k in range(first, len(whole) + 1) if outcome(context, held.id, whole[:k]) == held.outcome)
    return next(found, None)


def answer(context: Context, first: First, event: NoisyMax, ledger: Ledger, held: Reservation) -> None:
    """All rounds, replayed or drawn, under a charge whose journal was begun; commit, then release.

    Votes are written for the curator's report. Errors are those of the stages that this one repeats for later rounds.
    """
    settings, run = context.settings, context.run
    path = run.private / "outcomes.journal"
    state = journal.read_rounds(path)
    recorded = 0 if state is None else known(context, held, state[1]) or 0
    plan = charges.labels_rounds(settings)
    counts: list[np.ndarray] = []

    def voted(asked: Asked) -> np.ndarray:
        counts.append(_votes(context, first, asked, len(plan)))
        return counts[-1]

    def finished(rounds: tuple[Round, ...]) -> None:
        if held.state == DRAWING and len(rounds) > recorded:
            before = outcome(context, held.id, rounds[:-1]) if len(rounds) > 1 else None
            ledger.advance(held.id, outcome(context, held.id, rounds), before)
            context.console.say(_said(context, rounds, len(plan)))

    rounds = answer_rounds(
        event,
        plan,
        path,
        functools.partial(_choose, context, first),
        voted,
        finished,
        progress=lambda number: context.console.bar(f"aggregate, {_named(number, len(plan))}"),
    )
    digest = outcome(context, held.id, rounds)
    ledger.commit(held.id, digest, after=digest)
    found = released(rounds, settings.aggregation.sure)
    of_asked = [votes[: len(each.outcomes)] for votes, each in zip(counts, rounds, strict=True)]
    write_votes(run.private / "votes.parquet", np.concatenate(of_asked))
    ids = first.public.ids[found.rows]
    write_queries(run.release / "queries.parquet", ids, found.rounds)
    write_labels(
        run.release / "labels.parquet",
        ids,
        found.labels,
        parquet_metadata(labels_statement(settings, ledger)),
        sources=found.sources,
        rounds=found.rounds,
    )


def student_parts(context: Context) -> np.ndarray | None:
    """The student's predictions (Q, C) that the votes were compared with, as parts; None for other mechanisms."""
    if context.settings.aggregation.mechanism != INTERACTIVE:
        return None
    state = journal.read_rounds(context.run.private / "outcomes.journal")
    classes = len(context.settings.data.class_names)
    rounds = () if state is None else tuple(map(trimmed, state[1]))
    parts: list[np.ndarray] = [
        np.zeros((len(each.outcomes), classes), np.int64) if each.asked.student is None else each.asked.student
        for each in rounds
    ]
    return np.concatenate([np.zeros((0, classes), np.int64), *parts])


def _choose(context: Context, first: First, number: int, rounds: tuple[Round, ...], count: int) -> Asked:
    """What a round asks, from what earlier ones released; the first was chosen by the queries stage."""
    from student.interim import next_round

    settings = context.settings
    if number == 0:
        return Asked(0, first.rows[:count])
    earlier = released(rounds, settings.aggregation.sure)
    return next_round(
        first.public,
        earlier.rows,
        earlier.labels,
        number,
        count,
        settings.queries,
        settings.student,
        settings.seed,
        len(settings.data.class_names),
        predictions=settings.aggregation.mechanism == INTERACTIVE,
        progress=context.console.bar(f"student before round {number + 1}"),
        encoder=encoding.encoder_of(settings, context.encoder),
    )


def _votes(context: Context, first: First, asked: Asked, all_rounds: int) -> np.ndarray:
    """The votes (Q, C) on what a round asks, which is in the journal by now. PRIVATE."""
    if asked.number == 0:
        return first.votes[: len(asked.rows)]
    return votes_on(context, first.public, asked.rows, f"vote, {_named(asked.number, all_rounds)}")


def _named(number: int, all_rounds: int) -> str:
    return f"round {number + 1} of {all_rounds}"


def _said(context: Context, rounds: tuple[Round, ...], all_rounds: int) -> str:
    """What a round gave, from its outcomes: they are on the ledger."""
    found = released(rounds[-1:], context.settings.aggregation.sure)
    counts = {source: int((found.sources == source).sum()) for source in ("teachers", "student", "abstained")}
    kept = f", {counts['student']} kept the student's label" if counts["student"] else ""
    return (
        f"aggregate: {_named(rounds[-1].asked.number, all_rounds)}: {len(found.rows)} asked, "
        f"{counts['teachers']} answered{kept}, {counts['abstained']} abstained"
    )
