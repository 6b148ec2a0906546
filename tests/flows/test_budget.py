"""`pate ledger show --compositions`: every theorem's number beside the ledger's own."""

from pathlib import Path

import pytest

from accounting.cost import guarantee
from accounting.events import Event, GNMax, PureDP
from accounting.ledger import Ledger, open_ledger
from accounting.ledger_rows import Request
from flows.budget import show, show_rows


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A ledger with two charges that count and one that was given back."""
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    ledger = open_ledger(url)
    _charge(ledger, "first", GNMax(87.0, 100))
    _charge(ledger, "second", PureDP(0.2, 1))
    (third,) = _charge(ledger, "third", GNMax(40.0, 100))
    ledger.cancel(third.id)
    return url


def _charge(ledger: Ledger, run: str, event: Event):  # type: ignore[no-untyped-def]
    account = ledger.dataset("hospital", unit="patient", delta=1e-5, limit=4.0)
    epsilon = guarantee(event, 1e-5).epsilon
    return ledger.reserve(account, [Request(run, "aggregate", event, "labels", epsilon)])


def test_all_methods_stand_beside_the_ledgers_number(url: str) -> None:
    """The ledger first, which assumes nothing of when runs were chosen; the theorems assume a list fixed beforehand."""
    (dataset,) = show(url, compositions=True)["datasets"]
    own, *others = dataset["compositions"]
    assert (own["method"], own["epsilon"]) == ("ledger", dataset["spent"])
    assert own["assumes"].startswith("nothing")
    assert [each["method"] for each in others] == ["basic", "advanced", "zcdp", "rdp", "pld"]
    assert all("fixed beforehand" in each["assumes"] for each in others)
    counted = [event["epsilon"] for event in dataset["events"] if event["state"] != "cancelled"]
    assert others[0]["epsilon"] == pytest.approx(sum(counted))
    assert others[3]["epsilon"] <= own["epsilon"]


def test_lines_show_each_method_once(url: str) -> None:
    """For people: one line a method, under what it assumes; nothing of it unless asked."""
    text = "\n".join(show_rows(show(url, compositions=True)))
    assert all(text.count(f"    {method} ") == 1 for method in ("ledger", "basic", "advanced", "zcdp", "rdp", "pld"))
    assert "fixed beforehand" in text
    assert "fixed beforehand" not in "\n".join(show_rows(show(url)))
    assert "compositions" not in show(url)["datasets"][0]


def test_a_changed_limit_is_bounded_by_the_sum(url: str) -> None:
    """After the limit was raised, what holds is the sum of the limits at two deltas."""
    ledger = open_ledger(url)
    ledger.raise_limit("hospital", 6.0, why="board decision")
    _charge(ledger, "fourth", GNMax(87.0, 10))
    own = show(url, compositions=True)["datasets"][0]["compositions"][0]
    assert "(4 + 6, 2e-05)" in own["assumes"]
