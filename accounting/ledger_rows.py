"""The ledger's rows as frozen values (datasets, requests, reservations, standings), read and written."""

import getpass
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, select, update

from accounting.events import Event, Tested, event_from_dict, event_to_dict
from accounting.ledger_schema import DATASETS, EVENTS
from data.errors import UserError

RESERVED, DRAWING, COMMITTED, CANCELLED = "reserved", "drawing", "committed", "cancelled"
COUNTED = (RESERVED, DRAWING, COMMITTED)


@dataclass(frozen=True)
class Account:
    """One private dataset on the ledger, as opened or read.

    ``order`` is α*. ``tested_delta`` is the part of δ set aside at opening for what tests may fail with; the rest
    converts. ``limit`` is the ε that all its events together may reach: the smaller of the stored
    limit (when this was read) and ``settings_limit``, what the settings of this run allow (infinite when
    read without any).
    """

    name: str
    unit: str
    adjacency: str
    delta: float
    tested_delta: float
    order: float
    limit: float
    settings_limit: float
    opened_at: str
    opened_by: str

    @property
    def converting_delta(self) -> float:
        """δ at which the sum of Rényi costs converts."""
        return converting_delta(self.delta, self.tested_delta)


@dataclass(frozen=True)
class Request:
    """A charge asked for: ``event`` at its caps; ``epsilon`` is what its own statement will show."""

    run: str
    stage: str
    event: Event
    why: str
    epsilon: float


@dataclass(frozen=True)
class Reservation:
    """A charge on the ledger: ``rdp`` is its cost at α*, ``epsilon`` what its own statement shows.

    ``admitted_under`` is the stored limit when it was charged. ``binding`` names what it is drawn for, ``outcome``
    what was drawn; both are keyed digests.
    """

    id: str
    dataset: str
    run: str
    stage: str
    state: str
    event: Event
    rdp: float
    epsilon: float
    delta: float
    admitted_under: float
    binding: str | None
    outcome: str | None
    who: str
    when: str
    why: str
    updated_at: str


@dataclass(frozen=True)
class Standing:
    """Where a dataset stands: ``spent`` is the ε at α* of everything counted, ``limit`` the stored limit.

    ``limits``: the limits that charges were admitted under, one after the other, the stored one last. The filter's
    theorem is about one limit fixed beforehand, so what was charged under each is within (that limit, δ), and over
    all of them only basic composition holds: (their sum, their number · δ).
    """

    dataset: str
    spent: float
    limit: float
    limits: tuple[float, ...] = ()


def converting_delta(delta: float, tested_delta: float) -> float:
    """What is left of δ for the conversion, rounded down."""
    return math.nextafter(delta - tested_delta, 0.0) if tested_delta else delta


def delta_of_test(event: Event) -> float:
    """What the event's test may fail with; 0 for events without one."""
    return event.delta if isinstance(event, Tested) else 0.0


def stored_delta_of_test(row: Row[Any]) -> float:
    """:func:`delta_of_test` of a stored event, whether or not this program knows its mechanism."""
    stored = json.loads(row.event)
    return float(stored["delta"]) if stored.get("mechanism") == "tested" else 0.0


def now() -> str:
    """The time in UTC, ISO 8601 to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def check_named(field: str, value: str) -> None:
    """Refuse a name that is empty or not one printable line (it will stand in one-line messages)."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise UserError(f"{field} = {value!r}: must be one line of text, not empty")


def check_limit(value: float) -> None:
    """Refuse a limit ε that is not a finite number above 0."""
    if not value > 0 or math.isinf(value):
        raise UserError(f"ledger.epsilon = {value!r}: must be a finite number above 0")


def event_text(event: Event) -> str:
    """The event as stored: one text per event, so that equal events are equal strings."""
    return json.dumps(event_to_dict(event), sort_keys=True, allow_nan=False)


def new_row(
    event_id: str, account: Account, request: Request, text: str, cost: float, author: str, limit: float
) -> dict[str, Any]:
    """The columns of a fresh reservation, admitted under the stored ``limit``."""
    written = now()
    return {
        "id": event_id,
        "dataset": account.name,
        "run": request.run,
        "stage": request.stage,
        "state": RESERVED,
        "event": text,
        "rdp": cost,
        "epsilon": request.epsilon,
        "delta": account.delta,
        "admitted_under": limit,
        "binding": None,
        "outcome": None,
        "who": author,
        "when": written,
        "why": request.why,
        "updated_at": written,
    }


def account_from_row(row: Row[Any], settings_limit: float = math.inf) -> Account:
    """The account of a stored dataset under the limit of the settings."""
    return Account(
        name=row.name,
        unit=row.unit,
        adjacency=row.adjacency,
        delta=row.delta,
        tested_delta=row.tested_delta,
        order=row.order,
        limit=min(row.limit_epsilon, settings_limit),
        settings_limit=settings_limit,
        opened_at=row.opened_at,
        opened_by=row.opened_by,
    )


def reservation_from_row(row: Row[Any]) -> Reservation:
    """The reservation of a stored event; :class:`UserError` when its event cannot be read."""
    fields = row._asdict()
    del fields["seq"]
    try:
        fields["event"] = event_from_dict(json.loads(row.event))
    except (TypeError, ValueError, AttributeError):
        raise UserError(f"ledger: event {row.id!r} of dataset {row.dataset!r} cannot be read") from None
    return Reservation(**fields)


def current_user() -> str:
    """The operating system's name for who runs this; a number where it knows no name (containers)."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"


def read_dataset(connection: Connection, name: str, *, lock: bool = False) -> Row[Any]:
    """The dataset's row, locked against other writers if asked; :class:`UserError` when there is none."""
    query = select(DATASETS).where(DATASETS.c.name == name)
    row = connection.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise UserError(f"dataset {name!r}: not on this ledger")
    return row


def event_row(connection: Connection, event_id: str) -> Row[Any]:
    """The stored event; :class:`UserError` when there is none."""
    row = connection.execute(select(EVENTS).where(EVENTS.c.id == event_id)).first()
    if row is None:
        raise UserError(f"reservation {event_id!r}: not on this ledger")
    return row


def counted_events(connection: Connection, dataset: str) -> Sequence[Row[Any]]:
    """Every event of the dataset that its budget has to bear."""
    query = select(EVENTS).where(EVENTS.c.dataset == dataset, EVENTS.c.state.in_(COUNTED))
    return connection.execute(query.order_by(EVENTS.c.seq)).all()


def move_event(connection: Connection, event_id: str, state: str, **values: str) -> None:
    """Write another state. Whether the move is allowed, the caller checks under the dataset's lock."""
    connection.execute(update(EVENTS).where(EVENTS.c.id == event_id).values(state=state, updated_at=now(), **values))
