"""The command line itself: light to start, one line for wrong usage."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Pate = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.mark.parametrize("arguments", [["--help"], ["run", "nope.yaml"], ["run", "--help"]])
def test_help_and_usage_load_no_heavy_library(arguments: list[str]) -> None:
    """`pate --help` answers at once: torch, prefect, scikit-learn and the accountants are loaded inside commands."""
    script = (
        "import sys\n"
        "from flows.cli import run_command\n"
        f"code = run_command({arguments!r})\n"
        "heavy = {'torch', 'prefect', 'sklearn', 'dp_accounting', 'scipy', 'matplotlib', 'opacus'} & set(sys.modules)\n"
        "print('heavy:', sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    found = done.stdout.strip().splitlines()[-1]
    # A config is validated with the settings of every part; that alone must not load what runs them.
    assert found == "heavy: []"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["run"], 2),
        (["run", "--nope", "x"], 2),
        (["nope"], 2),
        (["ledger"], 2),
        (["ledger", "show", "--ledger", "sqlite:///nowhere/x.sqlite"], 2),
        (["ledger", "limit", "d", "--epsilon", "x", "--reason", "y"], 2),
        (["predict", "nowhere", "x.npy"], 2),
    ],
)
def test_wrong_usage_is_one_line(pate: Pate, arguments: list[str], code: int) -> None:
    """Exit code 2 and one line on standard error."""
    found, _, err = pate(*arguments)
    assert found == code
    assert len(err.strip().splitlines()) == 1


@pytest.mark.slow
def test_the_ledger_is_shown_changed_and_exported(pate: Pate, small_root: Path) -> None:
    """What was spent, event by event; reading makes no ledger where there is none."""
    url = f"sqlite:///{small_root}/ledger.sqlite"
    code, shown, _ = pate("ledger", "show", "--ledger", url, "--json")
    assert code == 0
    (dataset,) = shown["datasets"]
    assert dataset["dataset"] == "digits"
    assert {event["stage"] for event in dataset["events"]} == {"aggregate", "baseline"}
    assert 0 < dataset["spent"] < dataset["limit"]
    code, exported, _ = pate("ledger", "export", "--ledger", url)
    assert code == 0
    assert {"datasets", "limits", "events"} == set(exported)
