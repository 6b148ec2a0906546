"""Calling a function on a job where ``teachers.runner`` says: in this thread, in a process, on a cluster.

A job names paths, keys and settings, and so does what comes back: records, parameters and votes travel through the
run directory only. An exception is turned into one line where it is raised, before it can reach a cluster's logs.

A job whose worker died is run again, on another worker: it writes whole files or none, the same bit for bit each
time, and draws nothing that privacy rests on. A job that raised is never run again: that would hide a fault, and the
time it takes would depend on the records.
"""

import contextlib
import multiprocessing
import os
import queue
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from data.errors import PateError, RefusedError, StageError, UserError
from data.scrubbing import shown_as
from teachers.settings import TeacherSettings

ATTEMPTS = 3
MODULES = {"dask": "distributed", "ray": "ray"}
_ERRORS: dict[str, type[PateError]] = {each.__name__: each for each in (UserError, RefusedError, StageError)}


class Job(Protocol):
    """What a worker is sent; ``folder`` is the run's ``private/teachers``."""

    @property
    def folder(self) -> Path: ...


Call = Callable[[Callable[[Any], Any], Any], Any]


@dataclass(frozen=True)
class Failure:
    """What a worker sends back for an exception: its class among data.errors, and its line."""

    kind: str
    message: str

    def error(self) -> PateError:
        """The exception to raise in the run's process."""
        return _ERRORS[self.kind](self.message)


def guarded(function: Callable[[Any], Any], job: Job) -> Any:
    """In a worker of another process or machine: the function's result, or a Failure. Raises nothing."""
    if not os.access(job.folder, os.R_OK | os.W_OK | os.X_OK):
        return Failure(
            "UserError",
            f"run_root: a worker on {socket.gethostname()} does not see {job.folder}, or may not write there; it must "
            "be on storage that all workers share, at the same path, for the same user",
        )
    try:
        return function(job)
    except Exception as error:
        shown = shown_as(error, "a chunk of teachers", job.folder.parent)
        return Failure(type(shown).__name__, str(shown))


def unguarded(result: Any) -> Any:
    """A guarded call's result; raises what a Failure stands for."""
    if isinstance(result, Failure):
        raise result.error()
    return result


def lost(settings: TeacherSettings) -> StageError:
    """The end of a run whose workers die."""
    return StageError(
        f"teachers.runner = {settings.runner!r}: workers that held the same chunk of teachers died {ATTEMPTS} times "
        "(killed, or out of memory: less teachers.workers?); a rerun trains only what is missing"
    )


def check(settings: TeacherSettings) -> None:
    """Raises UserError where the runner's package is not installed."""
    module = MODULES.get(settings.runner)
    if module is not None and find_spec(module) is None:
        raise UserError(
            f"teachers.runner = {settings.runner!r}: needs a package that is not installed; "
            f"run: pip install 'pate[{settings.runner}]'"
        )


@contextlib.contextmanager
def calls(settings: TeacherSettings) -> Iterator[Call]:
    """Yields ``call(function, job)``: waits for the result; may be called from many threads at once.

    ``function`` is found by its name where it runs. Raises UserError for a cluster that cannot be used.
    """
    check(settings)
    with _opened(settings) as call:
        yield call


def _opened(settings: TeacherSettings) -> contextlib.AbstractContextManager[Call]:
    if settings.runner == "thread":
        return contextlib.nullcontext(lambda function, job: function(job))
    if settings.runner == "process":
        return _processes(settings)
    from teachers import clusters

    return clusters.dask(settings) if settings.runner == "dask" else clusters.ray(settings)


@contextlib.contextmanager
def _processes(settings: TeacherSettings) -> Iterator[Call]:
    """A process of its own for each thread that calls, so that one that dies takes one job with it."""
    idle: queue.SimpleQueue[ProcessPoolExecutor] = queue.SimpleQueue()

    def once(function: Callable[[Any], Any], job: Any) -> Any:
        try:
            process = idle.get_nowait()
        except queue.Empty:
            # spawn: a forked child of a process that runs torch threads, or CUDA, may hang.
            process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        try:
            result = process.submit(guarded, function, job).result()
        except BrokenProcessPool:
            process.shutdown(wait=False)
            raise
        idle.put(process)
        return unguarded(result)

    def call(function: Callable[[Any], Any], job: Any) -> Any:
        for _ in range(ATTEMPTS):
            with contextlib.suppress(BrokenProcessPool):
                return once(function, job)
        raise lost(settings)

    try:
        yield call
    finally:
        while not idle.empty():
            idle.get_nowait().shutdown(wait=False)
