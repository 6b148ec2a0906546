"""What a flow run is called in Prefect: the run, its stage, and the labels' published ε and δ, from settings alone."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from accounting.cost import guarantee
from accounting.statement import rounded_up
from aggregation.settings import event
from flows.config import resolved
from flows.settings import Settings


def flow_run_name(parameters: Mapping[str, Any], otherwise: str) -> str:
    """``digits ε=2.735 δ=1e-4``, ``digits aggregate ε=…``; ``otherwise`` where the settings will not do.

    A name never fails a run: what is wrong with the settings is said by the run itself.

    >>> data = {"name": "demo", "source": "digits", "private": 1197, "public": 400}
    >>> mechanism = {"mechanism": "gnmax", "sigma": 7, "delta": 1e-4}
    >>> config = {"name": "demo", "data": data, "ledger": {"epsilon": 9}, "aggregation": mechanism}
    >>> flow_run_name({"config": config | {"queries": {"count": 20}}, "stage": "vote"}, "a name")
    'demo vote ε=2.735 δ=1e-4'
    >>> flow_run_name({"config": config}, "a name"), flow_run_name({"config": {}}, "a name")
    ('demo', 'a name')
    """
    try:
        settings = resolved(parameters.get("config"), parameters.get("run"))
        stage = parameters.get("stage")
        return " ".join([settings.name, *([str(stage)] if stage else []), *_guarantee(settings)])
    except Exception:
        return otherwise


def _guarantee(settings: Settings) -> list[str]:
    """The labels' ε at the caps, rounded up, and δ; nothing where the caps would have to be read from the data."""
    asked = settings.queries.count or settings.aggregation.max_queries
    if asked is None:
        return []
    delta = settings.aggregation.delta
    epsilon = guarantee(event(settings.aggregation, asked), delta).epsilon
    return [f"ε={rounded_up(epsilon)}", f"δ={np.format_float_scientific(delta, trim='-', exp_digits=1)}"]
