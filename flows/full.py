"""The Prefect flow ``pate``: the stages as tasks, the teachers' chunks as tasks of a subflow.

The run store is the only cache, and what a task returns names keys and stages only. A failure is a Failed state of
one line: exceptions of the private zone never reach Prefect's states, logs or database.
"""

import logging
import os
from collections.abc import Callable, Iterable
from typing import Any, Literal

# Before prefect is imported: no usage statistics leave a private zone.
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")

from prefect import Flow, flow, get_run_logger, runtime, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.exceptions import FailedRun, UnfinishedRun
from prefect.futures import PrefectFuture
from prefect.logging import get_logger
from prefect.states import Completed, Failed
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from data.errors import PateError, RefusedError, StageError, UserError
from flows.config import resolved, shown
from flows.console import Console, console
from flows.context import Mapper, run_of
from flows.exclusive import dataset_held
from flows.naming import flow_run_name
from flows.pipeline import run_all
from flows.settings import Settings
from flows.stages import StageResult, run_stage, scrubbed, stale_stages
from flows.summary import rows, summary
from teachers.calls import calls

StageName = Literal["pretrain", "partition", "teach", "queries", "vote", "aggregate", "student", "baseline", "report"]
_STATE_NAMES: dict[int, str] = {1: "Failed", 2: "BadInput", 3: "Refused"}
_ERRORS: dict[str, type[PateError]] = {"BadInput": UserError, "Refused": RefusedError}


def failed(error: PateError) -> State[Any]:
    """A Failed state that says what went wrong in one line and keeps no exception."""
    return Failed(message=str(error), name=_STATE_NAMES[error.exit_code], data=None)


def error_of(state: State[Any]) -> PateError:
    """The error that a Failed state stands for; of another state, a crash, Prefect's own words are not repeated."""
    if not state.is_failed():
        return StageError(f"a task ended as {state.name}: its process was ended, or Prefect's server did not answer")
    return _ERRORS.get(state.name or "", StageError)(state.message or "the run failed")


def _chunk_mapper(settings: Settings) -> Mapper:
    """Chunks of teachers as tasks in threads, each of which waits for the worker that ``teachers.runner`` gives it.

    Prefect's own runners would send each task with the flow's context, its API key included, to the cluster, need
    workers that reach Prefect's server, and end a run whose worker died, or wait for it without end.
    """

    def mapper(function: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterable[Any]:
        if not jobs:
            return
        first_errors: list[PateError] = []

        @task(name="chunk", cache_policy=NO_CACHE, persist_result=False)
        def chunk(job: Any) -> Any:
            # After an error no further chunk is started; those that run are waited for, and kept.
            if first_errors:
                return failed(first_errors[0])
            try:
                with scrubbed(run_of(settings), "teach"):
                    return call(function, job)
            except PateError as error:
                first_errors.append(error)
                return failed(error)

        with calls(settings.teachers) as call:
            futures: list[PrefectFuture[Any]] = chunk.map(list(jobs))
            for future in futures:
                future.wait()
                if future.state.is_completed():
                    yield future.result()
            for future in futures:
                if not future.state.is_completed():
                    raise error_of(future.state)

    return mapper


def _teach(settings: Settings, said: Console) -> StageResult:
    """The teach stage as a subflow, for a task runner of its own."""
    runner: TaskRunner[Any] = ThreadPoolTaskRunner(max_workers=settings.teachers.workers)

    @flow(
        name="teach",
        flow_run_name=f"teach {settings.name}",
        task_runner=runner,
        validate_parameters=False,
        persist_result=False,
    )
    def teach() -> Any:
        try:
            return run_stage("teach", settings, said, _chunk_mapper(settings))
        except PateError as error:
            return failed(error)

    state: State[Any] = teach(return_state=True)  # type: ignore[assignment]
    if not state.is_completed():
        raise error_of(state)
    result: StageResult = state.result()
    return result


def _stage_runner(settings: Settings, said: Console, stale: tuple[str, ...]) -> Callable[[str], StageResult]:
    @task(cache_policy=NO_CACHE, persist_result=False)
    def stage() -> Any:
        name = runtime.task_run.name
        try:
            result = run_stage(name, settings, said)
        except PateError as error:
            return failed(error)
        return Completed(name="Reused", message=f"{name}: reused", data=result) if result.reused else result

    def run_one(name: str) -> StageResult:
        if name == "teach" and name in stale:
            return _teach(settings, said)
        state = stage.with_options(name=name, task_run_name=name)(return_state=True)
        if not state.is_completed():
            raise error_of(state)
        result: StageResult = state.result()
        return result

    return run_one


def _publish_artifacts(settings: Settings) -> None:
    """A summary and a table in Prefect's UI, from released numbers only."""
    result = summary(settings)
    lines = rows(result)
    text = "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in lines)])
    create_markdown_artifact(markdown=text, key="pate-summary", description=f"Run {settings.name}")
    create_table_artifact(table=[result | {"reused": None}], key="pate-result", description=f"Run {settings.name}")


def _is_news(record: logging.LogRecord) -> bool:
    """Not Prefect's own traceback after a Failed state, whose line it has said, or after a run was cancelled."""
    return not (record.exc_info and isinstance(record.exc_info[1], (FailedRun, UnfinishedRun)))


def _run_name() -> str:
    return flow_run_name(runtime.flow_run.parameters, runtime.flow_run.name)


def _run(settings: Settings, said: Console, stage: StageName | None) -> State[Any]:
    """All stages, or one: the flow's work while it holds the dataset."""
    if stage is not None:
        result = _stage_runner(settings, said, (stage,))(stage)
        if stage == "report":
            _publish_artifacts(settings)
        if result.reused:
            return Completed(name="Reused", message=f"run {settings.name}: {stage} reused", data=[stage])
        return Completed(message=f"run {settings.name}: {stage} done", data=[])
    stale = stale_stages(settings, said)
    reused = run_all(settings, said, _stage_runner(settings, said, stale))
    _publish_artifacts(settings)
    return Completed(message=f"run {settings.name}: done ({len(reused)} stages reused)", data=list(reused))


def build(said: Console | None = None, known: Settings | None = None) -> Flow[..., Any]:
    """The flow, saying what it does through ``said``; without one, through Prefect's run logger.

    ``known``: settings to run, whatever the parameters say: those lie in Prefect's database and may lack a password.
    """

    # Settings are validated in the flow and not by Prefect, which would log all values with their traceback.
    @flow(name="pate", flow_run_name=_run_name, validate_parameters=False, persist_result=False)
    def pate(config: Settings, run: str | None = None, stage: StageName | None = None) -> Any:
        """PATE: private records → teachers → noisy votes → labels, student, DP-SGD baseline and report.

        Args:
            config: Settings of the run, as in a YAML config; ${NAME} in a text is the worker's environment variable.
            run: Name of the run directory; default: the config's name.
            stage: Run this stage alone, on what the earlier ones left in the run directory; default: all of them.
        """
        for source in ("flow_runs", "engine"):
            get_logger(source).addFilter(_is_news)
        logger = get_run_logger()
        talk = said or Console(lambda line: logger.info("%s", line), console(quiet=True).bar)
        try:
            settings = known or resolved(config, run)
            with dataset_held(settings, talk.say):
                return _run(settings, talk, stage)
        except PateError as error:
            return failed(error)
        except Exception as error:
            # Of Prefect, or a defect of ours. Its text could hold anything: only the kind is shown.
            return failed(StageError(f"failed with {type(error).__name__}"))

    return pate


pate = build()


def run_in_process(settings: Settings, said: Console) -> tuple[str, ...]:
    """Run the flow in this process, on Prefect's temporary server; raises what the flow's Failed state stands for."""
    try:
        state: State[Any] = build(said, settings)(shown(settings), return_state=True)  # type: ignore[assignment]
    except PateError:
        raise
    except Exception as error:
        # Of Prefect itself: what a stage raises is a Failed state by now.
        raise StageError(
            f"Prefect failed with {type(error).__name__}; --no-prefect runs the stages without it"
        ) from None
    if not state.is_completed():
        raise error_of(state)
    return tuple(state.result())
