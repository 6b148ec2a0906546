"""The privacy statement: what a release says of itself is complete, true to its numbers, and strict JSON."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.cost import guarantee
from accounting.events import DPSGD, ConfidentGNMax, GNMax, InteractiveGNMax, LNMax, NoisyMax
from accounting.ledger import Request, open_ledger
from accounting.ledger_rows import Standing
from accounting.statement import (
    Baseline,
    Statement,
    event_of,
    parquet_metadata,
    privacy_statement,
    validate_statement,
)
from data.errors import UserError

CONFIDENT = ConfidentGNMax(sigma=40.0, threshold=200.0, threshold_sigma=150.0, queries=640, answers=283)
PLAIN = Statement(
    run="mnist",
    unit="patient",
    classes=tuple("0123456789"),
    event=CONFIDENT,
    epsilon=2.14291,
    delta=1e-5,
    method="rdp",
    order=9.5,
    ledger=Standing("hospital", 2.2, 3.0),
)
WITH_BASELINE = replace(PLAIN, baseline=Baseline(DPSGD(1.1, 0.02, 900), 1.987654, 1e-5))

# DESIGN's names: what a reader of privacy.json may rely on.
NAMES = {
    "epsilon", "delta", "unit", "adjacency", "mechanism", "run", "classes", "sigma", "threshold", "threshold_sigma",
    "scale", "max_queries", "max_answers", "method", "baseline", "ledger",
}  # fmt: skip

EVENTS: st.SearchStrategy[NoisyMax] = st.one_of(
    st.builds(LNMax, scale=st.floats(0.1, 1e4), answers=st.integers(0, 10**6)),
    st.builds(GNMax, sigma=st.floats(0.1, 1e4), answers=st.integers(0, 10**6)),
    *(
        st.builds(
            kind,
            sigma=st.floats(0.1, 1e4),
            threshold=st.floats(-1e4, 1e4),
            threshold_sigma=st.floats(0.1, 1e4),
            queries=st.integers(1000, 10**6),
            answers=st.integers(0, 1000),
        )
        for kind in (ConfidentGNMax, InteractiveGNMax)
    ),
)


def test_a_release_states_what_the_ledger_charged(tmp_path: Path) -> None:
    """From event to statement: the ε is the worst case at the caps, and the ledger's standing covers it."""
    event = GNMax(sigma=87.0, answers=100)
    found = guarantee(event, 1e-5)
    ledger = open_ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    account = ledger.dataset("hospital", unit="patient", delta=1e-5, limit=1.0)
    ledger.reserve(account, [Request("run", "aggregate", event, "a test", found.epsilon)])
    record = privacy_statement(
        replace(
            PLAIN,
            event=event,
            epsilon=found.epsilon,
            method=found.method,
            order=found.order,
            ledger=ledger.standing(account.name),
        )
    )
    assert found.epsilon * (1 - 1e-6) <= record["ledger"]["spent"] <= record["ledger"]["limit"] == 1.0
    assert guarantee(event_of(record), record["delta"]).epsilon == record["epsilon"]


@given(event=EVENTS, epsilon=st.floats(0, 50), delta=st.floats(1e-12, 0.5))
def test_every_statement_is_strict_json_from_which_the_mechanism_comes_back(
    event: NoisyMax, epsilon: float, delta: float
) -> None:
    """Any mechanism's statement survives a strict JSON round trip, validates, and gives back its event exactly."""
    record = privacy_statement(replace(PLAIN, event=event, epsilon=epsilon, delta=delta))
    again = json.loads(json.dumps(record, allow_nan=False))
    validate_statement(again)
    assert again == record
    assert set(record) >= NAMES
    assert event_of(again) == event
    assert (again["epsilon"], again["delta"]) == (epsilon, delta)


@given(event=EVENTS, rounds=st.integers(1, 9))
def test_rounds_are_told_where_there_are_several(event: NoisyMax, rounds: int) -> None:
    """What chose later queries, and what a student's label costs; the machine's part of the statement is the same."""
    one = privacy_statement(replace(PLAIN, event=event))
    several = privacy_statement(replace(PLAIN, event=event, rounds=rounds))
    assert (f"asked in {rounds} rounds" in several["statement"]) == (rounds > 1)
    interactive = isinstance(event, InteractiveGNMax)
    assert ("source is the student" in several["statement"]) == (rounds > 1 and interactive)
    assert several | {"statement": ""} == one | {"statement": ""}


def test_the_names_of_other_mechanisms_parameters_are_null() -> None:
    """A plain GNMax has no threshold or scale: null, not 0; and it answers every query."""
    record = privacy_statement(replace(PLAIN, event=GNMax(sigma=40.0, answers=12)))
    assert [record[key] for key in ("threshold", "threshold_sigma", "scale")] == [None, None, None]
    assert (record["sigma"], record["max_queries"], record["max_answers"]) == (40.0, 12, 12)
    assert record["mechanism"] == "gnmax"
    assert record["baseline"] is None


def test_the_words_say_unit_adjacency_guarantee_scope_and_limits() -> None:
    """The paragraph names what SP 800-226 asks for: unit, neighbours, (ε, δ), trust model, worst case, scope."""
    words = privacy_statement(PLAIN)["statement"]
    for part in (
        "Unit of privacy: one patient.",
        "added or removed (add/remove",
        "keyed hash",
        "(2.143, 1e-05)-differential privacy",
        "central model",
        "worst-case",
        "640 queries",
        "283 answered",
        "order 9.5",
        "Covered:",
        "Not covered:",
        "hospital",
        "(3, 1e-05)-differential privacy",
        "2.2 of its limit 3 was spent",
    ):
        assert part in words
    assert "\n" not in words
    assert "DP-SGD" not in words


def test_a_baseline_discloses_that_its_noise_is_floating_point() -> None:
    """With a DP-SGD baseline its own guarantee stands apart, and its noise is called unsafe and not repeatable."""
    record = privacy_statement(WITH_BASELINE)
    assert (record["baseline"]["epsilon"], record["baseline"]["delta"]) == (1.987654, 1e-5)
    for part in ("(1.9877, 1e-05)", "floating point", "cannot be repeated", "does not withstand"):
        assert part in record["statement"]
    assert record["epsilon"] == PLAIN.epsilon


@given(epsilon=st.floats(0, 200))
def test_the_words_never_promise_more_than_the_number(epsilon: float) -> None:
    """The ε in words is rounded up."""
    words = privacy_statement(replace(PLAIN, epsilon=epsilon))["statement"]
    said = float(words.split("satisfy (")[1].split(",")[0])
    assert epsilon <= said <= epsilon + 1.1e-4


def test_a_changed_limit_is_told_with_what_it_leaves_proven() -> None:
    """Limits chosen after releases add up, and so do their deltas: the filter's theorem needs a limit fixed before."""
    words = privacy_statement(replace(PLAIN, ledger=Standing("hospital", 2.2, 1.0, (3.0, 1.0))))["statement"]
    assert "changed after releases (epsilon 3, 1)" in words
    assert "(4, 2e-05)-differential privacy" in words


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("epsilon", {"epsilon": math.nan}),
        ("epsilon", {"epsilon": math.inf}),
        ("epsilon", {"epsilon": -0.1}),
        ("delta", {"delta": 0.0}),
        ("delta", {"delta": 1.0}),
        ("delta", {"delta": math.nan}),
        ("unit", {"unit": " "}),
        ("run", {"run": ""}),
        ("classes", {"classes": ("only",)}),
        ("classes", {"classes": ("twice", "twice")}),
        ("method", {"method": "pld"}),
        ("order", {"order": None}),
        ("order", {"order": 1.0}),
        ("order", {"method": "recursion"}),
        ("ledger.spent", {"ledger": Standing("hospital", math.nan, 3.0)}),
        ("baseline.epsilon", {"baseline": Baseline(DPSGD(1.1, 0.02, 900), math.nan, 1e-5)}),
        ("baseline.delta", {"baseline": Baseline(DPSGD(1.1, 0.02, 900), 1.0, 1e-6)}),
    ],
)
def test_what_cannot_be_stated_is_refused(key: str, change: dict[str, Any]) -> None:
    """NaN, infinity and values out of range never reach a statement; the error names the key."""
    with pytest.raises(UserError, match=rf"^privacy\.json: {key} = "):
        privacy_statement(replace(PLAIN, **change))


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("epsilon", {"epsilon": "2.1"}),
        ("epsilon", {"epsilon": True}),
        ("statement", {"epsilon": 1.0}),
        ("statement", {"delta": 1e-9, "baseline": None}),
        ("statement", {"statement": "trust me"}),
        ("adjacency", {"adjacency": "replace-one"}),
        ("number", {"number": "data_dependent"}),
        ("mechanism", {"mechanism": "exact"}),
        ("mechanism", {"mechanism": ["gnmax"]}),
        ("threshold", {"mechanism": "gnmax"}),
        ("scale", {"scale": 3.0}),
        ("sigma", {"sigma": None}),
        ("sigma", {"sigma": -1.0}),
        ("answers", {"max_answers": 641}),
        ("ledger", {"ledger": None}),
        ("ledger.limit", {"ledger": {"dataset": "hospital", "spent": 1.0}}),
        ("baseline", {"baseline": {"epsilon": 1.0, "delta": 1e-5, "mechanism": "dp-sgd"}}),
        ("baseline", {"baseline": {"epsilon": 1.0, "delta": 1e-5, "mechanism": "gnmax", "sigma": 1.0, "answers": 1}}),
        ("votes", {"votes": [1, 2]}),
    ],
)
def test_an_edited_statement_is_found_out(key: str, change: dict[str, Any]) -> None:
    """A privacy.json edited into another number, adjacency, mechanism or key no longer validates."""
    record = privacy_statement(WITH_BASELINE)
    validate_statement(record)
    with pytest.raises(UserError, match=rf"{key}\b"):
        validate_statement(record | change)


@pytest.mark.parametrize("key", sorted(NAMES))
def test_a_missing_key_is_named(key: str) -> None:
    """A statement that leaves something out is refused by the name of what is missing."""
    record = privacy_statement(PLAIN)
    del record[key]
    with pytest.raises(UserError, match=f"{key}: missing"):
        validate_statement(record)


def test_labels_carry_the_essentials_in_their_own_file(tmp_path: Path) -> None:
    """Parquet metadata gives back ε and δ exactly, with unit, adjacency, mechanism, run and class names."""
    statement = replace(PLAIN, epsilon=2.1429123456789012, classes=("Gänseblümchen", "rose, red"))
    table = pa.table({"label": pa.array([0, 1, None], pa.int32())})
    pq.write_table(table.replace_schema_metadata(parquet_metadata(statement)), tmp_path / "labels.parquet")
    found = {k.decode(): v.decode() for k, v in pq.read_schema(tmp_path / "labels.parquet").metadata.items()}
    assert float(found["pate.epsilon"]) == statement.epsilon
    assert float(found["pate.delta"]) == statement.delta
    assert json.loads(found["pate.classes"]) == list(statement.classes)
    assert (found["pate.unit"], found["pate.adjacency"]) == ("patient", "add-remove")
    assert (found["pate.mechanism"], found["pate.run"]) == ("confident-gnmax", "mnist")
    assert not any("vote" in key for key in found)
