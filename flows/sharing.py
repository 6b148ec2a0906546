"""What runs that differ in their noise alone have in common: partition, teachers, queries and votes, made once.

A run directory takes these over from another whose manifest records them under the same keys (settings and files'
keyed digests, never private outputs). They stay in ``private/``, and nothing drawn is among them: outcomes, charges and
the run's own id are not taken over, so each run draws and is charged for itself.

Private files are hard links where the file system has them: no artifact is ever changed in place, only replaced whole.
Purging one of the runs takes a file's name away there; the last run that is purged overwrites it. What is in
``release/`` is copied: others may handle those files.
"""

import dataclasses
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from data.store import Manifest, Run, atomic, digest, locked, read_manifest, write_manifest, write_release_manifest
from flows.console import Console
from flows.context import Context
from flows.freshness import Status, survey
from flows.settings import Settings
from flows.stages import STAGES, opened

SHARED = ("pretrain", "partition", "teach", "queries", "vote")


def holder(context: Context, statuses: Mapping[str, Status], candidates: Iterable[Run]) -> Run | None:
    """The first run that holds what is shared, intact and under the keys of ``statuses``; never the context's own."""
    for run in candidates:
        if run.root == context.run.root or run.purged.exists() or not (run.private / "manifest.json").exists():
            continue
        if _holds(context, statuses, run, read_manifest(run)):
            return run
    return None


def _holds(context: Context, statuses: Mapping[str, Status], run: Run, manifest: Manifest) -> bool:
    for name in _shared(statuses):
        record = manifest.stages.get(name)
        if record is None or record.key != statuses[name].key:
            return False
        for path, expected in record.outputs.items():
            file = run.root / path
            if not file.exists() or digest(file, context.key) != expected:
                return False
    return True


def _shared(statuses: Mapping[str, Status]) -> tuple[str, ...]:
    """The stages to take over: all of SHARED but one that the settings do not ask for, which has no key."""
    return tuple(name for name in SHARED if statuses[name].key)


def take_over(settings: Settings, candidates: Iterable[Run], console: Console) -> None:
    """Give a run directory what is shared, from the first candidate that holds it; else its stages will make it."""
    with opened(settings, console, "sweep") as (context, manifest):
        statuses = survey(context, manifest, STAGES)
        if all(statuses[name].standing == "fresh" for name in SHARED):
            return
        source = holder(context, statuses, candidates)
        if source is None:
            return
        with locked(source):
            given = read_manifest(source)
            if not _holds(context, statuses, source, given):
                return
            # Without records until all is there: a crash between two files must not pass for a corrupt artifact.
            others = {name: record for name, record in manifest.stages.items() if name not in SHARED}
            write_manifest(context.run, dataclasses.replace(manifest, stages=others))
            taken = {name: given.stages[name] for name in _shared(statuses)}
            for record in taken.values():
                for path in record.outputs:
                    _link(source.root / path, context.run.root / path)
        write_release_manifest(context.run)
        write_manifest(context.run, dataclasses.replace(manifest, stages={**others, **taken}))
    console.say(f"{settings.name}: partition, teachers, queries and votes are those of run {source.name}")


def _link(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, copy_function=_link_file)
    elif "private" in target.parts[-2:-1]:
        target.unlink(missing_ok=True)
        _link_file(str(source), str(target))
    else:
        with atomic(target) as part:
            shutil.copyfile(source, part)


def _link_file(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target
