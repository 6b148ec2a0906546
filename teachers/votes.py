"""The vote stage: every teacher casts exactly one vote on every query.

Private: the counts never leave ``private/`` except through a mechanism of :mod:`aggregation`. One unit changes one
teacher, hence one vote of each row, and the number of votes of a row is always n.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.errors import UserError
from teachers import chunks
from teachers.settings import TeacherSettings
from teachers.trainers import Task, voter
from teachers.workers import Mapper, Progress, pool, settled, silent, use_one_thread


@dataclass(frozen=True)
class VoteJob:
    """What a worker needs to collect the votes of the teachers [first, last)."""

    folder: Path
    first: int
    last: int
    key: str
    features: np.ndarray
    task: Task
    batch: int


def count_chunk(job: VoteJob) -> tuple[int, np.ndarray]:
    """The number of teachers of a chunk and their votes' counts (Q, C) int32."""
    use_one_thread()
    found = chunks.manifest(job.folder, job.first, job.last, job.key)
    if found is None:
        raise UserError(
            f"{chunks.paths(job.folder, job.first, job.last)[0]}: is missing or corrupt; rerun `pate teach`"
        )
    counts = np.zeros((len(job.features), job.task.classes), dtype=np.int32)
    rows = np.arange(len(job.features))
    vote = voter(job.features, job.task, job.batch)
    for teacher, kept in chunks.read(job.folder, found):
        if kept is None:
            counts[:, job.task.settings.empty_vote] += 1
        else:
            counts[rows, vote(teacher, kept)] += 1
    return job.last - job.first, counts


def collect(
    folder: Path,
    features: np.ndarray,
    classes: int,
    settings: TeacherSettings,
    batch: int = 4096,
    mapper: Mapper | None = None,
    progress: Progress = silent,
) -> np.ndarray:
    """Vote counts (Q, C) int32 of all teachers on features (Q, *shape), ``batch`` queries at a time.

    Rows sum to n = settings.count. ``progress(done, total)`` counts teachers. Raises UserError where the ensemble is
    not complete or a file of it is damaged.
    """
    if not settings.empty_vote < classes:
        raise UserError(f"teachers.empty_vote = {settings.empty_vote}: must be below the number of classes, {classes}")
    index = chunks.read_index(folder)
    if index is None or not index.covers(settings.count):
        raise UserError(f"{folder / chunks.INDEX}: is missing, corrupt or of another ensemble; rerun `pate teach`")
    task = Task(settings, index.seed, tuple(features.shape[1:]), classes)
    jobs = [VoteJob(folder, first, last, index.key, features, task, batch) for first, last in index.chunks]
    counts = np.zeros((len(features), classes), dtype=np.int32)
    done = 0
    progress(done, settings.count)
    with settled():
        for teachers, part in (mapper or pool(settings.runner, settings.workers))(count_chunk, jobs):
            counts += part
            done += teachers
            progress(done, settings.count)
    if not (counts.sum(axis=1) == settings.count).all() or counts.min(initial=0) < 0:
        raise UserError(f"{folder}: its teachers did not cast one vote each; rerun `pate teach`")
    return counts
