"""Running chunks side by side, one thread of arithmetic each.

A sum of floats depends on how many threads share it, so every worker computes on one thread: results are the same bit
for bit whatever the number of workers, and w workers never start w × cores threads.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Protocol

import torch
from threadpoolctl import threadpool_limits

from teachers.calls import calls
from teachers.settings import TeacherSettings

Progress = Callable[[int, int], None]


class Mapper(Protocol):
    """Calls a function on every job and yields the results in any order; an exception ends the iteration."""

    def __call__(self, function: Callable[[Any], Any], jobs: Sequence[Any], /) -> Iterable[Any]: ...


def silent(done: int, total: int) -> None:
    """Progress that nobody watches."""


def use_one_thread() -> None:
    """Called first in a worker: torch, OpenMP and BLAS compute on one thread from here on."""
    torch.set_num_threads(1)
    threadpool_limits(limits=1)


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """Around a mapper's run: the caller's numbers of threads come back afterwards."""
    threads = torch.get_num_threads()
    with threadpool_limits(limits=1):
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def pool(settings: TeacherSettings) -> Mapper:
    """A mapper that keeps ``teachers.workers`` jobs at work where ``teachers.runner`` says.

    On an error no further job is started; it waits for the jobs that run, whose chunks are then kept. Ctrl-C does not.
    """

    def run(function: Callable[[Any], Any], jobs: Sequence[Any], /) -> Iterator[Any]:
        if not jobs:
            return
        with calls(settings) as call:
            executor = ThreadPoolExecutor(min(settings.workers, len(jobs)), thread_name_prefix="teachers")
            settled = False
            try:
                futures = [executor.submit(call, function, job) for job in jobs]
                for future in as_completed(futures):
                    yield future.result()
                settled = True
            except Exception:
                settled = True
                raise
            finally:
                executor.shutdown(wait=settled, cancel_futures=True)

    return run
