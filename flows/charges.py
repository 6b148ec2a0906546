"""What a run charges to the ledger: the labels and the baseline, at their caps, before anything is drawn."""

from accounting.cost import Guarantee, guarantee
from accounting.events import DPSGD, Event, NoisyMax, event_to_dict
from accounting.ledger import Ledger, open_ledger
from accounting.ledger_rows import COMMITTED, DRAWING, RESERVED, Account, Request, Reservation
from aggregation.settings import event as noisy_max
from data.errors import UserError
from data.split import rows_of
from flows.context import Context
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


def labels_guarantee(settings: Settings) -> Guarantee:
    """The published (ε, δ) of the labels: data-independent, at the caps."""
    return guarantee(labels_event(settings), settings.aggregation.delta)


def baseline_target(settings: Settings) -> float:
    """ε that the baseline is calibrated to: its own setting, else that of the labels."""
    return settings.baseline.epsilon or labels_guarantee(settings).epsilon


def baseline_event(settings: Settings) -> DPSGD:
    """The DP-SGD event, its noise calibrated to the target ε."""
    from baseline.dpsgd import plan

    return plan(settings.baseline, baseline_target(settings), settings.ledger_delta)


def open_account(settings: Settings) -> tuple[Ledger, Account]:
    """The ledger and the dataset's account on it, opened at first use."""
    ledger = open_ledger(settings.ledger_url)
    account = ledger.dataset(
        settings.data.name, unit=settings.unit, delta=settings.ledger_delta, limit=settings.ledger.epsilon
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


def reserve_together(context: Context, stages: tuple[str, ...]) -> None:
    """Charge the labels and the enabled baseline of a run at once, before training: all of them or none."""
    events: dict[str, Event] = {}
    if "aggregate" in stages:
        events["aggregate"] = labels_event(context.settings)
    if "baseline" in stages and context.settings.baseline.enabled:
        events["baseline"] = baseline_event(context.settings)
    if not events:
        return
    ledger, account = open_account(context.settings)
    held = ledger.find(account.name, ledger_run(context))
    wanted = [
        request(context, stage, event)
        for stage, event in events.items()
        # What is being drawn is resumed by its stage, under the charge that it already has.
        if not any(r.stage == stage and r.state == DRAWING and r.event == event for r in held)
    ]
    if wanted:
        ledger.reserve(account, wanted)


def cancel_unused(context: Context) -> None:
    """Give back charges of this run under which nothing was drawn: its stages turned out to be fresh."""
    ledger, account = open_account(context.settings)
    for held in ledger.find(account.name, ledger_run(context)):
        if held.state == RESERVED:
            ledger.cancel(held.id)


def charge(context: Context, stage: str, event: Event) -> tuple[Ledger, Reservation]:
    """A reservation to draw under, told to the user before anything is drawn."""
    ledger, account = open_account(context.settings)
    earlier = [r for r in ledger.find(account.name, ledger_run(context), stage) if r.state in (DRAWING, COMMITTED)]
    wanted = request(context, stage, event)
    (held,) = ledger.reserve(account, [wanted])
    again = " again, for a new event: what was drawn before stays spent" if earlier else ""
    name = event_to_dict(event)["mechanism"]
    context.console.say(
        f"{stage}: charges {name} with ε = {wanted.epsilon:.4f} (δ = {account.delta:g}) "
        f"to the ledger of dataset {account.name!r}{again}"
    )
    return ledger, held


def drawn_before(context: Context, stage: str, binding: str) -> tuple[Ledger, list[Reservation]]:
    """This run's charges of a stage that were drawn under the same key and mechanism, oldest first."""
    ledger, account = open_account(context.settings)
    held = ledger.find(account.name, ledger_run(context), stage)
    return ledger, [r for r in held if r.binding == binding and r.state in (DRAWING, COMMITTED)]
