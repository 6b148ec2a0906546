"""`pate ledger limit`: the budget is decided before the first run, by name and reason, or not at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accounting.events import GNMax
from accounting.ledger import open_ledger
from accounting.ledger_rows import Request

Pate = Callable[..., tuple[int, dict[str, Any], str]]
OPEN = ["--epsilon", 3, "--delta", "1e-4", "--unit", "record", "--reason", "Ethics board, 12 May", "--json"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A ledger that is not there yet."""
    return f"sqlite:///{tmp_path}/new/ledger.sqlite"


def test_an_account_is_opened_before_the_first_run_and_holds_it(
    pate: Pate, url: str, small_config: Path, tmp_path: Path
) -> None:
    """Who, when and why are kept; a run whose settings allow more is refused by the limit, nothing spent."""
    code, result, _ = pate("ledger", "limit", "digits", *OPEN, "--ledger", url)
    assert (code, result["opened"], result["limit"]) == (0, True, 3)
    (limit,) = open_ledger(url).export()["limits"]
    assert limit["why"] == "Ethics board, 12 May"
    assert limit["who"]
    assert limit["when"]
    options = ["--set", f"run_root={tmp_path}/runs", "--set", f"ledger.url={url}"]
    code, result, err = pate("run", small_config, "--no-prefect", "--json", *options)
    assert code == 3
    assert "limit 3.0000" in result["error"]
    assert "opened an account" not in err
    code, result, _ = pate("ledger", "limit", "digits", "--epsilon", 50, "--reason", "more", "--json", "--ledger", url)
    assert (code, result["opened"], result["limit"]) == (0, False, 50)
    assert [row["why"] for row in open_ledger(url).export()["limits"]] == ["Ethics board, 12 May", "more"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--epsilon", 3, "--reason", "why"], "NAME = 'digits': no account on this ledger; to open one give --delta"),
        (["--epsilon", 3, "--reason", "why", "--delta", 1e-5], "--unit (who is protected"),
        (["--epsilon", -1, "--reason", "why", "--delta", 1e-5, "--unit", "u"], "ledger.epsilon = -1.0: must be"),
        (["--epsilon", 3, "--reason", "why", "--delta", 2, "--unit", "u"], "--delta = 2.0: must be between 0 and 1"),
        (["--epsilon", 3, "--reason", " ", "--delta", 1e-5, "--unit", "u"], "--reason = ' ': must be"),
        (["--epsilon", 3, "--reason", "why", "--delta", 1e-5, "--unit", ""], "--unit = '': must be"),
    ],
)
def test_bad_or_missing_options_make_no_ledger(pate: Pate, url: str, options: list[object], expected: str) -> None:
    """One line, exit code 2, and no file."""
    code, result, err = pate("ledger", "limit", "digits", *options, "--ledger", url, "--json")
    assert code == 2
    assert expected in result["error"]
    assert len(err.strip().splitlines()) == 1
    assert not Path(url.removeprefix("sqlite:///")).exists()


def test_delta_and_unit_of_an_account_stay(pate: Pate, url: str) -> None:
    """Given again they must be the stored ones; the limit is not changed by a mistake."""
    assert pate("ledger", "limit", "digits", *OPEN, "--ledger", url)[0] == 0
    code, result, _ = pate(
        "ledger", "limit", "digits", "--epsilon", 9, "--reason", "x", "--unit", "person", "--ledger", url, "--json"
    )
    assert code == 2
    assert result["error"].startswith("--unit = 'person': dataset 'digits' was opened on this ledger with 'record'")
    assert open_ledger(url).limit("digits") == 3
    assert pate("ledger", "limit", "digits", *OPEN, "--ledger", url)[1]["opened"] is False


def test_a_limit_that_is_changed_after_releases_says_what_is_then_claimed(url: str, pate: Pate) -> None:
    """A filter holds for a limit fixed beforehand: after another limit only the sum of both can be claimed."""
    assert pate("ledger", "limit", "digits", *OPEN, "--ledger", url)[1]["together"] == {"epsilon": 3, "delta": 1e-4}
    change = ("ledger", "limit", "digits", "--epsilon", 5, "--reason", "more", "--json", "--ledger", url)
    assert pate(*change)[1]["together"] == {"epsilon": 5, "delta": 1e-4}
    ledger = open_ledger(url)
    (account,) = ledger.accounts()
    ledger.reserve(account, [Request("a", "aggregate", GNMax(40.0, 10), "labels", 1.0)])
    assert pate(*change[:4], 7, *change[5:])[1]["together"] == {"epsilon": 12, "delta": 2e-4}
    assert pate(*change[:4], 1e-9, *change[5:])[1]["together"] == {"epsilon": pytest.approx(5), "delta": 2e-4}
