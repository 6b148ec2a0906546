"""Work for a worker that dies or fails on the way; imports nothing that takes long."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class DyingJob:
    """A job whose worker is killed the first ``deaths`` times; each start leaves a file in ``marks``."""

    folder: Path
    marks: Path
    deaths: int
    inner: Any = None


def start(job: DyingJob) -> int:
    """Leave a mark; returns how often the job was started before."""
    for number in range(100):
        try:
            (job.marks / str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        return number
    raise AssertionError("started without end")


def die_or_answer(job: DyingJob) -> str:
    """Killed by the system, as for memory; then an answer."""
    if start(job) < job.deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def die_in_training(job: DyingJob) -> Path:
    """Train a chunk; killed after its first shard was read."""
    from teachers.ensemble import train_chunk
    from teachers.trainers import trainer_of

    dies = start(job) < job.deaths

    def train(shards: Iterator[Any], task: Any) -> Any:
        read = [next(iter(shards))]
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return trainer_of(task.settings)([*read, *shards], task)

    return train_chunk(job.inner, train)


def train_or_die(job: DyingJob) -> Any:
    """Train a chunk; a job that is to die does so before."""
    if job.deaths:
        return die_or_answer(job)
    from teachers.ensemble import train_chunk

    return train_chunk(job.inner)


def fail(job: DyingJob) -> None:
    """An exception whose text holds private data."""
    start(job)
    raise ValueError("patient 4711 is in shard 3")
