"""The Prefect flow: states of one line, nothing private in Prefect's database, and one real deployment."""

import copy
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.config import build
from flows.console import console
from tests.flows.small import SMALL

pytestmark = pytest.mark.slow
SAID = console(quiet=True)


@pytest.fixture(scope="module")
def harness() -> Iterator[None]:
    """One temporary Prefect server for all tests of this file."""
    from prefect.settings import (
        PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED,
        PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_ENABLED,
        temporary_settings,
    )
    from prefect.testing.utilities import prefect_test_harness

    off = {
        PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED: False,
        PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_ENABLED: False,
    }
    with temporary_settings(off), prefect_test_harness(server_startup_timeout=120):
        yield


def _settings(root: Path, **changes: dict[str, Any]) -> Any:
    record = copy.deepcopy(SMALL) | {"run_root": str(root), "name": "flow"}
    for part, values in changes.items():
        record[part] = record[part] | values
    return build(record)


def test_the_flow_runs_every_stage_and_then_reuses_them(harness: None, tmp_path: Path) -> None:
    """Completed; the second time all eight stages are reused and nothing more is charged."""
    from accounting.ledger import open_ledger
    from flows.full import build as build_flow

    settings = _settings(tmp_path)
    first = build_flow(SAID)(settings, return_state=True)
    assert first.is_completed(), first.message
    assert (tmp_path / "flow" / "release" / "report.html").is_file()
    spent = open_ledger(settings.ledger_url).spent("digits")
    second = build_flow(SAID)(settings, return_state=True)
    assert second.is_completed()
    assert len(second.result()) == 8
    assert open_ledger(settings.ledger_url).spent("digits") == spent


@pytest.mark.parametrize(
    ("changes", "name", "message"),
    [
        ({"ledger": {"epsilon": 1.0}}, "Refused", "limit 1.0000"),
        ({"teachers": {"count": 1198}}, "BadInput", "teachers.count = 1198"),
    ],
)
def test_failures_are_failed_states_of_one_line(
    harness: None, tmp_path: Path, changes: dict[str, Any], name: str, message: str
) -> None:
    """A refusal and a user's error, with no traceback."""
    from flows.full import build as build_flow

    state = build_flow(SAID)(_settings(tmp_path, **changes), return_state=True)
    assert state.is_failed()
    assert state.name == name
    assert message in state.message
    assert "\n" not in state.message
    assert "Traceback" not in state.message


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.timeout(400)
def test_make_serve_and_deployment_run(tmp_path: Path) -> None:
    """Server, pool, deployments and worker in one command; `deployment run --watch` completes; Ctrl-C stops all."""
    port = _free_port()
    environment = {
        **os.environ,
        "PATE_PORT": str(port),
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{tmp_path}/prefect.db",
    }
    project = Path(__file__).parents[2]
    log = (tmp_path / "serve.log").open("w+")
    serve = subprocess.Popen(
        [sys.executable, "-m", "flows.serving"], cwd=project, env=environment, stdout=log, stderr=subprocess.STDOUT
    )
    try:
        deadline = time.monotonic() + 180
        while "deployment run pate/full --watch" not in (tmp_path / "serve.log").read_text():
            assert serve.poll() is None, (tmp_path / "serve.log").read_text()[-3000:]
            assert time.monotonic() < deadline, (tmp_path / "serve.log").read_text()[-3000:]
            time.sleep(0.5)
        config = copy.deepcopy(SMALL) | {"run_root": str(tmp_path / "runs"), "name": "deployed"}
        command = [sys.executable, "-m", "prefect", "deployment", "run", "pate/full", "--watch", "--param"]
        done = subprocess.run(
            [*command, f"config={json.dumps(config)}"],
            env={**environment, "PREFECT_API_URL": f"http://127.0.0.1:{port}/api"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + (tmp_path / "serve.log").read_text()[-3000:]
        assert "Completed" in done.stdout + done.stderr
    finally:
        serve.send_signal(signal.SIGINT)
        serve.wait(60)
        log.close()
    assert (tmp_path / "runs" / "deployed" / "release" / "labels.parquet").is_file()
    _nothing_listens(port)
    with sqlite3.connect(tmp_path / "prefect.db") as database:
        states = {row[0] for row in database.execute("select state_type from task_run")}
        dump = "\n".join(database.iterdump())
    assert states == {"COMPLETED"}
    keys = (tmp_path / "runs" / "deployed" / "private" / "manifest.json").read_text()
    digests = [value for stage in json.loads(keys)["stages"].values() for value in stage["outputs"].values()]
    assert digests
    assert not [value for value in digests if value in dump]


def _nothing_listens(port: int) -> None:
    with socket.socket() as probe:
        probe.settimeout(2)
        assert probe.connect_ex(("127.0.0.1", port)) != 0
