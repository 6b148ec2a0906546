"""Teachers: one unit touches one of them, and training can be cut into pieces in any way."""

import pickle
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.errors import UserError
from data.examples import PrivateRecords
from teachers import chunks
from teachers.ensemble import ChunkJob, complete, described, train_chunk
from teachers.settings import TeacherSettings
from teachers.shards import read_shards, write_shards
from teachers.votes import collect
from tests.teachers.conftest import (
    CLASSES,
    SEED,
    SETTINGS,
    parameters,
    recording,
    records_of,
    rows,
    split,
    train,
)

FOREST = TeacherSettings(
    count=8, model="sklearn:sklearn.ensemble.RandomForestClassifier", params={"n_estimators": 5}, chunk=3
)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory, records: PrivateRecords) -> Path:
    return train(tmp_path_factory.mktemp("taught"), records, SETTINGS)


@given(removed=st.integers(0, 239))
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_removing_one_unit_changes_its_teacher_alone(
    taught: Path, records: PrivateRecords, tmp_path_factory: pytest.TempPathFactory, removed: int
) -> None:
    """Without one unit, every teacher but that unit's own has the same parameters bit for bit."""
    parts = split(records, SETTINGS)
    owner = int(parts.teachers[np.searchsorted(parts.units, records.units[removed])])
    neighbour = rows(records, np.delete(np.arange(240), removed))
    before = parameters(taught)
    after = parameters(train(tmp_path_factory.mktemp("less"), neighbour, SETTINGS))
    assert [teacher for teacher in before if before[teacher] != after[teacher]] == [owner]


@pytest.mark.parametrize("model", ["cnn", "logistic"])
def test_other_networks_too_change_one_teacher_for_one_unit(
    records: PrivateRecords, tmp_path: Path, model: str
) -> None:
    """Convolutions, random shifts and any order of the file leave the other teachers as they were."""
    shifted = SETTINGS.model_copy(update={"model": model, "shift": 1, "epochs": 1})
    before = parameters(train(tmp_path / "all", records, shifted))
    shuffled = rows(records, np.random.default_rng(0).permutation(240)[:-1])
    after = parameters(train(tmp_path / "less", shuffled, shifted))
    assert sum(before[teacher] != after[teacher] for teacher in before) == 1


def test_absurd_records_in_other_shards_leave_a_teacher_as_it_was(tmp_path: Path) -> None:
    """Values of 1e30, infinities and NaN in every other shard change no bit of a teacher: nothing is shared."""
    generator = np.random.default_rng(3)
    features = generator.normal(size=(160, 5)).astype(np.float32)
    table = records_of(features, generator.integers(0, 2, 160).astype(np.int32))
    parts = split(table, SETTINGS)
    mine = parts.teachers[np.searchsorted(parts.units, table.units)] == 3
    wild = features.copy()
    wild[~mine] *= 1e30
    wild[~mine, 0] = np.where(np.arange((~mine).sum()) % 2, np.nan, np.inf)
    absurd = PrivateRecords(wild, table.labels, table.units, table.content)
    calm = parameters(train(tmp_path / "calm", table, SETTINGS, classes=2))
    stormy_folder = train(tmp_path / "stormy", absurd, SETTINGS, classes=2)
    stormy = parameters(stormy_folder)
    assert calm[3] is not None
    assert stormy[3] == calm[3]
    assert [teacher for teacher, kept in stormy.items() if kept is None] == [0, 1, 2, 4, 5, 6, 7]
    votes = collect(stormy_folder, features[:20], 2, SETTINGS.model_copy(update={"empty_vote": 1}))
    assert (votes.sum(axis=1) == 8).all()
    assert (votes[:, 1] >= 7).all()


@pytest.mark.parametrize("base", [SETTINGS, FOREST], ids=["mlp", "forest"])
@pytest.mark.parametrize(("chunk", "workers"), [(1, 1), (8, 1), (5, 3)])
def test_votes_do_not_depend_on_chunks_or_workers(
    records: PrivateRecords, queries: np.ndarray, tmp_path: Path, base: TeacherSettings, chunk: int, workers: int
) -> None:
    """Any chunk size and number of workers gives the same teachers bit for bit, and the same votes."""
    other = base.model_copy(update={"chunk": chunk, "workers": workers})
    one, two = train(tmp_path / "one", records, base), train(tmp_path / "two", records, other)
    assert parameters(one) == parameters(two)
    assert np.array_equal(collect(one, queries, CLASSES, base), collect(two, queries, CLASSES, other))


def test_vote_jobs_travel_to_other_processes(taught: Path, queries: np.ndarray) -> None:
    """What a worker is sent and sends back survives the journey, and gives the same votes."""

    def sent(function: Callable[[object], object], jobs: list[object]) -> object:
        for job in jobs:
            yield pickle.loads(pickle.dumps(function(pickle.loads(pickle.dumps(job)))))

    votes = collect(taught, queries, CLASSES, SETTINGS)
    assert np.array_equal(collect(taught, queries, CLASSES, SETTINGS, mapper=sent), votes)


def test_finished_chunks_are_not_trained_again(records: PrivateRecords, tmp_path: Path) -> None:
    """A damaged file and a missing manifest cost their own chunks; an intact ensemble costs nothing."""
    trained: list[tuple[int, int]] = []
    folder = train(tmp_path, records, SETTINGS, mapper=recording(trained))
    assert trained == [(0, 3), (3, 6), (6, 8)]
    before = parameters(folder)
    file, _ = chunks.paths(folder, 0, 3)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    chunks.paths(folder, 6, 8)[1].unlink()
    trained.clear()
    seen: list[tuple[int, int]] = []
    train(tmp_path, records, SETTINGS, mapper=recording(trained), progress=lambda *step: seen.append(step))
    assert trained == [(0, 3), (6, 8)]
    assert seen == [(3, 8), (6, 8), (8, 8)]
    assert parameters(folder) == before
    trained.clear()
    train(tmp_path, records, SETTINGS.model_copy(update={"chunk": 6}), mapper=recording(trained))
    assert trained == []


def test_another_key_trains_everything_again_and_leaves_nothing_of_the_old(
    records: PrivateRecords, tmp_path: Path
) -> None:
    """Teachers of other settings or records are never taken for these; chunks of another size are cleared away."""
    folder = train(tmp_path, records, SETTINGS)
    trained: list[tuple[int, int]] = []
    train(tmp_path, records, SETTINGS.model_copy(update={"chunk": 6}), key="other", mapper=recording(trained))
    assert trained == [(0, 6), (6, 8)]
    assert not complete(folder, "key", 8)
    assert complete(folder, "other", 8)
    assert sorted(path.name for path in folder.iterdir()) == [
        "chunk-0000000-0000006.json",
        "chunk-0000000-0000006.safetensors",
        "chunk-0000006-0000008.json",
        "chunk-0000006-0000008.safetensors",
        "ensemble.json",
    ]


def test_a_fault_of_the_disk_stops_training_keeps_finished_chunks_and_removes_the_copy_of_the_records(
    records: PrivateRecords, queries: np.ndarray, tmp_path: Path
) -> None:
    """A full disk is not the shard's fault: it propagates, a rerun goes on from there, and no votes come of half."""
    folder = tmp_path / "private" / "teachers"

    def breaks(function: object, jobs: list[ChunkJob]) -> object:
        yield train_chunk(jobs[0])
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        train(tmp_path, records, SETTINGS, mapper=breaks)
    assert not (folder / "shards").exists()
    with pytest.raises(UserError, match="rerun `pate teach`"):
        collect(folder, queries, CLASSES, SETTINGS)
    trained: list[tuple[int, int]] = []
    train(tmp_path, records, SETTINGS, mapper=recording(trained))
    assert trained == [(3, 6), (6, 8)]


def test_memory_errors_of_a_trainer_are_not_taken_for_an_untrainable_shard(
    records: PrivateRecords, tmp_path: Path
) -> None:
    """A chunk whose training ran out of memory leaves no manifest, so it never counts as done."""
    folder = tmp_path / "private" / "teachers"
    write_shards(folder / "shards", records, split(records, SETTINGS), 8)

    def exhausted(shards: object, task: object) -> list[None]:
        raise MemoryError

    with pytest.raises(MemoryError):
        train_chunk(ChunkJob(folder, 0, 3, SETTINGS, SEED, (1, 8, 8), CLASSES, "key"), exhausted)
    assert chunks.manifest(folder, 0, 3, "key") is None


@pytest.mark.parametrize("base", [SETTINGS, FOREST], ids=["mlp", "forest"])
def test_private_files_are_closed_and_hold_no_pickle(
    records: PrivateRecords, tmp_path: Path, base: TeacherSettings
) -> None:
    """While training and afterwards files are 0600 and folders 0700; what stays is safetensors and JSON, no pickle."""
    modes: set[tuple[bool, int]] = set()

    def watching(function: object, jobs: list[ChunkJob]) -> object:
        for job in jobs:
            yield train_chunk(job)
            for path in job.folder.rglob("*"):
                modes.add((path.is_dir(), stat.S_IMODE(path.stat().st_mode)))

    folder = train(tmp_path, records, base, mapper=watching)
    modes |= {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in [folder, *folder.rglob("*")]}
    assert modes == {(True, 0o700), (False, 0o600)}
    assert {path.suffix for path in folder.rglob("*")} == {".json", ".safetensors"}
    for path in folder.rglob("*"):
        head = path.read_bytes()[:16]
        assert not head.startswith((b"\x80", b"PK"))
        assert head[:1] == b"{" or head[8:9] == b"{"


def test_training_and_voting_leave_the_global_generators_and_threads_alone(
    records: PrivateRecords, queries: np.ndarray, tmp_path: Path
) -> None:
    """torch's, NumPy's and Python's global generators and the number of threads are what they were."""
    import random

    torch.set_num_threads(2)
    states = torch.get_rng_state(), np.random.get_state()[1].tobytes(), random.getstate()  # noqa: NPY002
    for name, base in (("mlp", SETTINGS), ("forest", FOREST)):
        collect(train(tmp_path / name, records, base), queries, CLASSES, base)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (np.random.get_state()[1].tobytes(), random.getstate())  # noqa: NPY002
    assert torch.get_num_threads() == 2


def test_shards_hold_each_record_once_with_its_own_teacher(records: PrivateRecords, tmp_path: Path) -> None:
    """The slices on the disk are the partition: all records, each with its label, none twice."""
    parts = split(records, SETTINGS)
    write_shards(tmp_path / "private" / "shards", records, parts, 8)
    shards = list(read_shards(tmp_path / "private" / "shards", 0, 8))
    owner = parts.teachers[np.searchsorted(parts.units, records.units)]
    for shard in shards:
        expected = sorted(
            (f.tobytes(), label)
            for f, label in zip(
                records.features[owner == shard.teacher], records.labels[owner == shard.teacher], strict=True
            )
        )
        assert sorted((f.tobytes(), label) for f, label in zip(shard.features, shard.labels, strict=True)) == expected
    assert sum(len(shard.labels) for shard in shards) == 240


def test_what_trains_the_teachers_is_said_in_a_line() -> None:
    """Strategy, groups, device and runner, from settings and the input's shape."""
    said = {
        described(SETTINGS.model_copy(update=update), (1, 8, 8), CLASSES)
        for update in ({"device": "cpu", "group": None}, {"device": "cpu", "model": "cnn"}, {"model": FOREST.model})
    }
    assert said == {
        "8 teachers, vectorised in groups of 8 on cpu; 2 at a time by threads",
        "8 teachers, one after another on cpu; 2 at a time by threads",
        "8 teachers, one after another; 2 at a time by threads",
    }


@pytest.mark.parametrize(
    ("update", "said"),
    [
        ({"empty_vote": 10}, "teachers.empty_vote = 10: must be below the number of classes, 10"),
        ({"model": "sklearn:sklearn.nowhere.Forest"}, "cannot be imported"),
        ({"model": "sklearn:sklearn.linear_model.LogisticRegression", "params": {"penalty": "l1"}}, "does not train"),
    ],
)
def test_settings_that_no_shard_could_use_are_refused_before_training(
    records: PrivateRecords, tmp_path: Path, update: dict[str, object], said: str
) -> None:
    """A vote for no class, an unknown estimator, a solver that does not go with its penalty: one line, at once."""
    with pytest.raises(UserError, match="^[^\n]+$") as error:
        train(tmp_path, records, SETTINGS.model_copy(update=update))
    assert said in str(error.value)
