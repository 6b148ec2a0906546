"""The private records, once, in the order of their teachers, so that a chunk's worker reads only its own slice.

The copy exists while teachers are trained and is removed afterwards. Within a shard the records stand in the order of
their keyed hashes (data.partition), so that the order of the private file carries nothing.
"""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data.examples import PrivateRecords
from data.partition import Partition
from data.partition import shards as shard_rows
from data.store import atomic
from teachers.trainers import Shard

_SLAB = 8192
# numpy reads an array's header with Python's parser, which in Python 3.11 fails when two threads use it at once.
_HEADERS = threading.Lock()


def write_shards(folder: Path, records: PrivateRecords, partition: Partition, teachers: int) -> None:
    """Write features.npy, labels.npy and, last, offsets.npy (teachers + 1,) int64 into ``folder``."""
    rows = shard_rows(records, partition, np.arange(teachers))
    order = np.concatenate(rows)
    for name, array in (("features", records.features), ("labels", records.labels)):
        with atomic(folder / f"{name}.npy") as temporary:
            target = np.lib.format.open_memmap(temporary, "w+", array.dtype, (len(order), *array.shape[1:]))
            for start in range(0, len(order), _SLAB):
                target[start : start + _SLAB] = array[order[start : start + _SLAB]]
            target.flush()
    save_array(folder / "offsets.npy", np.cumsum([0, *map(len, rows)]))


def read_shards(folder: Path, first: int, last: int) -> Iterator[Shard]:
    """The shards of the teachers [first, last), read from the disk one at a time."""
    offsets, features, labels = (load_array(folder / f"{name}.npy") for name in ("offsets", "features", "labels"))
    for teacher in range(first, last):
        rows = slice(int(offsets[teacher]), int(offsets[teacher + 1]))
        yield Shard(teacher, np.array(features[rows]), np.array(labels[rows]))


def save_array(file: Path, array: np.ndarray) -> Path:
    """Write an array atomically; returns the file."""
    with atomic(file) as temporary, temporary.open("wb") as stream:
        np.save(stream, array, allow_pickle=False)
    return file


def load_array(file: Path) -> np.ndarray:
    """An array on the disk, mapped and not read."""
    with _HEADERS:
        return np.load(file, mmap_mode="r", allow_pickle=False)


def remove_shards(folder: Path) -> None:
    """Delete the copy."""
    shutil.rmtree(folder, ignore_errors=True)
