"""The stages in their order, and ``run_stage``: the one function behind the CLI and the Prefect flow."""

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NoReturn

from data.errors import PateError, UserError
from data.scrubbing import shown_as
from data.selectors import identity
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
from flows import freshness, own_code
from flows.config import shown
from flows.console import Console
from flows.context import Context, Mapper, key_of, run_of
from flows.freshness import Stage, Status
from flows.given_votes import file_of
from flows.purge import refuse_purged, report_again
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


def _report_outputs(settings: Settings) -> tuple[str, ...]:
    evaluation = () if settings.data.test is None else ("release/evaluation.parquet",)
    return ("release/report.html", "release/privacy.json", *evaluation, "private/report-private.html")


def _baseline_target(settings: Settings) -> float | None:
    """ε of the baseline, to nine digits: a change of the labels' mechanism that keeps ε leaves the baseline fresh."""
    from flows.charges import baseline_target

    return float(f"{baseline_target(settings):.9g}") if settings.baseline.enabled else None


def _columns(settings: Settings) -> dict[str, object]:
    """The data settings that give rows their meaning, apart from which rows they are."""
    named = {"source", "label", "id", "unit", "encoding", "delimiter", "decimal", "image_size"}
    data: dict[str, object] = settings.data.model_dump(include=named)
    return data | {"classes": list(settings.data.class_names)}


def _pretraining(settings: Settings) -> list[object]:
    method = settings.pretraining.method
    return [_dump(settings, "pretraining", "device"), *own_code.digests(method)] if settings.pretraining.enabled else []


def _labels_event(settings: Settings) -> list[object]:
    from accounting.events import event_to_dict
    from flows.charges import labels_event

    event = event_to_dict(labels_event(settings))
    # Not the settings of the student that chooses later rounds: what was asked and paid for is not asked anew for them.
    sure = [settings.aggregation.sure] if event["mechanism"] == "interactive-gnmax" else []
    return [event, settings.aggregation.delta, *sure]


def _queries_output(settings: Settings) -> str:
    return "release/queries.parquet" if settings.queries.rounds == 1 else "release/queries-first.parquet"


def _votes_output(settings: Settings) -> str:
    return "private/votes.parquet" if settings.queries.rounds == 1 else "private/votes-first.parquet"


def _labels_outputs(settings: Settings) -> tuple[str, ...]:
    """Of several rounds the later ones are asked and voted on by the stage that answers the earlier ones."""
    later = () if settings.queries.rounds == 1 else ("release/queries.parquet", "private/votes.parquet")
    return ("release/labels.parquet", *later)


# A stage's upstream stages bring in their settings with their keys; each names only what is its own.
STAGES: tuple[Stage, ...] = (
    Stage(
        "pretrain",
        1,
        (),
        ("public",),
        lambda s: [s.seed, *_pretraining(s), _columns(s), identity(s.data, "public")],
        lambda s: ("release/encoder.safetensors", "release/encoder.json") if s.pretraining.enabled else (),
        wanted=lambda s: s.pretraining.enabled,
    ),
    Stage(
        "partition",
        1,
        (),
        ("private", "public"),
        lambda s: [s.seed, s.teachers.count, _columns(s), identity(s.data, "private", "public")],
        lambda s: ("private/partition.parquet",),
    ),
    Stage(
        "teach",
        4,
        ("pretrain", "partition"),
        (),
        lambda s: [
            _dump(s, "teachers", "runner", "workers", "address", "gpus", "chunk", "device"),
            *own_code.digests(s.teachers.model),
        ],
        lambda s: ("private/teachers",),
    ),
    Stage(
        "queries",
        2,
        ("pretrain",),
        ("public",),
        lambda s: [s.seed, _dump(s, "queries"), _columns(s), identity(s.data, "public")],
        lambda s: (_queries_output(s),),
    ),
    Stage("vote", 3, ("teach", "queries"), (), lambda s: [], lambda s: (_votes_output(s),)),
    Stage("aggregate", 1, ("queries", "vote"), (), _labels_event, _labels_outputs),
    Stage(
        "student",
        3,
        ("pretrain", "aggregate"),
        ("test",),
        lambda s: [_dump(s, "student")],
        lambda s: _weights("release/student", s.student.model),
        lambda s: [identity(s.data, "test"), s.data.subgroup],
        follows=("aggregate",),
    ),
    Stage(
        "baseline",
        3,
        ("pretrain", "partition"),
        ("test",),
        lambda s: [_dump(s, "baseline", "micro_batch"), _baseline_target(s), s.ledger_delta],
        _baseline_outputs,
        lambda s: [identity(s.data, "test"), s.data.subgroup, s.data.public_benchmark],
    ),
    Stage(
        "report",
        4,
        ("queries", "vote", "aggregate", "student", "baseline"),
        (),
        lambda s: [_dump(s, "report"), s.name, s.data.name, s.data.public_benchmark],
        _report_outputs,
        follows=("queries", "aggregate", "student", "baseline"),
    ),
)
NAMES = tuple(stage.name for stage in STAGES)


def names_wanted(settings: Settings) -> tuple[str, ...]:
    """The stages that the settings ask for, in order."""
    return tuple(stage.name for stage in STAGES if stage.wanted(settings))


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
    to ``private/errors.log`` (0600). What leaves remembers no cause or context: Prefect logs an interrupt with all that
    was being handled when it came.
    """
    try:
        yield
    except PateError as error:
        error.__cause__ = error.__context__ = None
        raise
    except KeyboardInterrupt:
        _raise_alone(KeyboardInterrupt())
    except BaseException as error:
        _raise_alone(shown_as(error, stage, run.private))


def _raise_alone(error: BaseException) -> NoReturn:
    """Raise an error that does not hold what was being handled when it was raised."""
    try:
        raise error
    finally:
        error.__cause__ = error.__context__ = None


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
    if manifest.stages and manifest.content != content:
        raise UserError(
            f"data.private{' or teachers.model' if file_of(settings) else ''}: has changed since run directory "
            f"{run.root} was made (or {run.root.parent / '.keys'} was lost); use another --run"
        )
    # Before any stage ended nothing was made from the content: a file may still be mended.
    return context, dataclasses.replace(manifest, run_id=run_id, dataset=settings.data.name, content=content)


def _write_settings(context: Context) -> None:
    import yaml

    path = context.run.root / "settings.yaml"
    text = yaml.safe_dump(shown(context.settings), sort_keys=False, allow_unicode=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


@contextlib.contextmanager
def opened(
    settings: Settings, console: Console, stage: str, mapper: Mapper | None = None
) -> Iterator[tuple[Context, Manifest]]:
    """A run directory, locked for this process, with its settings written first, inside the scrubbing boundary."""
    run = run_of(settings)
    refuse_purged(run)
    try:
        run.create()
    except OSError as error:
        raise UserError(f"run_root = {settings.run_root!r}: cannot be written ({error.strerror})") from None
    with scrubbed(run, stage), locked(run):
        refuse_purged(run)
        context, manifest = _opened(settings, console, mapper)
        _write_settings(context)
        if read_manifest(run) != manifest:
            write_manifest(run, manifest)
        yield context, manifest


def _require_upstream(stage: Stage, statuses: dict[str, Status]) -> None:
    needed = set(stage.upstream)
    for earlier in reversed(STAGES):
        if earlier.name in needed:
            needed |= set(earlier.upstream)
    for name in stage.upstream:
        if statuses[name].standing == "corrupt":
            _refuse_corrupt(name, statuses[name])
    if all(statuses[name].standing == "fresh" for name in stage.upstream):
        return
    missing = [name for name in NAMES if name in needed and statuses[name].standing != "fresh"]
    charged = " and ".join(name for name in ("aggregate", "baseline") if name in missing)
    raise UserError(
        f"{stage.name}: needs {', '.join(missing)}, not run yet, or not with these settings (each --set counts); run "
        "them in this order, or everything by `pate run`" + (f"; {charged}: charged to the ledger" if charged else "")
    )


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
    if name == "report" and run_of(settings).purged.exists():
        report_again(settings)
        return StageResult(name, "", False, time.monotonic() - started)
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
        _work(name)(dataclasses.replace(context, draw_key=status.draw_key, redo=status.deleted))
        record = StageRecord(
            key=status.key,
            inputs=dict(status.inputs),
            outputs=freshness.output_digests(context, stage),
            code_version=stage.version,
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - started, 3),
        )
        if any(path.startswith("release/") for path in record.outputs):
            others = _without_report(context, others)
            write_release_manifest(context.run)
        write_manifest(context.run, dataclasses.replace(manifest, stages={**others, name: record}))
    seconds = time.monotonic() - started
    console.say(f"{name}: done in {seconds:.1f} s")
    return StageResult(name, record.key, False, seconds)


def _without_report(context: Context, records: dict[str, StageRecord]) -> dict[str, StageRecord]:
    """The records of other stages once one has released files anew: no report or statement stays that is of the old."""
    if "report" not in records:
        return records
    for path in records["report"].outputs:
        (context.run.root / path).unlink(missing_ok=True)
    context.console.say("report: taken back, it was of other files; `pate report` with these settings makes it anew")
    return {name: record for name, record in records.items() if name != "report"}


def _work(name: str) -> Callable[[Context], None]:
    # Imported here: torch and scikit-learn are loaded by the stages that need them, not by `pate --help`.
    from flows import work

    function: Callable[[Context], None] = getattr(work, name)
    return function


def stale_stages(settings: Settings, console: Console) -> tuple[str, ...]:
    """The stages that a run has to run. Refuses what is corrupt, and releases that the ledger does not hold."""
    from flows import charges

    with opened(settings, console, "run") as (context, manifest):
        statuses = freshness.survey(context, manifest, STAGES)
        for name, status in statuses.items():
            if status.standing == "corrupt":
                _refuse_corrupt(name, status)
            if status.standing == "fresh":
                charges.require_charged(context, name)
        return tuple(name for name, status in statuses.items() if status.standing != "fresh")


def reserve_run(settings: Settings, console: Console) -> tuple[str, ...]:
    """Check what can be checked, then charge labels and baseline together, before anything private is trained.

    Returns the stages to go through, in order: those that the settings ask for, and those that they once did, which
    have files to take back.
    """
    from flows import charges, work

    with opened(settings, console, "run") as (context, manifest):
        statuses = freshness.survey(context, manifest, STAGES)
        stale = {name: status for name, status in statuses.items() if status.standing != "fresh"}
        if stale.keys() - {"report"}:
            work.check(settings)
        charges.reserve_together(context, stale)
    return tuple(name for name in NAMES if name in stale or name in names_wanted(settings))


def cancel_unused(settings: Settings, console: Console) -> None:
    """Give back charges of the run under which nothing was drawn: its stages ended, or an error came before."""
    from flows import charges

    with opened(settings, console, "run") as (context, _):
        charges.cancel_unused(context)
