"""Runs of several rounds, end to end on digits: what they release, charge, replay after a crash, and may depend on."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from accounting.cost import guarantee
from accounting.events import ConfidentGNMax, GNMax, InteractiveGNMax, NoisyMax
from accounting.ledger import open_ledger
from aggregation import answering, journal
from data.public import load_public
from data.settings import DataSettings
from data.store import digest
from flows import rounds
from tests.flows.small import SMALL

Pate = Callable[..., tuple[int, dict[str, Any], str]]
TEACHERS = 20
QUERIES, ANSWERS, ROUNDS = 40, 25, 3
TEST = {"threshold": 8.0, "threshold_sigma": 4.0}
MECHANISMS: dict[str, tuple[dict[str, Any], NoisyMax]] = {
    "gnmax": ({}, GNMax(3.0, ANSWERS)),
    "confident-gnmax": (TEST, ConfidentGNMax(3.0, 8.0, 4.0, QUERIES, ANSWERS)),
    "interactive-gnmax": (TEST | {"confidence": 0.5}, InteractiveGNMax(3.0, 8.0, 4.0, QUERIES, ANSWERS)),
}
pytestmark = pytest.mark.slow


def given_votes(file: Path, seed: int) -> Path:
    """Votes of 20 teachers on the 400 public digits: a label each, mostly right."""
    from sklearn.datasets import load_digits

    truth = load_digits().target[load_public(DataSettings.model_validate(SMALL["data"]), 0).ids]
    generator = np.random.default_rng(seed)
    wrong = generator.random((len(truth), TEACHERS)) < 0.2
    np.save(file, np.where(wrong, generator.integers(0, 10, wrong.shape), truth[:, None]))
    return file


def config(folder: Path, mechanism: str, teachers: dict[str, Any] | None = None, **queries: Any) -> Path:
    """A config of the name ``run`` in the folder, whose run root is ``folder/runs``."""
    path = folder / "run.yaml"
    parameters, _ = MECHANISMS[mechanism]
    record = SMALL | {
        "run_root": str(folder / "runs"),
        "baseline": {"enabled": False},
        "queries": {"strategy": "prototypes", "count": QUERIES, "rounds": ROUNDS} | queries,
        "aggregation": {"mechanism": mechanism, "sigma": 3.0, "max_answers": ANSWERS, "delta": 1e-4, **parameters},
    }
    if teachers is None:
        teachers = {"count": TEACHERS, "model": f"votes:{given_votes(folder / 'votes.npy', 1)}"}
    path.write_text(yaml.safe_dump(record | {"teachers": teachers}))
    return path


def tables(folder: Path) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """(queries, labels) as released."""
    release = folder / "runs" / "run" / "release"
    return tuple(pq.read_table(release / f"{name}.parquet").to_pydict() for name in ("queries", "labels"))  # type: ignore[return-value]


def charges_of(folder: Path) -> list[tuple[str, str]]:
    """(stage, state) of the events on the ledger."""
    return [(e.stage, e.state) for e in open_ledger(f"sqlite:///{folder}/runs/ledger.sqlite").events("digits")]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_run_in_rounds_releases_what_one_charge_pays_for(mechanism: str, tmp_path: Path, pate: Pate) -> None:
    """Rows append by round within the caps; sources are told; ε is the event's at the caps; a rerun reuses it all."""
    teachers = SMALL["teachers"] if mechanism == "interactive-gnmax" else None
    arguments = (config(tmp_path, mechanism, teachers), "--json")
    code, result, err = pate("run", *arguments, "--no-prefect")
    assert code == 0, err
    queries, labels = tables(tmp_path)
    asked = len(labels["label"])
    assert queries["query_id"] == labels["query_id"] == list(range(asked))
    assert queries["public_id"] == labels["public_id"]
    assert len(set(labels["public_id"])) == asked
    assert queries["round"] == labels["round"] == sorted(labels["round"])
    assert set(labels["round"]) == {0, 1, 2}
    sources = np.array(labels["source"])
    assert set(sources) <= ({"teachers", "student", "abstained"} if "inter" in mechanism else {"teachers", "abstained"})
    assert [label is None for label in labels["label"]] == (sources == "abstained").tolist()
    for r in range(ROUNDS):
        through = np.array(labels["round"]) <= r
        assert through.sum() <= -(-QUERIES * (r + 1) // ROUNDS)
        assert (sources[through] == "teachers").sum() <= -(-ANSWERS * (r + 1) // ROUNDS)
    counts = [int((sources == name).sum()) for name in ("teachers", "student")]
    assert [result["asked"], result["answered"], result["kept"]] == [asked, *counts]
    # Every round is said once, after it is on the ledger.
    assert [f"aggregate: round {r} of 3" in err for r in (1, 2, 3, 4)] == [True, True, True, False]
    run = tmp_path / "runs" / "run"
    _, event = MECHANISMS[mechanism]
    privacy = json.loads((run / "release" / "privacy.json").read_text())
    assert privacy["epsilon"] == pytest.approx(guarantee(event, 1e-4).epsilon, rel=1e-9)
    assert privacy["mechanism"] == mechanism
    assert "asked in 3 rounds" in privacy["statement"]
    assert ("source is the student" in privacy["statement"]) == ("inter" in mechanism)
    page, private = ((run / part).read_text() for part in ("release/report.html", "private/report-private.html"))
    assert "<th>Round</th>" in page
    assert ("kept the student's own label" in page.replace("&#39;", "'")) == (counts[1] > 0)
    assert "conditional on the queries" in private
    assert len(pq.read_table(run / "private" / "votes.parquet")) == asked
    assert charges_of(tmp_path) == [("aggregate", "committed")]
    before = digest(tmp_path / "runs" / "ledger.sqlite")
    code, again, _ = pate("run", *arguments)
    assert code == 0
    assert len(again["reused"]) == 8
    for stage in ("queries", "vote", "aggregate"):
        assert "reused" in pate(stage, *arguments)[2]
    assert digest(tmp_path / "runs" / "ledger.sqlite") == before


# --- crashes -----------------------------------------------------------------------------------------------------


@pytest.fixture
def prepared(tmp_path: Path, pate: Pate) -> Path:
    """A config whose first three stages and first vote are done."""
    path = config(tmp_path, "interactive-gnmax")
    for stage in ("partition", "teach", "queries", "vote"):
        assert pate(stage, path)[0] == 0
    return path


@pytest.fixture
def steady_noise(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise that is a function of what the journal holds: a resumed run meets that of an uninterrupted one."""
    path, real = prepared.parent / "runs" / "run" / "private" / "outcomes.journal", answering.answer

    def answer(votes: np.ndarray, event: NoisyMax, remaining: int, _: object, **more: Any) -> np.ndarray:
        held = journal.read(path)
        assert held is not None
        return real(votes, event, remaining, np.random.default_rng([3, len(held[1])]).bytes, **more)

    monkeypatch.setattr(answering, "answer", answer)


class Crashed(BaseException):
    """A kill: no handler of the program acts on it."""


def crashing(patched: pytest.MonkeyPatch, path: Path, after: bool, seen: set[tuple[str, int]]) -> None:
    """Crash once at each durable step: each write of the journal, of the ledger, of the labels."""
    from accounting.ledger import Ledger

    def stopping(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **more: Any) -> Any:
            here = (name, path.stat().st_size)
            new = here not in seen
            seen.add(here)
            if new and not after:
                raise Crashed
            result = real(*arguments, **more)
            if new:
                raise Crashed
            return result

        return step

    for owner, name in ((journal, "_add"), (Ledger, "advance"), (Ledger, "commit"), (rounds, "write_labels")):
        patched.setattr(owner, name, stopping(name, getattr(owner, name)))


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_step_ends_as_without_it_under_one_charge(
    after: bool, prepared: Path, steady_noise: None, tmp_path: Path, pate: Pate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before, or after, each durable step in turn and resumed: same labels, one charge, committed once."""
    run, seen = tmp_path / "runs" / "run", set[tuple[str, int]]()
    path, crashes = run / "private" / "outcomes.journal", 0
    with monkeypatch.context() as patched:
        crashing(patched, path, after, seen)
        while pate("aggregate", prepared)[0] != 0:
            crashes += 1
            assert crashes < 40
    # Three rounds are asked, answered and recorded; then the commit and the release.
    assert crashes == len(seen) >= 11
    labels = pq.read_table(run / "release" / "labels.parquet")
    kept = path.read_text().splitlines()[1:]
    assert charges_of(tmp_path) == [("aggregate", "committed")]
    (run / "release" / "labels.parquet").unlink()
    assert pate("aggregate", prepared)[0] == 0
    # A new charge and a new journal, which meets the same noise without a crash.
    assert charges_of(tmp_path) == [("aggregate", "committed")] * 2
    assert path.read_text().splitlines()[1:] == kept
    assert pq.read_table(run / "release" / "labels.parquet").equals(labels)


def test_a_kill_in_a_later_round_replays_the_earlier_ones(prepared: Path, tmp_path: Path, pate: Pate) -> None:
    """kill -9 after round 2 was asked: its queries and all of round 1 stand, under the same charge; nothing is out."""
    script = (
        "import os, signal, sys\n"
        "from aggregation import journal\n"
        "real = journal.ask\n"
        "def ask(path, asked):\n"
        "    real(path, asked)\n"
        "    if asked.number == 1:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "journal.ask = ask\n"
        "from flows.cli import run_command\n"
        "run_command(sys.argv[1:])\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script, "aggregate", str(prepared)], check=False, capture_output=True, env=os.environ
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    run = tmp_path / "runs" / "run"
    state = journal.read_rounds(run / "private" / "outcomes.journal")
    assert state is not None
    first, second = state[1]
    assert not (run / "release" / "queries.parquet").exists()
    assert pate("aggregate", prepared)[0] == 0
    queries, labels = tables(tmp_path)
    said = zip(labels["label"], labels["source"], strict=True)
    taught = [label if source == "teachers" else -1 for label, source in said]
    assert taught[: len(first.outcomes)] == first.outcomes.tolist()
    ids = load_public(DataSettings.model_validate(SMALL["data"]), 0).ids
    later = [i for i, r in zip(queries["public_id"], queries["round"], strict=True) if r == 1]
    assert later == ids[second.asked.rows[: len(later)]].tolist()
    assert charges_of(tmp_path) == [("aggregate", "committed")]


def test_other_rounds_than_the_ledger_knows_need_a_new_charge(
    prepared: Path, tmp_path: Path, pate: Pate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash in round 2, then a journal whose round 1 is another draw: what was shown of the first stays paid for."""
    run = tmp_path / "runs" / "run"
    path = run / "private" / "outcomes.journal"
    real = journal.ask

    def ask(at: Path, asked: journal.Asked) -> None:
        if asked.number == 1:
            raise Crashed
        real(at, asked)

    with monkeypatch.context() as patched:
        patched.setattr(journal, "ask", ask)
        assert pate("aggregate", prepared)[0] != 0
    assert charges_of(tmp_path) == [("aggregate", "drawing")]
    state = journal.read_rounds(path)
    assert state is not None
    header, (first,) = state
    journal.start(path, header)
    real(path, first.asked)
    journal.append(path, 0, (first.outcomes + 1) % 9)
    code, _, err = pate("aggregate", prepared)
    assert code == 0
    assert "for a new event" in err
    assert charges_of(tmp_path) == [("aggregate", "drawing"), ("aggregate", "committed")]


# --- what a later round may depend on ----------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["confident-gnmax", "interactive-gnmax"])
def test_later_queries_depend_on_released_labels_only(
    mechanism: str, tmp_path: Path, pate: Pate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other votes, the same outcomes: the queries of all rounds, the student's part in them and the labels are equal.

    The votes of one run are right, those of the other are nonsense; what the mechanism gives is scripted for both.
    """
    found = []
    for name, seed in (("one", 1), ("other", 2)):
        folder = tmp_path / name
        folder.mkdir()
        votes = given_votes(folder / "votes.npy", seed)
        if name == "other":
            np.save(votes, np.random.default_rng(0).permutation(np.load(votes)))
        path = config(folder, mechanism, {"count": TEACHERS, "model": f"votes:{votes}"})
        generator = np.random.default_rng(5)

        def answer(
            votes: np.ndarray,
            event: NoisyMax,
            remaining: int,
            source: object,
            generator: np.random.Generator = generator,
            **more: object,
        ) -> np.ndarray:
            outcomes = generator.integers(-1, 10, len(votes)).astype(np.int32)
            last = np.flatnonzero((outcomes >= 0).cumsum() >= remaining)
            return outcomes[: last[0] + 1] if len(last) else outcomes

        monkeypatch.setattr(answering, "answer", answer)
        for stage in ("partition", "teach", "queries", "vote", "aggregate"):
            assert pate(stage, path)[0] == 0
        kept = (folder / "runs" / "run" / "private" / "outcomes.journal").read_text().splitlines()[1:]
        found.append((tables(folder), kept))
        assert (len(set(found[-1][0][1]["round"]))) == ROUNDS
    assert found[0] == found[1]


# --- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "queries", "expected"),
    [
        ("interactive-gnmax", {"rounds": 1}, "queries.rounds = 1: must be at least 2 for interactive-gnmax"),
        ("gnmax", {"rounds": 26}, "queries.rounds = 26: must be at most aggregation.max_answers = 25"),
        ("gnmax", {"rounds": 12, "count": 10}, "queries.rounds = 12: must be at most queries.count = 10"),
        ("gnmax", {"rounds": 0}, "queries.rounds"),
    ],
)
def test_rounds_that_cannot_be_are_refused(
    mechanism: str, queries: dict[str, Any], expected: str, tmp_path: Path, pate: Pate
) -> None:
    """One line that names the field, before anything is charged."""
    code, result, _ = pate("run", config(tmp_path, mechanism, **queries), "--no-prefect", "--json")
    assert code == 2
    assert expected in result["error"]
    assert not (tmp_path / "runs").exists()


def test_other_student_settings_ask_nothing_anew(prepared: Path, tmp_path: Path, pate: Pate) -> None:
    """The labels are what was asked and paid for; another student learns from them."""
    assert pate("aggregate", prepared)[0] == 0
    _, _, err = pate("aggregate", prepared, "--set", "student.epochs=7")
    assert "aggregate: reused" in err
    assert "charges" in pate("aggregate", prepared, "--set", "aggregation.confidence=0.7")[2]
    assert charges_of(tmp_path) == [("aggregate", "committed")] * 2
