"""The process that the command line runs in: Prefect's settings, Ctrl-C, and how it ends."""

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator


def quiet_prefect() -> None:
    """Before prefect is imported: no server of a profile, no usage statistics, no log lines beside our own."""
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_LOGGING_TO_API_ENABLED", "false")
    os.environ.setdefault("PREFECT_SERVER_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_ENABLED", "true")
    # 20 s by default: too short for a busy machine.
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")


def leave(code: int) -> None:
    """End with an exit code, without waiting for threads that still train.

    Files are whole or absent at any moment, and the ledger's transactions too, so nothing is lost that was said to be
    done. What must be stopped (Prefect's temporary server) is registered with atexit.
    """
    if threading.active_count() == 1:
        sys.exit(code)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextlib.contextmanager
def end_on_interrupt(say: Callable[[], int]) -> Iterator[None]:
    """Ctrl-C ends the process at once: Prefect would first try to tell its server, which Ctrl-C has stopped as well."""

    def end(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = say()
        sys.stdout.flush()
        sys.stderr.flush()
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
        os._exit(code)

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
