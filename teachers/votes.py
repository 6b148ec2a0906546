"""The vote stage: every teacher casts exactly one vote on every query.

Private: the counts never leave ``private/`` except through a mechanism of :mod:`aggregation`. One unit changes one
teacher, hence one vote of each row, and the number of votes of a row is always n.
"""

import secrets
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from data.errors import UserError
from teachers import chunks
from teachers.groups import on_its_device
from teachers.settings import TeacherSettings
from teachers.shards import load_array, save_array
from teachers.trainers import Task, voter
from teachers.workers import Mapper, Progress, pool, settled, silent, use_one_thread

VOTING = "voting"


@dataclass(frozen=True)
class VoteJob:
    """What a worker needs to collect the votes of the teachers [first, last); ``queries``: the file of the inputs."""

    folder: Path
    first: int
    last: int
    key: str
    queries: Path
    task: Task
    batch: int


def count_chunk(job: VoteJob) -> Path:
    """Write the counts (Q, C) int32 of a chunk's votes beside the queries; returns the file."""
    use_one_thread()
    found = chunks.manifest(job.folder, job.first, job.last, job.key)
    if found is None:
        raise UserError(
            f"{chunks.paths(job.folder, job.first, job.last)[0]}: is missing or corrupt; rerun `pate teach`"
        )
    features = load_array(job.queries)
    counts = np.zeros((len(features), job.task.classes), dtype=np.int32)
    rows = np.arange(len(features))
    vote = voter(features, job.task, job.batch)
    for teacher, kept in chunks.read(job.folder, found):
        if kept is None:
            counts[:, job.task.settings.empty_vote] += 1
        else:
            counts[rows, vote(teacher, kept)] += 1
    return save_array(job.queries.with_name(f"counts-{job.first:07d}-{job.last:07d}.npy"), counts)


def collect(
    folder: Path,
    features: np.ndarray,
    classes: int,
    settings: TeacherSettings,
    batch: int = 4096,
    mapper: Mapper | None = None,
    progress: Progress = silent,
    encoder: Path | None = None,
) -> np.ndarray:
    """Vote counts (Q, C) int32 of all teachers on features (Q, *shape), ``batch`` queries at a time.

    Rows sum to n = settings.count. ``progress(done, total)`` counts teachers. ``encoder``: the files of that whose
    weights the teachers started from. Raises UserError where the ensemble is not complete or a file of it is damaged.
    """
    if not settings.empty_vote < classes:
        raise UserError(f"teachers.empty_vote = {settings.empty_vote}: must be below the number of classes, {classes}")
    index = chunks.read_index(folder)
    if index is None or not index.covers(settings.count):
        raise UserError(f"{folder / chunks.INDEX}: is missing, corrupt or of another ensemble; rerun `pate teach`")
    task = Task(settings, index.seed, tuple(features.shape[1:]), classes, encoder)
    # A folder of its own for this call: a worker that an ended run left behind finds none to write into.
    where = folder.parent / VOTING / secrets.token_hex(8)
    jobs = [
        VoteJob(
            folder,
            *each,
            index.key,
            where / "queries.npy",
            replace(task, settings=on_its_device(settings, number)),
            batch,
        )
        for number, each in enumerate(index.chunks)
    ]
    sizes = {f"counts-{first:07d}-{last:07d}.npy": last - first for first, last in index.chunks}
    counts = np.zeros((len(features), classes), dtype=np.int32)
    done = 0
    progress(done, settings.count)
    try:
        where.parent.mkdir(mode=0o700, exist_ok=True)
        save_array(where / "queries.npy", features)
        with settled():
            for page in (mapper or pool(settings))(count_chunk, jobs):
                counts += load_array(page)
                done += sizes[page.name]
                progress(done, settings.count)
    finally:
        shutil.rmtree(where.parent, ignore_errors=True)
    if not (counts.sum(axis=1) == settings.count).all() or counts.min(initial=0) < 0:
        raise UserError(f"{folder}: its teachers did not cast one vote each; rerun `pate teach`")
    return counts
