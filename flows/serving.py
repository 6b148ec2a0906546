"""``make serve``: Prefect server, work pool, deployments and worker in one foreground command.

Ctrl-C, or the end of any of them, stops them all; runs that were at work are marked Crashed.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
POOL = "pate"
SECONDS_TO_START = 120
SECONDS_TO_STOP = 15


def environment(port: int) -> dict[str, str]:
    """Of every process started here. The server's own port is set too: with --port alone the UI looks elsewhere."""
    return {
        **os.environ,
        "PREFECT_API_URL": f"http://{HOST}:{port}/api",
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        # 10 by default: for a person at the next terminal, a long wait until a run starts.
        "PREFECT_WORKER_QUERY_SECONDS": os.environ.get("PREFECT_WORKER_QUERY_SECONDS", "2"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }


def prefect(*arguments: str) -> list[str]:
    """The command line of prefect in this Python."""
    return [sys.executable, "-m", "prefect", *arguments]


def _start(arguments: Sequence[str], settings: dict[str, str]) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C reaches this process alone, which then stops the others in order.
    return subprocess.Popen(arguments, env=settings, start_new_session=True)


def _wait_until_healthy(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit(f"error: the Prefect server stopped with exit code {server.returncode}")
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/api/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise SystemExit(f"error: the Prefect server did not answer on port {port} within {SECONDS_TO_START} s")


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in reversed(processes):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _ask(port: int, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"http://{HOST}:{port}/api/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def _mark_stopped(port: int) -> None:
    """Runs that ended with the worker cannot say so themselves: without this they would be Running for ever."""
    going = {"state": {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}}
    text = "stopped with its worker; what is finished is kept: start it again to go on"
    with contextlib.suppress(OSError, ValueError):
        runs = _ask(port, "flow_runs/filter", {"flow_runs": going, "work_pools": {"name": {"any_": [POOL]}}})
        parents = {"parent_flow_run_id": {"any_": [run["id"] for run in runs]}}
        inner = _ask(port, "flow_runs/filter", {"flow_runs": going | parents}) if runs else []
        for run in [*inner, *runs]:
            state = {"type": "CRASHED", "name": "Crashed", "message": text}
            _ask(port, f"flow_runs/{run['id']}/set_state", {"state": state, "force": True})


def _port_is_taken(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://{HOST}:{port}/api/health", timeout=1).close()
    except urllib.error.HTTPError:
        return True
    except (urllib.error.URLError, OSError):
        return False
    return True


def serve(port: int) -> int:
    """Start everything, wait for Ctrl-C; returns the exit code."""
    if _port_is_taken(port):
        print(f"error: PATE_PORT = {port}: something answers there already; choose another port", file=sys.stderr)
        return 2
    settings = environment(port)
    processes: list[subprocess.Popen[bytes]] = []
    # SIGINT too: a shell that starts this in the background has it ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        processes.append(_start(prefect("server", "start"), settings))
        _wait_until_healthy(processes[0], port)
        subprocess.run(
            prefect("work-pool", "create", POOL, "--type", "process", "--overwrite"), env=settings, check=True
        )
        subprocess.run(prefect("--no-prompt", "deploy", "--all"), env=settings, check=True)
        processes.append(_start(prefect("worker", "start", "--pool", POOL), settings))
        print(
            f"\nThe UI is at http://{HOST}:{port}. In another terminal, in this folder:\n\n"
            f"  export PREFECT_API_URL=http://{HOST}:{port}/api\n"
            "  .venv/bin/prefect deployment ls\n"
            "  .venv/bin/prefect deployment run pate/full --watch\n\n"
            "Ctrl-C stops server and worker.",
            flush=True,
        )
        while all(process.poll() is None for process in processes):
            time.sleep(0.5)
        print("error: the server or the worker stopped", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    except subprocess.CalledProcessError as error:
        print(f"error: {' '.join(error.cmd[2:])} failed", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _stop(processes[1:])
        if len(processes) > 1 and processes[0].poll() is None:
            _mark_stopped(port)
        _stop(processes[:1])


if __name__ == "__main__":
    sys.exit(serve(int(os.environ.get("PATE_PORT", "4200"))))
