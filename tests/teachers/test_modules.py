"""A user's own network as a teacher."""

from pathlib import Path

import numpy as np
import pytest
import torch

from data.errors import UserError
from data.examples import PrivateRecords
from teachers import modules
from teachers.ensemble import check
from teachers.settings import TeacherSettings
from teachers.trainers import Task, network_of
from teachers.votes import collect
from tests.teachers.conftest import CLASSES, SETTINGS, parameters, records_of, rows, train

HERE = "module:tests.teachers.own_networks."
SHAPE = (1, 8, 8)


def own(name: str, **update: object) -> TeacherSettings:
    return TeacherSettings.model_validate(SETTINGS.model_dump() | {"model": HERE + name, "epochs": 2} | update)


def test_initial_weights_come_from_the_seed_alone() -> None:
    """The same seed gives the same weights bit for bit, another seed others; torch's own generator is not moved."""
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one, same, other = (modules.build(HERE + "net", SHAPE, 10, seed).state_dict() for seed in (2**62, 2**62, 6))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("name", "strategy"), [("net", "auto"), ("net", "vectorised"), ("Tied", "auto"), ("normalising", "auto")]
)
def test_teachers_of_ones_own_are_isolated_saved_by_name_and_vote(
    records: PrivateRecords, queries: np.ndarray, tmp_path: Path, name: str, strategy: str
) -> None:
    """Tied weights, frozen ones, buffers, in loops of threads and vectorised: one unit is one teacher; all vote."""
    base = own(name, strategy=strategy, epochs=6)
    folder = train(tmp_path / "all", records, base)
    before = parameters(folder)
    after = parameters(train(tmp_path / "less", rows(records, np.arange(1, 240)), base))
    assert sum(before[teacher] != after[teacher] for teacher in before) == 1
    expected = network_of(Task(base, 0, SHAPE, CLASSES), 0).state_dict().keys()
    assert all(kept is not None and kept.keys() == expected for kept in before.values())
    counts = collect(folder, queries, CLASSES, base)
    assert (counts.sum(axis=1) == 8).all()
    assert len(np.unique(counts, axis=0)) > 3


def test_a_module_that_fails_on_one_shard_gets_the_fixed_vote_there(tmp_path: Path) -> None:
    """What it raises names private values: nothing of it leaves, and the ensemble is complete."""
    features = np.random.default_rng(0).random((160, 5), dtype=np.float32)
    features[7, 0] = 99
    table = records_of(features, np.arange(160, dtype=np.int32) % 2)
    base = own("Fussy", empty_vote=1)
    folder = train(tmp_path, table, base, classes=2)
    assert [kept is None for kept in parameters(folder).values()].count(True) == 1
    assert (collect(folder, features[:20], 2, base)[:, 1] >= 1).all()
    assert (collect(folder, np.full((1, 5), 50, dtype=np.float32), 2, base) == [[0, 8]]).all()


@pytest.mark.parametrize(
    ("name", "strategy", "said"),
    [
        ("nowhere", "auto", "cannot be imported"),
        ("number", "auto", "must be callable"),
        ("failing", "auto", "must be callable with (shape, classes) = ((1, 8, 8), 10) (two)"),
        ("no_module", "auto", "must give a torch.nn.Module, gives int"),
        ("narrow", "auto", "must map (8, 1, 8, 8) to (8, 10), gives (8, 9)"),
        ("weightless", "auto", "no parameter to train"),
        ("dropping", "auto", "must not draw random numbers in training"),
        ("shared", "auto", "shared between calls"),
        ("restless", "auto", "must draw its initial weights from torch's global generator"),
        ("unused", "auto", "does not train even on made-up records"),
        ("normalising", "vectorised", "no buffers; use loop"),
        ("Centring", "vectorised", "must not mix the records of a batch"),
        ("Branching", "vectorised", "does not go with torch.func.vmap"),
    ],
)
def test_a_module_that_cannot_be_a_teacher_is_refused_in_one_line(name: str, strategy: str, said: str) -> None:
    """Before any record is read, with torch's global generator left as it was."""
    state = torch.get_rng_state()
    with pytest.raises(UserError, match="^[^\n]+$") as error:
        check(own(name, strategy=strategy), SHAPE, CLASSES)
    assert said in str(error.value)
    assert HERE + name in str(error.value)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("path", ["module:no_such_package.Net", "module:tests.teachers.conftest.nothing"])
def test_a_path_that_leads_nowhere_is_refused(path: str) -> None:
    """The line says what is allowed."""
    with pytest.raises(UserError, match=r"give module:<module>\.<callable>, its folder on PYTHONPATH$"):
        check(SETTINGS.model_copy(update={"model": path}), SHAPE, CLASSES)


def test_only_teachers_take_modules() -> None:
    """A student's released description never makes whoever loads it import code; a bare name is no path."""
    from student.settings import StudentSettings

    with pytest.raises(ValueError, match="must be one of"):
        StudentSettings(model=HERE + "net")
    with pytest.raises(ValueError, match="module:<import path>"):
        TeacherSettings(model="module:net")
