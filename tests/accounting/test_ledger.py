"""The budget ledger: what it admits, that processes cannot overspend together, and that crashes refund nothing.

Every test runs on SQLite; with PATE_TEST_POSTGRES naming an (empty or shared) PostgreSQL database, on that too.
"""

import math
import multiprocessing
import os
import signal
import sqlite3
import stat
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp as dp_rdp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting.curves import rdp
from accounting.events import DPSGD, ConfidentGNMax, Event, GNMax, LNMax
from accounting.ledger import Ledger, open_ledger
from accounting.ledger_rows import Account, Request, Reservation
from accounting.statement import rounded_up
from data.errors import RefusedError, UserError

FORK = multiprocessing.get_context("fork")
DELTA = 1e-5


@dataclass(frozen=True)
class Place:
    """Where one test keeps its ledger, and a dataset name nobody else uses."""

    url: str
    dataset: str

    def open(self, limit: float = 2.0) -> tuple[Ledger, Account]:
        ledger = open_ledger(self.url)
        return ledger, ledger.dataset(self.dataset, unit="patient", delta=DELTA, limit=limit)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    url = f"sqlite:///{tmp_path / 'team' / 'ledger.sqlite'}"
    if request.param == "postgresql":
        url = os.environ.get("PATE_TEST_POSTGRES", "")
        if not url:
            pytest.skip("PATE_TEST_POSTGRES is unset: the ledger on PostgreSQL needs a server's URL")
    return Place(url, f"dataset-{uuid.uuid4().hex}")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def gaussian(sigma: float) -> DPSGD:
    """One Gaussian mechanism on all units: the one event whose curve, α / (2 σ²), is known by heart."""
    return DPSGD(noise_multiplier=sigma, sampling_rate=1.0, steps=1)


def ask(event: Event, run: str = "run", stage: str = "aggregate", epsilon: float = 1.0) -> Request:
    return Request(run=run, stage=stage, event=event, why="a test", epsilon=epsilon)


def budget(order: float, epsilon: float, delta: float = DELTA) -> float:
    """The Rényi budget at ``order``, from the conversion as printed in [CKS], not from the code under test."""
    return epsilon + math.log(delta) / (order - 1) - math.log((order - 1) / order) + math.log(order) / (order - 1)


def fitting(account: Account, limit: float, count: float) -> DPSGD:
    """A Gaussian event of which exactly ``count`` exhaust the budget."""
    return gaussian(math.sqrt(account.order * count / (2 * budget(account.order, limit))))


# --- what is admitted ---------------------------------------------------------------------------------------


def test_admits_until_the_sum_at_one_order_reaches_the_budget(place: Place) -> None:
    """Of events that each cost 1/5.01 of the budget five are admitted and the sixth is refused, writing nothing."""
    ledger, account = place.open(limit=2.0)
    event = fitting(account, 2.0, 5.01)
    for index in range(5):
        ledger.reserve(account, [ask(event, run=f"run-{index}")])
    before = ledger.events(account.name)
    with pytest.raises(RefusedError) as refusal:
        ledger.reserve(account, [ask(event, run="run-5")])
    assert ledger.events(account.name) == before
    assert len(before) == 5
    text = str(refusal.value)
    assert "\n" not in text
    for part in (account.name, "2.0000", "aggregate", "run-5", rounded_up(ledger.spent(account.name))):
        assert part in text
    assert refusal.value.exit_code == 3


def test_what_is_spent_is_what_another_accountant_says(place: Place) -> None:
    """The ε shown for two Gaussian events is dp_accounting's at the ledger's order, to nine digits."""
    ledger, account = place.open(limit=3.0)
    for run, sigma in (("a", 4.0), ("b", 7.0)):
        ledger.reserve(account, [ask(gaussian(sigma), run=run)])
    oracle = dp_rdp.RdpAccountant(orders=[account.order])
    oracle.compose(dp_accounting.GaussianDpEvent(4.0)).compose(dp_accounting.GaussianDpEvent(7.0))
    assert ledger.spent(account.name) == pytest.approx(oracle.get_epsilon(DELTA), rel=1e-9)


def test_the_order_is_where_a_gaussian_of_that_budget_converts_best(file: Path) -> None:
    """No order on a fine grid lets through more of a Gaussian than the α* fixed at opening."""
    for limit, delta in ((0.3, 1e-6), (2.0, 1e-5), (8.0, 1e-3)):
        account = open_ledger(f"sqlite:///{file}").dataset(f"d-{limit}", unit="record", delta=delta, limit=limit)
        grid = np.exp(np.linspace(math.log(1.01), math.log(2000), 5000))
        best = max(budget(float(order), limit, delta) / float(order) for order in grid)
        assert budget(account.order, limit, delta) / account.order >= best * (1 - 1e-4)


def test_nothing_spent_reads_zero(place: Place) -> None:
    """An opened dataset without events has spent 0, not the constant of the conversion."""
    ledger, account = place.open()
    assert ledger.spent(account.name) == 0.0
    assert ledger.events(account.name) == []


def test_every_kind_of_event_is_charged_its_own_curve(place: Place) -> None:
    """Labels by three mechanisms and a DP-SGD model are charged the worst-case curve at α*, nothing else."""
    ledger, account = place.open(limit=100.0)
    events: list[Event] = [
        LNMax(scale=30.0, answers=5),
        GNMax(sigma=40.0, answers=100),
        ConfidentGNMax(sigma=40.0, threshold=200.0, threshold_sigma=150.0, queries=640, answers=283),
        DPSGD(noise_multiplier=2.0, sampling_rate=0.05, steps=50),
    ]
    kept = ledger.reserve(account, [ask(event, stage=f"stage-{i}") for i, event in enumerate(events)])
    assert [reservation.event for reservation in kept] == events
    for reservation, event in zip(kept, events, strict=True):
        assert reservation.rdp == pytest.approx(float(rdp(event, np.array([account.order]))[0]), rel=1e-12)


def test_labels_and_baseline_are_reserved_together_or_not_at_all(place: Place) -> None:
    """When the baseline does not fit beside the labels, the labels are not charged either."""
    ledger, account = place.open()
    labels, baseline = fitting(account, 2.0, 2.0), fitting(account, 2.0, 1.5)
    with pytest.raises(RefusedError, match=r"aggregate .* and baseline"):
        ledger.reserve(account, [ask(labels), ask(baseline, stage="baseline")])
    assert ledger.events(account.name) == []
    smaller = fitting(account, 2.0, 2.5)
    kept = ledger.reserve(account, [ask(labels), ask(smaller, stage="baseline")])
    assert [(r.stage, r.event) for r in kept] == [("aggregate", labels), ("baseline", smaller)]


def test_a_cost_that_is_not_a_number_is_never_admitted(place: Place) -> None:
    """ε given as NaN, infinite or negative is refused before anything is written."""
    ledger, account = place.open()
    for epsilon in (math.nan, math.inf, -1.0):
        with pytest.raises(UserError, match="epsilon"):
            ledger.reserve(account, [ask(gaussian(50.0), epsilon=epsilon)])
    assert ledger.events(account.name) == []


# --- opening, limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("field", "value", "stored"), [("unit", "visit", "'patient'"), ("delta", 1e-6, "1e-05")])
def test_a_second_unit_or_delta_is_refused(place: Place, field: str, value: object, stored: str) -> None:
    """Reopening a dataset with another unit or δ names the field, the value given and the value stored."""
    ledger, _ = place.open()
    given_values = {"unit": "patient", "delta": DELTA, "limit": 2.0, field: value}
    with pytest.raises(UserError) as error:
        ledger.dataset(place.dataset, **given_values)  # type: ignore[arg-type]
    assert all(part in str(error.value) for part in (field, repr(value), stored))


def test_replace_one_adjacency_is_refused(place: Place) -> None:
    """Only add/remove is accounted for; a ledger in another adjacency cannot be opened."""
    ledger = open_ledger(place.url)
    with pytest.raises(UserError, match=r"adjacency = 'replace-one'.*'add-remove'"):
        ledger.dataset(place.dataset, unit="record", delta=DELTA, limit=1.0, adjacency="replace-one")


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan, math.inf])
def test_a_limit_must_be_a_finite_positive_number(place: Place, limit: float) -> None:
    """A limit of 0, below, NaN or infinity is refused, at opening and when raised."""
    with pytest.raises(UserError, match=r"ledger\.epsilon"):
        place.open(limit=limit)
    ledger, account = place.open()
    with pytest.raises(UserError, match=r"ledger\.epsilon"):
        ledger.raise_limit(account.name, limit, why="a test")


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_delta_must_be_a_probability(place: Place, delta: float) -> None:
    """δ outside (0, 1), NaN included, is refused."""
    with pytest.raises(UserError, match=r"ledger\.delta"):
        open_ledger(place.url).dataset(place.dataset, unit="record", delta=delta, limit=1.0)


def test_the_smaller_of_stored_and_given_limit_holds(place: Place) -> None:
    """Settings may tighten the stored limit for their own run, but never loosen it, nor move α*."""
    ledger, account = place.open(limit=2.0)
    tighter, looser = place.open(limit=0.5)[1], place.open(limit=50.0)[1]
    assert (tighter.limit, looser.limit, ledger.limit(account.name)) == (0.5, 2.0, 2.0)
    assert tighter.order == looser.order == account.order
    event = fitting(account, 2.0, 1.01)
    with pytest.raises(RefusedError, match=r"limit 0\.5000"):
        ledger.reserve(tighter, [ask(event)])
    ledger.reserve(looser, [ask(event)])
    with pytest.raises(RefusedError, match=r"limit 2\.0000"):
        ledger.reserve(looser, [ask(event, run="second")])


def test_only_raise_limit_raises_it_and_says_who_when_and_why(place: Place) -> None:
    """Raising admits more, lowering admits no more and refunds nothing; α* stays and the history is kept."""
    ledger, _ = place.open(limit=1.0)
    loose = place.open(limit=100.0)[1]
    event = fitting(loose, 1.0, 1.01)
    ledger.reserve(loose, [ask(event)])
    with pytest.raises(RefusedError):
        ledger.reserve(loose, [ask(event, run="second")])
    raised = ledger.raise_limit(loose.name, 3.0, why="the board agreed", who="curator")
    assert raised.order == loose.order
    ledger.reserve(loose, [ask(event, run="second")])
    spent = ledger.spent(loose.name)
    ledger.raise_limit(loose.name, 0.1, why="mistake", who="curator")
    assert ledger.spent(loose.name) == spent
    with pytest.raises(RefusedError):
        ledger.reserve(loose, [ask(gaussian(1e4), run="third")])
    history = [row for row in ledger.export()["limits"] if row["dataset"] == loose.name]
    assert [(row["epsilon"], row["why"]) for row in history] == [
        (1.0, "opened"),
        (3.0, "the board agreed"),
        (0.1, "mistake"),
    ]
    assert [row["who"] for row in history[1:]] == ["curator", "curator"]
    assert all(row["when"].endswith("+00:00") for row in history)


def test_datasets_do_not_share_a_budget(place: Place) -> None:
    """Two datasets on one ledger spend apart, and a dataset nobody opened is an error that names it."""
    ledger, account = place.open()
    other = ledger.dataset(place.dataset + "-other", unit="visit", delta=1e-6, limit=1.0)
    ledger.reserve(account, [ask(fitting(account, 2.0, 1.01))])
    assert ledger.spent(other.name) == 0.0
    assert {account.name, other.name} <= {known.name for known in ledger.accounts()}
    assert replace(ledger.account(account.name), settings_limit=2.0) == account
    with pytest.raises(UserError, match="'nobody'"):
        ledger.spent("nobody")


# --- states -------------------------------------------------------------------------------------------------


def test_reserving_again_before_anything_is_drawn_charges_once(place: Place) -> None:
    """The same run, stage and event asked again is the same charge, even when no second one would fit."""
    ledger, account = place.open()
    event = fitting(account, 2.0, 1.5)
    [first] = ledger.reserve(account, [ask(event)])
    assert ledger.reserve(account, [ask(event)]) == [first]
    assert ledger.find(account.name, "run", "aggregate") == [first]


def test_changed_settings_replace_what_was_never_drawn(place: Place) -> None:
    """A reservation under which nothing was drawn gives way to the changed event, in the same transaction."""
    ledger, account = place.open()
    [first] = ledger.reserve(account, [ask(fitting(account, 2.0, 1.5))])
    [second] = ledger.reserve(account, [ask(fitting(account, 2.0, 1.2))])
    states = {event.id: event.state for event in ledger.events(account.name)}
    assert states == {first.id: "cancelled", second.id: "reserved"}
    with pytest.raises(RefusedError):
        ledger.reserve(account, [ask(fitting(account, 2.0, 0.9))])
    assert {event.id: event.state for event in ledger.events(account.name)} == states
    with pytest.raises(UserError, match="cancelled"):
        ledger.bind(first.id, "binding")


@pytest.mark.parametrize("state", ["drawing", "committed"])
def test_what_may_have_been_drawn_is_never_reused_or_refunded(place: Place, state: str) -> None:
    """Once drawing, the same request is a new charge, a changed one replaces nothing, and cancelling is refused."""
    ledger, account = place.open()
    event = fitting(account, 2.0, 3.5)
    [first] = ledger.reserve(account, [ask(event)])
    first = ledger.bind(first.id, "binding")
    if state == "committed":
        first = ledger.commit(first.id, "outcome")
    [second] = ledger.reserve(account, [ask(event)])
    [third] = ledger.reserve(account, [ask(fitting(account, 2.0, 3.6))])
    assert [e.state for e in ledger.find(account.name, "run")] == [state, "cancelled", "reserved"]
    assert len({first.id, second.id, third.id}) == 3
    with pytest.raises(UserError, match=f"is {state}"):
        ledger.cancel(first.id)


def test_a_draw_is_bound_to_its_votes_and_mechanism(place: Place) -> None:
    """Resuming binds with the same digest; another digest is refused and not shown; nothing is drawn after commit."""
    ledger, account = place.open()
    [reserved] = ledger.reserve(account, [ask(gaussian(50.0))])
    assert (reserved.state, reserved.binding) == ("reserved", None)
    drawing = ledger.bind(reserved.id, "digest-of-these-votes")
    assert (drawing.state, drawing.binding) == ("drawing", "digest-of-these-votes")
    assert ledger.bind(reserved.id, "digest-of-these-votes") == drawing
    with pytest.raises(UserError, match="other votes") as error:
        ledger.bind(reserved.id, "digest-of-other-votes")
    assert "digest" not in str(error.value)
    ledger.commit(reserved.id, "outcome")
    with pytest.raises(UserError, match="is committed"):
        ledger.bind(reserved.id, "digest-of-these-votes")


def test_commit_keeps_the_charge_at_the_caps(place: Place) -> None:
    """Committing changes the state alone, again changes nothing, and before a draw it is refused."""
    ledger, account = place.open()
    [reserved] = ledger.reserve(account, [ask(gaussian(50.0), epsilon=0.25)])
    with pytest.raises(UserError, match="is reserved"):
        ledger.commit(reserved.id, "outcome")
    spent = ledger.spent(account.name)
    ledger.bind(reserved.id, "binding")
    committed = ledger.commit(reserved.id, "outcome")
    assert ledger.commit(reserved.id, "outcome") == committed
    assert ledger.spent(account.name) == spent
    assert (committed.state, committed.rdp, committed.epsilon) == ("committed", reserved.rdp, 0.25)


def test_cancelling_refunds_what_was_never_drawn(place: Place) -> None:
    """A reservation given up before its draw leaves the budget whole and nothing can be drawn under it."""
    ledger, account = place.open()
    [reserved] = ledger.reserve(account, [ask(fitting(account, 2.0, 1.01))])
    assert ledger.cancel(reserved.id).state == "cancelled"
    assert ledger.cancel(reserved.id).state == "cancelled"
    assert ledger.spent(account.name) == 0.0
    for step in (lambda: ledger.bind(reserved.id, "b"), lambda: ledger.commit(reserved.id, "outcome")):
        with pytest.raises(UserError, match="is cancelled"):
            step()


def test_who_when_and_why_stand_on_every_event(place: Place) -> None:
    """The export shows each event as readable data with its author, UTC time and reason."""
    ledger, account = place.open()
    event = GNMax(sigma=90.0, answers=3)
    ledger.reserve(account, [ask(event)], who="analyst")
    ledger.reserve(account, [ask(event, run="other")])
    rows = [row for row in ledger.export()["events"] if row["dataset"] == account.name]
    assert rows[0]["event"] == {"mechanism": "gnmax", "sigma": 90.0, "answers": 3}
    assert (rows[0]["who"], rows[0]["why"]) == ("analyst", "a test")
    assert rows[1]["who"]
    assert all(row["when"].endswith("+00:00") for row in rows)


def test_an_unknown_reservation_is_an_error(place: Place) -> None:
    """Binding, committing or cancelling an id that is not there names it."""
    ledger, _ = place.open()
    for step in (
        lambda: ledger.bind("none", "b"),
        lambda: ledger.commit("none", "outcome"),
        lambda: ledger.cancel("none"),
    ):
        with pytest.raises(UserError, match="'none'"):
            step()


# --- processes ----------------------------------------------------------------------------------------------


def start(work: Callable[..., None], *arguments: object) -> tuple[BaseProcess, Connection]:
    """A process that runs ``work(*arguments, pipe)``, and the other end of the pipe (it ends when the process does)."""
    receiving, sending = FORK.Pipe(duplex=False)
    process = FORK.Process(target=work, args=(*arguments, sending), daemon=True)
    process.start()
    sending.close()
    return process, receiving


def in_processes(count: int, work: Callable[[int, Connection], None]) -> list[object]:
    """Run ``work`` in ``count`` processes at once; what each sent."""
    started = [start(work, index) for index in range(count)]
    sent = [pipe.recv() for _, pipe in started]
    for process, _ in started:
        process.join(60)
        assert process.exitcode == 0
    return sent


def kill(process: BaseProcess) -> None:
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.slow
def test_eight_processes_cannot_overspend_together(place: Place) -> None:
    """Eight processes reserve pairs at once: exactly as many pairs as fit are written, whole, and no more."""
    _, account = place.open(limit=2.0)
    event = fitting(account, 2.0, 22.5)

    def work(index: int, pipe: Connection) -> None:
        ledger, mine = place.open(limit=2.0)
        admitted = 0
        for attempt in range(4):
            run = f"run-{index}-{attempt}"
            try:
                ledger.reserve(mine, [ask(event, run=run), ask(event, run=run, stage="baseline")])
                admitted += 1
            except RefusedError:
                pass
        pipe.send(admitted)

    admitted = in_processes(8, work)
    ledger, account = place.open(limit=2.0)
    events = ledger.events(account.name)
    assert sum(admitted) == 11  # 22 of the 22.5 that fit; 32 pairs were asked for
    assert len(events) == 22
    assert all(len(ledger.find(account.name, event.run)) == 2 for event in events)
    assert math.fsum(event.rdp for event in events) <= budget(account.order, 2.0)


@pytest.mark.slow
def test_processes_that_open_a_new_ledger_at_once_agree(place: Place) -> None:
    """Eight processes create the ledger and open the dataset with different limits: one wins, all see one α*."""

    def work(index: int, pipe: Connection) -> None:
        _, account = place.open(limit=1.0 + index)
        pipe.send((account.order, account.opened_at))

    assert len(set(in_processes(8, work))) == 1
    ledger = open_ledger(place.url)
    assert len([row for row in ledger.export()["limits"] if row["dataset"] == place.dataset]) == 1


def test_two_processes_of_one_run_get_one_charge_and_only_one_binding(place: Place) -> None:
    """The same run started twice is charged once, and of two bindings one is refused: nothing is drawn twice."""
    ledger, account = place.open()

    def work(index: int, pipe: Connection) -> None:
        mine, opened = place.open()
        [reserved] = mine.reserve(opened, [ask(gaussian(50.0))])
        time.sleep(0.5)  # until the other has reserved too
        try:
            mine.bind(reserved.id, f"binding-{index}")
            pipe.send(True)
        except UserError:
            pipe.send(False)

    assert sorted(in_processes(2, work)) == [False, True]
    assert len(ledger.events(account.name)) == 1


@pytest.mark.parametrize("state", ["reserved", "drawing", "committed"])
def test_a_killed_run_stays_charged_and_resumes(place: Place, state: str) -> None:
    """kill -9 after each step leaves that state, fully counted; the next process carries on without a new charge."""
    ledger, account = place.open()
    event = fitting(account, 2.0, 1.5)

    def work(pipe: Connection) -> None:
        mine, opened = place.open()
        [now] = mine.reserve(opened, [ask(event)])
        if state != "reserved":
            now = mine.bind(now.id, "binding")
        if state == "committed":
            now = mine.commit(now.id, "outcome")
        pipe.send(now)
        time.sleep(60)

    process, pipe = start(work)
    left: Reservation = pipe.recv()
    kill(process)
    assert ledger.find(account.name, "run", "aggregate") == [left]
    assert left.state == state
    with pytest.raises(RefusedError):
        ledger.reserve(account, [ask(event, run="other")])
    if state == "reserved":
        assert ledger.reserve(account, [ask(event)]) == [left]
    if state != "committed":
        ledger.bind(left.id, "binding")
    assert ledger.commit(left.id, "outcome").state == "committed"


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_whole_pairs_and_a_sound_ledger(place: Place) -> None:
    """A process killed while it writes leaves every pair whole or absent, and the ledger usable at once."""
    ledger, account = place.open(limit=50.0)

    def work(pipe: Connection) -> None:
        mine, opened = place.open(limit=50.0)
        pipe.send(None)
        while True:
            run = uuid.uuid4().hex
            mine.reserve(opened, [ask(gaussian(500.0), run=run), ask(gaussian(500.0), run=run, stage="baseline")])

    for pause in (0.0, 0.003, 0.011, 0.029, 0.061, 0.127):
        process, pipe = start(work)
        pipe.recv()
        time.sleep(pause)
        kill(process)
        ledger.reserve(account, [ask(gaussian(500.0), run=f"after-{pause}")])
    events = open_ledger(place.url).events(account.name)
    stages: dict[str, set[str]] = {}
    for event in events:
        stages.setdefault(event.run, set()).add(event.stage)
    assert all(found == {"aggregate", "baseline"} for run, found in stages.items() if "after" not in run)
    assert len(stages) > 6  # the killed processes did write


# --- any history --------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "reserve", "reserve", "bind", "commit", "cancel", "limit"]),
        st.integers(0, 3),
        st.sampled_from([2.1, 3.0, 4.0, 6.0, 9.0]),
    ),
    max_size=25,
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_no_history_overspends_or_refunds_what_was_drawn(place: Place, steps: list[tuple[str, int, float]]) -> None:
    """After any steps the charges are those of a model kept by hand, within the largest limit there was, and what
    may have been drawn is never refunded."""
    place = Place(place.url, f"dataset-{uuid.uuid4().hex}")
    ledger, account = place.open(limit=2.0)
    account = replace(account, settings_limit=math.inf)
    limit = largest = 2.0
    model: list[list[object]] = []  # run, sigma, state, in the order of the ledger
    for kind, run, sigma in steps:
        mine = [row for row in model if row[0] == run]
        drawn = ledger_drawn(ledger, account)
        if kind == "limit":
            limit = sigma / 2
            largest = max(largest, limit)
            ledger.raise_limit(account.name, limit, why="a test")
        elif kind == "reserve":
            undrawn = [row for row in mine if row[2] == "reserved"]
            after = [row for row in model if row not in undrawn or row[1] == sigma]
            new = [] if any(row[1] == sigma for row in undrawn) else [[run, sigma, "reserved"]]
            cost = sum(account.order / (2 * row[1] ** 2) for row in after + new if row[2] != "cancelled")  # type: ignore[operator]
            try:
                ledger.reserve(account, [ask(gaussian(sigma), run=str(run))])
                assert cost <= budget(account.order, limit) * (1 + 1e-12)
                for row in undrawn:
                    row[2] = "reserved" if row[1] == sigma else "cancelled"
                model += new
            except RefusedError:
                assert cost > budget(account.order, limit) * (1 - 1e-12)
        else:
            wanted, moved = {
                "bind": ("reserved", "drawing"),
                "commit": ("drawing", "committed"),
                "cancel": ("reserved", "cancelled"),
            }[kind]
            for row, stored in zip(model, ledger.events(account.name), strict=True):
                if row[0] == run and row[2] == wanted:
                    row[2] = moved
                    if kind == "bind":
                        ledger.bind(stored.id, "binding")
                    elif kind == "commit":
                        ledger.commit(stored.id, "outcome")
                    else:
                        ledger.cancel(stored.id)
        events = ledger.events(account.name)
        assert [[int(e.run), e.event.noise_multiplier, e.state] for e in events] == model  # type: ignore[union-attr]
        assert drawn <= ledger_drawn(ledger, account)
        counted = math.fsum(e.rdp for e in events if e.state != "cancelled")
        assert counted <= budget(account.order, largest) * (1 + 1e-12)


def ledger_drawn(ledger: Ledger, account: Account) -> set[tuple[str, float]]:
    return {(e.id, e.rdp) for e in ledger.events(account.name) if e.state in ("drawing", "committed")}


# --- the file and the URL -----------------------------------------------------------------------------------


def test_the_file_is_private_and_its_folder_is_made(tmp_path: Path) -> None:
    """A new ledger is mode 0600 in a folder created for it, nothing else left beside it; a loose mode is tightened."""
    path = tmp_path / "a" / "b" / "ledger.sqlite"
    open_ledger(f"sqlite:///{path}").dataset("d", unit="record", delta=DELTA, limit=1.0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["ledger.sqlite"]
    path.chmod(0o644)
    assert open_ledger(f"sqlite:///{path}").account("d").limit == 1.0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_commits_are_synced_to_disk(file: Path) -> None:
    """Every connection commits with SQLite's full or stricter synchronisation: a power cut refunds nothing."""
    with open_ledger(f"sqlite:///{file}").engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() >= 2


def _not_sqlite(path: Path) -> None:
    path.write_bytes(os.urandom(5000))


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _other_database(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE events (id INTEGER)")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _overwritten(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)


def _newer(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE pate_ledger SET version = 99")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [_not_sqlite, _emptied, _other_database, _cut, _overwritten, _newer, _folder])
def test_a_damaged_ledger_is_one_line_not_a_fresh_budget(file: Path, damage: Callable[[Path], None]) -> None:
    """Whatever happened to the file, opening it is a one-line error that names ledger.url, never a new ledger."""
    ledger = open_ledger(f"sqlite:///{file}")
    account = ledger.dataset("d", unit="record", delta=DELTA, limit=1.0)
    ledger.reserve(account, [ask(gaussian(50.0), run=f"run-{i}") for i in range(1)])
    damage(file)
    with pytest.raises(UserError, match=r"ledger\.url = .*ledger\.sqlite") as error:
        open_ledger(f"sqlite:///{file}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file:ledger?mode=memory&uri=true",
        "sqlite+aiosqlite:///ledger.sqlite",
        "mssql+pyodbc://me:secret@host/db",
        "postgresql://me:secret@127.0.0.1:1/nowhere",
        "postgresql+nonsense://me:secret@host/db",
        "nonsense://me:secret@host",
        "ledger.sqlite:secret",
        "",
    ],
)
def test_a_url_that_cannot_hold_a_ledger_is_refused(url: str) -> None:
    """In memory, unknown, untested or unreachable databases are one-line errors that do not show the password."""
    with pytest.raises(UserError, match=r"ledger\.url") as error:
        open_ledger(url)
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """A ledger below something that is a file, not a folder, cannot be created: one line that names it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"ledger\.url = .*cannot be created"):
        open_ledger(f"sqlite:///{tmp_path / 'file' / 'ledger.sqlite'}")


def test_limits_that_charges_were_admitted_under_are_kept(place: Place) -> None:
    """A limit changed before anything was charged is none; one changed after a charge stays in the standing."""
    ledger, account = place.open(limit=3.0)
    ledger.raise_limit(account.name, 5.0, why="onboarding")
    account = ledger.account(account.name)
    ledger.reserve(account, [ask(gaussian(10.0))])
    assert ledger.standing(account.name).limits == (5.0,)
    ledger.raise_limit(account.name, 9.0, why="another study")
    assert ledger.standing(account.name).limits == (5.0, 9.0)
    ledger.raise_limit(account.name, 5.0, why="a mistake")
    assert ledger.standing(account.name).limits == (5.0,)


def test_one_charge_pays_for_one_outcome(place: Place) -> None:
    """A copy of a run directory that drew something else under the same charge cannot commit it."""
    ledger, account = place.open()
    (held,) = ledger.reserve(account, [ask(gaussian(10.0))])
    ledger.bind(held.id, "binding")
    ledger.commit(held.id, "first")
    assert ledger.commit(held.id, "first").state == "committed"
    with pytest.raises(UserError, match="paid for another outcome already"):
        ledger.commit(held.id, "second")


def test_an_outcome_grows_round_by_round_and_only_from_what_is_held(place: Place) -> None:
    """Each round goes on from the one before; the same again is resuming; a copy with other rounds is refused."""
    ledger, account = place.open()
    (held,) = ledger.reserve(account, [ask(gaussian(10.0))])
    with pytest.raises(UserError, match="only what is drawing can advance"):
        ledger.advance(held.id, "one", None)
    ledger.bind(held.id, "binding")
    for outcome, after in (("one", None), ("one", None), ("two", "one"), ("two", "one")):
        found = ledger.advance(held.id, outcome, after)
        assert (found.state, found.outcome, found.rdp) == ("drawing", outcome, held.rdp)
    for outcome, after in (("other", None), ("other", "one"), ("one", None)):
        with pytest.raises(UserError, match="paid for other rounds already"):
            ledger.advance(held.id, outcome, after)
    for after in (None, "one"):
        with pytest.raises(UserError, match="paid for other rounds already"):
            ledger.commit(held.id, "all", after)
    assert ledger.bind(held.id, "binding").outcome == "two"
    assert ledger.commit(held.id, "all", "two").state == "committed"
    assert ledger.commit(held.id, "all", "two").outcome == "all"
    with pytest.raises(UserError, match="paid for other rounds already"):
        ledger.advance(held.id, "three", "all")
    with pytest.raises(UserError, match="stays charged"):
        ledger.cancel(held.id)
