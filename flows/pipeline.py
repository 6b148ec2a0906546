"""All stages in order. The CLI runs them plainly or hands over a runner that makes each a Prefect task."""

import contextlib
from collections.abc import Callable

from data.errors import PateError
from flows.console import Console
from flows.settings import Settings
from flows.stages import StageResult, cancel_unused, reserve_run, run_stage

StageRunner = Callable[[str], StageResult]


def run_all(settings: Settings, console: Console, runner: StageRunner | None = None) -> tuple[str, ...]:
    """Run what is not fresh; returns the names of the reused stages.

    Labels and baseline are charged together first. If the budget does not hold both, nothing is trained or spent. A
    charge under which nothing was drawn is given back when the run ends, with an error too; a crash leaves it counted.
    """
    run_one = runner or (lambda name: run_stage(name, settings, console))
    try:
        results = [run_one(name) for name in reserve_run(settings, console)]
    except PateError:
        with contextlib.suppress(PateError):
            cancel_unused(settings, console)
        raise
    cancel_unused(settings, console)
    return tuple(result.stage for result in results if result.reused)
