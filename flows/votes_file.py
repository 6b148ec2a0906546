"""Votes from a file that anybody made: counts of queries by classes, or one label a teacher, read in blocks of rows.

Votes are private: errors name the file and the rule, never a value, a row or a count.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from data.errors import UserError

BLOCK = 50_000
CELLS = 2_500_000
SUFFIXES = (".npy", ".npz", ".parquet", ".csv")


def blocks(path: Path, limit: int | None = None, option: str = "VOTES") -> Iterator[np.ndarray]:
    """The first ``limit`` rows (all without one) of a table of numbers, (B, columns) float64, block by block.

    ``.npy``: a 2-D array, mapped and not loaded. ``.npz``: its one array. ``.parquet``: a column ``counts`` of lists,
    as a run writes it, or one column a class. ``.csv``: one column a class, with a header line or without. Errors name
    the file as ``option``'s.

    Raises:
        UserError: no such file, another kind of file, or not a table of numbers.
    """
    named = f"{option} = {str(path)!r}"
    if path.suffix not in SUFFIXES:
        raise UserError(f"{named}: must end in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise UserError(f"{named}: no such file")
    left = limit
    found = False
    try:
        for block in _READERS[path.suffix](path):
            rows = block if left is None else block[:left]
            if len(rows):
                found = True
                yield rows
            left = None if left is None else left - len(rows)
            if left == 0:
                break
    except UserError as error:
        raise UserError(f"{named}: {error}") from None
    except (pa.ArrowException, OSError, ValueError, EOFError):
        raise UserError(f"{named}: must hold a table of numbers, queries by classes") from None
    if not found:
        raise UserError(f"{named}: holds no row")


def counts_of(labels: np.ndarray, classes: int) -> np.ndarray:
    """Vote counts (Q, C) of labels (Q, n), one a teacher, whole numbers in [0, C).

    >>> counts_of(np.array([[0, 1, 1], [2, 2, 2]]), 3).tolist()
    [[1, 2, 0], [0, 0, 3]]
    """
    if not np.all(np.isfinite(labels)) or not np.all(labels == np.round(labels)):
        raise UserError("votes: every teacher's label must be a whole number")
    if not np.all((labels >= 0) & (labels < classes)):
        raise UserError(f"votes: every teacher's label must be at least 0 and below --classes = {classes}")
    whole = labels.astype(np.int64) + np.arange(len(labels))[:, None] * classes
    return np.bincount(whole.ravel(), minlength=len(labels) * classes).reshape(len(labels), classes)


def _sliced(array: np.ndarray) -> Iterator[np.ndarray]:
    if array.ndim != 2 or array.dtype.kind not in "buif":
        raise ValueError("not a table of numbers")
    for start in range(0, len(array), BLOCK):
        rows = array[start : start + BLOCK]
        # A wide table (one label a teacher) in smaller steps: a block as floats is the largest thing held.
        step = max(1, CELLS // max(1, rows.shape[1]))
        for first in range(0, len(rows), step):
            yield np.asarray(rows[first : first + step], dtype=float)


def _npy(path: Path) -> Iterator[np.ndarray]:
    # Not np.load, which takes what begins like an archive for one.
    yield from _sliced(np.lib.format.open_memmap(path, mode="r"))


def _npz(path: Path) -> Iterator[np.ndarray]:
    import zipfile
    import zlib

    try:
        with np.load(path, allow_pickle=False) as archive:
            if len(archive.files) != 1:
                raise UserError(f"must hold one array, not {len(archive.files)}")
            array = archive[archive.files[0]]
    except (zipfile.BadZipFile, zlib.error, AttributeError):
        raise ValueError("not an archive of NumPy") from None
    yield from _sliced(array)


def _columns(batch: pa.RecordBatch) -> np.ndarray:
    kinds = {field.type for field in batch.schema}
    if not all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in kinds):
        raise ValueError("a column that holds no numbers")
    columns = [column.cast(pa.float64()).to_numpy(zero_copy_only=False) for column in batch.columns]
    return np.stack(columns, axis=1) if columns else np.zeros((batch.num_rows, 0))


def _parquet(path: Path) -> Iterator[np.ndarray]:
    with pq.ParquetFile(path) as table:
        names = [name for name in table.schema_arrow.names if name != "query_id"]
        for batch in table.iter_batches(batch_size=BLOCK, columns=["counts"] if "counts" in names else names):
            if "counts" not in names:
                yield _columns(batch)
                continue
            column = batch.column(0)
            if column.null_count or not hasattr(column, "flatten"):
                raise ValueError("not lists of numbers")
            flat = column.flatten().to_numpy(zero_copy_only=False)
            yield np.asarray(flat, dtype=float).reshape(len(column), -1)


def _csv(path: Path) -> Iterator[np.ndarray]:
    with path.open(encoding="utf-8-sig") as stream:
        first = stream.readline().strip().split(",")
    options = pyarrow.csv.ReadOptions(autogenerate_column_names=all(_is_number(cell) for cell in first))
    with pyarrow.csv.open_csv(path, read_options=options) as reader:
        for batch in reader:
            rows = _columns(batch)
            for start in range(0, len(rows), BLOCK):
                yield rows[start : start + BLOCK]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


_READERS = {".npy": _npy, ".npz": _npz, ".parquet": _parquet, ".csv": _csv}
