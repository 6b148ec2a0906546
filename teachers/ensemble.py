"""The teach stage: one model on each shard, chunk by chunk, resumable.

Neighbouring datasets (one unit with all its records added or removed) differ in one shard, hence in one teacher: each
teacher is a function of its shard, the settings and its own stream f(seed, "teacher", t), and of nothing else. A shard
that cannot be trained on (empty, one class, a loss that is not finite) gets a teacher that always casts
``teachers.empty_vote``; it never stops the run, since that would reveal it. Released here: nothing.

On one machine the result is the same bit for bit whatever the chunk size, the number of workers and the runner.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from data.errors import UserError
from data.examples import PrivateRecords
from data.partition import Partition
from teachers import calls, chunks, encoders, estimators, fitting, modules, networks
from teachers.groups import on_its_device, strategy_of, whole_groups
from teachers.settings import MODULE, TeacherSettings
from teachers.shards import read_shards, remove_shards, write_shards
from teachers.trainers import Shard, Task, Trainer, size_of_groups, trainer_of
from teachers.workers import Mapper, Progress, pool, settled, silent, use_one_thread

SHARDS = "shards"
_RUNNERS = {"thread": "threads", "process": "processes", "dask": "Dask", "ray": "Ray"}


@dataclass(frozen=True)
class ChunkJob:
    """What a worker needs to train the teachers [first, last); picklable, and holds no records.

    ``encoder``: the files of the encoder that the records are put through, or whose weights the teachers start from.
    ``shape``: of what a teacher sees.
    """

    folder: Path
    first: int
    last: int
    settings: TeacherSettings
    seed: int
    shape: tuple[int, ...]
    classes: int
    key: str
    encoder: Path | None = None

    @property
    def task(self) -> Task:
        start = self.encoder if self.settings.pretrained == "weights" else None
        return Task(self.settings, self.seed, self.shape, self.classes, start)


def train_chunk(job: ChunkJob, trainer: Trainer | None = None) -> Path:
    """Train a chunk's teachers and write them; returns the manifest's path."""
    use_one_thread()
    train = trainer or trainer_of(job.settings)
    shards = read_shards(shards_folder(job.folder, job.key), job.first, job.last)
    if job.encoder is not None and job.task.encoder is None:
        shards = _encoded(shards, encoders.load(job.encoder, job.seed, job.settings.device))
    return chunks.write(job.folder, job.first, job.last, job.key, train(shards, job.task))


def _encoded(shards: Iterable[Shard], encoder: encoders.Encoder) -> Iterator[Shard]:
    """Shards by their features: each is put through the encoder apart, so that no bit of it depends on another's."""
    return (replace(shard, features=encoder.features(shard.features)) for shard in shards)


def train_ensemble(
    folder: Path,
    records: PrivateRecords,
    partition: Partition,
    settings: TeacherSettings,
    seed: int,
    classes: int,
    key: str,
    mapper: Mapper | None = None,
    progress: Progress = silent,
    encoder: Path | None = None,
) -> Path:
    """Train what is not there yet of the ensemble under ``key``; returns the path of ``ensemble.json``.

    ``mapper(function, jobs)`` runs the chunks, by default ``settings.workers`` at a time on ``settings.runner``.
    ``progress(done, total)`` counts teachers. ``encoder``: the files of the encoder (:mod:`teachers.encoders`) of which
    ``settings.pretrained`` says what teachers have. Raises UserError for settings that can be refused without
    looking at records; faults of memory or disk propagate, and the chunks finished by then are kept.
    """
    shape = tuple(records.features.shape[1:])
    if encoder is not None:
        seen = (encoders.load(encoder, seed).count,)
        check(settings, seen, classes)
        shape = shape if settings.pretrained == "weights" else seen
    else:
        check(settings, shape, classes)
    if complete(folder, key, settings.count):
        progress(settings.count, settings.count)
        return folder / chunks.INDEX
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / chunks.INDEX).unlink(missing_ok=True)
    common = ChunkJob(folder, 0, 0, settings, seed, shape, classes, key, encoder)
    size = whole_groups(settings.chunk, size_of_groups(common.task))
    ranges = [(a, min(a + size, settings.count)) for a in range(0, settings.count, size)]
    missing = [each for each in ranges if chunks.manifest(folder, *each, key) is None]
    done = settings.count - sum(last - first for first, last in missing)
    progress(done, settings.count)
    jobs = [
        replace(common, first=first, last=last, settings=on_its_device(settings, number))
        for number, (first, last) in enumerate(missing)
    ]
    run = mapper or pool(settings)
    sizes = {chunks.paths(folder, *each)[1].name: each[1] - each[0] for each in missing}
    try:
        if jobs:
            remove_shards(folder / SHARDS)
            (folder / SHARDS).mkdir(mode=0o700)
            write_shards(shards_folder(folder, key), records, partition, settings.count)
        with settled():
            for page in run(train_chunk, jobs):
                done += sizes[Path(page).name]
                progress(done, settings.count)
    finally:
        # No second copy of the records outlives the training, failed or not.
        remove_shards(folder / SHARDS)
    index = chunks.Index(key, seed, tuple(ranges))
    chunks.remove_others(folder, index)
    chunks.write_index(folder, index)
    return folder / chunks.INDEX


def shards_folder(folder: Path, key: str) -> Path:
    """Where the shards lie: a worker that an ended run left behind never reads those of another key."""
    return folder / SHARDS / key[:32]


def complete(folder: Path, key: str, teachers: int) -> bool:
    """Whether all teachers are there, intact and made under ``key``, in chunks of whatever size."""
    index = chunks.read_index(folder)
    if index is None or index.key != key or not index.covers(teachers):
        return False
    return all(chunks.manifest(folder, first, last, key) is not None for first, last in index.chunks)


def described(settings: TeacherSettings, shape: tuple[int, ...], classes: int, encoder: Path | None = None) -> str:
    """How these teachers will be trained, in one line, from the settings and the input's shape alone."""
    side = f"{settings.workers} at a time by {_RUNNERS[settings.runner]}"
    place = "" if settings.model.startswith(estimators.PREFIX) else f" on {fitting.device_of(settings.device)}"
    how = "one after another"
    if strategy_of(settings) == "vectorised":
        how = f"vectorised in groups of {size_of_groups(Task(settings, 0, shape, classes, encoder))}"
    return f"{settings.count} teachers, {how}{place}; {side}"


def check(settings: TeacherSettings, shape: tuple[int, ...], classes: int) -> None:
    """Refuse, before any record is read, what no shard could be trained with."""
    if not settings.empty_vote < classes:
        raise UserError(f"teachers.empty_vote = {settings.empty_vote}: must be below the number of classes, {classes}")
    estimators.refuse_unused(settings.model, settings.params, settings.precision, "teachers")
    calls.check(settings)
    if settings.device.startswith("cuda") and settings.address is None and not torch.cuda.is_available():
        raise UserError(f"teachers.device = {settings.device!r}: this machine has no CUDA device; use auto or cpu")
    if settings.model.startswith(estimators.PREFIX):
        try:
            estimators.check(settings.model, settings.params, math.prod(shape), classes)
        except UserError as error:
            raise UserError(f"teachers.{error}") from None
    elif settings.model.startswith(MODULE):
        modules.check(settings, shape, classes, strategy_of(settings) == "vectorised")
    else:
        networks.build(settings.model, shape, classes, 0)
