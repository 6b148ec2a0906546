"""Votes: n in every row, whatever happened to a shard."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import UserError
from data.examples import PrivateRecords
from teachers import chunks, estimators, networks
from teachers.settings import TeacherSettings
from teachers.trainers import Shard, Task, trainer_of, voter
from teachers.votes import collect
from tests.teachers.conftest import CLASSES, SETTINGS, records_of, rows, split, train

NEIGHBOURS = TeacherSettings(
    count=8, model="sklearn:sklearn.neighbors.KNeighborsClassifier", params={"n_neighbors": 3}, chunk=3, empty_vote=4
)


def _alone(labels: list[int], features: np.ndarray, base: TeacherSettings) -> np.ndarray:
    """Votes on the features of a teacher of one shard."""
    task = Task(base, 1, features.shape[1:], CLASSES)
    kept = trainer_of(base)([Shard(0, features[: len(labels)], np.array(labels, dtype=np.int32))], task)[0]
    return np.full(len(features), base.empty_vote) if kept is None else voter(features, task, 64)(0, kept)


@given(labels=st.lists(st.integers(0, 9), max_size=6), model=st.sampled_from(["mlp", NEIGHBOURS.model]))
@settings(max_examples=25, deadline=None)
def test_a_shard_of_any_size_and_labels_votes_for_a_class(labels: list[int], model: str) -> None:
    """Empty, of one record, of one class or too small for its estimator: every shard casts a vote, never an error."""
    base = NEIGHBOURS.model_copy(update={"model": model, "epochs": 1, "params": NEIGHBOURS.params})
    features = np.random.default_rng(len(labels)).integers(0, 256, (9, 1, 8, 8)).astype(np.uint8)
    votes = _alone(labels, features, base)
    assert votes.shape == (9,)
    assert ((votes >= 0) & (votes < CLASSES)).all()
    if len(set(labels)) < 2 or (model != "mlp" and len(labels) < 3):
        assert (votes == 4).all()


@pytest.mark.parametrize("base", [SETTINGS, NEIGHBOURS], ids=["mlp", "neighbours"])
def test_untrainable_shards_cast_the_fixed_vote_and_rows_sum_to_n(
    records: PrivateRecords, queries: np.ndarray, tmp_path: Path, base: TeacherSettings
) -> None:
    """Four shards of one class vote 9 in every query, the others as they would anyway."""
    base = base.model_copy(update={"empty_vote": 9})
    parts = split(records, base)
    owner = parts.teachers[np.searchsorted(parts.units, records.units)]
    labels = np.where(owner < 4, 2, records.labels)
    spoilt = PrivateRecords(records.features, labels.astype(np.int32), records.units, records.content)
    counts = collect(train(tmp_path / "spoilt", spoilt, base), queries, CLASSES, base)
    whole = collect(train(tmp_path / "whole", records, base), queries, CLASSES, base)
    assert counts.dtype == np.int32
    assert (counts.sum(axis=1) == 8).all()
    assert (counts[:, 9] >= 4).all()
    assert (np.abs(counts - whole).sum(axis=1) <= 2 * 4).all()


def test_one_unit_moves_at_most_one_vote_of_a_row(records: PrivateRecords, queries: np.ndarray, tmp_path: Path) -> None:
    """The neighbourhood that the accounting assumes: v' = v - e_i + e_j in every query at once."""
    before = collect(train(tmp_path / "all", records, SETTINGS), queries, CLASSES, SETTINGS)
    after = collect(train(tmp_path / "less", rows(records, np.arange(1, 240)), SETTINGS), queries, CLASSES, SETTINGS)
    moved = np.abs(before - after).sum(axis=1)
    assert set(moved.tolist()) <= {0, 2}
    assert moved.any()


def test_ties_go_to_the_lowest_class_and_outputs_that_are_not_finite_to_the_fixed_vote() -> None:
    """Equal outputs vote for the lower class once; a NaN or infinite output is the fixed vote, for that query alone."""
    base = SETTINGS.model_copy(update={"model": "logistic", "empty_vote": 3})
    task = Task(base, 1, (2,), 4)
    kept = {name: tensor.zero_() for name, tensor in networks.build("logistic", (2,), 4, 0).state_dict().items()}
    kept["1.weight"][1:3] = 1.0
    features = np.array([[1, 0], [0, 0], [np.nan, 0], [np.inf, 0], [-1, 0]], dtype=np.float32)
    assert voter(features, task, 2)(0, kept).tolist() == [1, 0, 3, 3, 0]


def test_an_estimator_that_never_saw_a_class_gives_it_no_probability() -> None:
    """Columns are the run's classes, not those a shard happened to hold."""
    matrix = np.array([[0.0], [1.0], [10.0], [11.0]], dtype=np.float32)
    for path in ("sklearn.tree.DecisionTreeClassifier", "sklearn.linear_model.RidgeClassifier"):
        estimator = estimators.build(f"sklearn:{path}", {}, 0).fit(matrix, [2, 2, 4, 4])
        shares = estimators.probabilities(estimator, matrix, 6)
        assert shares.shape == (4, 6)
        assert shares.argmax(axis=1).tolist() == [2, 2, 4, 4]
        assert (shares[:, [0, 1, 3, 5]] == 0).all()


def test_warnings_about_private_shards_do_not_reach_the_console(
    records: PrivateRecords, queries: np.ndarray, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """That some shard's fit did not converge, or holds a rare class, is private; threads do not let it slip."""
    for name, path, params in (
        ("regression", "sklearn.linear_model.LogisticRegression", {"max_iter": 1}),
        ("forest", "sklearn.ensemble.RandomForestClassifier", {"n_estimators": 5, "oob_score": True}),
    ):
        base = SETTINGS.model_copy(update={"model": f"sklearn:{path}", "params": params, "chunk": 1, "workers": 4})
        collect(train(tmp_path / name, records, base), queries, CLASSES, base)
    assert [str(warning.message) for warning in recwarn] == []


def _delete(folder: Path) -> None:
    chunks.paths(folder, 3, 6)[0].unlink()


def _flip(folder: Path) -> None:
    file = chunks.paths(folder, 0, 3)[0]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def _cut(folder: Path) -> None:
    file = chunks.paths(folder, 6, 8)[1]
    file.write_text(file.read_text()[:40])


def _unlist(folder: Path) -> None:
    (folder / chunks.INDEX).write_text("{}")


@pytest.mark.parametrize("damage", [_delete, _flip, _cut, _unlist])
def test_a_missing_or_damaged_chunk_is_said_and_no_votes_come_of_it(
    records: PrivateRecords, queries: np.ndarray, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """Deleted, flipped by a bit, cut short or unlisted: one line that names the file and says to rerun `pate teach`."""
    folder = train(tmp_path, records, SETTINGS)
    damage(folder)
    with pytest.raises(UserError, match="^[^\n]*private/teachers/[^\n]*rerun `pate teach`$"):
        collect(folder, queries, CLASSES, SETTINGS)


def test_an_ensemble_of_another_size_is_refused(records: PrivateRecords, queries: np.ndarray, tmp_path: Path) -> None:
    """Votes are n a row or none: teachers of a run with another count are not used."""
    folder = train(tmp_path, records, SETTINGS)
    with pytest.raises(UserError, match="of another ensemble"):
        collect(folder, queries, CLASSES, SETTINGS.model_copy(update={"count": 9}))


def test_the_ensemble_beats_its_teachers(digits: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    """50 networks of 24 digits each: the plurality is right on 9 in 10 of held-out digits, one teacher on 6 in 10."""
    pixels, labels = digits
    base = TeacherSettings(count=50, model="mlp", epochs=40, batch_size=32, learning_rate=2e-2)
    counts = collect(train(tmp_path, records_of(pixels[:1200], labels[:1200]), base), pixels[1200:], CLASSES, base)
    asked = np.arange(len(counts))
    assert (counts.sum(axis=1) == 50).all()
    assert counts[asked, labels[1200:]].mean() / 50 > 0.55
    assert (counts.argmax(axis=1) == labels[1200:]).mean() > 0.85
