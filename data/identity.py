"""Stable ids of units, and what is derived from them: the part and the teacher a unit belongs to.

Everything here is a keyed hash of one unit alone (key: the run's seed), so adding or removing a unit moves no
other unit: that is what makes the partition support add/remove adjacency. The hashes are keyed by the seed only
so that runs compare; they are not secret from the curator and stay in the private zone.
"""

import hashlib
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

DIGEST_BYTES = 16
UNIT_DTYPE = np.dtype(f"S{2 * DIGEST_BYTES}")


def _key(seed: int) -> bytes:
    return hashlib.sha256(f"pate:{seed}".encode()).digest()


def unit_ids(names: Iterable[bytes], seed: int) -> np.ndarray:
    """Keyed hashes (N, hex) of the units' stable names: the bytes of an id, or of a record's whole content."""
    key = _key(seed)
    digests = [
        hashlib.blake2b(name, digest_size=DIGEST_BYTES, key=key, person=b"pate-unit").hexdigest() for name in names
    ]
    return np.array(digests, dtype=UNIT_DTYPE)


def _numbers(units: np.ndarray, seed: int, purpose: bytes) -> list[int]:
    key = _key(seed)
    return [
        int.from_bytes(hashlib.blake2b(unit, digest_size=DIGEST_BYTES, key=key, person=purpose).digest(), "big")
        for unit in units.tolist()
    ]


def teachers_of(units: np.ndarray, teachers: int, seed: int) -> np.ndarray:
    """The teacher (N, int32 in [0, teachers)) of each unit: a keyed hash of that unit's id alone.

    The bias of ``128-bit hash mod teachers`` is below teachers / 2^128.
    """
    return np.array([number % teachers for number in _numbers(units, seed, b"pate-teacher")], dtype=np.int32)


def split_by_count(units: np.ndarray, counts: Sequence[int], seed: int) -> list[np.ndarray]:
    """Rows of consecutive parts that hold ``counts`` units each, in the order of the units' keyed hashes.

    All rows of a unit fall into one part. Removing a unit of the last part leaves the earlier ones as they are,
    so callers put the private part last.
    """
    distinct, inverse = np.unique(units, return_inverse=True)
    order = np.array(sorted(range(len(distinct)), key=_numbers(distinct, seed, b"pate-split").__getitem__), dtype=int)
    rank = np.empty(len(distinct), dtype=np.int64)
    rank[order] = np.arange(len(distinct))
    ends = np.cumsum([0, *counts])
    row_rank = rank[inverse]
    return [np.flatnonzero((row_rank >= a) & (row_rank < b)) for a, b in itertools.pairwise(ends)]
