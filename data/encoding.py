"""Turning table columns into numbers, with vocabulary and scaling from public values alone.

Neighbouring datasets differ in one unit of the private part. The encoder is a function of the public part, so it
is the same for both; nothing that it holds needs an event on the ledger.

Numbers, true/false and dates (as days) are scaled by the public mean and standard deviation and clipped; a missing one
becomes the mean, 0, and where the public part misses some of a column a further column says which are missing. Text is
one-hot in the public vocabulary; missing or other text is all zeros.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data.csv_files import Dialect
from data.csv_values import TIME
from data.errors import UserError
from data.tables import TableFile

CLIP = 10.0
MOST_CATEGORIES = 1_000
MOST_FEATURES = 65_536
_MICROSECONDS_A_DAY = 86_400e6

Kind = Literal["number", "boolean", "date", "text"]
_TYPES: dict[Kind, pa.DataType] = {
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "date": TIME,
    "text": pa.string(),
}


@dataclass(frozen=True)
class Column:
    """One column: text one-hot in ``values``, else scaled by ``mean`` and ``std``; ``indicator``: of missing ones."""

    name: str
    kind: Kind = "number"
    values: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0
    indicator: bool = False

    @property
    def width(self) -> int:
        return len(self.values) if self.kind == "text" else 1 + self.indicator


@dataclass(frozen=True)
class TableEncoder:
    """Columns in the public file's order; D = the sum of their widths. ``dialect``: of the CSV files it is for."""

    columns: tuple[Column, ...]
    dialect: Dialect | None = None

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns)

    def schema(self, file: TableFile) -> pa.Schema:
        """What the columns of a file to be encoded are read as: in Parquet true/false may be written as numbers."""
        types = _TYPES if file.dialect is not None else _TYPES | {"boolean": pa.float64()}
        return pa.schema([(c.name, types[c.kind]) for c in self.columns])

    def to_dict(self) -> dict[str, Any]:
        columns = [asdict(column) | {"values": list(column.values)} for column in self.columns]
        return {"columns": columns, "dialect": None if self.dialect is None else asdict(self.dialect)}

    @staticmethod
    def from_dict(record: dict[str, Any]) -> "TableEncoder":
        columns = tuple(Column(**{**c, "values": tuple(c["values"])}) for c in record["columns"])
        if any(column.kind not in get_args(Kind) for column in columns):
            raise TypeError("a column's kind is not known")
        return TableEncoder(columns, None if record["dialect"] is None else Dialect(**record["dialect"]))


def _numbers(column: pa.Array, name: str, path: Path) -> np.ndarray:
    """float64, NaN where missing."""
    if pa.types.is_timestamp(column.type):
        days = column.cast(pa.int64()).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return np.asarray(days / _MICROSECONDS_A_DAY)
    plain = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
    values = np.asarray(plain.cast(pa.float64()).to_numpy(zero_copy_only=False))
    if np.isinf(values).any():
        raise UserError(f"{path}: column {name!r} must hold finite numbers only (or missing ones)")
    return values


@dataclass
class _Moments:
    """Count, and sums of what exceeds ``shift``, the mean of the first values: squares of large numbers cancel."""

    shift: float | None = None
    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    missing: bool = False

    def add(self, values: np.ndarray) -> None:
        kept = values[~np.isnan(values)]
        self.missing = self.missing or len(kept) < len(values)
        if len(kept) == 0:
            return
        if self.shift is None:
            self.shift = float(kept.mean())
        self.count += len(kept)
        self.total += float((kept - self.shift).sum())
        self.squares += float(np.square(kept - self.shift).sum())

    def column(self, name: str, kind: Kind, path: Path) -> Column:
        beyond = self.total / max(self.count, 1)
        variance = self.squares / max(self.count, 1) - beyond**2
        mean = (self.shift or 0.0) + beyond
        if not np.isfinite([mean, variance]).all():
            raise UserError(f"{path}: column {name!r} holds numbers too large to be scaled")
        std = float(np.sqrt(max(variance, 0.0)))
        return Column(name, kind, mean=mean, std=std if std > 1e-12 else 1.0, indicator=self.missing)


def fit_encoder(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: Path, dialect: Dialect | None = None
) -> TableEncoder:
    """The encoder of the columns of ``schema`` from public rows."""
    kinds = [_kind(field.type) for field in schema]
    vocabulary: dict[str, set[str]] = {f.name: set() for f, kind in zip(schema, kinds, strict=True) if kind == "text"}
    moments = {f.name: _Moments() for f, kind in zip(schema, kinds, strict=True) if kind != "text"}
    with np.errstate(over="ignore", invalid="ignore"):
        for batch in batches:
            for position, field in enumerate(schema):
                column = batch.column(position)
                if field.name in moments:
                    moments[field.name].add(_numbers(column, field.name, path))
                    continue
                vocabulary[field.name].update(pc.unique(column.drop_null()).to_pylist())
                if len(vocabulary[field.name]) > MOST_CATEGORIES:
                    raise UserError(
                        f"{path}: text column {field.name!r} has over {MOST_CATEGORIES} values: drop it or group them"
                    )
            if sum(map(len, vocabulary.values())) > MOST_FEATURES:
                raise UserError(f"{path}: its text columns have over {MOST_FEATURES} values: drop some or group them")
        columns = [
            moments[field.name].column(field.name, kind, path)
            if field.name in moments
            else Column(field.name, kind, tuple(sorted(vocabulary[field.name])))
            for field, kind in zip(schema, kinds, strict=True)
        ]
    encoder = TableEncoder(tuple(columns), dialect)
    if not 0 < encoder.width <= MOST_FEATURES:
        raise UserError(f"{path}: its columns make {encoder.width} features; must be 1 to {MOST_FEATURES}")
    return encoder


def _kind(kind: pa.DataType) -> Kind:
    if pa.types.is_string(kind):
        return "text"
    if pa.types.is_boolean(kind):
        return "boolean"
    return "date" if pa.types.is_timestamp(kind) else "number"


def encode(encoder: TableEncoder, batch: pa.RecordBatch, path: Path) -> np.ndarray:
    """(N, D) float32 of typed rows."""
    out = np.zeros((batch.num_rows, encoder.width), dtype=np.float32)
    at = 0
    for column in encoder.columns:
        values = batch.column(batch.schema.get_field_index(column.name))
        if column.kind != "text":
            numbers = _numbers(values, column.name, path)
            missing = np.isnan(numbers)
            with np.errstate(over="ignore"):
                scaled = (numbers - column.mean) / column.std
            out[:, at] = np.where(missing, 0.0, np.clip(scaled, -CLIP, CLIP))
            if column.indicator:
                out[:, at + 1] = missing
        elif column.values:
            position = pc.index_in(values, value_set=pa.array(column.values, pa.string()))
            known = np.flatnonzero(~position.is_null().to_numpy(zero_copy_only=False))
            out[known, at + position.drop_null().to_numpy(zero_copy_only=False)] = 1.0
        at += column.width
    return out
