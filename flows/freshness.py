"""Which stages are up to date: a stage's key is a digest of its inputs' digests, its settings and its code version."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from data.errors import UserError
from data.private import keyed_digest, source_files
from data.store import Manifest, StageRecord, digest, stage_key
from flows.context import Context
from flows.settings import Settings


@dataclass(frozen=True)
class Stage:
    """A stage: what it reads, which settings it depends on, what it writes. ``version`` rises with a new output."""

    name: str
    version: int
    upstream: tuple[str, ...]
    reads: tuple[str, ...]
    settings: Callable[[Settings], Any]
    outputs: Callable[[Settings], tuple[str, ...]]


Standing = Literal["fresh", "stale", "missing", "corrupt"]


@dataclass(frozen=True)
class Status:
    """Where a stage stands, with the key and inputs that it would run under now (known when its upstream has run)."""

    standing: Standing
    key: str = ""
    inputs: tuple[tuple[str, str], ...] = ()
    problem: str = ""


def content_digests(context: Context) -> dict[str, str]:
    """Keyed digests of the files behind the private, public and test parts.

    Keyed, the public ones too: with one set split by unit they are the same file.
    """
    fields = ("private", "public", "test")
    files = {field: source_files(context.settings.data, field) for field in fields}
    known = {paths: keyed_digest(paths, context.key) for paths in set(files.values())}
    return {field: known[files[field]] for field in fields}


def survey(context: Context, manifest: Manifest, stages: tuple[Stage, ...]) -> dict[str, Status]:
    """The status of every stage, in order."""
    content = content_digests(context)
    out: dict[str, Status] = {}
    for stage in stages:
        out[stage.name] = _status(context, manifest, stage, content, out)
    return out


def _status(
    context: Context, manifest: Manifest, stage: Stage, content: dict[str, str], known: dict[str, Status]
) -> Status:
    if any(name not in manifest.stages for name in stage.upstream):
        return Status("missing")
    inputs = {field: content[field] for field in stage.reads}
    for name in stage.upstream:
        inputs |= {f"{name}:{path}": value for path, value in manifest.stages[name].outputs.items()}
    key = stage_key(inputs, stage.settings(context.settings), stage.version)
    now = tuple(inputs.items())
    record = manifest.stages.get(stage.name)
    if record is None:
        return Status("missing", key, now)
    problem = _changed_output(context, record)
    if problem:
        return Status("corrupt", key, now, problem)
    if any(not (context.run.root / path).exists() for path in record.outputs):
        return Status("missing", key, now)
    if record.key != key or any(known[name].standing != "fresh" for name in stage.upstream):
        return Status("stale", key, now)
    return Status("fresh", key, now)


def _changed_output(context: Context, record: StageRecord) -> str:
    for path, expected in record.outputs.items():
        file = context.run.root / path
        if file.exists() and digest(file, context.key) != expected:
            return path
    return ""


def output_digests(context: Context, stage: Stage) -> dict[str, str]:
    """Keyed digests of what a stage wrote."""
    out = {}
    for path in stage.outputs(context.settings):
        file = context.run.root / path
        if not file.exists():
            raise UserError(f"{file}: was not written by stage {stage.name!r}")
        out[path] = digest(file, context.key)
    return out
