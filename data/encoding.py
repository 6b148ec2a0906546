"""Turning table columns into numbers, with vocabulary and scaling from public values alone.

Neighbouring datasets differ in one unit of the private part. The encoder is a function of the public part, so it
is the same for both; nothing that it holds needs an event on the ledger.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data.errors import UserError

CLIP = 10.0
MOST_CATEGORIES = 1_000


@dataclass(frozen=True)
class Column:
    """One column: ``values`` one-hot (text), or scaled by the public ``mean`` and ``std`` (numbers)."""

    name: str
    values: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0
    numeric: bool = True

    @property
    def width(self) -> int:
        return 1 if self.numeric else len(self.values)


@dataclass(frozen=True)
class TableEncoder:
    """Columns in the public file's order; D = the sum of their widths."""

    columns: tuple[Column, ...]

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns)

    def schema(self) -> pa.Schema:
        """What a table to be encoded is read as."""
        return pa.schema([(c.name, pa.float64() if c.numeric else pa.string()) for c in self.columns])

    def to_dict(self) -> dict[str, Any]:
        return {"columns": [vars(c) | {"values": list(c.values)} for c in self.columns]}

    @staticmethod
    def from_dict(record: dict[str, Any]) -> "TableEncoder":
        return TableEncoder(tuple(Column(**{**c, "values": tuple(c["values"])}) for c in record["columns"]))


def _numbers(column: pa.Array, name: str, path: Path) -> np.ndarray:
    floats = (
        column.cast(pa.int8()).cast(pa.float64()) if pa.types.is_boolean(column.type) else column.cast(pa.float64())
    )
    values = floats.to_numpy(zero_copy_only=False)
    if not np.isfinite(values).all():
        raise UserError(f"{path}: column {name!r} must hold finite numbers only (no missing value, no NaN)")
    return values


def fit_encoder(batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: Path) -> TableEncoder:
    """The encoder of the columns of ``schema`` from public rows."""
    vocabulary: dict[str, set[str]] = {f.name: set() for f in schema if pa.types.is_string(f.type)}
    moments = {f.name: np.zeros(3) for f in schema if not pa.types.is_string(f.type)}
    for batch in batches:
        for position, field in enumerate(schema):
            column = batch.column(position)
            if field.name in vocabulary:
                vocabulary[field.name].update(pc.unique(column.drop_null()).to_pylist())
                if len(vocabulary[field.name]) > MOST_CATEGORIES:
                    raise UserError(
                        f"{path}: text column {field.name!r} has over {MOST_CATEGORIES} values: drop it or group them"
                    )
            else:
                values = _numbers(column, field.name, path)
                moments[field.name] += [len(values), values.sum(), np.square(values).sum()]
    columns = []
    for field in schema:
        if field.name in vocabulary:
            columns.append(Column(field.name, tuple(sorted(vocabulary[field.name])), numeric=False))
        else:
            count, total, squares = moments[field.name]
            mean = total / max(count, 1)
            std = float(np.sqrt(max(squares / max(count, 1) - mean**2, 0.0)))
            columns.append(Column(field.name, mean=float(mean), std=std if std > 1e-12 else 1.0))
    return TableEncoder(tuple(columns))


def encode(encoder: TableEncoder, batch: pa.RecordBatch, path: Path) -> np.ndarray:
    """(N, D) float32. Text outside the public vocabulary, and missing text, is all zeros; numbers are clipped."""
    out = np.zeros((batch.num_rows, encoder.width), dtype=np.float32)
    at = 0
    for column in encoder.columns:
        values = batch.column(batch.schema.get_field_index(column.name))
        if column.numeric:
            scaled = (_numbers(values, column.name, path) - column.mean) / column.std
            out[:, at] = np.clip(scaled, -CLIP, CLIP)
        elif column.values:
            position = pc.index_in(values, value_set=pa.array(column.values, pa.string()))
            known = np.flatnonzero(~position.is_null().to_numpy(zero_copy_only=False))
            out[known, at + position.drop_null().to_numpy(zero_copy_only=False)] = 1.0
        at += column.width
    return out
