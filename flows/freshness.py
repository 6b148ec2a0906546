"""Which stages are up to date: a stage's key is a digest of its upstream stages' keys, its settings and code version.

Never of what the upstream stages computed. If a key depended on the votes, then after a change of the teachers'
settings labels would be drawn and charged anew when a vote had changed and reused when none had: the reuse itself, the
ledger and a second release would tell whether one record made a shard trainable. So reuse is decided by settings and by
the files' keyed digests (fixed for a run directory), and for what follows a release by the released files. Digests of
private outputs only find what is corrupt.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from data.errors import UserError
from data.private import keyed_digest, source_files
from data.store import Manifest, StageRecord, digest, stage_key
from flows.context import Context
from flows.given_votes import file_of
from flows.settings import Settings


@dataclass(frozen=True)
class Stage:
    """A stage: what it reads, which settings it depends on, what it writes. ``version`` rises with a new output.

    ``free``: settings that its output depends on, but not what it draws from private data; so does the test part.
    When only these change a drawn outcome is released again, at no charge. ``follows``: upstream stages whose
    *released* files it must follow too, when they were drawn anew under the same settings. ``wanted``: whether the
    settings ask for it at all; a stage that they do not ask for is fresh unless it once ran, and enters no key.
    """

    name: str
    version: int
    upstream: tuple[str, ...]
    reads: tuple[str, ...]
    settings: Callable[[Settings], Any]
    outputs: Callable[[Settings], tuple[str, ...]]
    free: Callable[[Settings], Any] = lambda settings: None
    follows: tuple[str, ...] = ()
    wanted: Callable[[Settings], bool] = lambda settings: True


Standing = Literal["fresh", "stale", "missing", "corrupt"]


@dataclass(frozen=True)
class Status:
    """Where a stage stands, and the key and inputs that it runs under now. ``draw_key``: the key less what is free."""

    standing: Standing
    key: str
    draw_key: str
    inputs: tuple[tuple[str, str], ...]
    problem: str = ""

    @property
    def deleted(self) -> bool:
        """Whether the stage had finished under this key and what it released is gone."""
        return self.standing == "missing" and self.problem == "deleted"


def content_digests(context: Context) -> dict[str, str]:
    """Keyed digests of the files behind the private, public and test parts.

    Keyed, the public ones too: with one set split by unit they are the same file. Votes made elsewhere are private.
    """
    fields = ("private", "public", "test")
    files = {field: source_files(context.settings.data, field) for field in fields}
    known = {paths: keyed_digest(paths, context.key) for paths in set(files.values())}
    for other in ("public", "test"):
        if files[other] != files["private"] and known[files[other]] == known[files["private"]]:
            raise UserError(f"data.{other}: is a copy of data.private")
    content = {field: known[files[field]] for field in fields}
    votes = file_of(context.settings)
    if votes is not None:
        content["private"] = context.keyed("votes", content["private"], keyed_digest((votes,), context.key))
    return content


def survey(context: Context, manifest: Manifest, stages: tuple[Stage, ...]) -> dict[str, Status]:
    """The status of every stage, in order."""
    content = content_digests(context)
    out: dict[str, Status] = {}
    entering = {stage.name for stage in stages if stage.wanted(context.settings)}
    for stage in stages:
        if stage.name not in entering and stage.name not in manifest.stages:
            out[stage.name] = Status("fresh", "", "", ())
            continue
        upstream = {name: out[name].key for name in stage.upstream if name in entering}
        inputs = {field: content[field] for field in stage.reads} | upstream
        for name in stage.follows:
            record = manifest.stages.get(name)
            outputs = record.outputs if record is not None else {}
            inputs |= {path: value for path, value in outputs.items() if path.startswith("release/")}
        out[stage.name] = _status(context, manifest.stages.get(stage.name), stage, inputs)
    return out


def _status(context: Context, record: StageRecord | None, stage: Stage, inputs: dict[str, str]) -> Status:
    drawn_from = {name: value for name, value in inputs.items() if name != "test"}
    draw_key = stage_key(drawn_from, stage.settings(context.settings), stage.version)
    key = stage_key(inputs | {"draw": draw_key}, stage.free(context.settings), stage.version)
    status = Status("fresh", key, draw_key, tuple(inputs.items()))
    if record is None:
        return dataclasses.replace(status, standing="missing")
    problem = _changed_output(context, record)
    if problem:
        return dataclasses.replace(status, standing="corrupt", problem=problem)
    if record.key != key:
        return dataclasses.replace(status, standing="stale")
    gone = [path for path in record.outputs if not (context.run.root / path).exists()]
    if gone:
        # What is private can be made again from what was drawn; what was released is only ever drawn anew.
        deleted = any(path.startswith("release/") for path in gone)
        return dataclasses.replace(status, standing="missing", problem="deleted" if deleted else "")
    return status


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
