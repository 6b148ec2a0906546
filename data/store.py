"""The run directory: paths, atomic writes, digests and the manifest that says which stage made what.

``private/`` and everything under it is 0700/0600. Digests in the private manifest are HMACs under a key of the dataset,
kept 0600 in ``<run_root>/.keys/``; the release manifest holds plain digests of released files only.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.errors import PateError, UserError


@dataclass(frozen=True)
class Run:
    """Paths of one run directory."""

    root: Path

    @property
    def private(self) -> Path:
        return self.root / "private"

    @property
    def release(self) -> Path:
        return self.root / "release"

    @property
    def purged(self) -> Path:
        """There once the private part was erased, or is being erased."""
        return self.root / "purged.json"

    @property
    def name(self) -> str:
        return self.root.name

    def create(self) -> None:
        """Make the directories, with the private one closed to others."""
        self.release.mkdir(parents=True, exist_ok=True)
        self.private.mkdir(mode=0o700, exist_ok=True)
        self.private.chmod(0o700)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path that becomes ``path`` when the block succeeds, and vanishes when it fails.

    Written, fsynced, renamed, the folder fsynced: a reader sees the old file or the whole new one. Files under
    ``private/`` get mode 0600, others 0644.
    """
    private = "private" in path.parts or any(part.startswith(".") for part in path.parent.parts[-1:])
    path.parent.mkdir(mode=0o700 if private else 0o755, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.touch(mode=0o600 if private else 0o644)
        yield temporary
        temporary.chmod(0o600 if private else 0o644)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write text atomically."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON (no NaN) atomically."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON; a file that is not JSON is a user's error that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise UserError(f"{path}: is corrupt (not JSON); delete it and rerun its stage") from None


def dataset_key(run_root: Path, dataset: str) -> bytes:
    """The secret key of a dataset's digests: 32 bytes, made at first use, 0600."""
    path = run_root / ".keys" / f"{dataset}.key"
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(secrets.token_bytes(32))
            stream.flush()
            os.fsync(stream.fileno())
        # link() and not rename(): of two processes that start together only one key may win.
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(temporary)
        temporary.unlink()
    key = path.read_bytes()
    if len(key) != 32:
        raise UserError(f"{path}: is corrupt; restore it from a backup, or delete it to start new run directories")
    return key


def digest(path: Path, key: bytes | None = None) -> str:
    """SHA-256 of a file's bytes (as sha256sum prints it); HMAC-SHA256 with a ``key``.

    Of a folder: the same over its files' names and digests, in order of name.
    """
    state = hmac.new(key, digestmod="sha256") if key is not None else hashlib.sha256()
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.is_file() and not file.name.endswith(".tmp"):
                state.update(f"{file.relative_to(path).as_posix()}\0{digest(file, key)}\n".encode())
        return state.hexdigest()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            state.update(block)
    return state.hexdigest()


@dataclass(frozen=True)
class StageRecord:
    """What the manifest says of a finished stage. ``key`` is a digest of inputs, settings and code version."""

    key: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    code_version: int
    finished: str
    seconds: float
    state: str = "done"


@dataclass(frozen=True)
class Manifest:
    """``private/manifest.json``: the run's own id, the dataset and its keyed digest, and a record a stage.

    ``run_id`` is random: two run directories of one name never share a charge on the ledger.
    """

    run_id: str = ""
    dataset: str = ""
    content: str = ""
    stages: dict[str, StageRecord] = dataclasses.field(default_factory=dict)


_LOST_MANIFEST = (
    "is corrupt; restore it from a backup, or delete it: the directory then counts as a new run, "
    "whose labels and baseline are charged again"
)


def read_manifest(run: Run) -> Manifest:
    """The run's manifest; empty when there is none yet."""
    path = run.private / "manifest.json"
    if not path.exists():
        return Manifest()
    try:
        record = read_json(path)
    except UserError:
        raise UserError(f"{path}: {_LOST_MANIFEST}") from None
    try:
        stages = {name: StageRecord(**stage) for name, stage in record["stages"].items()}
        return Manifest(record["run_id"], record["dataset"], record["content"], stages)
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{path}: {_LOST_MANIFEST}") from None


def write_manifest(run: Run, manifest: Manifest) -> None:
    """Write the manifest; called last, when everything it names lies on the disk."""
    write_json(run.private / "manifest.json", dataclasses.asdict(manifest))


def write_release_manifest(run: Run) -> None:
    """``release/manifest.json``: plain digests of the released files."""
    files = sorted(
        f for f in run.release.iterdir() if f.is_file() and not f.name.startswith(".") and f.name != "manifest.json"
    )
    write_json(run.release / "manifest.json", {"files": {f.name: digest(f) for f in files}})


def stage_key(inputs: dict[str, str], settings: Any, code_version: int) -> str:
    """The key of a stage: same inputs, settings and code give the same key, and the stage is not run again."""
    text = json.dumps([inputs, settings, code_version], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def locked(run: Run) -> Iterator[None]:
    """One process a run directory: a second one is told so at once."""
    run.create()
    with os.fdopen(os.open(run.private / ".lock", os.O_WRONLY | os.O_CREAT, 0o600), "w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PateError(f"{run.root}: another process is working in this run directory") from None
        # What a killed process left half-written; nobody else writes here while the lock is held.
        for left in run.root.rglob(".*.tmp"):
            left.unlink(missing_ok=True)
        yield
