"""``pate purge RUN``: erase a finished run's private part once its release is complete, intact and on the ledger.

Order, so that a crash at any point is harmless: everything is checked; ``purged.json`` is written (from here on no
stage works in this run directory again, so nothing can be drawn or charged anew where the journal is missing); then
``private/`` is erased; then the marker says that it is done. Given again after a crash the command finishes the work.

Files are overwritten with zeros once before they are deleted. On a plain disk that removes their content. It is no
guarantee: see :data:`MAY_REMAIN`. A file with another name elsewhere (a hard link) is only deleted here.
"""

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from data.errors import UserError
from data.store import Run, digest, locked, read_json, write_json, write_release_manifest
from flows import config
from flows.console import Console
from flows.context import run_of
from flows.settings import Settings

MAY_REMAIN = (
    "blocks of the disk: an SSD's wear levelling, copy-on-write and journalling file systems keep old ones; only "
    "encryption of the disk, whose key can be destroyed, protects against that, and it is the operator's",
    "snapshots and backups of the folder, and swap space",
    "other points of the same sweep, which share partition, teachers and votes: purge each of them",
    "the times that stages took, in Prefect's database and in logs",
    "data.private itself, and copies of it made elsewhere",
)
KEPT = (
    "release/, settings.yaml and the ledger with its charges",
    "the dataset's key in .keys: other runs of the dataset need it",
)
_BLOCK = 1 << 20


def run_named(name: str, run_root: Path) -> Run:
    """The run directory of a path, or of a name under the run root."""
    for root in (Path(name), run_root / name):
        if (root / "settings.yaml").is_file():
            return Run(root.expanduser().resolve())
    raise UserError(f"RUN = {name!r}: no run directory, neither as a path nor under {run_root}")


def settings_of(run: Run, ledger_url: str | None = None) -> Settings:
    """The settings that the run directory was last used with, where it lies now.

    ``ledger_url`` replaces theirs, which is kept without its password.
    """
    path = run.root / "settings.yaml"
    try:
        record = yaml.safe_load(path.read_text(encoding="utf-8"))
        if Path(record["run_root"]).expanduser().resolve() != run.root.parent or record["name"] != run.name:
            record |= {"run_root": str(run.root.parent), "name": run.name}
        if ledger_url is not None:
            record["ledger"]["url"] = ledger_url
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path}: is corrupt (not the settings of a run)") from None
    return config.build(record)


def purge(run: Run, settings: Settings, silent: Console) -> bool:
    """Erase ``private/``; False where that had been done already. UserError: why it must not be erased."""
    state = read_json(run.purged)["state"] if run.purged.exists() else None
    if state == "done":
        return False
    if state is None:
        require_complete(run, settings, silent)
    with locked(run):
        if state is None:
            _mark(run, "started")
        _erase(run.private)
    _mark(run, "done")
    return True


def require_complete(run: Run, settings: Settings, silent: Console) -> None:
    """Refuse a run with a stage that is not up to date, a released file that changed, or a charge that is missing."""
    from flows.stages import stale_stages

    stale = stale_stages(settings, silent)
    if stale:
        raise UserError(f"{run.root}: stage {stale[0]} is not up to date; finish it by `pate run` before purging")
    path = run.release / "manifest.json"
    listed = read_json(path).get("files")
    if not isinstance(listed, dict) or not {"labels.parquet", "privacy.json", "report.html"} <= set(listed):
        raise UserError(f"{path}: does not list the released files; rerun `pate report` before purging")
    for name, expected in listed.items():
        file = run.release / name
        if not file.is_file() or digest(file) != expected:
            raise UserError(f"{file}: is missing or not what {path} lists; restore it before purging")


def refuse_purged(run: Run) -> None:
    """Refuse to work in a run directory whose private part was erased: what it drew could only be drawn anew."""
    if run.purged.exists():
        raise UserError(
            f"{run.root}: purged: its private part was erased; use another --run "
            "(`pate report` and `pate predict` still work on its release)"
        )


def report_again(settings: Settings) -> None:
    """The report of a purged run, from its release, the settings that it was made with, and the ledger."""
    # Here because they load matplotlib and the accountants, which a refusal does without.
    from flows import charges, report

    run = run_of(settings)
    kept, given = settings_of(run).model_dump(mode="json"), settings.model_dump(mode="json")
    for part in ("seed", "data", "pretraining", "teachers", "queries", "aggregation", "student", "baseline"):
        if kept[part] != given[part]:
            raise UserError(f"{part}: differs from {run.root / 'settings.yaml'}, by which this purged run was made")
    if not charges.exists(settings.ledger_url):
        raise UserError("ledger.url: this ledger does not hold the charges of this run; restore it from a backup")
    report.write_release(settings, run)
    write_release_manifest(run)


def _mark(run: Run, state: str) -> None:
    write_json(run.purged, {"state": state, "at": datetime.now(UTC).isoformat(timespec="seconds")})


def _erase(folder: Path) -> None:
    """Delete everything under the folder, the lock last, then the folder."""
    lock = folder / ".lock"
    for path in sorted(folder.rglob("*"), key=lambda each: len(each.parts), reverse=True):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        elif path != lock:
            _overwrite(path)
            path.unlink()
    lock.unlink(missing_ok=True)
    folder.unlink() if folder.is_symlink() else folder.rmdir()


def _overwrite(path: Path) -> None:
    # What cannot be overwritten (a full copy-on-write disk) is deleted all the same.
    with contextlib.suppress(OSError):
        found = path.lstat()
        if path.is_symlink() or found.st_nlink > 1:
            return
        with path.open("r+b", buffering=0) as stream:
            for start in range(0, found.st_size, _BLOCK):
                stream.write(bytes(min(_BLOCK, found.st_size - start)))
            os.fsync(stream.fileno())


def as_record(run: Run, erased: bool) -> dict[str, Any]:
    """What ``pate purge --json`` prints. Nothing of what was erased: how much there was is private too."""
    return {
        "run": run.name,
        "erased": str(run.private),
        "already": not erased,
        "release": str(run.release),
        "kept": list(KEPT),
        "may_remain": list(MAY_REMAIN),
    }
