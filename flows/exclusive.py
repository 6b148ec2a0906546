"""One flow run at a time on a private dataset.

The ledger keeps two runs from overspending together; this keeps them from working at the same time, so that the second
sees what the first has spent before it trains anything. The lock is the operating system's, on a file beside the
ledger: it vanishes with the process that holds it, and needs neither a server nor any set-up.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from data.errors import UserError
from flows.settings import Settings

SECONDS_BETWEEN_TRIES = 1.0


def lock_file(settings: Settings) -> Path:
    """Beside a SQLite ledger; in ``run_root`` where the ledger is a server's."""
    folder, stem = Path(settings.run_root).expanduser(), "ledger"
    with contextlib.suppress(ArgumentError):
        url = make_url(settings.ledger_url)
        if url.get_backend_name() == "sqlite" and url.database:
            file = Path(url.database).expanduser().resolve()
            folder, stem = file.parent, file.name
    return folder / f".{stem}.{settings.data.name}.lock"


@contextlib.contextmanager
def dataset_held(settings: Settings, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the dataset; while another flow run holds it, say so once and wait."""
    with file_held(lock_file(settings), say, f"another flow run is working on dataset {settings.data.name!r}"):
        yield


@contextlib.contextmanager
def file_held(path: Path, say: Callable[[str], None], busy: str) -> Iterator[None]:
    """Hold the lock of a file, made if need be; while another process does, say what is ``busy`` once and wait."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    except OSError as error:
        raise UserError(f"{path.parent}: cannot be written ({error.strerror})") from None
    with os.fdopen(handle, "w") as stream:
        told = False
        while not _taken(stream.fileno()):
            if not told:
                say(f"waiting: {busy}")
                told = True
            time.sleep(SECONDS_BETWEEN_TRIES)
        yield


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
