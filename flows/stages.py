"""The stages in their order, and ``run_stage``: the one function behind the CLI and the Prefect flow."""

import contextlib
import dataclasses
import errno
import os
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from data.errors import PateError, StageError, UserError
from data.store import (
    Manifest,
    Run,
    StageRecord,
    locked,
    read_manifest,
    write_manifest,
    write_release_manifest,
    write_text,
)
from flows import freshness
from flows.console import Console
from flows.context import Context, Mapper, key_of, run_of
from flows.freshness import Stage, Status
from flows.settings import Settings


def _dump(settings: Settings, part: str, *without: str) -> dict[str, object]:
    dumped: dict[str, object] = getattr(settings, part).model_dump(mode="json", exclude=set(without))
    return dumped


def _weights(prefix: str, model: str) -> tuple[str, ...]:
    return (f"{prefix}.skops" if model.startswith("sklearn:") else f"{prefix}.safetensors", f"{prefix}.json")


def _baseline_outputs(settings: Settings) -> tuple[str, ...]:
    if not settings.baseline.enabled:
        return ()
    extra = ("private/nonprivate.json",) if settings.data.public_benchmark else ()
    return ("release/baseline.safetensors", "release/baseline.json", *extra)


def _baseline_target(settings: Settings) -> float | None:
    """ε of the baseline, to nine digits: a change of the labels' mechanism that keeps ε leaves the baseline fresh."""
    from flows.charges import baseline_target

    return float(f"{baseline_target(settings):.9g}") if settings.baseline.enabled else None


_PLACES = {"root", "path"}

STAGES: tuple[Stage, ...] = (
    Stage(
        "partition",
        1,
        (),
        ("private", "public"),
        lambda s: [s.seed, s.teachers.count, _dump(s, "data", *_PLACES, "public_benchmark")],
        lambda s: ("private/partition.parquet",),
    ),
    Stage(
        "teach",
        1,
        ("partition",),
        ("private", "public"),
        lambda s: [s.seed, _dump(s, "teachers", "runner", "workers", "chunk"), list(s.data.class_names)],
        lambda s: ("private/teachers",),
    ),
    Stage(
        "queries",
        1,
        (),
        ("public",),
        lambda s: [s.seed, _dump(s, "queries"), _dump(s, "data", *_PLACES, "public_benchmark")],
        lambda s: ("release/queries.parquet",),
    ),
    Stage(
        "vote",
        1,
        ("teach", "queries"),
        ("public",),
        lambda s: [s.teachers.empty_vote, list(s.data.class_names)],
        lambda s: ("private/votes.parquet",),
    ),
    Stage(
        "aggregate",
        1,
        ("queries", "vote"),
        (),
        lambda s: [_dump(s, "aggregation"), list(s.data.class_names)],
        lambda s: ("release/labels.parquet",),
    ),
    Stage(
        "student",
        1,
        ("queries", "aggregate"),
        ("public", "test"),
        lambda s: [s.seed, _dump(s, "student"), list(s.data.class_names)],
        lambda s: _weights("release/student", s.student.model),
    ),
    Stage(
        "baseline",
        1,
        ("partition",),
        ("private", "public", "test"),
        lambda s: [s.seed, _dump(s, "baseline"), _baseline_target(s), s.ledger_delta, s.data.public_benchmark],
        _baseline_outputs,
    ),
    Stage(
        "report",
        1,
        ("partition", "teach", "queries", "vote", "aggregate", "student", "baseline"),
        ("test",),
        lambda s: [_dump(s, "report"), _dump(s, "data", *_PLACES), _dump(s, "aggregation"), s.baseline.enabled],
        lambda s: ("release/report.html", "release/privacy.json", "private/report-private.html"),
    ),
)
NAMES = tuple(stage.name for stage in STAGES)


@dataclass(frozen=True)
class StageResult:
    """What a stage gives its callers: its key and whether it was reused. Nothing private."""

    stage: str
    key: str
    reused: bool
    seconds: float


def stage_named(name: str) -> Stage:
    """The stage of that name."""
    return next(stage for stage in STAGES if stage.name == name)


@contextlib.contextmanager
def scrubbed(run: Run, stage: str) -> Iterator[None]:
    """The boundary of the private zone: no exception leaves with a text that could hold private data.

    Errors made for users pass: their texts name fields, files, columns and rules only. Of all others the traceback goes
    to ``private/errors.log`` (0600).
    """
    try:
        yield
    except (PateError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StageError(f"{stage}: no space left on the disk of {run.root}; free some and rerun") from None
        with contextlib.suppress(OSError):
            log = os.open(run.private / "errors.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(log, "a") as stream:
                stream.write(f"--- {datetime.now(UTC).isoformat()} stage {stage}\n{traceback.format_exc()}\n")
        kind = type(error).__name__
        raise StageError(f"{stage}: failed with {kind}; see {run.private / 'errors.log'}") from None


def _opened(settings: Settings, console: Console, mapper: Mapper | None) -> tuple[Context, Manifest]:
    """The context of a run directory; refuses one that belongs to another dataset or other private content."""
    run = run_of(settings)
    key = key_of(settings)
    manifest = read_manifest(run)
    if manifest.dataset and manifest.dataset != settings.data.name:
        raise UserError(
            f"data.name = {settings.data.name!r}: run directory {run.root} belongs to dataset {manifest.dataset!r}; "
            "use another --run"
        )
    run_id = manifest.run_id or uuid.uuid4().hex[:12]
    context = Context(settings, run, key, run_id, console, mapper)
    content = freshness.content_digests(context)["private"]
    if manifest.content and manifest.content != content:
        raise UserError(f"data.private: has changed since run directory {run.root} was made; use another --run")
    if not manifest.run_id:
        manifest = Manifest(run_id, settings.data.name, content)
    return context, manifest


def _write_settings(context: Context) -> None:
    import yaml

    path = context.run.root / "settings.yaml"
    text = yaml.safe_dump(context.settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


@contextlib.contextmanager
def opened(
    settings: Settings, console: Console, stage: str, mapper: Mapper | None = None
) -> Iterator[tuple[Context, Manifest]]:
    """A run directory, locked for this process, with its settings written first, inside the scrubbing boundary."""
    run = run_of(settings)
    try:
        run.create()
    except OSError as error:
        raise UserError(f"run_root = {settings.run_root!r}: cannot be written ({error.strerror})") from None
    with scrubbed(run, stage), locked(run):
        context, manifest = _opened(settings, console, mapper)
        _write_settings(context)
        if not (run.private / "manifest.json").exists():
            write_manifest(run, manifest)
        yield context, manifest


def _require_upstream(stage: Stage, statuses: dict[str, Status]) -> None:
    for name in stage.upstream:
        status = statuses[name]
        if status.standing == "corrupt":
            _refuse_corrupt(name, status)
        if status.standing != "fresh":
            state = "is out of date" if status.standing == "stale" else "has not run"
            raise UserError(f"{stage.name}: needs stage {name!r}, which {state}; run `pate {name}` first")


def _refuse_corrupt(name: str, status: Status) -> None:
    again = {"aggregate": " (a new, charged event)", "baseline": " (a new, charged event)"}.get(name, "")
    raise UserError(
        f"{status.problem}: is corrupt (not what stage {name!r} wrote); "
        f"restore it, or delete it and rerun {name}{again}"
    )


def run_stage(name: str, settings: Settings, console: Console, mapper: Mapper | None = None) -> StageResult:
    """Run one stage, or reuse it when its key is the same and its outputs are intact."""
    stage = stage_named(name)
    started = time.monotonic()
    with opened(settings, console, name, mapper) as (context, manifest):
        statuses = freshness.survey(context, manifest, STAGES[: NAMES.index(name) + 1])
        _require_upstream(stage, statuses)
        status = statuses[name]
        if status.standing == "corrupt":
            _refuse_corrupt(name, status)
        if status.standing == "fresh":
            console.say(f"{name}: reused")
            return StageResult(name, status.key, True, time.monotonic() - started)
        # Until the stage ends it has no record: a crash between two of its files must not pass for a corrupt artifact.
        others = {other: record for other, record in manifest.stages.items() if other != name}
        write_manifest(context.run, dataclasses.replace(manifest, stages=others))
        _work(name)(dataclasses.replace(context, stage_key=status.key, redo=status.deleted))
        record = StageRecord(
            key=status.key,
            inputs=dict(status.inputs),
            outputs=freshness.output_digests(context, stage),
            code_version=stage.version,
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - started, 3),
        )
        if any(path.startswith("release/") for path in record.outputs):
            write_release_manifest(context.run)
        write_manifest(context.run, dataclasses.replace(manifest, stages={**others, name: record}))
    seconds = time.monotonic() - started
    console.say(f"{name}: done in {seconds:.1f} s")
    return StageResult(name, record.key, False, seconds)


def _work(name: str) -> Callable[[Context], None]:
    # Imported here: torch and scikit-learn are loaded by the stages that need them, not by `pate --help`.
    from flows import work

    function: Callable[[Context], None] = getattr(work, name)
    return function


def stale_stages(settings: Settings, console: Console) -> tuple[str, ...]:
    """The stages that a run has to run."""
    with opened(settings, console, "run") as (context, manifest):
        statuses = freshness.survey(context, manifest, STAGES)
        for name, status in statuses.items():
            if status.standing == "corrupt":
                _refuse_corrupt(name, status)
        return tuple(name for name, status in statuses.items() if status.standing != "fresh")


def reserve_run(settings: Settings, console: Console, stale: tuple[str, ...]) -> None:
    """Charge labels and baseline together before anything private is trained."""
    from flows import charges

    with opened(settings, console, "run") as (context, _):
        charges.reserve_together(context, stale)


def close_run(settings: Settings, console: Console) -> None:
    """After a run whose stages all ended: give back charges under which nothing was drawn."""
    from flows import charges

    with opened(settings, console, "run") as (context, _):
        charges.cancel_unused(context)
