"""Server, pool, deployments and worker as `make serve` starts them; runs as a user starts them; the page they see."""

import copy
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.flows.small import SMALL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
PROJECT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
STAGES = ("pretrain", "partition", "teach", "queries", "vote", "aggregate", "student", "baseline", "report")
MODEL = "sklearn:sklearn.linear_model.LogisticRegression"
SECRET = "a-folder-that-only-the-worker-knows"


@dataclass(frozen=True)
class Served:
    """What `make serve` runs, and where."""

    process: subprocess.Popen[bytes]
    port: int
    folder: Path
    environment: dict[str, str]

    @property
    def log(self) -> str:
        return (self.folder / "serve.log").read_text(encoding="utf-8")

    def prefect(self, *arguments: str) -> subprocess.Popen[str]:
        """A Prefect command in another terminal, elsewhere."""
        return subprocess.Popen(
            [sys.executable, "-m", "prefect", *arguments],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, deployment: str, **parameters: Any) -> subprocess.Popen[str]:
        """`prefect deployment run --watch`."""
        given = [f"--param={name}={json.dumps(value)}" for name, value in parameters.items()]
        return self.prefect("deployment", "run", deployment, "--watch", *given)

    def flow_run(self, name: str) -> dict[str, Any]:
        """The one flow run whose name starts so."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/flow_runs/filter",
            json.dumps({"flow_runs": {"name": {"like_": name}}}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            (found,) = [run for run in json.load(answer) if run["name"].startswith(name)]
        return dict(found)

    def config(self, **changes: dict[str, Any]) -> dict[str, Any]:
        """A small run whose ledger lies in a folder that the worker's environment names."""
        record = copy.deepcopy(SMALL) | {"run_root": str(self.folder / "runs"), "name": "deployed"}
        record["ledger"] = {"epsilon": 100, "url": "sqlite:///${PATE_TEST_LEDGER}/ledger.sqlite"}
        record["student"] = {"method": "supervised", "model": MODEL}
        record["baseline"] = {"model": "logistic", "sampling_rate": 1.0, "batch_size": 1200, "steps": 5}
        for part, values in changes.items():
            record[part] = record[part] | values
        return record


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _children(folder: Path) -> list[int]:
    """Processes that were started with this test's folder as Prefect's home, whoever their parent is by now."""
    mark = f"PREFECT_HOME={folder / 'prefect'}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`make serve` on a free port with a database of its own; whatever happens, none of its processes stays."""
    folder, port = tmp_path_factory.mktemp("served"), _free_port()
    (folder / SECRET).mkdir()
    environment = {
        **os.environ,
        "PATE_PORT": str(port),
        "PATE_TEST_LEDGER": str(folder / SECRET),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{folder}/prefect.db",
        "PREFECT_WORKER_QUERY_SECONDS": "1",
    }
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.serving"], cwd=PROJECT, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        served = Served(process, port, folder, environment)
        try:
            deadline = time.monotonic() + 180
            while "deployment run pate/full --watch" not in served.log:
                assert process.poll() is None, served.log[-3000:]
                assert time.monotonic() < deadline, served.log[-3000:]
                time.sleep(0.2)
            yield served
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
            for left in _children(folder):
                os.kill(left, signal.SIGKILL)


def test_every_deployment_is_listed(served: Served) -> None:
    """`prefect deployment ls` shows the pipeline and each stage."""
    listing = served.prefect("deployment", "ls")
    text, _ = listing.communicate(timeout=60)
    assert listing.returncode == 0
    assert {name for name in ("full", *STAGES) if f"pate/{name} " in text} == {"full", *STAGES}


def test_a_deployed_run_completes(served: Served) -> None:
    """`deployment run pate/full --watch --param config=…` ends with 0 and the files are there; it is named by its ε."""
    run = served.run("pate/full", config=served.config())
    text, _ = run.communicate(timeout=180)
    assert run.returncode == 0, text[-2000:] + served.log[-3000:]
    assert "Completed" in text
    release = served.folder / "runs" / "deployed" / "release"
    assert {"labels.parquet", "privacy.json", "report.html"} <= {file.name for file in release.iterdir()}
    epsilon = json.loads((release / "privacy.json").read_text())["epsilon"]
    words = served.flow_run("deployed ")["name"].split()
    assert [words[0], words[2]] == ["deployed", "δ=1e-4"]
    assert 0 <= float(words[1].removeprefix("ε=")) - epsilon < 1e-4


def test_a_refusal_and_a_stage_alone(served: Served) -> None:
    """Together, on one dataset: one is a Failed state of one line with exit code 1, the other reuses its stage."""
    refused = served.run("pate/full", config=served.config(ledger={"epsilon": 1}), run="refused")
    alone = served.run("pate/report", config=served.config())
    texts = [process.communicate(timeout=180)[0] for process in (refused, alone)]
    assert [process.returncode for process in (refused, alone)] == [1, 0], texts
    state = served.flow_run("refused ")["state"]
    assert (state["type"], state["name"]) == ("FAILED", "Refused")
    assert "limit 1.0000" in state["message"]
    assert "\n" not in state["message"]
    assert served.flow_run("deployed report ")["state"]["name"] == "Reused"
    # No traceback of a run, which would pass through an engine; a busy server of Prefect's logs its own there.
    assert not re.search(r'File ".*/prefect/(flow_|task_)?engine\.py"', served.log)


def _page(url: str, profile: Path) -> str:
    """What a browser makes of a page, in a tall window: what is out of view is not drawn."""
    browser = subprocess.Popen(
        [
            str(CHROMIUM),
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
            *("--disable-background-networking", "--disable-component-update", "--virtual-time-budget=20000"),
            *("--window-size=1400,3000", f"--user-data-dir={profile}", "--dump-dom", url),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        return browser.communicate(timeout=60)[0]
    finally:
        if browser.poll() is None:
            os.killpg(browser.pid, signal.SIGKILL)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("page", ["deployments", "run", "form"])
def test_the_ui_shows(served: Served, page: str) -> None:
    """In a browser: the deployments, a run with what it ended with, and the form of a run with the settings' titles."""
    run = served.flow_run("refused ")
    form = f"deployments/deployment/{run['deployment_id']}/run"
    path, shown = {
        "deployments": ("deployments", ["full", *STAGES]),
        "run": (f"runs/flow-run/{run['id']}", [run["name"], "Refused", "nothing was spent, nothing released"]),
        "form": (form, ["Dataset name", "Limit ε", "Noise σ", "Sampling rate"]),
    }[page]
    missing = shown
    for attempt in range(3):  # a busy machine may end the browser's time before the page has all its data
        dom = _page(f"http://127.0.0.1:{served.port}/{path}", served.folder / f"{page}-{attempt}")
        missing = [text for text in shown if text not in dom]
        if not missing:
            break
    assert missing == []


def test_ctrl_c_stops_everything_and_nothing_private_stays(served: Served) -> None:
    """A run that waits for its dataset ends as Crashed; no process stays; Prefect's database holds no secret."""
    ledger = served.folder / SECRET
    with (ledger / ".ledger.sqlite.digits.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        given = [f"--param=config={json.dumps(served.config())}", '--param=run="stopped"']
        # Runs before this one may have waited too.
        before = len(served.log)
        served.prefect("deployment", "run", "pate/full", *given).communicate(timeout=60)
        deadline = time.monotonic() + 60
        while "waiting: another flow run is working on dataset 'digits'" not in served.log[before:]:
            assert time.monotonic() < deadline, served.log[-3000:]
            time.sleep(0.2)
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(90) == 0
    assert not _listens(served.port)
    assert _children(served.folder) == []
    with sqlite3.connect(served.folder / "prefect.db") as database:
        states = {row[0] for row in database.execute("select state_type from task_run")}
        stopped = database.execute("select state_type from flow_run where name like 'stopped %'").fetchall()
        named = database.execute("select name, state_type from flow_run").fetchall()
        dump = "\n".join(database.iterdump())
    assert states == {"COMPLETED"}
    assert stopped == [("CRASHED",)], named
    manifest = json.loads((served.folder / "runs" / "deployed" / "private" / "manifest.json").read_text())
    digests = [value for stage in manifest["stages"].values() for value in stage["outputs"].values()]
    assert digests
    assert not [value for value in digests if value in dump]
    assert "${PATE_TEST_LEDGER}" in dump
    assert SECRET not in dump
