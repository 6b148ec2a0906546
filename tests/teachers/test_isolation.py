"""Isolation: a teacher is a function of its own shard, bit for bit, however the ensemble is trained."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.examples import PrivateRecords
from data.identity import unit_ids
from data.partition import shards as rows_of_shards
from teachers.settings import TeacherSettings
from teachers.trainers import Shard, Task, Tensors, trainer_of
from tests.teachers.conftest import CLASSES, SEED, SETTINGS, parameters, rows, split, train

QUICK = SETTINGS.model_copy(update={"epochs": 2})
LOOP = {"strategy": "loop"}
VECTORISED = {"strategy": "vectorised"}
WAYS = {
    "mlp vectorised": QUICK,
    "mlp loop": QUICK.model_copy(update=LOOP),
    "logistic vectorised": QUICK.model_copy(update={"model": "logistic"}),
    "cnn vectorised": QUICK.model_copy(update=VECTORISED | {"model": "cnn", "epochs": 1, "shift": 1}),
    "turned cnn loop": QUICK.model_copy(update={"model": "cnn", "epochs": 1, "rotation": 20, "scaling": 0.1}),
    "cnn loop": QUICK.model_copy(update={"model": "cnn", "epochs": 1, "shift": 1}),
    "forest": TeacherSettings(
        count=8, model="sklearn:sklearn.ensemble.RandomForestClassifier", params={"n_estimators": 3}, chunk=3
    ),
}
every_way = pytest.mark.parametrize("base", WAYS.values(), ids=WAYS.keys())


@pytest.fixture(scope="module")
def households(digits: tuple[np.ndarray, np.ndarray]) -> PrivateRecords:
    """Units of one to four records, named by a column and not by what the records hold."""
    sizes = np.random.default_rng(1).integers(1, 5, 100)
    names = np.repeat(unit_ids([f"household {n}".encode() for n in range(100)], SEED), sizes)[:240]
    features, labels = digits[0][: len(names)], digits[1][: len(names)]
    content = unit_ids([f.tobytes() for f in features], SEED)
    return PrivateRecords(features, labels, names, content)


def shards_of(records: PrivateRecords, base: TeacherSettings) -> list[Shard]:
    chosen = rows_of_shards(records, split(records, base), np.arange(base.count))
    return [Shard(t, records.features[own], records.labels[own]) for t, own in enumerate(chosen)]


def trained(shards: list[Shard], base: TeacherSettings, shape: tuple[int, ...] = (1, 8, 8)) -> list[object]:
    """What is kept of each teacher, as bytes; None where it cannot be trained."""
    return [_bytes(kept) for kept in trainer_of(base)(shards, Task(base, SEED, shape, CLASSES))]


def _bytes(kept: Tensors | None) -> dict[str, bytes] | None:
    return kept and {name: tensor.numpy().tobytes() for name, tensor in kept.items()}


def changed(before: dict[int, object], after: dict[int, object]) -> list[int]:
    return [teacher for teacher in before if before[teacher] != after[teacher]]


@every_way
def test_a_unit_of_several_records_touches_its_teacher_alone(
    households: PrivateRecords, tmp_path: Path, base: TeacherSettings
) -> None:
    """Without a unit of four records, and with one of its records changed, one and the same teacher differs."""
    names, sizes = np.unique(households.units, return_counts=True)
    unit = names[sizes == 4][0]
    parts = split(households, base)
    owner = int(parts.teachers[np.searchsorted(parts.units, unit)])
    mine = np.flatnonzero(households.units == unit)
    features, content = households.features.copy(), households.content.copy()
    features[mine[0]] = 255 - features[mine[0]]
    content[mine[0]] = unit_ids([features[mine[0]].tobytes()], SEED)[0]
    edited = replace(households, features=features, content=content)
    before = parameters(train(tmp_path / "all", households, base))
    less = parameters(train(tmp_path / "less", rows(households, households.units != unit), base))
    other = parameters(train(tmp_path / "edited", edited, base))
    assert changed(before, less) == [owner]
    assert changed(before, other) == [owner]


@every_way
def test_shards_of_any_size_and_content_beside_a_teacher_change_no_bit_of_it(
    households: PrivateRecords, base: TeacherSettings
) -> None:
    """Other shards empty, ten times as large or of one record: teacher 4 is the same, and so it is alone."""
    shards = shards_of(households, base)
    mine = trained(shards, base)[4]
    assert mine is not None
    features, labels = households.features, households.labels
    empty = [s if s.teacher == 4 else Shard(s.teacher, features[:0], labels[:0]) for s in shards]
    heavy = [
        s if s.teacher == 4 else Shard(s.teacher, np.repeat(s.features, 10, axis=0), np.repeat(s.labels, 10))
        for s in shards
    ]
    single = [s if s.teacher == 4 else Shard(s.teacher, features[:1], labels[:1]) for s in shards]
    for others in (empty, heavy, single):
        assert trained(others, base)[4] == mine
    assert trained(shards[4:5], base) == [mine]
    assert trained(shards[3:6:2] + shards[4:5], base)[-1] == mine


@pytest.mark.parametrize("way", ["mlp vectorised", "logistic vectorised", "cnn vectorised", "mlp loop"])
@given(poison=st.sampled_from([np.nan, np.inf, -np.inf, 1e30, 3e38]), spread=st.booleans())
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_absurd_values_in_all_other_shards_change_no_bit(
    households: PrivateRecords, way: str, poison: float, spread: bool
) -> None:
    """NaN, infinities and huge numbers, in one value or in all: no 0 · NaN reaches another teacher."""
    base = WAYS[way]
    calm = [Shard(s.teacher, s.features.astype(np.float32) / 255, s.labels) for s in shards_of(households, base)]
    wild = []
    for shard in calm:
        features = shard.features.copy()
        if shard.teacher != 4:
            features.reshape(len(features), -1)[:, : 64 if spread else 1] = poison
        wild.append(Shard(shard.teacher, features, shard.labels))
    calmly, wildly = trained(calm, base), trained(wild, base)
    assert calmly[4] is not None
    assert wildly[4] == calmly[4]
    if not np.isfinite(poison):
        assert [kept is None for kept in wildly] == [teacher != 4 for teacher in range(8)]


@pytest.mark.parametrize("way", ["mlp vectorised", "logistic vectorised", "cnn vectorised"])
def test_vectorised_teachers_are_those_trained_alone_up_to_rounding(households: PrivateRecords, way: str) -> None:
    """Same weights, batches, shifts, steps and rates as one network after another, for shards of unequal sizes."""
    base = WAYS[way].model_copy(update={"batch_size": 7, "epochs": 3})
    shards = shards_of(households, base)
    shards[1] = Shard(1, shards[1].features[:2], np.array([3, 5], dtype=np.int32))
    task = Task(base, SEED, (1, 8, 8), CLASSES)
    together = trainer_of(base)(shards, task)
    alone = trainer_of(base.model_copy(update=LOOP))(shards, task)
    for one, other in zip(together, alone, strict=True):
        assert one is not None
        assert other is not None
        assert list(one) == list(other)
        for name, tensor in one.items():
            # AdamW's first steps are ± the learning rate, 0.01, whatever the gradient's size: far below that counts.
            assert np.abs(tensor.numpy() - other[name].numpy()).max() < 1e-3, name
            assert np.abs(tensor.numpy() - other[name].numpy()).mean() < 1e-5, name


@pytest.mark.parametrize("way", ["mlp vectorised", "cnn vectorised"])
@given(
    chunk=st.integers(1, 9),
    cut=st.lists(st.integers(1, 7), max_size=3, unique=True),
)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_chunks_cut_anywhere_give_the_same_bits(
    households: PrivateRecords, tmp_path_factory: pytest.TempPathFactory, way: str, chunk: int, cut: list[int]
) -> None:
    """Chunks of any size, and calls that end within a group, give the teachers of one call for all."""
    base = WAYS[way]
    shards = shards_of(households, base)
    whole = trained(shards, base)
    ends = [0, *sorted(cut), 8]
    pieces = [each for a, b in itertools.pairwise(ends) for each in trained(shards[a:b], base)]
    assert pieces == whole
    folder = train(
        tmp_path_factory.mktemp("chunked"), households, base.model_copy(update={"chunk": chunk, "workers": 3})
    )
    assert list(parameters(folder).values()) == whole


@pytest.mark.slow
@pytest.mark.parametrize("way", ["mlp vectorised", "forest"])
def test_processes_train_the_same_teachers_as_threads(households: PrivateRecords, tmp_path: Path, way: str) -> None:
    """Bit for bit: without one unit, processes give what threads give with it, but for one teacher."""
    base = WAYS[way].model_copy(update={"chunk": 6})
    apart = base.model_copy(update={"runner": "process", "workers": 2})
    before = parameters(train(tmp_path / "threads", households, base))
    less = rows(households, households.units != households.units[0])
    after = parameters(train(tmp_path / "processes", less, apart))
    assert len(changed(before, after)) == 1
