"""An ensemble small enough to be trained in a second: scikit-learn's digits, and records made by hand."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from data.examples import PrivateRecords
from data.identity import unit_ids
from data.partition import Partition, partition
from teachers import chunks
from teachers.ensemble import train_ensemble
from teachers.settings import TeacherSettings

SEED = 7
CLASSES = 10
SETTINGS = TeacherSettings(count=8, model="mlp", epochs=3, batch_size=16, learning_rate=1e-2, chunk=3, group=3)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small networks gain nothing from more threads, and many test processes may share few cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def digits() -> tuple[np.ndarray, np.ndarray]:
    """1797 images (1, 8, 8) uint8 and their labels."""
    pixels, labels = load_digits(return_X_y=True)
    return np.round(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8), labels.astype(np.int32)


@pytest.fixture(scope="session")
def records(digits: tuple[np.ndarray, np.ndarray]) -> PrivateRecords:
    """240 private digits; the unit is the record."""
    return records_of(digits[0][:240], digits[1][:240])


@pytest.fixture(scope="session")
def queries(digits: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """97 public digits."""
    return digits[0][1700:]


def records_of(features: np.ndarray, labels: np.ndarray) -> PrivateRecords:
    """Records that are their own units, named by their content."""
    names = unit_ids(
        [f.tobytes() + b":" + str(label).encode() for f, label in zip(features, labels, strict=True)], SEED
    )
    return PrivateRecords(features, labels, names, names)


def rows(records: PrivateRecords, chosen: np.ndarray) -> PrivateRecords:
    """The chosen rows."""
    parts = {name: getattr(records, name)[chosen] for name in ("features", "labels", "units", "content")}
    return replace(records, **parts)


def split(records: PrivateRecords, settings: TeacherSettings) -> Partition:
    return partition(records, settings.count, SEED)


def train(folder: Path, records: PrivateRecords, settings: TeacherSettings, key: str = "key", **kwargs: object) -> Path:
    """Teach under ``folder``; returns the teachers' folder, closed as in a run."""
    where = folder / "private" / "teachers"
    parts = split(records, settings)
    classes = int(kwargs.pop("classes", CLASSES))  # type: ignore[call-overload]
    train_ensemble(where, records, parts, settings, SEED, classes, key, **kwargs)  # type: ignore[arg-type]
    return where


def parameters(folder: Path, key: str = "key") -> dict[int, dict[str, bytes] | None]:
    """What is kept of every teacher, as bytes, so that equal means equal bit for bit."""
    index = chunks.read_index(folder)
    assert index is not None
    kept: dict[int, dict[str, bytes] | None] = {}
    for first, last in index.chunks:
        found = chunks.manifest(folder, first, last, key)
        assert found is not None
        for teacher, tensors in chunks.read(folder, found):
            kept[teacher] = tensors and {name: t.numpy().tobytes() for name, t in tensors.items()}
    return kept


def recording(trained: list[tuple[int, int]]) -> Callable[..., object]:
    """A mapper that runs jobs one after another and notes which."""

    def run(function: Callable[..., object], jobs: list[object]) -> object:
        for job in jobs:
            trained.append((job.first, job.last))  # type: ignore[attr-defined]
            yield function(job)

    return run
