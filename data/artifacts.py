"""The Parquet artifacts of a run: their schemas, and reading and writing them whole or not at all."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.errors import UserError
from data.store import atomic

SOURCES = ("teachers", "student", "abstained")


def queries_schema(ids: np.ndarray) -> pa.Schema:
    """query_id, public_id (int64 rows or the id column's text), round."""
    return pa.schema([("query_id", pa.int64()), ("public_id", _id_type(ids)), ("round", pa.int32())])


def votes_schema(classes: int) -> pa.Schema:
    """query_id and the counts of n teachers' votes for C classes."""
    return pa.schema([("query_id", pa.int64()), ("counts", pa.list_(pa.int32(), classes))])


def labels_schema(ids: np.ndarray) -> pa.Schema:
    """query_id, public_id, label (null: abstained), source, round."""
    return pa.schema(
        [
            ("query_id", pa.int64()),
            ("public_id", _id_type(ids)),
            ("label", pa.int32()),
            ("source", pa.string()),
            ("round", pa.int32()),
        ]
    )


def _id_type(ids: np.ndarray) -> pa.DataType:
    return pa.int64() if np.issubdtype(ids.dtype, np.integer) else pa.string()


def write_table(path: Path, table: pa.Table) -> None:
    """Write a Parquet file atomically."""
    with atomic(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_table(path: Path, columns: tuple[str, ...]) -> pa.Table:
    """Read a Parquet artifact and check that it has the columns it should."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError):
        raise UserError(f"{path}: is corrupt (not a readable Parquet file); delete it and rerun its stage") from None
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise UserError(f"{path}: has no column {missing[0]!r}; delete it and rerun its stage")
    return table


def write_queries(path: Path, public_ids: np.ndarray, rounds: np.ndarray | int = 0) -> None:
    """The queries, numbered from 0 in the order in which they are asked, and the round of each, from 0."""
    count = len(public_ids)
    columns = [np.arange(count), public_ids.tolist(), _each(rounds, count)]
    write_table(
        path,
        pa.table([pa.array(c) for c in columns], names=["query_id", "public_id", "round"]).cast(
            queries_schema(public_ids)
        ),
    )


def read_queries(path: Path) -> np.ndarray:
    """The public ids (Q,) of the queries, in order of query_id."""
    table = read_table(path, ("query_id", "public_id", "round"))
    return np.array(table["public_id"].to_pylist())


def write_votes(path: Path, counts: np.ndarray) -> None:
    """Vote counts (Q, C) int32."""
    flat = pa.array(counts.astype(np.int32).ravel())
    column = pa.FixedSizeListArray.from_arrays(flat, counts.shape[1])
    table = pa.table([pa.array(np.arange(len(counts))), column], schema=votes_schema(counts.shape[1]))
    write_table(path, table)


def read_votes(path: Path) -> np.ndarray:
    """Vote counts (Q, C) int64."""
    table = read_table(path, ("query_id", "counts"))
    column = table["counts"].combine_chunks()
    if not pa.types.is_fixed_size_list(column.type) or column.null_count:
        raise UserError(f"{path}: counts must be a list of one size; delete it and rerun its stage")
    flat = column.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(table), column.type.list_size).astype(np.int64)


def _each(rounds: np.ndarray | int, count: int) -> np.ndarray:
    return np.broadcast_to(np.asarray(rounds, dtype=np.int32), (count,))


def write_labels(
    path: Path,
    public_ids: np.ndarray,
    outcomes: np.ndarray,
    metadata: dict[str, str],
    *,
    sources: np.ndarray | None = None,
    rounds: np.ndarray | int = 0,
) -> None:
    """A row for every query asked, in order: ``outcomes`` (Q,) int labels, -1 for none.

    ``sources`` (Q,): who each label is of, one of SOURCES; without it labels are the teachers'.
    """
    asked = len(outcomes)
    abstained = outcomes < 0
    if sources is None:
        sources = np.where(abstained, "abstained", "teachers")
    table = pa.table(
        [
            pa.array(np.arange(asked)),
            pa.array(public_ids[:asked].tolist()),
            pa.array(outcomes.astype(np.int32), mask=abstained),
            pa.array(sources.tolist(), pa.string()),
            pa.array(_each(rounds, asked)),
        ],
        names=["query_id", "public_id", "label", "source", "round"],
    ).cast(labels_schema(public_ids))
    write_table(path, table.replace_schema_metadata({**(table.schema.metadata or {}), **metadata}))


def read_labels(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Public ids (Q,) and labels (Q,) int32 with -1 for an abstention."""
    table = read_table(path, ("query_id", "public_id", "label", "source", "round"))
    labels = table["label"].fill_null(-1).to_numpy().astype(np.int32)
    return np.array(table["public_id"].to_pylist()), labels


def read_sources(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Of each query asked, in order: who its label is of, one of SOURCES, and its round (Q,) from 0."""
    table = read_table(path, ("query_id", "public_id", "label", "source", "round"))
    return np.array(table["source"].to_pylist(), dtype="U9"), table["round"].to_numpy()
