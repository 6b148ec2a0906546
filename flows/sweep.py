"""``pate sweep``: privacy against accuracy, of the student and the DP-SGD baseline at the same ε, as table and picture.

Without ``--simulate`` every point is a release (:mod:`flows.sweep_releases`), and all that is written here is computed
from what was released. With it nothing is released or charged (:mod:`flows.sweep_simulation`); files are 0600, in a
folder of mode 0700, and picture, Parquet and JSON say :data:`NOT_FOR_RELEASE`.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from accounting.events import event_to_dict
from accounting.statement import rounded_up
from data.errors import UserError
from data.public import load_test
from data.store import Run, atomic
from flows import charges, sweep_figure
from flows.console import Console
from flows.context import run_of
from flows.settings import Settings
from flows.sweep_points import (
    OPTION,
    USUAL,
    Measured,
    Outcome,
    Score,
    as_record,
    parse_epsilons,
    points,
    require_public,
)

NOT_FOR_RELEASE = "simulated, not for release"
_SCHEMA = pa.schema(
    [
        ("target", pa.float64()),
        ("epsilon", pa.float64()),
        ("delta", pa.float64()),
        ("model", pa.string()),
        ("accuracy", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("interval", pa.string()),
        ("count", pa.int64()),
        ("repetitions", pa.int64()),
        ("asked", pa.float64()),
        ("answered", pa.float64()),
        ("sigma", pa.float64()),
        ("scale", pa.float64()),
        ("threshold", pa.float64()),
        ("threshold_sigma", pa.float64()),
        ("noise_multiplier", pa.float64()),
        ("run", pa.string()),
        ("simulated", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class Options:
    """``epsilons``: as on the command line, None: the usual ones, of a simulation; ``out``: folder of the results;
    ``seeds``: repetitions of a simulation."""

    epsilons: str | None = None
    simulate: bool = False
    seeds: int | None = None
    out: Path | None = None


def sweep(settings: Settings, options: Options, console: Console) -> dict[str, Any]:
    """Measure all points, write ``sweep.parquet``, ``sweep.png`` and ``sweep.svg``; returns the result as one object.

    Raises:
        UserError: an option out of range, no labelled test part, or a sweep that may not be simulated.
        RefusedError: the ledger does not hold all points together; nothing was spent, nothing released.
    """
    if options.epsilons is None and not options.simulate:
        raise UserError(f"{OPTION}: must be given without --simulate: every point is a release, and charged")
    targets = parse_epsilons(USUAL if options.epsilons is None else options.epsilons)
    _check(settings, options)
    home = Run(run_of(settings).root.with_name(f"{settings.name}-sweep"))
    folder = _folder(home, options)
    test = load_test(settings.data, settings.seed)
    if test is None or test.labels is None or not len(test.labels):
        raise UserError("data.test: must name a labelled part: without one there is no accuracy to draw")
    console.say(f"sweep: finds the noise for ε = {', '.join(f'{target:g}' for target in targets)}")
    found = points(settings, targets)
    if options.simulate:
        from flows.sweep_simulation import simulate

        outcome = simulate(settings, found, options.seeds or 1, home, console)
    else:
        from flows.sweep_releases import release

        outcome = release(settings, found, console)
    if not any(each.student or each.baseline for each in outcome.measured):
        raise UserError("data.test: there is no accuracy to draw: no student could be trained, and no baseline was")
    return _write(settings, options, outcome, folder)


def rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The result as labelled lines for people. ε is rounded up."""

    def shown(score: dict[str, Any] | None) -> str:
        if score is None:
            return "–"
        return f"{100 * score['accuracy']:.1f}% ({100 * score['low']:.1f}–{100 * score['high']:.1f})"

    lines = []
    for point in result["points"]:
        noise = f"σ = {point['sigma']:g}" if point["sigma"] is not None else f"b = {point['scale']:g}"
        lines.append(
            (
                f"ε = {point['target']:g}",
                f"student {shown(point['student'])}, DP-SGD {shown(point['baseline'])}; "
                f"{point['answered']:g} of {point['asked']:g} answered, {noise}",
            )
        )
    if result["nonprivate"] is not None:
        lines.append(("without privacy (public benchmark)", shown(result["nonprivate"])))
    if result["note"] is not None:
        lines.append(("note", result["note"]))
    else:
        lines.append(("ledger: ε spent of limit", f"{result['ledger_spent']:.4f} of {result['ledger_limit']:g}"))
    return [*lines, *((name, result[name]) for name in ("parquet", "png", "svg"))]


def _check(settings: Settings, options: Options) -> None:
    if options.seeds is not None and not options.simulate:
        raise UserError(f"--seeds = {options.seeds}: is for --simulate; a release is drawn once")
    if options.seeds is not None and options.seeds < 1:
        raise UserError(f"--seeds = {options.seeds}: must be at least 1")
    if options.simulate:
        require_public(settings)
        if settings.queries.rounds > 1:
            raise UserError(
                f"queries.rounds = {settings.queries.rounds}: --simulate takes 1: it trains no student between"
            )
    if settings.data.test is None:
        raise UserError("data.test: must name a labelled part: without one there is no accuracy to draw")


def _folder(home: Run, options: Options) -> Path:
    """Where the results go, made if need be: 0700 for what is simulated."""
    if (home.root / "settings.yaml").exists():
        raise UserError(f"--run: {home.root} is a run directory; a sweep needs that name for its own folder")
    folder = options.out.expanduser().resolve() if options.out else (home.private if options.simulate else home.root)
    if options.simulate and "release" in folder.parts:
        raise UserError(f"--out = {str(options.out)!r}: lies in a release folder; what is simulated is not for release")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700 if options.simulate else 0o755)
    except OSError as error:
        raise UserError(f"--out = {str(folder)!r}: cannot be made ({error.strerror})") from None
    return folder


def _write(settings: Settings, options: Options, outcome: Outcome, folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = {
        "sweep": settings.name,
        "dataset": settings.data.name,
        "simulated": options.simulate,
        "note": NOT_FOR_RELEASE if options.simulate else None,
        "delta": settings.aggregation.delta,
        "teachers": settings.teachers.count,
        "points": [_point(each) for each in outcome.measured],
        "nonprivate": as_record(outcome.nonprivate),
        "ledger_spent": None,
        "ledger_limit": None,
    }
    if not options.simulate:
        ledger, account = charges.open_account(settings)
        result |= {"ledger_spent": ledger.spent(account.name), "ledger_limit": account.limit}
    paths = {name: folder / f"sweep.{name}" for name in ("parquet", "png", "svg")}
    table = _table(settings, outcome, result)
    with _written(paths["parquet"], options) as part:
        pq.write_table(table, part, compression="zstd")
    for name in ("png", "svg"):
        with _written(paths[name], options) as part:
            sweep_figure.draw(part, name, outcome, _note(settings, outcome, result), result["note"])
    return result | {name: str(path) for name, path in paths.items()}


@contextlib.contextmanager
def _written(path: Path, options: Options) -> Iterator[Path]:
    """As :func:`data.store.atomic`; 0600 for what is simulated, wherever it lies."""
    with atomic(path) as part:
        yield part
    if options.simulate:
        path.chmod(0o600)


def _point(found: Measured) -> dict[str, Any]:
    """A point as ``--json`` prints it; what the mechanism does not have is None."""
    event = event_to_dict(found.point.event)
    return {
        "target": found.point.target,
        "epsilon": found.point.epsilon,
        "baseline_epsilon": found.point.baseline_epsilon,
        "mechanism": event["mechanism"],
        **{name: event.get(name) for name in ("sigma", "scale", "threshold", "threshold_sigma")},
        "noise_multiplier": None if found.point.baseline is None else found.point.baseline.noise_multiplier,
        "asked": found.asked,
        "answered": found.answered,
        "student": as_record(found.student),
        "baseline": as_record(found.baseline),
        "run": None if found.release is None else found.point.settings.name,
        "release": None if found.release is None else str(found.release),
    }


def _table(settings: Settings, outcome: Outcome, result: dict[str, Any]) -> pa.Table:
    """A row for each point and model, and one for the model without privacy, whose ε is null."""
    shared = {"delta": result["delta"], "simulated": result["simulated"]}
    lines: list[dict[str, Any]] = []
    for point in result["points"]:
        here = shared | {"target": point["target"], "run": point["run"]}
        labels = ("asked", "answered", "sigma", "scale", "threshold", "threshold_sigma")
        student = {"model": "student", "epsilon": point["epsilon"], **{name: point[name] for name in labels}}
        lines.append(here | student | (point["student"] or {}))
        if point["baseline_epsilon"] is not None:
            noise = {"noise_multiplier": point["noise_multiplier"]}
            baseline = {"model": "baseline", "epsilon": point["baseline_epsilon"]}
            lines.append(here | baseline | noise | (point["baseline"] or {}))
    if outcome.nonprivate is not None:
        lines.append(shared | {"delta": None, "model": "nonprivate"} | (as_record(outcome.nonprivate) or {}))
    facts = {
        "pate.sweep": settings.name,
        "pate.delta": f"{result['delta']:g}",
        "pate.unit": settings.unit,
        "pate.simulated": "true" if result["simulated"] else "false",
        "pate.mechanism": settings.aggregation.mechanism,
    }
    if result["note"] is not None:
        facts["pate.note"] = result["note"]
    return pa.Table.from_pylist(lines, schema=_SCHEMA).replace_schema_metadata(facts)


def _note(settings: Settings, outcome: Outcome, result: dict[str, Any]) -> str:
    """What stands below the picture: how it was made, what the bars are, what all points together cost."""
    scores = [score for each in outcome.measured for score in (each.student, each.baseline) if score is not None]
    first: Score = scores[0]
    bars = f"exact 95% intervals over {first.count:,} test inputs"
    if first.repetitions > 1:
        bars = (
            f"95% intervals of the mean over {first.repetitions} drawings (Student's t), for these teachers and these "
            f"{first.count:,} test inputs"
        )
    caps = outcome.measured[0].point.event
    lines = [
        f"{settings.name}: {settings.teachers.count:,} teachers, {settings.aggregation.mechanism}, at most "
        f"{caps.answers:,} answers. ε at these caps, δ = {result['delta']:g}.",
        f"Bars: {bars}.",
    ]
    if result["note"] is not None:
        lines.append("Simulated on a public benchmark: nothing was charged, nothing may be released.")
    else:
        lines.append(
            f"Every point was released. These and all other releases from the dataset together: "
            f"ε = {rounded_up(result['ledger_spent'])}, as the ledger counts."
        )
    return "\n".join(lines)
