"""The budget ledger of a private dataset: what may still be released from it, across all runs and processes.

The ledger belongs to the *dataset*, a name its curator declares, not to a run and not to its content
(editing a row must not reset the budget). Whatever leaves the private zone is an event here, charged before
its noise is drawn, at its caps:

    reserve -> bind -> draw and journal -> (advance, a round) -> commit -> release

``reserved`` (charged, nothing drawn), ``drawing`` (bound; noise may have been drawn, nothing was released but the
rounds that its outcome names), ``committed`` (drawn; released from then on). All three count in full: a crash at any
point leaves the charge standing. States only move forward; only a ``reserved`` event, under which nothing was drawn,
can be ``cancelled``.

Admission is the Rényi filter of [FZ, arXiv 2008.11193] at one order α*, fixed when the dataset is opened
from its limit ε and δ (where a Gaussian mechanism of that budget converts best) and never chosen afterwards:

    Σ_events D_α*(event) ≤ ρ(α*, limit, δ),    ρ = ε - log1p(-1/α) + (log δ + log α)/(α - 1).

Events that may fail with a δ' of their own (``Tested``) need a part of δ that was set aside at opening
(ledger.tested_delta): their δ' add up to at most that, and ρ is taken at the rest (docs/accounting.md, "A tested
release").

So however later runs are chosen after seeing earlier ones, all of them together are (limit, δ)-DP, as long as the
limit stays what it was at opening (see :class:`accounting.ledger_rows.Standing` for limits that change). Check,
charge and write are one transaction that excludes other writers; two processes cannot overspend together.

Everything stored is independent of the private records; see :mod:`accounting.ledger_schema`.
"""

import itertools
import json
import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, Engine, Row, insert, select, update

from accounting import conversion
from accounting.events import Tested
from accounting.ledger_refusals import over_limit, over_tested_delta
from accounting.ledger_rows import (
    CANCELLED,
    COMMITTED,
    DRAWING,
    RESERVED,
    Account,
    Request,
    Reservation,
    Standing,
    account_from_row,
    check_limit,
    check_named,
    converting_delta,
    counted_events,
    current_user,
    delta_of_test,
    event_row,
    event_text,
    move_event,
    new_row,
    now,
    read_dataset,
    reservation_from_row,
    stored_delta_of_test,
)
from accounting.ledger_schema import DATASETS, EVENTS, LIMITS, connect, exclude_openers, transaction
from data.errors import RefusedError, UserError

ADJACENCY = "add-remove"


@dataclass(frozen=True)
class Ledger:
    """A ledger opened by :func:`open_ledger`. It keeps no connection: threads and processes may share it."""

    engine: Engine

    def dataset(
        self,
        name: str,
        *,
        unit: str,
        delta: float,
        limit: float,
        tested_delta: float | None = None,
        adjacency: str = ADJACENCY,
        who: str | None = None,
        why: str = "opened",
    ) -> Account:
        """Open ``name`` at first use, fixing unit, adjacency, δ, limit and α*; later, check that they match.

        ``limit``: the ε of the settings; the smaller of it and the stored limit holds for this account.
        ``why``: the reason for the limit, kept when the account is opened.
        ``tested_delta``: the part of δ set aside for what tests may fail with; None: nothing, or as stored.
        Errors: :class:`UserError` naming the field, the stored and the given value.
        """
        check_named("data.name", name)
        check_named("data.unit", unit)
        check_named("why", why)
        if adjacency != ADJACENCY:
            raise UserError(f"adjacency = {adjacency!r}: must be {ADJACENCY!r}, the only one accounted for")
        if not 0 < delta < 1:
            raise UserError(f"ledger.delta = {delta!r}: must be between 0 and 1")
        if tested_delta is not None and not 0 <= tested_delta < delta:
            raise UserError(
                f"ledger.tested_delta = {tested_delta!r}: must be at least 0 and below ledger.delta {delta!r}"
            )
        check_limit(limit)
        aside = tested_delta or 0.0
        order = float(conversion.best_gaussian_order(limit, converting_delta(delta, aside)))
        with transaction(self.engine) as connection:
            exclude_openers(connection)
            if connection.execute(select(DATASETS.c.name).where(DATASETS.c.name == name)).first() is None:
                author, opened = who or current_user(), now()
                connection.execute(
                    insert(DATASETS).values(
                        name=name,
                        unit=unit,
                        adjacency=adjacency,
                        delta=delta,
                        tested_delta=aside,
                        order=order,
                        limit_epsilon=limit,
                        opened_at=opened,
                        opened_by=author,
                    )
                )
                connection.execute(insert(LIMITS).values(dataset=name, epsilon=limit, who=author, when=opened, why=why))
            row = _lock(connection, name)
        for field, value, stored in (
            ("data.unit", unit, row.unit),
            ("adjacency", adjacency, row.adjacency),
            ("ledger.delta", delta, row.delta),
            ("ledger.tested_delta", row.tested_delta if tested_delta is None else tested_delta, row.tested_delta),
        ):
            if value != stored:
                raise UserError(
                    f"{field} = {value!r}: dataset {name!r} was opened on this ledger with {stored!r}, "
                    "and all its events must share it"
                )
        return account_from_row(row, settings_limit=limit)

    def account(self, name: str) -> Account:
        """The dataset ``name`` as stored; :class:`UserError` when the ledger does not know it."""
        with transaction(self.engine, read_only=True) as connection:
            return account_from_row(read_dataset(connection, name))

    def accounts(self) -> list[Account]:
        """Every dataset on the ledger, by name."""
        with transaction(self.engine, read_only=True) as connection:
            rows = connection.execute(select(DATASETS).order_by(DATASETS.c.name)).all()
        return [account_from_row(row) for row in rows]

    def reserve(self, account: Account, requests: Sequence[Request], *, who: str | None = None) -> list[Reservation]:
        """Charge all ``requests`` or none, in one transaction, before anything is drawn; in the order given.

        A request whose run and stage already hold a reservation under which nothing was drawn takes its
        place: the same event is the same charge, not a second one; another event (settings changed
        meanwhile) cancels it. What is ``drawing`` or ``committed`` is never reused: see :meth:`find` before
        asking.

        Errors: :class:`RefusedError` when the sum would pass the limit: nothing is written.
        """
        places = [(request.run, request.stage) for request in requests]
        if len(set(places)) < len(places):
            raise UserError("reserve: one request per run and stage at a time")
        # Before the lock is taken: a cost may take seconds, and depends on nothing that the lock protects.
        costs = [_cost(request, account.order) for request in requests]
        author = who or current_user()
        with transaction(self.engine) as connection:
            row = _lock(connection, account.name)
            if (row.order, row.delta, row.tested_delta) != (account.order, account.delta, account.tested_delta):
                raise UserError(f"dataset {account.name!r}: the account was read from another ledger")
            counted = counted_events(connection, account.name)
            ids: list[str] = []
            fresh: list[dict[str, Any]] = []
            new_deltas: dict[str, float] = {}
            replaced: set[str] = set()
            for request, cost in zip(requests, costs, strict=True):
                text = event_text(request.event)
                undrawn = [
                    event
                    for event in counted
                    if (event.run, event.stage, event.state) == (request.run, request.stage, RESERVED)
                ]
                # A cost that this version of the bounds puts higher than the stored one is charged anew.
                same = next((e.id for e in undrawn if e.event == text and e.rdp >= cost), None)
                replaced.update(event.id for event in undrawn if event.id != same)
                if same is None:
                    same = uuid.uuid4().hex
                    fresh.append(new_row(same, account, request, text, cost, author, row.limit_epsilon))
                    new_deltas[same] = delta_of_test(request.event)
                ids.append(same)
            staying = [event for event in counted if event.id not in replaced]
            kept = [event.rdp for event in staying]
            limit = min(row.limit_epsilon, account.settings_limit)
            asked = [values["rdp"] for values in fresh]
            budget = conversion.rdp_budget(row.order, limit, _converting(row))
            # `not <=` refuses NaN too. Checked even if nothing is new: the limit may have been lowered.
            if requests and not math.fsum(kept + asked) <= budget:
                spent, total = (spent_epsilon(sums, row.order, _converting(row)) for sums in (kept, kept + asked))
                raise RefusedError(over_limit(row, requests, spent, total, limit))
            fails = math.fsum([*map(stored_delta_of_test, staying), *(new_deltas[values["id"]] for values in fresh)])
            if fails > 0 and not fails <= row.tested_delta:
                raise RefusedError(over_tested_delta(row, requests, fails))
            for old in sorted(replaced):
                move_event(connection, old, CANCELLED)
            if fresh:
                connection.execute(insert(EVENTS), fresh)
            return [reservation_from_row(event_row(connection, event_id)) for event_id in ids]

    def bind(self, reservation_id: str, binding: str) -> Reservation:
        """``reserved`` → ``drawing``, before the first draw: from here on noise may exist and the charge
        stands.

        ``binding``: a keyed digest of what is drawn for: the settings and inputs' names, never what was computed
        from private data. A resumed run binds again with the same one; another one means that something changed,
        and noise already drawn must not be reused. The caller must hold its run's journal exclusively: binding
        twice is resuming, not drawing twice.
        """
        check_named("binding", binding)
        with transaction(self.engine) as connection:
            event = _lock_event(connection, reservation_id)
            if event.state == DRAWING:
                if event.binding != binding:
                    raise UserError(
                        f"{_place(event)}: was drawn under other votes or another mechanism; it needs a new charge"
                    )
                return reservation_from_row(event)
            if event.state != RESERVED:
                raise UserError(f"{_place(event)}: is {event.state}; nothing more may be drawn under it")
            move_event(connection, reservation_id, DRAWING, binding=binding)
            return reservation_from_row(event_row(connection, reservation_id))

    def advance(self, reservation_id: str, outcome: str, after: str | None) -> Reservation:
        """``drawing`` → ``drawing``: a round of several ended; *before* anything is computed from its outcomes.

        ``outcome``: a keyed digest of all rounds so far; ``after``: of those before this one, None for the first. The
        ledger must hold one or the other: the same again is resuming. Else other rounds were drawn under this charge,
        by a copy of the run directory or before a journal was lost, and may have been shown: refused.
        """
        check_named("outcome", outcome)
        with transaction(self.engine) as connection:
            event = _lock_event(connection, reservation_id)
            if event.state not in (DRAWING, COMMITTED):
                raise UserError(f"{_place(event)}: is {event.state}; only what is drawing can advance")
            if event.outcome == outcome:
                return reservation_from_row(event)
            if event.state == COMMITTED or event.outcome != after:
                raise UserError(f"{_place(event)}: paid for other rounds already; these need a new charge")
            move_event(connection, reservation_id, DRAWING, outcome=outcome)
            return reservation_from_row(event_row(connection, reservation_id))

    def commit(self, reservation_id: str, outcome: str, after: str | None = None) -> Reservation:
        """``drawing`` → ``committed``, when all is drawn and *before* it is released. The charge stays.

        ``outcome``: a keyed digest of what was drawn. One charge pays for one outcome: committing the same again is
        resuming, another one (drawn by a copy of the run directory, or after a journal was lost) is refused. Hence
        under a ``drawing`` charge nothing has ever been released, but the rounds that its outcome names: ``after``, as
        of :meth:`advance`, must be that.
        """
        check_named("outcome", outcome)
        with transaction(self.engine) as connection:
            event = _lock_event(connection, reservation_id)
            if event.state == COMMITTED:
                if event.outcome != outcome:
                    raise UserError(f"{_place(event)}: paid for another outcome already; this one needs a new charge")
                return reservation_from_row(event)
            if event.state != DRAWING:
                raise UserError(f"{_place(event)}: is {event.state}; only what is drawing can be committed")
            if event.outcome != after:
                raise UserError(f"{_place(event)}: paid for other rounds already; these need a new charge")
            move_event(connection, reservation_id, COMMITTED, outcome=outcome)
            return reservation_from_row(event_row(connection, reservation_id))

    def cancel(self, reservation_id: str) -> Reservation:
        """``reserved`` → ``cancelled``: the one refund there is, sound as nothing was drawn; idempotent."""
        with transaction(self.engine) as connection:
            event = _lock_event(connection, reservation_id)
            if event.state == CANCELLED:
                return reservation_from_row(event)
            if event.state != RESERVED:
                raise UserError(f"{_place(event)}: is {event.state}; what may have been drawn stays charged")
            move_event(connection, reservation_id, CANCELLED)
            return reservation_from_row(event_row(connection, reservation_id))

    def find(self, dataset: str, run: str, stage: str | None = None) -> list[Reservation]:
        """The reservations of a run (and stage), in every state, oldest first."""
        return [r for r in self.events(dataset) if r.run == run and stage in (None, r.stage)]

    def events(self, dataset: str) -> list[Reservation]:
        """Every event of the dataset, in every state, oldest first."""
        query = select(EVENTS).where(EVENTS.c.dataset == dataset).order_by(EVENTS.c.seq)
        with transaction(self.engine, read_only=True) as connection:
            read_dataset(connection, dataset)
            rows = connection.execute(query).all()
        return [reservation_from_row(row) for row in rows]

    def standing(self, dataset: str) -> Standing:
        """What is spent, of which limit, read together."""
        with transaction(self.engine, read_only=True) as connection:
            row = read_dataset(connection, dataset)
            counted = counted_events(connection, dataset)
        spent = spent_epsilon([event.rdp for event in counted], row.order, _converting(row))
        under = [*(event.admitted_under for event in counted), row.limit_epsilon]
        return Standing(dataset, spent, row.limit_epsilon, tuple(limit for limit, _ in itertools.groupby(under)))

    def spent(self, dataset: str) -> float:
        """ε at α* of the sum of everything counted; 0.0 when nothing is."""
        return self.standing(dataset).spent

    def limit(self, dataset: str) -> float:
        """The stored limit ε."""
        return self.standing(dataset).limit

    def raise_limit(self, dataset: str, epsilon: float, *, why: str, who: str | None = None) -> Account:
        """Store another limit: the only way up. A lower one stops further charges and refunds none.

        α* stays. What is charged from here on is within the new limit together with what counted before; but a limit
        chosen after earlier releases bounds no more than that: see :class:`Standing`.
        """
        check_limit(epsilon)
        check_named("why", why)
        with transaction(self.engine) as connection:
            _lock(connection, dataset)
            connection.execute(update(DATASETS).where(DATASETS.c.name == dataset).values(limit_epsilon=epsilon))
            connection.execute(
                insert(LIMITS).values(dataset=dataset, epsilon=epsilon, who=who or current_user(), when=now(), why=why)
            )
            return account_from_row(read_dataset(connection, dataset))

    def export(self) -> dict[str, list[dict[str, Any]]]:
        """Every row of the ledger: ``{"datasets": [...], "limits": [...], "events": [...]}``, oldest first.

        An event row holds the event as a dictionary and, unlike :meth:`events`, needs no knowledge of its
        mechanism.
        """
        with transaction(self.engine, read_only=True) as connection:
            datasets = connection.execute(select(DATASETS).order_by(DATASETS.c.opened_at)).mappings().all()
            limits = connection.execute(select(LIMITS).order_by(LIMITS.c.seq)).mappings().all()
            events = connection.execute(select(EVENTS).order_by(EVENTS.c.seq)).mappings().all()
        return {
            "datasets": [dict(row) for row in datasets],
            "limits": [dict(row) for row in limits],
            "events": [{**row, "event": json.loads(row["event"])} for row in events],
        }


def open_ledger(url: str) -> Ledger:
    """The ledger at ``url`` (``sqlite:///FILE`` or ``postgresql://…``), created at first use.

    A SQLite file is created with mode 0600, its folder if missing; every commit is on disk before it returns.
    Errors: :class:`UserError`, one line, when it cannot be reached or is damaged or not a ledger.
    """
    return Ledger(connect(url))


def spent_epsilon(rdp: Sequence[float], order: float, delta: float) -> float:
    """ε at the one order α* of events that cost ``rdp`` each, summed; 0.0 for none."""
    total = math.fsum(rdp)
    if total == 0:
        return 0.0
    epsilon, _ = conversion.epsilon(np.array([total]), np.array([order]), delta)
    return max(0.0, float(epsilon))


def _cost(request: Request, order: float) -> float:
    # Here because it loads dp_accounting, most of a second: looking at a ledger does without.
    from accounting import curves

    for field in ("run", "stage", "why"):
        check_named(field, getattr(request, field))
    if not request.epsilon >= 0 or math.isinf(request.epsilon):
        raise UserError(f"epsilon = {request.epsilon!r}: must be a finite number, at least 0")
    cost = float(curves.rdp(request.event, np.array([order]), number="data_independent")[0])
    if isinstance(request.event, Tested) and request.event.order < order:
        raise UserError(
            f"order = {request.event.order:g}: a test on this dataset needs at least the order {order:g} that its "
            "account was opened with"
        )
    if not cost >= 0 or math.isinf(cost):
        raise UserError(f"{request.event}: costs {cost!r} at order {order:g}; a charge must be finite")
    return cost


def _converting(row: Row[Any]) -> float:
    return converting_delta(row.delta, row.tested_delta)


def _lock(connection: Connection, name: str) -> Row[Any]:
    """Take the dataset's row: every change to the dataset's events happens under it, one at a time."""
    return read_dataset(connection, name, lock=True)


def _lock_event(connection: Connection, event_id: str) -> Row[Any]:
    _lock(connection, event_row(connection, event_id).dataset)
    return event_row(connection, event_id)  # again: what another process did while this one waited


def _place(event: Row[Any]) -> str:
    return f"ledger: the charge of {event.stage} of run {event.run!r} on dataset {event.dataset!r}"
