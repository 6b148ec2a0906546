"""``pate check``: what the settings and counts alone tell before anything private is trained. The curator's output."""

import dataclasses
from typing import Any

import numpy as np

from accounting.statement import rounded_up
from data.errors import UserError
from data.partition import forecast
from data.private import ignored_columns
from data.public import table_encoder
from data.split import rows_of, units_at
from flows import charges
from flows.settings import Settings

FEW_UNITS_A_SHARD = 10


def forecast_run(settings: Settings) -> dict[str, Any]:
    """Units, shard sizes, published ε, what the ledger would hold, and warnings."""
    from flows import work

    work.check(settings)
    private = rows_of(settings.data, settings.seed, "private")
    public = rows_of(settings.data, settings.seed, "public")
    test = rows_of(settings.data, settings.seed, "test")
    if private is None or public is None:
        raise UserError("data.private, data.public: must be set")
    units = len(np.unique(units_at(settings.data, private, settings.seed)))
    if settings.teachers.count > units:
        raise UserError(f"teachers.count = {settings.teachers.count}: must be at most the number of private units")
    shards = forecast(units, settings.teachers.count)
    asked = charges.queries_asked(settings)
    published = charges.labels_guarantee(settings)
    budget = charges.outlook(settings)
    warnings = []
    if settings.aggregation.delta >= 1 / units:
        warnings.append(f"aggregation.delta = {settings.aggregation.delta:g}: should be well below 1/units")
    if shards.low < FEW_UNITS_A_SHARD:
        warnings.append(
            f"teachers.count = {settings.teachers.count}: many shards will hold under {FEW_UNITS_A_SHARD} units"
        )
    if shards.expected_empty >= 0.5:
        warnings.append(f"about {shards.expected_empty:.0f} shards will be empty and cast the vote teachers.empty_vote")
    if shards.low < 3 * len(settings.data.class_names):
        warnings.append("some shards will likely lack a class")
    if not budget.after <= budget.limit:
        warnings.append("the ledger would refuse this run: labels and baseline together exceed the limit")
    mismatch = charges.account_mismatch(settings)
    if mismatch:
        warnings.append(f"the ledger would refuse this run: {mismatch}")
    ignored = ignored_columns(settings.data, table_encoder(settings.data, settings.seed))
    if ignored:
        warnings.append(f"the public file has no column {', '.join(ignored)}: not used")
    return {
        "run": settings.name,
        "records": len(private.rows),
        "public": len(public.rows),
        "test": 0 if test is None else len(test.rows),
        "shards": dataclasses.asdict(shards),
        "asked": asked,
        "epsilon": published.epsilon,
        "delta": published.delta,
        "ledger_spent": budget.spent,
        "ledger_after": budget.after,
        "ledger_limit": budget.limit,
        "warnings": warnings,
    }


def rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The forecast as labelled lines."""
    shards = result["shards"]
    return [
        ("private units, records", f"{shards['units']}, {result['records']}"),
        ("public inputs, test inputs", f"{result['public']}, {result['test']}"),
        ("units a shard", f"{shards['mean']:.1f} (95% of shards: {shards['low']} to {shards['high']})"),
        ("published ε, δ at the caps", f"{rounded_up(result['epsilon'])}, {result['delta']:g}"),
        (
            "ledger: ε spent, after this run, limit",
            f"{rounded_up(result['ledger_spent'])}, {rounded_up(result['ledger_after'])}, {result['ledger_limit']:g}",
        ),
    ]
