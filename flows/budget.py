"""``pate ledger``: reading the budget ledger and changing limits."""

from typing import Any

from accounting.ledger import Ledger, open_ledger
from data.errors import UserError
from flows.charges import exists


def _existing(url: str) -> Ledger:
    """The ledger at a URL; one that is not there is not made."""
    if not exists(url):
        raise UserError(f"--ledger = {url!r}: no such ledger")
    return open_ledger(url)


def show(url: str) -> dict[str, Any]:
    """Every dataset with its standing and events."""
    ledger = _existing(url)
    datasets = []
    for account in ledger.accounts():
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
            for event in ledger.events(account.name)
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
            }
        )
    return {"datasets": datasets}


def show_rows(result: dict[str, Any]) -> list[str]:
    """The ledger as lines for people."""
    if not result["datasets"]:
        return ["the ledger holds no dataset"]
    lines = []
    for dataset in result["datasets"]:
        lines.append(
            f"{dataset['dataset']}: ε {dataset['spent']:.4f} spent of {dataset['limit']:g} (δ {dataset['delta']:g}, "
            f"unit {dataset['unit']}, order {dataset['order']:.4g})"
        )
        for event in dataset["events"]:
            lines.append(
                f"  {event['when'][:19]}  {event['state']:<9}  {event['stage']:<9}  ε {event['epsilon']:.4f}  "
                f"run {event['run']}  {event['who']}: {event['why']}"
            )
    return lines


def change_limit(url: str, name: str, epsilon: float, reason: str) -> dict[str, Any]:
    """Store another limit; says what it is now."""
    account = _existing(url).raise_limit(name, epsilon, why=reason)
    return {"dataset": account.name, "limit": account.limit}


def export(url: str) -> dict[str, Any]:
    """Every row of the ledger."""
    return _existing(url).export()
