"""``private/report-private.html``: what the curator may look at and nobody else.

PRIVATE: everything here is computed from votes, shards and other private files. It is written 0600 and never read
again; nothing of it may be copied into a release.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accounting import exact, outcomes, p18
from accounting.cost import Guarantee, guarantee
from accounting.data_dependent import Figure, epsilons
from accounting.events import NoisyMax
from accounting.orders import default_orders
from aggregation.mechanisms import WHOLE
from data.artifacts import read_labels, read_sources, read_votes
from data.partition import read_partition
from data.store import Run, read_json, write_text
from flows import charges, figures, pages, rounds
from flows.context import Context
from teachers import chunks

Array = NDArray[np.float64]
_NUMBERS = (
    ("data_dependent_p18", "as in the literature (P18, Theorem 6)"),
    ("data_dependent", "the one-atom bound, both directions"),
    ("data_dependent_exact", "the worst divergence from and to a neighbour"),
)


@dataclass(frozen=True)
class DataDependent:
    """ε of the queries asked on these votes, ex post, by name; ``per_query`` (Q,): exact RDP of each at ``order``."""

    figures: dict[str, Figure]
    order: float
    expected_answers: float
    per_query: Array


@dataclass(frozen=True)
class VoteFacts:
    """How sure the teachers were: plurality's votes and its lead over the second, (Q,) each, and agreement.

    ``agreement``: share of released labels that are the plurality's; None when nothing was answered.
    """

    largest: Array
    gap: Array
    agreement: float | None
    answered: int


@dataclass(frozen=True)
class ShardFacts:
    """Units in all and per shard (n,)."""

    units: int
    sizes: NDArray[np.int64]


def write(context: Context) -> None:
    """Write the private report (0600)."""
    settings, run = context.settings, context.run
    event, delta = charges.labels_event(settings), settings.aggregation.delta
    _, labels = read_labels(run.release / "labels.parquet")
    sources, _ = read_sources(run.release / "labels.parquet")
    votes = read_votes(run.private / "votes.parquet")[: len(labels)]
    facts = vote_facts(votes, np.where(sources == "teachers", labels, -1))
    parts = rounds.student_parts(context)
    spent = data_dependent(votes, event, delta, None if parts is None else parts / WHOLE)
    shards = _shard_facts(run, settings.teachers.count)
    text = pages.render(
        "report-private.html.j2",
        title=settings.report.title or settings.name,
        settings=settings,
        event=event,
        delta=delta,
        asked=len(labels),
        several=settings.queries.rounds > 1,
        facts=facts,
        spent=spent,
        bounds=_bounds(event, delta),
        numbers=_NUMBERS,
        shards=shards,
        too_large_delta=shards is not None and not delta < 1 / max(shards.units, 1),
        untrainable=_untrainable(run.private / "teachers"),
        nonprivate=_nonprivate(run),
        gap_figure=figures.histogram(facts.gap, "lead of the largest count over the second, votes"),
        largest_figure=figures.histogram(facts.largest, "largest count, votes"),
        cost_figure=figures.histogram(_log10(spent.per_query), "log₁₀ of a query's RDP", whole=False),
        quantiles=_quantiles(facts, spent),
    )
    write_text(run.private / "report-private.html", text)


def vote_facts(votes: NDArray[np.int64], labels: np.ndarray) -> VoteFacts:
    """From the votes (Q, C) and the teachers' released labels (Q,), -1 where they gave none. PRIVATE."""
    ordered = np.sort(votes, axis=1)
    answered = labels >= 0
    # Where several classes tie at the top, any of them is the plurality's choice.
    agrees = votes[answered, labels[answered]] == ordered[answered, -1]
    return VoteFacts(
        ordered[:, -1].astype(float),
        (ordered[:, -1] - ordered[:, -2]).astype(float),
        float(agrees.mean()) if answered.any() else None,
        int(answered.sum()),
    )


def data_dependent(
    votes: NDArray[np.int64], event: NoisyMax, delta: float, student: Array | None = None
) -> DataDependent:
    """The numbers of :mod:`accounting.data_dependent` over the queries asked, improved conversion. PRIVATE.

    ``student`` (Q, C): for Interactive-GNMax, the probabilities that the votes were compared with.
    """
    blocks: list[object] = [votes if student is None else (votes, student)]
    found = epsilons(blocks, event, default_orders(), delta)
    order = found["data_dependent_exact"].order
    per_query = exact.query_cost(votes, event, [order], student)[0][:, 0]
    compared = None if student is None else outcomes.statistic(votes, event, student)
    return DataDependent(found, order, p18.expected_answers(votes, event, compared), per_query)


def _bounds(event: NoisyMax, delta: float) -> tuple[Guarantee, Guarantee]:
    return guarantee(event, delta), guarantee(event, delta, "textbook")


def _shard_facts(run: Run, teachers: int) -> ShardFacts | None:
    path = run.private / "partition.parquet"
    if not path.exists():
        return None
    parts = read_partition(path)
    return ShardFacts(len(parts.units), np.bincount(parts.teachers, minlength=teachers))


def _untrainable(folder: Path) -> int | None:
    """Teachers that could not be trained, as the chunks say; None where there are no chunks."""
    index = chunks.read_index(folder)
    if index is None:
        return None
    files = [chunks.paths(folder, first, last)[1] for first, last in index.chunks]
    return sum(len(read_json(file).get("untrainable", ())) for file in files if file.exists())


def _nonprivate(run: Run) -> dict[str, Any] | None:
    path = run.private / "nonprivate.json"
    evaluation: dict[str, Any] | None = read_json(path)["evaluation"] if path.exists() else None
    return evaluation


def _log10(costs: Array) -> Array:
    """For a chart over many decades: below 1e-16 costs are rounding and are drawn there."""
    return np.log10(np.maximum(costs, 1e-16))


def _quantiles(facts: VoteFacts, spent: DataDependent) -> list[tuple[str, list[str]]]:
    rows = (("Largest count", facts.largest), ("Lead over the second", facts.gap), ("RDP of a query", spent.per_query))
    at = (0.0, 0.05, 0.5, 0.95, 1.0)
    return [(name, [f"{value:.3g}" for value in np.quantile(values, at)]) for name, values in rows]
