"""A finished run directory, made by the pipeline's own writers from made-up votes: what the report stage reads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from accounting.events import ConfidentGNMax, event_to_dict
from accounting.statement import parquet_metadata
from data import images
from data.artifacts import write_labels, write_queries, write_votes
from data.examples import as_matrix
from data.partition import Partition, write_partition
from data.public import load_public
from data.store import Run, write_json
from flows import charges, config
from flows.console import console
from flows.context import Context, key_of, run_of
from flows.settings import Settings
from flows.statement import labels_statement
from teachers import networks, saved

MODEL = "sklearn:sklearn.linear_model.LogisticRegression"
Outcomes = Callable[[np.ndarray], np.ndarray]


def settings_of(root: Path, **changes: Any) -> Settings:
    """Settings of a Confident-GNMax run on digits; ``data__test=None`` changes data.test."""
    record: dict[str, Any] = {
        "name": "demo",
        "run_root": str(root),
        "data": {"name": "digits", "private": 1197, "public": 400, "test": 200},
        "ledger": {"epsilon": 12.0},
        "teachers": {"count": 50},
        "queries": {"strategy": "random", "count": 120},
        "aggregation": {
            "mechanism": "confident-gnmax",
            "sigma": 12.0,
            "threshold": 30.0,
            "threshold_sigma": 15.0,
            "max_answers": 80,
            "delta": 1e-4,
        },
        "student": {"method": "supervised", "model": MODEL},
        "baseline": {"sampling_rate": 1.0, "steps": 10},
    }
    for name, value in changes.items():
        part, _, field = name.partition("__")
        if field:
            record[part] = record.get(part, {}) | {field: value}
        else:
            record[part] = value
    return config.build(record)


def evaluation(accuracy: float, count: int = 200, classes: int = 10) -> dict[str, Any]:
    """An evaluation as models' descriptions hold it."""
    half = 1.96 * (accuracy * (1 - accuracy) / count) ** 0.5
    per_class = np.linspace(accuracy - 0.05, min(accuracy + 0.05, 1.0), classes).round(4).tolist()
    low, high = max(accuracy - half, 0.0), min(accuracy + half, 1.0)
    part = {"accuracy": accuracy, "low": low, "high": high, "count": count, "per_class": per_class}
    return part | {"subgroups": []}


def finished(settings: Settings) -> Context:
    """The run directory of the settings with everything in it but what the report stage writes."""
    run = run_of(settings)
    run.create()
    context = Context(settings, run, key_of(settings), "0123456789ab", console(quiet=True))
    ledger, _ = charges.open_account(settings)
    _, held = charges.charge(context, "aggregate", charges.labels_event(settings))
    ledger.bind(held.id, "votes")

    _answer(context)
    ledger.commit(held.id, "outcome")
    if settings.baseline.enabled:
        _train_baseline(context)
    return context


def write_votes_and_partition(run: Run, settings: Settings, seed: int) -> np.ndarray:
    """Made-up private files; returns the votes (Q, C)."""
    generator = np.random.default_rng(seed)
    teachers, classes = settings.teachers.count, len(settings.data.class_names)
    queries = charges.queries_asked(settings)
    certainty = generator.beta(4, 1.3, queries)
    shares = (1 - certainty[:, None]) * generator.dirichlet(np.ones(classes), queries)
    shares[np.arange(queries), generator.integers(classes, size=queries)] += certainty
    votes = np.array([generator.multinomial(teachers, row) for row in shares])
    write_votes(run.private / "votes.parquet", votes)
    units = np.array([f"{n:064x}" for n in range(1197)], dtype="S")
    write_partition(run.private / "partition.parquet", Partition(units, generator.integers(teachers, size=len(units))))
    return votes


def _answer(context: Context) -> None:
    settings, run = context.settings, context.run
    votes = write_votes_and_partition(run, settings, seed=1)
    public = load_public(settings.data, settings.seed)
    ids = public.ids[np.random.default_rng(0).permutation(len(public.ids))[: len(votes)]]
    write_queries(run.release / "queries.parquet", ids)

    event = charges.labels_event(settings)
    truth = images.labels(settings.data, "all", ids) if settings.data.source == "digits" else votes.argmax(1)
    outcomes = truth.astype(np.int32)
    if isinstance(event, ConfidentGNMax):
        outcomes = np.where(votes.max(1) >= event.threshold, outcomes, -1)
    last = np.flatnonzero((outcomes >= 0).cumsum() >= event.answers)
    outcomes = outcomes[: last[0] + 1] if len(last) else outcomes
    ledger, _ = charges.open_account(settings)
    write_labels(run.release / "labels.parquet", ids, outcomes, parquet_metadata(labels_statement(settings, ledger)))

    rows = {value: at for at, value in enumerate(public.ids.tolist())}
    at = np.array([rows[value] for value in ids[: len(outcomes)].tolist()])
    answered = outcomes >= 0
    model = LogisticRegression(max_iter=200).fit(as_matrix(public.features[at[answered]]), outcomes[answered])
    measured = None if settings.data.test is None else evaluation(0.906)
    classes = len(settings.data.class_names)
    facts = {
        "classes": list(settings.data.class_names),
        "encoder": None,
        "method": settings.student.method,
        "evaluation": measured,
    }
    shape = public.features.shape[1:]
    saved.save(run.release / "student", model, saved.Description(MODEL, shape, classes, facts))
    if settings.data.public_benchmark:
        write_json(run.private / "nonprivate.json", {"evaluation": evaluation(0.9731)})


def _train_baseline(context: Context) -> None:
    settings, run = context.settings, context.run
    event = charges.baseline_event(settings)
    ledger, held = charges.charge(context, "baseline", event)
    ledger.bind(held.id, "partition")
    shape, classes = (1, 8, 8), len(settings.data.class_names)
    facts = {
        "classes": list(settings.data.class_names),
        "encoder": None,
        "epsilon": held.epsilon,
        "delta": settings.ledger_delta,
        "event": event_to_dict(event),
        "evaluation": None if settings.data.test is None else evaluation(0.812),
    }
    network = networks.build("logistic", shape, classes, 0)
    saved.save(run.release / "baseline", network, saved.Description("logistic", shape, classes, facts))
    ledger.commit(held.id, "outcome")
