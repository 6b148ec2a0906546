"""A record's content and an id as bytes: what units are named by.

Equal rows and no others give equal bytes, whatever the order of columns. A cell is a tag and its value: ``f`` and a
float64 (so that 12 and 12.0 are equal), ``i`` and an int64 beyond 2^53, ``t`` and microseconds, ``s``, a length, text;
``n`` alone: missing. Little-endian.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data.errors import UserError

_EXACT = 2**53


def _tagged(tags: np.ndarray, words: np.ndarray) -> pa.Array:
    """Nine bytes a cell: a tag and eight bytes of its value."""
    out = np.empty((len(words), 9), dtype=np.uint8)
    out[:, 0] = tags
    out[:, 1:] = np.ascontiguousarray(words).view(np.uint8).reshape(-1, 8)
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(9), len(words), [None, pa.py_buffer(out)])
    return fixed.cast(pa.binary())


def _cells(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind):
        raw = column.cast(pa.binary()).fill_null(b"")
        lengths = pc.binary_length(raw).to_numpy(zero_copy_only=False).astype("<i8")
        cells = pc.binary_join_element_wise(_tagged(np.full(len(column), ord("s")), lengths), raw, b"")
    elif pa.types.is_integer(kind):
        whole = column.fill_null(0).to_numpy(zero_copy_only=False).astype("<i8")
        exact = (whole >= -_EXACT) & (whole <= _EXACT)
        words = np.where(exact, whole.astype("<f8").view("<i8"), whole)
        cells = _tagged(np.where(exact, ord("f"), ord("i")), words)
    elif pa.types.is_timestamp(kind):
        times = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).astype("<i8")
        cells = _tagged(np.full(len(column), ord("t")), times)
    else:
        floats = column.cast(pa.int8()) if pa.types.is_boolean(kind) else column
        # Adding zero makes -0.0 the 0.0 that it equals.
        values = floats.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
        cells = _tagged(np.full(len(column), ord("f")), values.astype("<f8"))
    return pc.if_else(column.is_null(), pa.scalar(b"n", pa.binary()), cells)


def row_bytes(batch: pa.RecordBatch) -> list[bytes]:
    """Each row's whole content, columns in order of name."""
    columns = [_cells(batch.column(batch.schema.get_field_index(name))) for name in sorted(batch.schema.names)]
    rows: list[bytes] = pc.binary_join_element_wise(*columns, b"").to_pylist()
    return rows


def id_bytes(column: pa.Array, path: Path, name: str) -> list[bytes]:
    """Ids as bytes. Only integers and text are ids: a float column means that some were missing when it was made."""
    if column.null_count:
        raise UserError(f"{path}: column {name!r} must name a unit or id in every row")
    if pa.types.is_integer(column.type):
        return [str(value).encode() for value in column.to_pylist()]
    if pa.types.is_string(column.type):
        return [value.encode() for value in column.to_pylist()]
    raise UserError(f"{path}: column {name!r} has type {column.type}: an id or unit must be an integer or text")
