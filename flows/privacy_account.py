"""The charges of draws outside a run: the dataset's account, one charge a draw, and the replay of what was drawn.

Reserve → bind → draw and journal → commit → print, as for a run's labels. Which charge a draw belongs to follows from
the dataset's key, the votes file's path and the options, never from the votes: the same draw again replays the
journal of the committed one. Asked to draw again, or with its journal lost, it is charged anew, which is said before
anything is drawn. Journals lie in ``.draws`` beside a SQLite ledger, else in the run root: private, 0600.
"""

import contextlib
import hmac
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from accounting.cost import guarantee
from accounting.events import NoisyMax, Sanitized, Tested, event_to_dict
from accounting.ledger import Ledger, open_ledger
from accounting.ledger_rows import COMMITTED, DRAWING, Account, Request, Reservation
from accounting.statement import rounded_up
from aggregation import journal
from data.errors import UserError
from data.store import dataset_key
from flows.charges import exists
from flows.exclusive import file_held
from flows.privacy import DrawOptions

_WHY = {"sanitized": "sanitised cost of queries", "tested": "labels of queries, if a test passes"}


@dataclass(frozen=True)
class Release:
    """One release: ``binding`` is what its charge is bound to, and names its journals.

    ``journal`` holds what was drawn (the multiples of a figure, the bit of a test), ``labels`` the labels after a
    passed test.
    """

    name: str
    event: Sanitized | Tested
    run: str
    binding: str
    journal: Path
    labels: Path


@dataclass(frozen=True)
class Desk:
    """Where draws are charged and journalled, held by one process at a time."""

    ledger: Ledger
    account: Account
    key: bytes
    folder: Path

    def keyed(self, *parts: Any) -> str:
        """A keyed digest."""
        return hmac.new(self.key, json.dumps(parts, sort_keys=True).encode(), "sha256").hexdigest()

    def release(self, name: str, event: Sanitized | Tested, votes: Path, mechanism: NoisyMax) -> Release:
        """The place of a release: the same for the same file, mechanism, caps and event."""
        run = f"privacy-{self.keyed(str(votes.resolve()), event_to_dict(mechanism))[:16]}"
        binding = self.keyed("privacy", name, run, event_to_dict(event))
        stem = self.folder / binding[:32]
        return Release(name, event, run, binding, stem.with_suffix(".journal"), stem.with_suffix(".labels"))


@contextlib.contextmanager
def desk(drawing: DrawOptions, delta: float, tested: bool) -> Iterator[Desk]:
    """The dataset's account, opened at first use, and the folder of its journals, locked."""
    assert drawing.dataset is not None
    assert drawing.ledger is not None
    root = _root(drawing)
    ledger, account = _account(drawing, delta, tested)
    folder = root / ".draws"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with file_held(folder / ".lock", say, "another draw is under way"):
        yield Desk(ledger, account, dataset_key(root, drawing.dataset), folder)


def say(line: str) -> None:
    """To standard error, where a run says what it charges."""
    print(line, file=sys.stderr, flush=True)


def _root(drawing: DrawOptions) -> Path:
    if drawing.run_root is not None:
        return drawing.run_root.expanduser().resolve()
    with contextlib.suppress(ArgumentError):
        url = make_url(drawing.ledger or "")
        if url.get_backend_name() == "sqlite" and url.database:
            return Path(url.database).expanduser().resolve().parent
    return Path("runs").resolve()


def _account(drawing: DrawOptions, delta: float, tested: bool) -> tuple[Ledger, Account]:
    name, url = drawing.dataset or "", drawing.ledger or ""
    known = None
    if exists(url):
        known = next((account for account in open_ledger(url).accounts() if account.name == name), None)
    unit = drawing.unit or (known.unit if known else None)
    limit = drawing.limit if drawing.limit is not None else (known.limit if known else None)
    if unit is None or limit is None:
        raise UserError(
            f"--unit, --limit: dataset {name!r} is not on this ledger yet; its account is opened with a unit and a "
            "limit ε for all its releases together"
        )
    if tested and known is None and not drawing.tested_delta:
        raise UserError(
            "--tested-delta: a tested release needs a part of δ that is set aside when the account is opened: at least "
            "--test-delta for each"
        )
    ledger = open_ledger(url)
    return ledger, ledger.dataset(name, unit=unit, delta=delta, limit=limit, tested_delta=drawing.tested_delta)


def charged(desk: Desk, releases: Sequence[Release], again: bool, votes: str) -> dict[str, Reservation]:
    """{name: the charge to draw under, or a committed one to replay}; what is new is charged together, and said.

    ``votes``: a keyed digest of the votes that would be drawn from.

    Raises:
        UserError: an order that the account does not cover.
        RefusedError: the budget would be exceeded: nothing was charged.
    """
    held = {release.name: _earlier(desk, release, again) for release in releases}
    new = [release for release in releases if held[release.name] is None]
    for release in new:
        if release.event.order < desk.account.order:
            raise UserError(
                f"--order = {release.event.order:g}: must be at least {desk.account.order:g}, the order that the "
                f"account of dataset {desk.account.name!r} was opened with"
            )
    requests = [
        Request(
            release.run,
            release.name,
            release.event,
            _WHY[release.name],
            guarantee(release.event, desk.account.delta).epsilon,
        )
        for release in new
    ]
    before = {release.name for release in new if _drawn(desk, release)}
    for release, request, reserved in zip(new, requests, desk.ledger.reserve(desk.account, requests), strict=True):
        once_more = " again, for a new draw: what was drawn before stays spent" if release.name in before else ""
        say(
            f"{release.name}: charges ε = {rounded_up(request.epsilon)} (δ = {desk.account.delta:g}) to the ledger of "
            f"dataset {desk.account.name!r}{once_more}"
        )
        # Header before bind: a crash between them leaves a reservation that is still free to be used.
        _start(release, reserved, votes)
        held[release.name] = desk.ledger.bind(reserved.id, release.binding)
    result = {name: reservation for name, reservation in held.items() if reservation is not None}
    for release in releases:
        reservation = result[release.name]
        state = journal.read(release.journal)
        if reservation.state == COMMITTED:
            say(f"{release.name}: replays the draw charged on {reservation.when[:19]}; --again draws and charges anew")
        elif state is not None and state[0].event.get("votes") != votes:
            # Nothing of that draw was released; a test and the labels after it must be of the same votes.
            _start(release, reservation, votes)
    return result


def commit(desk: Desk, release: Release, reservation: Reservation) -> Reservation:
    """The charge, committed for what the journals hold: from here on it may be released."""
    return desk.ledger.commit(reservation.id, _outcome(desk, release, reservation.id))


def drawn(release: Release) -> tuple[np.ndarray, np.ndarray]:
    """What the journals hold: the numbers, and the labels (-1: abstained), if any."""
    state, labels = journal.read(release.journal), journal.read(release.labels)
    nothing = np.zeros(0, dtype=np.int32)
    return nothing if state is None else state[1], nothing if labels is None else labels[1]


def _earlier(desk: Desk, release: Release, again: bool) -> Reservation | None:
    """The charge whose draw the journal holds: committed for just that, or still to be finished."""
    state = journal.read(release.journal)
    held = next((r for r in _drawn(desk, release) if state is not None and r.id == state[0].reservation), None)
    if held is None or held.binding != release.binding:
        return None
    if held.state == COMMITTED and (again or held.outcome != _outcome(desk, release, held.id)):
        return None
    return held


def _drawn(desk: Desk, release: Release) -> list[Reservation]:
    held = desk.ledger.find(desk.account.name, release.run, release.name)
    return [reservation for reservation in held if reservation.state in (DRAWING, COMMITTED)]


def _start(release: Release, reservation: Reservation, votes: str) -> None:
    header = journal.Header(reservation.id, release.binding, {**event_to_dict(release.event), "votes": votes})
    if isinstance(release.event, Tested):
        journal.start(release.labels, header)
    journal.start(release.journal, header)


def _outcome(desk: Desk, release: Release, reservation: str) -> str:
    numbers, labels = drawn(release)
    return desk.keyed("outcomes", reservation, numbers.tolist(), labels.tolist())
