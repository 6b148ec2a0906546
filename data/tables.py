"""Reading Parquet tables in batches, under a schema that settings and the public part fix."""

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data.errors import UserError

BATCH_ROWS = 65_536


def open_table(path: Path, field: str) -> pq.ParquetFile:
    """An open Parquet file; the error names the setting ``field`` and the path."""
    if not path.is_file():
        raise UserError(f"{field} = {str(path)!r}: no such file")
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError):
        raise UserError(f"{field} = {str(path)!r}: is not a readable Parquet file") from None


def schema_of(path: Path, field: str) -> pa.Schema:
    """The file's schema with dictionaries and large types reduced to their plain ones; duplicate names refused."""
    with open_table(path, field) as table:
        schema = table.schema_arrow
    names = schema.names
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{field} = {str(path)!r}: column {name!r} appears more than once")
    return pa.schema([pa.field(f.name, plain_type(f.type, f.name, path)) for f in schema])


def plain_type(kind: pa.DataType, column: str, path: Path) -> pa.DataType:
    """int64, float64, bool or string: what a column is read as."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type, column, path)
    if pa.types.is_boolean(kind):
        return pa.bool_()
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return pa.float64()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    raise UserError(f"{path}: column {column!r} has type {kind}: must be a number, true/false or text")


def batches(path: Path, field: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The columns of ``schema`` in its order and types, in batches. A cast that would lose anything is an error."""
    with open_table(path, field) as table:
        missing = [name for name in schema.names if name not in table.schema_arrow.names]
        if missing:
            raise UserError(f"{field} = {str(path)!r}: has no column {missing[0]!r}")
        for batch in table.iter_batches(batch_size=BATCH_ROWS, columns=schema.names):
            columns = []
            for expected in schema:
                column = batch.column(batch.schema.get_field_index(expected.name))
                if pa.types.is_dictionary(column.type):
                    column = column.dictionary_decode()
                try:
                    columns.append(pc.cast(column, expected.type, safe=True))
                except pa.ArrowException:
                    # The cause holds a value of the row: drop it.
                    raise UserError(f"{path}: column {expected.name!r} must hold {expected.type} values only") from None
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _cells(column: pa.Array) -> list[bytes]:
    """One unambiguous byte string a cell: numbers as float64, so that 12 and 12.0 are equal, text with its length."""
    kind = column.type
    if pa.types.is_string(kind):
        out = []
        for value in column.to_pylist():
            raw = b"" if value is None else value.encode()
            out.append(b"n" if value is None else b"s" + struct.pack("<q", len(raw)) + raw)
        return out
    if pa.types.is_integer(kind):
        values = column.to_pylist()
        return [
            b"n"
            if value is None
            else (b"f" + struct.pack("<d", value) if abs(value) <= 2**53 else b"i" + struct.pack("<q", value))
            for value in values
        ]
    numbers = column.cast(pa.float64()) if not pa.types.is_boolean(kind) else column.cast(pa.int8()).cast(pa.float64())
    return [b"n" if value is None else b"f" + struct.pack("<d", value + 0.0) for value in numbers.to_pylist()]


def row_bytes(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Each row's whole content as bytes, columns in order of name: equal rows and no others give equal bytes."""
    columns = [_cells(batch.column(batch.schema.get_field_index(name))) for name in sorted(batch.schema.names)]
    return (b"".join(cells) for cells in zip(*columns, strict=True))


def id_bytes(column: pa.Array, path: Path, name: str) -> list[bytes]:
    """Ids as bytes. Only integers and text are ids: a float column means that some were missing when it was made."""
    if column.null_count:
        raise UserError(f"{path}: column {name!r} must name a unit or id in every row")
    if pa.types.is_integer(column.type):
        return [str(value).encode() for value in column.to_pylist()]
    if pa.types.is_string(column.type):
        return [value.encode() for value in column.to_pylist()]
    raise UserError(f"{path}: column {name!r} has type {column.type}: an id or unit must be an integer or text")


def label_numbers(column: pa.Array, classes: tuple[str, ...], path: Path, name: str) -> np.ndarray:
    """Labels (N,) int32 as positions in ``classes``; anything else is an error that shows no value."""
    if pa.types.is_floating(column.type):
        raise UserError(
            f"{path}: column {name!r} has type {column.type}: a label must be an integer, true/false or text"
        )
    positions = pc.index_in(column.cast(pa.string()), value_set=pa.array(classes, pa.string()))
    if positions.null_count:
        raise UserError(f"{path}: column {name!r} must hold only the labels of data.classes: {', '.join(classes)}")
    return positions.to_numpy(zero_copy_only=False).astype(np.int32)
