"""``pate ledger``: reading the budget ledger and changing limits."""

import dataclasses
import math
import warnings
from typing import Any

from accounting.ledger import Ledger, open_ledger
from accounting.ledger_rows import COUNTED, Account, Reservation, check_limit, check_named
from accounting.statement import rounded_up
from data.errors import UserError
from flows.charges import exists


def _existing(url: str) -> Ledger:
    """The ledger at a URL; one that is not there is not made."""
    if not exists(url):
        raise UserError(f"--ledger = {url!r}: no such ledger")
    return open_ledger(url)


def show(url: str, compositions: bool = False) -> dict[str, Any]:
    """Every dataset with its standing and events, and on request what each composition theorem makes of them."""
    ledger = _existing(url)
    datasets = []
    for account in ledger.accounts():
        charges = ledger.events(account.name)
        compared = {"compositions": _compositions(ledger, account, charges)} if compositions else {}
        events = [
            {
                "run": event.run,
                "stage": event.stage,
                "state": event.state,
                "epsilon": event.epsilon,
                "who": event.who,
                "when": event.when,
                "why": event.why,
            }
            for event in charges
        ]
        datasets.append(
            {
                "dataset": account.name,
                "unit": account.unit,
                "adjacency": account.adjacency,
                "delta": account.delta,
                "order": account.order,
                "spent": ledger.spent(account.name),
                "limit": account.limit,
                "events": events,
                **compared,
            }
        )
    return {"datasets": datasets}


def _compositions(ledger: Ledger, account: Account, charges: list[Reservation]) -> list[dict[str, Any]]:
    """The ledger's own number, then every theorem's, of all charges that count: {method, epsilon, delta, …}."""
    from accounting.composition import compositions

    standing = ledger.standing(account.name)
    limits = standing.limits or (standing.limit,)
    bound = f"({' + '.join(f'{limit:g}' for limit in limits)}, {len(limits) * account.delta:g})"
    counted = [charge for charge in charges if charge.state in COUNTED]
    with warnings.catch_warnings():
        # An order at the end of the grid: valid, and not the reader's concern.
        warnings.simplefilter("ignore")
        found = compositions(
            [charge.event for charge in counted],
            account.delta,
            [(charge.epsilon, charge.delta) for charge in counted],
        )
    own = {
        "method": "ledger",
        "epsilon": standing.spent,
        "delta": account.delta,
        "theorem": f"Rényi filter at order {account.order:.4g}, fixed at opening (Feldman and Zrnic 2020)",
        "assumes": f"nothing of when runs were chosen: all together are within (ε, δ) = {bound}, the limit, even if "
        "later ones were chosen after seeing earlier ones",
    }
    return [own, *(dataclasses.asdict(each) for each in found)]


def show_rows(result: dict[str, Any]) -> list[str]:
    """The ledger as lines for people."""
    if not result["datasets"]:
        return ["the ledger holds no dataset"]
    lines = []
    for dataset in result["datasets"]:
        lines.append(
            f"{dataset['dataset']}: ε {rounded_up(dataset['spent'])} spent of {dataset['limit']:g} "
            f"(δ {dataset['delta']:g}, unit {dataset['unit']}, order {dataset['order']:.4g})"
        )
        for event in dataset["events"]:
            lines.append(
                f"  {event['when'][:19]}  {event['state']:<9}  {event['stage']:<9}  ε {rounded_up(event['epsilon'])}  "
                f"run {event['run']}  {event['who']}: {event['why']}"
            )
        lines += _composition_rows(dataset.get("compositions", []))
    return lines


def _composition_rows(compositions: list[dict[str, Any]]) -> list[str]:
    """One line a method, under the assumption that it shares with its neighbours."""
    lines, assumed = [], ""
    for each in compositions:
        if each["assumes"] != assumed:
            assumed = each["assumes"]
            lines.append(f"  together, assuming {assumed}:")
        pair = "–" if each["epsilon"] is None else f"ε {rounded_up(each['epsilon'])}, δ {each['delta']:.3g}"
        lines.append(f"    {each['method']:<9} {pair:<22} {each['theorem']}")
    return lines


def change_limit(
    url: str, name: str, epsilon: float, reason: str, delta: float | None = None, unit: str | None = None
) -> dict[str, Any]:
    """Store another limit; says what it is now. With δ and unit an account that is not there yet is opened with it.

    Whoever decides on the budget so comes before whoever runs: α* is fixed for this limit, the reason is kept, and the
    settings of later runs can only lower it.
    """
    check_named("NAME", name)
    check_limit(epsilon)
    check_named("--reason", reason)
    if delta is not None and not 0 < delta < 1:
        raise UserError(f"--delta = {delta!r}: must be between 0 and 1")
    known = {account.name: account for account in open_ledger(url).accounts()} if exists(url) else {}
    if name in known:
        for option, given, stored in (("--delta", delta, known[name].delta), ("--unit", unit, known[name].unit)):
            if given is not None and given != stored:
                raise UserError(
                    f"{option} = {given!r}: dataset {name!r} was opened on this ledger with {stored!r}, which stays"
                )
        account = open_ledger(url).raise_limit(name, epsilon, why=reason)
    elif delta is None or unit is None:
        raise UserError(
            f"NAME = {name!r}: no account on this ledger; to open one give --delta (its δ) and --unit (who is "
            "protected: the unit column of the settings, or record)"
        )
    else:
        check_named("--unit", unit)
        account = open_ledger(url).dataset(name, unit=unit, delta=delta, limit=epsilon, why=reason)
    limits = open_ledger(url).standing(name).limits
    return {
        "dataset": account.name,
        "limit": account.limit,
        "delta": account.delta,
        "together": {"epsilon": math.fsum(limits), "delta": len(limits) * account.delta},
        "unit": account.unit,
        "opened": name not in known,
    }


def export(url: str) -> dict[str, Any]:
    """Every row of the ledger."""
    return _existing(url).export()
