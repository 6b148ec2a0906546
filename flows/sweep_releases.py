"""A sweep of real releases: every point is a run of its own, with its own labels, student, baseline and statement.

Order: all points' labels and baselines are reserved on the ledger together, before anything is trained, or all are
refused; then the first point trains the teachers, the others take them over (:mod:`flows.sharing`), and each draws
under its own charge. A sweep that was interrupted goes on where it was: finished points are reused, reserved ones
resumed.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accounting.ledger_rows import Request
from accounting.statement import rounded_up
from data.errors import PateError, UserError
from data.store import read_json
from flows import charges
from flows.asked import by_round, total
from flows.console import Console
from flows.context import run_of
from flows.exclusive import dataset_held
from flows.freshness import survey
from flows.pipeline import run_all
from flows.settings import Settings
from flows.sharing import take_over
from flows.stages import STAGES, StageResult, cancel_unused, opened, run_stage, stale_stages
from flows.sweep_points import Measured, Outcome, Point, Score, score


def release(settings: Settings, points: Sequence[Point], console: Console) -> Outcome:
    """Release every point, or what is not released yet of each, and read what came of it.

    Raises:
        RefusedError: the ledger does not hold them all; nothing was spent, nothing released.
    """
    from flows import work

    with dataset_held(settings, console.say):
        work.check(points[0].settings)
        runs = [run_of(settings), *(run_of(point.settings) for point in points)]
        stale = {point.target: stale_stages(point.settings, console) for point in points}
        try:
            _reserve(points, console)
            measured = []
            for point in points:
                without_student = False
                if stale[point.target]:
                    take_over(point.settings, runs, console)
                    without_student = _run(point, console)
                measured.append(_measured(point, without_student))
        except PateError:
            for point in points:
                with contextlib.suppress(PateError):
                    cancel_unused(point.settings, console)
            raise
    return Outcome(tuple(measured), _nonprivate(points))


def _reserve(points: Sequence[Point], console: Console) -> None:
    """Say what all points together bring the account to, then charge them: all or none."""
    requests: list[Request] = []
    for point in points:
        with opened(point.settings, console, "sweep") as (context, manifest):
            statuses = survey(context, manifest, STAGES)
            stale = {name: status for name, status in statuses.items() if status.standing != "fresh"}
            requests += charges.wanted(context, stale)
    settings = points[0].settings
    if requests:
        # What an interrupted sweep reserved already counts as spent.
        held = charges.undrawn(settings)
        after = charges.outlook(settings, [each.event for each in requests if (each.run, each.stage) not in held])
        console.say(
            f"sweep: {len(requests)} releases (ε = {', '.join(rounded_up(request.epsilon) for request in requests)}), "
            f"charged together: the ledger of dataset {settings.data.name!r} goes from ε = {rounded_up(after.spent)} "
            f"to {rounded_up(after.after)} of its limit {after.limit:g} (δ = {settings.ledger_delta:g})"
        )
    charges.reserve(settings, requests, console)


def _run(point: Point, console: Console) -> bool:
    """Run a point's stages. True where its labels train no student: the rest of the sweep need not stop for that."""
    failed = False

    def stage(name: str) -> StageResult:
        nonlocal failed
        if failed and name == "report":
            return StageResult(name, "", False, 0.0)
        try:
            return run_stage(name, point.settings, console)
        except UserError as error:
            if name != "student":
                raise
            failed = True
            console.say(f"{point.settings.name}: no student, and no report: {error}")
            return StageResult(name, "", False, 0.0)

    run_all(point.settings, console, stage)
    return failed


def _measured(point: Point, without_student: bool) -> Measured:
    """What was released at a point: labels and models' evaluations on the public test part."""
    folder = run_of(point.settings).release
    counts = total(by_round(folder / "labels.parquet"))
    student = [] if without_student else [_evaluation(folder / "student.json")]
    baseline = [] if point.baseline is None else [_evaluation(folder / "baseline.json")]
    return Measured(point, counts.asked, counts.answered, score(student), score(baseline), folder)


def _evaluation(page: Path) -> dict[str, Any]:
    found: dict[str, Any] | None = read_json(page)["extra"]["evaluation"]
    return found or {}


def _nonprivate(points: Sequence[Point]) -> Score | None:
    """Of a declared public benchmark alone: what its data give without privacy."""
    settings = points[0].settings
    page = run_of(settings).private / "nonprivate.json"
    if not settings.data.public_benchmark or points[0].baseline is None or not page.exists():
        return None
    return score([read_json(page)["evaluation"] or {}])
