"""From shards to what is kept of their teachers, and back to votes.

A trainer takes a list of shards and returns, for each, the tensors that are kept of its teacher, or None where the
shard cannot be trained on. Another trainer (one that trains a whole chunk in one vectorised call) can take the loop's
place, as long as each teacher depends on its own shard and stream alone.

What is kept of a network is its parameters. What is kept of a scikit-learn teacher is its shard: it is fitted from
its seed when it votes. Measured on random forests of 100 trees on Adult's shards (120 records of 104 columns), a
teacher, CPU time: fitting 0.11 s, against 0.10 s to write and 0.16 s to read a skops file of 2.1 MB; a shard takes
50 kB. Fitting is faster than reading the fitted forest, needs 1/40 of the disk, and no format of fitted estimators.
A forest's leaves disclose its records anyway: both files are equally private.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from data.examples import as_matrix
from data.streams import stream
from teachers import estimators, fitting, networks
from teachers.settings import TeacherSettings

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Shard:
    """One teacher's records: features (N, *shape), labels (N,). Private."""

    teacher: int
    features: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Task:
    """What is common to all teachers of an ensemble: settings, the run's seed, the input's shape, C classes."""

    settings: TeacherSettings
    seed: int
    shape: tuple[int, ...]
    classes: int


Trainer = Callable[[Sequence[Shard], Task], list[Tensors | None]]


def trainer_of(model: str) -> Trainer:
    """The trainer of a model named as in the settings."""
    return keep_shards if model.startswith(estimators.PREFIX) else train_networks


def trainable(shard: Shard) -> bool:
    """Whether there is anything to learn: at least two classes, so at least two records."""
    return len(np.unique(shard.labels)) > 1


def train_networks(shards: Sequence[Shard], task: Task) -> list[Tensors | None]:
    """Networks one after another, each from its own stream; None for a shard with one class or a loss not finite."""
    return [_train_network(shard, task) for shard in shards]


def keep_shards(shards: Sequence[Shard], task: Task) -> list[Tensors | None]:
    """Shards of scikit-learn teachers, which are fitted when they vote (why: see the module)."""
    return [
        {"features": torch.from_numpy(shard.features), "labels": torch.from_numpy(shard.labels)}
        if trainable(shard)
        else None
        for shard in shards
    ]


def vote(teacher: int, kept: Tensors, features: np.ndarray, task: Task, batch: int) -> np.ndarray:
    """One teacher's votes (Q,) int64: the class of its largest output, ties to the lowest class.

    ``empty_vote`` where an output is not finite, and everywhere if an estimator cannot be fitted: decided from this
    shard alone (ACCOUNTING.md, section 1).
    """
    scores = _scores(teacher, kept, features, task, batch)
    if scores is None:
        return np.full(len(features), task.settings.empty_vote)
    return np.where(np.isfinite(scores).all(axis=1), scores.argmax(axis=1), task.settings.empty_vote)


def _train_network(shard: Shard, task: Task) -> Tensors | None:
    if not trainable(shard):
        return None
    settings = task.settings
    seed = stream(task.seed, "teacher", shard.teacher)
    network = networks.build(settings.model, task.shape, task.classes, stream(seed, "weights"))
    finite = fitting.fit(
        network,
        shard.features,
        shard.labels,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        seed=stream(seed, "order"),
        device=settings.device,
        shift=settings.shift,
    )
    return {name: tensor.detach().contiguous() for name, tensor in network.state_dict().items()} if finite else None


def _scores(teacher: int, kept: Tensors, features: np.ndarray, task: Task, batch: int) -> np.ndarray | None:
    settings = task.settings
    if settings.model.startswith(estimators.PREFIX):
        estimator = estimators.build(settings.model, settings.params, stream(task.seed, "teacher", teacher))
        matrix = as_matrix(kept["features"].numpy())
        if not estimators.fit(estimator, matrix, kept["labels"].numpy()):
            return None
        return estimators.scores(estimator, features, task.classes, batch)
    network = networks.build(settings.model, task.shape, task.classes, 0)
    network.load_state_dict(kept)
    return fitting.logits(network.to(fitting.device_of(settings.device)), features, batch)
