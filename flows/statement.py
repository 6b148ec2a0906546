"""The privacy statement of a run, from its settings and the ledger alone."""

import dataclasses
from typing import Literal

from accounting.cost import guarantee
from accounting.ledger import Ledger
from accounting.statement import Baseline, Statement
from flows import charges
from flows.settings import Settings
from student.pretraining_settings import CONTRASTIVE
from teachers.settings import VOTES


def labels_statement(settings: Settings, ledger: Ledger) -> Statement:
    """The statement of the labels alone: what travels inside labels.parquet."""
    event = charges.labels_event(settings)
    published = guarantee(event, settings.aggregation.delta)
    return Statement(
        run=settings.name,
        unit=settings.unit,
        classes=settings.data.class_names,
        event=event,
        epsilon=published.epsilon,
        delta=published.delta,
        method="recursion" if published.order is None else "rdp",
        order=published.order,
        ledger=ledger.standing(settings.data.name),
        rounds=settings.queries.rounds,
        encoder=_encoder(settings),
        votes_given=settings.teachers.model.startswith(VOTES),
    )


def run_statement(settings: Settings, ledger: Ledger) -> Statement:
    """The statement of the run: labels, and the DP-SGD baseline where it is enabled."""
    statement = labels_statement(settings, ledger)
    if not settings.baseline.enabled:
        return statement
    event = charges.baseline_event(settings)
    epsilon = guarantee(event, settings.ledger_delta).epsilon
    return dataclasses.replace(statement, baseline=Baseline(event, epsilon, settings.ledger_delta))


def _encoder(settings: Settings) -> Literal["learned", "given"] | None:
    if not settings.pretraining.enabled:
        return None
    return "learned" if settings.pretraining.method == CONTRASTIVE else "given"
