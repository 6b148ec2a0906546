"""All stages in order. The CLI runs them plainly or hands over a runner that makes each a Prefect task."""

from collections.abc import Callable

from flows.console import Console
from flows.settings import Settings
from flows.stages import NAMES, StageResult, close_run, reserve_run, run_stage, stale_stages

StageRunner = Callable[[str], StageResult]


def run_all(settings: Settings, console: Console, runner: StageRunner | None = None) -> tuple[str, ...]:
    """Run what is not fresh; returns the names of the reused stages.

    Labels and baseline are charged together first. If the budget does not hold both, nothing is trained or spent.
    """
    run_one = runner or (lambda name: run_stage(name, settings, console))
    reserve_run(settings, console, stale_stages(settings, console))
    results = [run_one(name) for name in NAMES]
    close_run(settings, console)
    return tuple(result.stage for result in results if result.reused)
