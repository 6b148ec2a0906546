"""Votes made elsewhere: ``teachers.model: votes:<file>``."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from data.artifacts import read_queries, read_votes
from data.public import load_public
from data.settings import DataSettings
from tests.flows.small import SMALL

TEACHERS = 20
Pate = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture(scope="module")
def labels() -> np.ndarray:
    """One label a teacher on the 400 public digits: mostly right, some wrong."""
    public = load_public(DataSettings.model_validate(SMALL["data"]), 0)
    from sklearn.datasets import load_digits

    truth = load_digits().target[public.ids]
    generator = np.random.default_rng(0)
    wrong = generator.random((len(truth), TEACHERS)) < 0.1
    return np.where(wrong, generator.integers(0, 10, wrong.shape), truth[:, None])


def counted(labels: np.ndarray) -> np.ndarray:
    return np.stack([(labels == c).sum(axis=1) for c in range(10)], axis=1)


def config(folder: Path, votes: Path, **teachers: object) -> Path:
    path = folder / "given.yaml"
    given = {"teachers": {"count": TEACHERS, "model": f"votes:{votes}"} | teachers, "baseline": {"enabled": False}}
    path.write_text(yaml.safe_dump(SMALL | given))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["counts", "labels"])
def test_a_run_on_votes_made_elsewhere_releases_labels_and_a_student(
    tmp_path: Path, labels: np.ndarray, pate: Pate, kind: str
) -> None:
    """The votes of the run are the file's rows for the chosen public inputs; another file in their place is refused."""
    file = tmp_path / "votes.npy"
    np.save(file, counted(labels) if kind == "counts" else labels)
    arguments = ("run", config(tmp_path, file), "--no-prefect", "--json", "--set", f"run_root={tmp_path / 'runs'}")
    code, result, _ = pate(*arguments)
    assert code == 0
    assert result["student_accuracy"] > 0.5
    run = tmp_path / "runs" / "given"
    said = json.loads((run / "release" / "privacy.json").read_text())["statement"]
    assert "votes were made elsewhere" in said
    assert "keyed hash" not in said
    public = load_public(DataSettings.model_validate(SMALL["data"]), 0)
    at = {int(public_id): row for row, public_id in enumerate(public.ids)}
    rows = [at[int(public_id)] for public_id in read_queries(run / "release" / "queries.parquet")]
    assert np.array_equal(read_votes(run / "private" / "votes.parquet"), counted(labels)[rows])
    assert pate(*arguments)[1]["reused"] != []
    np.save(file, counted(labels)[::-1])
    code, _, err = pate(*arguments)
    assert code == 2
    assert "data.private or teachers.model: has changed" in err


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda v: v[:-1], "must have a row for each of the 400 inputs of data.public"),
        (lambda v: np.concatenate([v, v[:1]]), "must have a row for each of the 400 inputs of data.public"),
        (lambda v: v + np.eye(10, dtype=int)[[7] * 400], "every row of counts must sum to teachers.count = 20"),
        (lambda v: v - 21, "whole numbers that are not negative"),
        (lambda v: v + 0.5, "whole numbers that are not negative"),
        (lambda v: np.where(np.arange(10) == 3, np.nan, v), "whole numbers that are not negative"),
        (lambda v: v[:, :9], "must have 10 columns of counts (data.classes), or 20 of labels (teachers.count)"),
        (lambda v: np.full((400, 20), 10), "every label must be below the number of classes, 10"),
    ],
)
def test_a_file_that_holds_no_such_votes_is_refused_before_anything_is_charged(
    tmp_path: Path, labels: np.ndarray, pate: Pate, spoil: Callable[[np.ndarray], np.ndarray], said: str
) -> None:
    """One line with the rule, and no value of the file; the ledger holds nothing."""
    file = tmp_path / "votes.npy"
    np.save(file, spoil(counted(labels)))
    root = tmp_path / "runs"
    code, result, _ = pate(
        "run", config(tmp_path, file), "--no-prefect", "--json", "--quiet", "--set", f"run_root={root}"
    )
    assert code == 2
    assert said in result["error"]
    assert "\n" not in result["error"]
    assert not (root / "given" / "release" / "labels.parquet").exists()
    assert not (root / "ledger.sqlite").exists()


def test_a_file_that_is_not_there_and_an_empty_path_are_refused(tmp_path: Path, pate: Pate) -> None:
    """Both name the field."""
    for model, said in ((f"votes:{tmp_path / 'none.npy'}", "no such file"), ("votes:", "must be one of")):
        path = config(tmp_path, tmp_path / "none.npy", model=model)
        code, result, _ = pate("run", path, "--no-prefect", "--json", "--quiet", "--set", f"run_root={tmp_path}")
        assert code == 2
        assert said in result["error"]
        assert "teachers.model" in result["error"]
