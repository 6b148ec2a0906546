"""What a refused charge says, in one line: what is spent, what was asked, what would admit it."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row

from accounting.ledger_rows import Request
from accounting.statement import rounded_up


def over_limit(row: Row[Any], requests: Sequence[Request], spent: float, total: float, limit: float) -> str:
    """``spent`` and ``total``: the dataset's epsilon before and with these requests; ``limit``: the one that held."""
    runs = list(dict.fromkeys(request.run for request in requests))
    others = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    wanted = " and ".join(f"{request.stage} (epsilon {rounded_up(request.epsilon)})" for request in requests)
    return (
        f"ledger: dataset {row.name!r} has spent epsilon {rounded_up(spent)} of its limit {limit:.4f} at delta "
        f"{row.delta:g}; asked: {wanted} of run {runs[0]!r}{others}, which would make it {rounded_up(total)} at the "
        f"ledger's order {row.order:.4g}; nothing was spent, nothing released "
        + (
            "(the settings' ledger.epsilon is the smaller limit)"
            if limit < row.limit_epsilon
            else "(`pate ledger limit` raises the stored limit)"
        )
    )


def over_tested_delta(row: Row[Any], requests: Sequence[Request], fails: float) -> str:
    """``fails``: the sum of what all tests of the dataset, these requests' included, may fail with."""
    return (
        f"ledger: dataset {row.name!r} was opened with {row.tested_delta:g} of its delta set aside for tests "
        f"(ledger.tested_delta); run {requests[0].run!r} would make what they may fail with {fails:g}; nothing was "
        "spent, nothing released"
    )
