"""From shards to what is kept of their teachers, and back to votes.

A trainer takes shards and returns, for each, the tensors that are kept of its teacher, or None where the shard cannot
be trained on. Each teacher depends on its own shard and stream alone, also where a whole group of them is trained as
one computation.

What is kept of a network is its parameters. What is kept of a scikit-learn teacher is its shard: it is fitted from
its seed when it votes. Measured on random forests of 100 trees on Adult's shards (120 records of 104 columns), a
teacher, CPU time: fitting 0.11 s, against 0.10 s to write and 0.16 s to read a skops file of 2.1 MB; a shard takes
50 kB. Fitting is faster than reading the fitted forest, needs 1/40 of the disk, and no format of fitted estimators.
A forest's leaves disclose its records anyway: both files are equally private.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from data.examples import as_matrix
from data.streams import stream
from teachers import encoders, estimators, fitting, modules, networks
from teachers.augmentation import augmentation_of
from teachers.groups import group_of, group_size, strategy_of
from teachers.settings import MODULE, TeacherSettings
from teachers.vectorised import Place, train_group

Tensors = dict[str, torch.Tensor]
# Numbers of all queries that a worker keeps as float32, 256 MiB.
_HELD = 1 << 26


@dataclass(frozen=True)
class Shard:
    """One teacher's records: features (N, *shape), labels (N,). Private."""

    teacher: int
    features: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Task:
    """What is common to all teachers of an ensemble: settings, the run's seed, the input's shape, C classes.

    ``encoder``: the files of the encoder whose weights teachers start from; None for teachers that start from none.
    """

    settings: TeacherSettings
    seed: int
    shape: tuple[int, ...]
    classes: int
    encoder: Path | None = None


Scores = Callable[[int, Tensors], np.ndarray | None]
Trainer = Callable[[Iterable[Shard], Task], list[Tensors | None]]


def trainer_of(settings: TeacherSettings) -> Trainer:
    """What trains the teachers of these settings."""
    if settings.model.startswith(estimators.PREFIX):
        return keep_shards
    return train_groups if strategy_of(settings) == "vectorised" else train_networks


def network_of(task: Task, seed: int) -> nn.Module:
    """A teacher's network, of ours or the user's own, with initial weights of a seed.

    With an encoder its layers come first, at its weights, and the settings' network follows on its features.
    """
    if task.encoder is not None:
        encoder = encoders.load(task.encoder, task.seed)
        head = networks.build(task.settings.model, (encoder.count,), task.classes, seed)
        return nn.Sequential(*encoder.trainable(), head)
    build = modules.build if task.settings.model.startswith(MODULE) else networks.build
    return build(task.settings.model, task.shape, task.classes, seed)


def convolutional(task: Task) -> bool:
    """Whether the network is of ours and begins with convolutions."""
    return task.settings.model == "cnn" or task.encoder is not None


def size_of_groups(task: Task) -> int:
    """How many teachers are one computation (:mod:`teachers.groups`)."""
    if strategy_of(task.settings) == "loop":
        return 1
    network = network_of(task, 0)
    return group_size(task.settings, task.shape, sum(p.numel() for p in network.parameters()))


def trainable(shard: Shard) -> bool:
    """Whether there is anything to learn: at least two classes, so at least two records."""
    return len(np.unique(shard.labels)) > 1


def train_networks(shards: Iterable[Shard], task: Task) -> list[Tensors | None]:
    """Networks one after another, each from its own stream; None for a shard with one class or a loss not finite."""
    return [_train_network(shard, task) for shard in shards]


def train_groups(shards: Iterable[Shard], task: Task) -> list[Tensors | None]:
    """Networks of a group as one computation, group after group; None as in :func:`train_networks`.

    A teacher that is not among the shards leaves its place in its group empty: what is trained together with a
    teacher, and in which call, shows in no bit of it.
    """
    size, count = size_of_groups(task), task.settings.count
    trained: list[Tensors | None] = []
    for _, members in itertools.groupby(shards, lambda shard: shard.teacher // size):
        held = {shard.teacher: shard for shard in members}
        group = group_of(next(iter(held)), size, count)
        places = [_place(teacher, held.get(teacher), task) for teacher in group]
        kept = train_group(places, task.settings, fitting.device_of(task.settings.device))
        trained += [kept[teacher - group.start] for teacher in held]
    return trained


def keep_shards(shards: Iterable[Shard], task: Task) -> list[Tensors | None]:
    """Shards of scikit-learn teachers, which are fitted when they vote (why: see the module)."""
    return [
        {"features": torch.from_numpy(shard.features), "labels": torch.from_numpy(shard.labels)}
        if trainable(shard)
        else None
        for shard in shards
    ]


def voter(features: np.ndarray, task: Task, batch: int) -> Callable[[int, Tensors], np.ndarray]:
    """What casts one teacher's votes (Q,) int64 on features (Q, *shape): the class of its largest output.

    Ties go to the lowest class. ``empty_vote`` where an output is not finite, and everywhere if an estimator cannot be
    fitted: decided from this teacher's shard alone (ACCOUNTING.md, section 1). Inputs and network are made ready once
    for all teachers: for a small network that takes longer than its votes.
    """
    scores = _estimator_scores if task.settings.model.startswith(estimators.PREFIX) else _network_scores
    of_teacher = scores(features, task, batch)

    def vote(teacher: int, kept: Tensors) -> np.ndarray:
        found = of_teacher(teacher, kept)
        if found is None:
            return np.full(len(features), task.settings.empty_vote)
        return np.where(np.isfinite(found).all(axis=1), found.argmax(axis=1), task.settings.empty_vote)

    return vote


def _initial(teacher: int, task: Task) -> tuple[nn.Module, int]:
    """A teacher's network with its initial weights, and the seed of its records' order."""
    seed = stream(task.seed, "teacher", teacher)
    network = network_of(task, stream(seed, "weights"))
    return network, stream(seed, "order")


def _place(teacher: int, shard: Shard | None, task: Task) -> Place:
    network, seed = _initial(teacher, task)
    if shard is None or not trainable(shard):
        return Place(network, None, None, seed)
    return Place(network, shard.features, shard.labels, seed)


def _train_network(shard: Shard, task: Task) -> Tensors | None:
    if not trainable(shard):
        return None
    settings = task.settings
    network, seed = _initial(shard.teacher, task)
    with _own_faults(settings):
        finite = fitting.fit(
            network,
            shard.features,
            shard.labels,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            seed=seed,
            device=settings.device,
            augmentation=augmentation_of(settings),
            mixed=settings.precision == "mixed",
            channels_last=convolutional(task),
        )
        if not finite:
            return None
        # Copied in C order: no safetensors file holds one tensor under two names (tied weights) or other layouts.
        kept = network.state_dict().items()
        return {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in kept}
    return None


@contextlib.contextmanager
def _own_faults(settings: TeacherSettings) -> Iterator[None]:
    """A user's module may fail on the records or weights of one shard: that is no error, the fixed vote stands in.

    The text could quote private values, and that a shard failed is private too. Faults of memory or disk propagate.
    """
    try:
        yield
    except (MemoryError, OSError):
        raise
    except Exception:
        if not settings.model.startswith(MODULE):
            raise


def _estimator_scores(features: np.ndarray, task: Task, batch: int) -> Scores:
    settings = task.settings

    def scores(teacher: int, kept: Tensors) -> np.ndarray | None:
        estimator = estimators.build(settings.model, settings.params, stream(task.seed, "teacher", teacher))
        matrix = as_matrix(kept["features"].numpy())
        if not estimators.fit(estimator, matrix, kept["labels"].numpy()):
            return None
        return estimators.scores(estimator, features, task.classes, batch)

    return scores


def _network_scores(features: np.ndarray, task: Task, batch: int) -> Scores:
    device = fitting.device_of(task.settings.device)
    network = network_of(task, 0).to(device)

    def blocks() -> Iterator[torch.Tensor]:
        made = fitting.input_blocks(features, batch, device)
        return map(fitting.pixelwise, made) if convolutional(task) else made

    # Few inputs are kept as they are put in; many are made anew for each teacher.
    held = list(blocks()) if features.size <= _HELD else None

    def scores(teacher: int, kept: Tensors) -> np.ndarray | None:
        network.load_state_dict(kept)
        with _own_faults(task.settings):
            return fitting.outputs(network, held or blocks())
        return None

    return scores
