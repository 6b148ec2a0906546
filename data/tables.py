"""Tables in Parquet and CSV files: columns by name, rows in batches, in types that settings and public rows fix.

A batch is read as it lies in the file, reduced to the rows wanted, and only then given its types: rows of other parts
of the same file are never looked at.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data import csv_files, csv_values
from data.csv_files import MOST_COLUMNS, Dialect
from data.errors import UserError

BATCH_ROWS = 65_536
# Numbers of a batch, of columns or of encoded features: about 32 MiB as float64.
BATCH_CELLS = 1 << 22
_READ_BYTES = 1 << 20
# Far above what compression reaches: a file that says more is broken.
_MOST_ROWS_A_BYTE = 1_000
_RULES = {pa.float64(): "numbers", pa.bool_(): "true or false", csv_values.TIME: "ISO dates"}


@dataclass(frozen=True)
class TableFile:
    """A table's path, the setting ``field`` that names it, and the dialect of a CSV file (None: Parquet)."""

    path: Path
    field: str
    dialect: Dialect | None = None


def open_parquet(file: TableFile) -> pq.ParquetFile:
    """An open Parquet file; errors name the setting and the path."""
    shown = f"{file.field} = {str(file.path)!r}"
    if not file.path.is_file():
        raise UserError(f"{shown}: no such file")
    try:
        # Unless told otherwise Arrow keeps all that it has read until the file is closed.
        table = pq.ParquetFile(file.path, pre_buffer=False, buffer_size=_READ_BYTES)
        width = len(table.schema_arrow)
    except PermissionError:
        raise UserError(f"{shown}: cannot be read (Permission denied)") from None
    except (pa.ArrowException, OSError):
        raise _unreadable(file) from None
    if width > MOST_COLUMNS:
        table.close()
        raise UserError(f"{shown}: has {width} columns; at most {MOST_COLUMNS} are read (use npz)")
    return table


def _unreadable(file: TableFile) -> UserError:
    return UserError(f"{file.field} = {str(file.path)!r}: is not a readable Parquet file")


def schema_of(file: TableFile) -> pa.Schema:
    """Columns in the file's order. Of Parquet their plain types; of CSV text. Names that repeat are refused."""
    if file.dialect is not None:
        return pa.schema([(n, pa.string()) for n in csv_files.column_names(file.path, file.field, file.dialect)])
    with open_parquet(file) as table:
        schema = table.schema_arrow
    seen = set()
    for name in schema.names:
        if name in seen:
            raise UserError(f"{file.field} = {str(file.path)!r}: column {name!r} appears more than once")
        seen.add(name)
    return pa.schema([pa.field(f.name, plain_type(f.type, f.name, file.path)) for f in schema])


def plain_type(kind: pa.DataType, column: str, path: Path) -> pa.DataType:
    """int64, float64, bool, string or timestamp (microseconds): what a column of a Parquet file is read as."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type, column, path)
    if pa.types.is_boolean(kind):
        return pa.bool_()
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return pa.float64()
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return csv_values.TIME
    # A column without any value has no type of its own.
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or kind == pa.null():
        return pa.string()
    raise UserError(f"{path}: column {column!r} has type {kind}: must be a number, true/false, a date or text")


def row_count(file: TableFile) -> int:
    """Rows: of Parquet from the metadata, of CSV by reading the first column."""
    if file.dialect is None:
        with open_parquet(file) as table:
            rows = int(table.metadata.num_rows)
        if not 0 <= rows <= _MOST_ROWS_A_BYTE * file.path.stat().st_size:
            raise _unreadable(file)
        return rows
    first = csv_files.column_names(file.path, file.field, file.dialect)[:1]
    return sum(batch.num_rows for batch in csv_files.batches(file.path, file.field, file.dialect, first))


def batches(file: TableFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The named columns as they lie in the file, in batches; give them types by :func:`typed`."""
    if file.dialect is not None:
        yield from csv_files.batches(file.path, file.field, file.dialect, names)
        return
    size = max(1, min(BATCH_ROWS, BATCH_CELLS // max(len(names), 1)))
    with open_parquet(file) as table:
        missing = set(names).difference(table.schema_arrow.names)
        if missing:
            first = next(name for name in names if name in missing)
            raise UserError(f"{file.field} = {str(file.path)!r}: has no column {first!r}")
        try:
            for batch in table.iter_batches(batch_size=size, columns=list(names)):
                batch.validate(full=True)
                columns = [batch.column(batch.schema.get_field_index(name)) for name in names]
                decoded = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in columns]
                yield pa.RecordBatch.from_arrays(decoded, names=list(names))
        except MemoryError:
            raise
        except (pa.ArrowException, OSError):
            raise _unreadable(file) from None


def rows_in(file: TableFile, names: Sequence[str], rows: np.ndarray) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
    """Batches reduced to ``rows`` (sorted), with their row numbers."""
    start = 0
    for batch in batches(file, names):
        first, last = np.searchsorted(rows, [start, start + batch.num_rows])
        here = rows[first:last]
        if len(here) == batch.num_rows:
            yield batch, here
        elif len(here):
            yield batch.take(pa.array(here - start)), here
        start += batch.num_rows
    if len(rows) and rows[-1] >= start:
        raise UserError(f"{file.field} = {str(file.path)!r}: holds fewer rows than it did, or than it says")


def typed(batch: pa.RecordBatch, schema: pa.Schema, file: TableFile) -> pa.RecordBatch:
    """The columns of ``schema`` in its order and types. A cell that would lose anything is an error."""
    columns = []
    for field in schema:
        column = batch.column(batch.schema.get_field_index(field.name))
        if file.dialect is not None:
            values = csv_values.parse(column, field.type, file.dialect.decimal)
            if values is None:
                rule = f"must hold {_RULES[field.type]} only"
                if field.type == pa.float64():
                    rule += f", with decimal mark {file.dialect.decimal!r} and no other separator"
                raise UserError(f"{file.path}: column {field.name!r} {rule}")
        else:
            try:
                values = _cast(column, field.type)
            except MemoryError:
                raise
            except pa.ArrowException:
                # The cause holds a value of the row: drop it.
                raise UserError(f"{file.path}: column {field.name!r} must hold {field.type} values only") from None
        columns.append(values)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(column.type):
        # Without its zone a time is UTC. Nanoseconds are cut: two times that differ by less are one.
        unit = column.type.unit
        return pc.cast(column.cast(pa.timestamp(unit)), kind, safe=unit != "ns")
    return pc.cast(column, kind, safe=True)


def pieces(batch: pa.RecordBatch, width: int) -> Iterator[pa.RecordBatch]:
    """The batch in slices whose encoding, ``width`` numbers a row, stays small."""
    size = max(1, BATCH_CELLS // max(width, 1))
    for start in range(0, batch.num_rows, size):
        yield batch.slice(start, size)


def label_numbers(column: pa.Array, classes: tuple[str, ...], path: Path, name: str) -> np.ndarray:
    """Labels (N,) int32 as positions in ``classes``; anything else is an error that shows no value."""
    if pa.types.is_floating(column.type) or pa.types.is_timestamp(column.type):
        raise UserError(
            f"{path}: column {name!r} has type {column.type}: a label must be an integer, true/false or text"
        )
    positions = pc.index_in(column.cast(pa.string()), value_set=pa.array(classes, pa.string()))
    if positions.null_count:
        raise UserError(f"{path}: column {name!r} must hold only the labels of data.classes: {', '.join(classes)}")
    return positions.to_numpy(zero_copy_only=False).astype(np.int32)
