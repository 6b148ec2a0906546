"""Units to teachers: disjoint shards by a keyed hash of each unit's stable id.

Neighbours: one unit added or removed. Its hash alone decides its teacher, so exactly one shard changes. The number of
teachers is fixed by the settings and every shard votes, an empty one too. Released: nothing.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy.stats import binom

from data.artifacts import read_table, write_table
from data.errors import UserError
from data.examples import PrivateRecords
from data.identity import teachers_of


@dataclass(frozen=True)
class Partition:
    """Distinct units (U,), sorted, and the teacher (U,) each belongs to."""

    units: np.ndarray
    teachers: np.ndarray


PARTITION = pa.schema([("unit", pa.string()), ("teacher", pa.int32())])


def partition(records: PrivateRecords, teachers: int, seed: int) -> Partition:
    """The partition of the records' units; ``teachers`` may not exceed the number of units."""
    units = np.unique(records.units)
    if teachers > len(units):
        raise UserError(f"teachers.count = {teachers}: must be at most the number of private units")
    return Partition(units, teachers_of(units, teachers, seed))


def write_partition(path: Path, parts: Partition) -> None:
    """``private/partition.parquet``: units (keyed hashes) and their teachers."""
    table = pa.table({"unit": parts.units.astype("U"), "teacher": parts.teachers}, schema=PARTITION)
    write_table(path, table)


def read_partition(path: Path) -> Partition:
    """The partition that :func:`write_partition` wrote."""
    table = read_table(path, ("unit", "teacher"))
    return Partition(table["unit"].to_numpy().astype(str).astype("S"), table["teacher"].to_numpy().astype(np.int32))


def shards(records: PrivateRecords, parts: Partition, teachers: np.ndarray) -> list[np.ndarray]:
    """Row numbers of each of the given teachers' shards."""
    at = np.searchsorted(parts.units, records.units)
    at = np.minimum(at, len(parts.units) - 1)
    if not np.array_equal(parts.units[at], records.units):
        raise UserError("data.private: has changed since the partition was made: use another --run")
    owner = parts.teachers[at]
    order = np.lexsort((records.content, records.units, owner))
    starts = np.searchsorted(owner[order], teachers, side="left")
    stops = np.searchsorted(owner[order], teachers, side="right")
    return [order[a:b] for a, b in zip(starts, stops, strict=True)]


@dataclass(frozen=True)
class ShardForecast:
    """Shard sizes in units as the hash will make them: Binomial(units, 1/teachers), from counts alone."""

    units: int
    teachers: int
    mean: float
    low: int
    high: int
    expected_empty: float


def forecast(units: int, teachers: int) -> ShardForecast:
    """Mean, the 2.5% and 97.5% quantiles of one shard's size, and how many shards to expect empty."""
    law = binom(units, 1 / teachers)
    return ShardForecast(
        units,
        teachers,
        units / teachers,
        int(law.ppf(0.025)),
        int(law.ppf(0.975)),
        float(teachers * law.pmf(0)),
    )
