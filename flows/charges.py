"""What a run charges to the ledger: the labels and the baseline, at their caps, before anything is drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from accounting.conversion import best_gaussian_order
from accounting.cost import Guarantee, guarantee
from accounting.curves import rdp
from accounting.events import DPSGD, Event, NoisyMax, event_to_dict
from accounting.ledger import Ledger, open_ledger, spent_epsilon
from accounting.ledger_rows import (
    COMMITTED,
    COUNTED,
    DRAWING,
    RESERVED,
    Account,
    Request,
    Reservation,
    converting_delta,
)
from accounting.statement import rounded_up
from aggregation.rounds import Allowance, allowances
from aggregation.settings import event as noisy_max
from data.errors import UserError
from data.split import rows_of
from flows.console import Console
from flows.context import Context
from flows.freshness import Status
from flows.settings import Settings


def queries_asked(settings: Settings) -> int:
    """How many queries the settings choose: queries.count, else as many as the public part has rows."""
    if settings.queries.count is not None:
        return settings.queries.count
    public = rows_of(settings.data, settings.seed, "public")
    count = len(public.rows) if public else 0
    cap = settings.aggregation.max_queries
    if cap is not None and count > cap:
        raise UserError(f"queries.count: all {count} public inputs are more than aggregation.max_queries = {cap}")
    return count


def labels_event(settings: Settings) -> NoisyMax:
    """The event that releases the labels, at its caps."""
    return noisy_max(settings.aggregation, queries_asked(settings))


def labels_rounds(settings: Settings) -> tuple[Allowance, ...]:
    """What may be asked and answered through each round."""
    return allowances(labels_event(settings), queries_asked(settings), settings.queries.rounds)


def labels_guarantee(settings: Settings) -> Guarantee:
    """The published (ε, δ) of the labels: data-independent, at the caps."""
    return guarantee(labels_event(settings), settings.aggregation.delta)


def baseline_target(settings: Settings) -> float:
    """ε that the baseline is calibrated to: its own setting, else that of the labels."""
    return settings.baseline.epsilon or labels_guarantee(settings).epsilon


def baseline_event(settings: Settings) -> DPSGD:
    """The DP-SGD event, its noise calibrated to the target ε."""
    from baseline.planning import plan

    return plan(settings.baseline, baseline_target(settings), settings.ledger_delta)


def open_account(settings: Settings) -> tuple[Ledger, Account]:
    """The ledger and the dataset's account on it, opened at first use."""
    ledger = open_ledger(settings.ledger_url)
    account = ledger.dataset(
        settings.data.name,
        unit=settings.unit,
        delta=settings.ledger_delta,
        limit=settings.ledger.epsilon,
        tested_delta=settings.ledger.tested_delta,
    )
    return ledger, account


def request(context: Context, stage: str, event: Event) -> Request:
    """The charge of a stage."""
    epsilon = guarantee(event, context.settings.ledger_delta).epsilon
    why = {"aggregate": "labels of the chosen queries", "baseline": "DP-SGD baseline model"}[stage]
    return Request(ledger_run(context), stage, event, why, epsilon)


def ledger_run(context: Context) -> str:
    """The run's name on the ledger: its directory's name and random id, so that no two directories share a charge."""
    return f"{context.run.name}-{context.run_id}"


def binding_of(context: Context, stage: str, key: str, event: Event) -> str:
    """What a charge is bound to: the stage's draw key (settings and files' digests, never votes) and its event."""
    return context.keyed(stage, key, event_to_dict(event))


def reserve_together(context: Context, stale: Mapping[str, Status]) -> None:
    """Charge the labels and the enabled baseline of a run at once, before training: all of them or none."""
    reserve(context.settings, wanted(context, stale), context.console)


def wanted(context: Context, stale: Mapping[str, Status]) -> list[Request]:
    """The charges that a run needs before its stale stages may draw: labels and the enabled baseline.

    What was drawn under the same key already, or is being drawn, is resumed by its stage under the charge it has.
    """
    events: dict[str, Event] = {}
    if "aggregate" in stale:
        events["aggregate"] = labels_event(context.settings)
    if "baseline" in stale and context.settings.baseline.enabled:
        events["baseline"] = baseline_event(context.settings)
    requests = []
    for stage, event in events.items():
        _, drawn = drawn_before(context, stage, binding_of(context, stage, stale[stage].draw_key, event))
        if not drawn or stale[stage].deleted:
            requests.append(request(context, stage, event))
    return requests


def reserve(settings: Settings, requests: Sequence[Request], console: Console) -> None:
    """Charge all requests, of one run or of several, at once: all of them or none."""
    if requests:
        new = _known(settings) is None
        ledger, account = open_account(settings)
        ledger.reserve(account, requests)
        _tell(settings, console, new)


def require_charged(context: Context, stage: str) -> None:
    """Refuse to go on with a release that the ledger does not hold: another ledger, or one that was lost."""
    if stage not in ("aggregate", "baseline") or not (stage == "aggregate" or context.settings.baseline.enabled):
        return
    known = _known(context.settings)
    if known is not None:
        ledger, account = known
        if any(r.state == COMMITTED for r in ledger.find(account.name, ledger_run(context), stage)):
            return
    raise UserError(
        f"ledger.url: this ledger does not hold the charge of {stage} of run {context.run.name!r}, whose release lies "
        "in the run directory; restore the ledger from a backup, or use another --run"
    )


def _known(settings: Settings) -> tuple[Ledger, Account] | None:
    """The ledger and the dataset's account where both are there already; opens none."""
    if not exists(settings.ledger_url):
        return None
    ledger = open_ledger(settings.ledger_url)
    found = next((account for account in ledger.accounts() if account.name == settings.data.name), None)
    return None if found is None else (ledger, found)


def _tell(settings: Settings, console: Console, new: bool) -> None:
    """A budget that starts at 0 should surprise nobody: the ledger lies in another folder, perhaps."""
    if new:
        place = "ledger.url" if settings.ledger.url else str(Path(settings.run_root).resolve() / "ledger.sqlite")
        console.say(
            f"ledger: opened an account for dataset {settings.data.name!r} with limit ε = {settings.ledger.epsilon:g} "
            f"on {place}: nothing had been spent there"
        )


def undrawn(settings: Settings) -> set[tuple[str, str]]:
    """(run, stage) of the dataset's charges under which nothing was drawn yet; opens no account."""
    known = _known(settings)
    if known is None:
        return set()
    ledger, account = known
    return {(held.run, held.stage) for held in ledger.events(account.name) if held.state == RESERVED}


@dataclass(frozen=True)
class Outlook:
    """ε spent, what it would be after a whole new run of these settings, and the limit."""

    spent: float
    after: float
    limit: float
    order: float


def outlook(settings: Settings, new: Sequence[Event] | None = None) -> Outlook:
    """What ``new`` events, or a new run, would bring the dataset's account to, without opening or charging it."""
    known = _known(settings)
    limit, counted = settings.ledger.epsilon, []
    if known is not None:
        ledger, account = known
        limit = min(limit, account.limit)
        counted = [e.rdp for e in ledger.events(account.name) if e.state in COUNTED]
    delta = converting_delta(settings.ledger_delta, settings.ledger.tested_delta or 0.0)
    if known is not None:
        delta = known[1].converting_delta
    order = known[1].order if known is not None else best_gaussian_order(limit, delta)
    if new is None:
        new = [labels_event(settings), *([baseline_event(settings)] if settings.baseline.enabled else [])]
    costs = [float(rdp(event, [order])[0]) for event in new]
    return Outlook(spent_epsilon(counted, order, delta), spent_epsilon(counted + costs, order, delta), limit, order)


def account_mismatch(settings: Settings) -> str:
    """What of unit and δ differs from the account as it was opened; empty when nothing does."""
    known = _known(settings)
    if known is None:
        return ""
    stored = known[1]
    given = {"unit": settings.unit, "delta": settings.ledger_delta}
    return ", ".join(
        f"{k} {v!r} (account: {getattr(stored, k)!r})" for k, v in given.items() if getattr(stored, k) != v
    )


def exists(url: str) -> bool:
    """Whether there is a ledger at a URL: a SQLite file may not be there yet; a server's is made when it is opened."""
    path = url.removeprefix("sqlite:///")
    return path == url or Path(path).exists()


def cancel_unused(context: Context) -> None:
    """Give back charges of this run under which nothing was drawn: its stages turned out to be fresh."""
    known = _known(context.settings)
    if known is None:
        return
    ledger, account = known
    for held in ledger.find(account.name, ledger_run(context)):
        if held.state == RESERVED:
            ledger.cancel(held.id)


def charge(context: Context, stage: str, event: Event) -> tuple[Ledger, Reservation]:
    """A reservation to draw under, told to the user before anything is drawn."""
    new = _known(context.settings) is None
    ledger, account = open_account(context.settings)
    earlier = [r for r in ledger.find(account.name, ledger_run(context), stage) if r.state in (DRAWING, COMMITTED)]
    asked = request(context, stage, event)
    (held,) = ledger.reserve(account, [asked])
    _tell(context.settings, context.console, new)
    again = " again, for a new event: what was drawn before stays spent" if earlier else ""
    name = event_to_dict(event)["mechanism"]
    context.console.say(
        f"{stage}: charges {name} with ε = {rounded_up(asked.epsilon)} (δ = {account.delta:g}) "
        f"to the ledger of dataset {account.name!r}{again}"
    )
    return ledger, held


def drawn_before(context: Context, stage: str, binding: str) -> tuple[Ledger, list[Reservation]]:
    """This run's charges of a stage that were drawn under the same key and mechanism, oldest first."""
    known = _known(context.settings)
    if known is None:
        # No account is opened for a question: that is said, and done, when something is charged.
        return open_ledger(context.settings.ledger_url), []
    ledger, account = known
    held = ledger.find(account.name, ledger_run(context), stage)
    return ledger, [r for r in held if r.binding == binding and r.state in (DRAWING, COMMITTED)]
