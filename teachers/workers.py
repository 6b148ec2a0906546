"""Running chunks side by side, one thread of arithmetic each.

A sum of floats depends on how many threads share it, so every worker computes on one thread: results are the same bit
for bit whatever the number of workers, and w workers never start w × cores threads.
"""

import contextlib
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from typing import Any, Literal, Protocol

import torch
from threadpoolctl import threadpool_limits

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


def pool(runner: Literal["thread", "process"], workers: int) -> Mapper:
    """A mapper over a pool of ``workers`` threads or processes; on an error no further job is started.

    An error waits for the jobs that run, whose chunks are then kept; Ctrl-C does not.
    """

    def run(function: Callable[[Any], Any], jobs: Sequence[Any], /) -> Iterator[Any]:
        executor = _executor(runner, max(1, min(workers, len(jobs))))
        settled = False
        try:
            futures = [executor.submit(function, job) for job in jobs]
            for future in as_completed(futures):
                yield future.result()
            settled = True
        except Exception:
            settled = True
            raise
        finally:
            executor.shutdown(wait=settled, cancel_futures=True)

    return run


def _executor(runner: Literal["thread", "process"], workers: int) -> Executor:
    if runner == "thread":
        return ThreadPoolExecutor(workers, thread_name_prefix="teachers")
    # spawn: a forked child of a process that runs torch threads, or CUDA, may hang.
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
