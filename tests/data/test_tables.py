"""Tables: read under a fixed schema, encoded from public values, errors without values."""

import math
import struct
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.content import row_bytes
from data.errors import UserError
from data.private import load_private
from data.public import load_public, load_test, table_encoder
from data.settings import DataSettings


def _write(path: Path, **columns: object) -> str:
    pq.write_table(pa.table(columns), path)
    return str(path)


def _settings(tmp_path: Path, private: dict[str, object], public: dict[str, object], **more: object) -> DataSettings:
    return DataSettings(
        name="t",
        source="parquet",
        label="y",
        classes=["no", "yes"],
        private=_write(tmp_path / "private.parquet", **private),
        public=_write(tmp_path / "public.parquet", **public),
        test=None,
        **more,
    )


def test_vocabulary_and_scaling_come_from_public_values_only(tmp_path: Path) -> None:
    """A category that only private rows have is all zeros; a private outlier is clipped; the encoder stays the same."""
    public = {"a": [0.0, 2.0], "c": ["x", "y"]}
    one = _settings(tmp_path, {"a": [1.0, 1e9], "c": ["x", "secret"], "y": ["no", "yes"]}, public)
    encoder = table_encoder(one, 0)
    assert encoder is not None
    records = load_private(one, 0, encoder)
    assert records.features.tolist() == [[0.0, 1.0, 0.0], [10.0, 0.0, 0.0]]
    assert "secret" not in str(encoder.to_dict())


def test_integer_and_float_columns_of_equal_numbers_name_the_same_units(tmp_path: Path) -> None:
    """One missing value elsewhere turns 12 into 12.0 in many writers: no unit may move for it."""
    public = {"a": [0.0, 2.0]}
    ints = _settings(tmp_path, {"a": [12, 13], "y": ["no", "yes"]}, public)
    units = load_private(ints, 0, table_encoder(ints, 0)).units
    floats = _settings(tmp_path, {"a": [12.0, 13.0], "y": ["no", "yes"]}, public)
    assert load_private(floats, 0, table_encoder(floats, 0)).units.tolist() == units.tolist()


@given(st.lists(st.tuples(st.text(max_size=3), st.none() | st.text(max_size=3)), min_size=2, max_size=8))
def test_row_bytes_tell_rows_apart(rows: list[tuple[str, str | None]]) -> None:
    """Equal rows give equal bytes and different rows different ones, missing values and empty text included."""
    batch = pa.RecordBatch.from_arrays(
        [pa.array([a for a, _ in rows], pa.string()), pa.array([b for _, b in rows], pa.string())], names=["a", "b"]
    )
    found = list(row_bytes(batch))
    assert [x == y for x in rows for y in rows] == [x == y for x in found for y in found]


def _cell(value: object) -> bytes:
    """A cell's bytes, one at a time: what the columns at once must give."""
    if value is None:
        return b"n"
    if isinstance(value, str):
        return b"s" + struct.pack("<q", len(value.encode())) + value.encode()
    if isinstance(value, datetime):
        return b"t" + struct.pack("<q", (value - datetime(1970, 1, 1)) // timedelta(microseconds=1))
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**53:
        return b"i" + struct.pack("<q", value)
    return b"f" + struct.pack("<d", float(value) + 0.0)  # type: ignore[arg-type]


CELLS = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(2**53 - 2, 2**53 + 2),
    pa.float64(): st.floats(allow_nan=False) | st.just(-0.0),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=4),
    pa.timestamp("us"): st.datetimes(),
}


@given(st.data(), st.lists(st.sampled_from(list(CELLS)), min_size=1, max_size=5), st.integers(0, 5))
def test_row_bytes_are_each_cells_bytes(data: st.DataObject, kinds: list[pa.DataType], rows: int) -> None:
    """Of every type, in the order of the columns' names."""
    columns = [[data.draw(st.none() | CELLS[kind]) for _ in range(rows)] for kind in kinds]
    names = data.draw(st.permutations("abcde"[: len(kinds)]))
    batch = pa.RecordBatch.from_arrays([pa.array(c, k) for c, k in zip(columns, kinds, strict=True)], names=list(names))
    ordered = [column for _, column in sorted(zip(names, columns, strict=True))]
    assert row_bytes(batch) == [b"".join(map(_cell, row)) for row in zip(*ordered, strict=True)]


def test_units_stay_where_they_are(tmp_path: Path) -> None:
    """Other bytes for the same record would move every unit to another teacher, and change all votes."""
    private = {"a": [1, None, -3], "c": ["x", "é", None], "f": [0.5, math.nan, None], "b": [True, None, False]}
    settings = _settings(tmp_path, private | {"y": ["no", "yes", "no"]}, {"a": [0.0, 2.0]})
    found = load_private(settings, 0, table_encoder(settings, 0)).units.tolist()
    assert found == [
        b"539ebb7207a060bc8111949aa6bfdde1",
        b"dd63982565b69bcb15158fbbf34ace47",
        b"31695a6e0a38432d3444745547fe6d32",
    ]


def test_unit_column_decides_the_unit(tmp_path: Path) -> None:
    """Rows of one person are one unit, whatever else they hold."""
    private = {"a": [1.0, 2.0, 3.0], "who": ["p", "p", "q"], "y": ["no", "yes", "no"]}
    settings = _settings(tmp_path, private, {"a": [0.0, 2.0]}, unit="who")
    units = load_private(settings, 0, table_encoder(settings, 0)).units
    assert units[0] == units[1] != units[2]


@pytest.mark.parametrize(
    ("private", "public", "rule"),
    [
        ({"a": [1.0, math.inf], "y": ["no", "yes"]}, {"a": [0.0]}, "column 'a' must hold finite numbers only"),
        ({"a": [1.0, 2.0], "y": ["no", None]}, {"a": [0.0]}, "must hold only the labels of data.classes: no, yes"),
        ({"a": [1.0, 2.0], "y": ["no", "CANARY"]}, {"a": [0.0]}, "must hold only the labels of data.classes: no, yes"),
        ({"a": [1.0, 2.0], "y": [0.0, 1.0]}, {"a": [0.0]}, "column 'y' has type double"),
        ({"a": ["CANARY", "2"], "y": ["no", "yes"]}, {"a": [0.0]}, "column 'a' must hold double values only"),
        ({"b": [1.0, 2.0], "y": ["no", "yes"]}, {"a": [0.0]}, "has no column 'a'"),
        ({"a": [1.0, 2.0]}, {"a": [0.0]}, "data.label = 'y'"),
        ({"a": [1.0], "y": ["no"]}, {"y": ["no"]}, "has no feature column"),
    ],
)
def test_bad_private_rows_name_column_and_rule_and_no_value(
    tmp_path: Path, private: dict[str, object], public: dict[str, object], rule: str
) -> None:
    """One line that holds no value of a private row."""
    settings = _settings(tmp_path, private, public)
    with pytest.raises(UserError) as caught:
        load_private(settings, 0, table_encoder(settings, 0))
    assert rule in str(caught.value)
    assert "CANARY" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [pa.float64(), pa.null()])
def test_float_or_missing_units_are_refused(tmp_path: Path, kind: pa.DataType) -> None:
    """Ids that went through floats are no ids."""
    who = pa.array([1, 2] if kind == pa.float64() else [None, None]).cast(kind)
    settings = _settings(tmp_path, {"a": [1.0, 2.0], "who": who, "y": ["no", "yes"]}, {"a": [0.0]}, unit="who")
    with pytest.raises(UserError, match="column 'who'"):
        load_private(settings, 0, table_encoder(settings, 0))


def test_not_a_parquet_file(tmp_path: Path) -> None:
    """A file of another kind is one line that names it."""
    (tmp_path / "x.parquet").write_text("hello")
    settings = DataSettings(
        name="t",
        source="parquet",
        label="y",
        classes=["no", "yes"],
        private=str(tmp_path / "x.parquet"),
        public=str(tmp_path / "x.parquet") + "[:1]",
        test=None,
    )
    with pytest.raises(UserError, match="is not a readable Parquet file"):
        load_public(settings, 0)


def test_public_ids_are_rows_of_the_file_or_the_id_column(tmp_path: Path) -> None:
    """public_id joins labels to the user's public rows."""
    private = {"a": [1.0, 2.0], "key": ["r", "s"], "y": ["no", "yes"]}
    rows = _settings(tmp_path, private, {"a": [0.0, 2.0, 5.0], "key": ["u", "v", "w"]})
    assert load_public(rows, 0).ids.tolist() == [0, 1, 2]
    named = rows.model_copy(update={"id": "key"})
    assert load_public(named, 0).ids.tolist() == ["u", "v", "w"]


def test_repeated_public_ids_are_refused(tmp_path: Path) -> None:
    """A label could not be joined to one public row."""
    private = {"a": [1.0, 2.0], "key": ["r", "s"], "y": ["no", "yes"]}
    settings = _settings(tmp_path, private, {"a": [0.0, 2.0], "key": ["u", "u"]}, id="key")
    with pytest.raises(UserError, match="public ids must be unique"):
        load_public(settings, 0)


def test_overlapping_slices_are_refused(tmp_path: Path) -> None:
    """A private row must not be public as well."""
    path = _write(tmp_path / "all.parquet", a=[float(n) for n in range(9)], y=["no", "yes", "no"] * 3)
    settings = DataSettings(
        name="t",
        source="parquet",
        path=path,
        label="y",
        classes=["no", "yes"],
        private="all[:5]",
        public="all[4:]",
        test=None,
    )
    with pytest.raises(UserError, match=r"overlaps data\.private"):
        load_public(settings, 0)


def test_adult_splits_by_unit(test_data: Path) -> None:
    """Equal records are one unit and fall into one part; the test part is labelled, the public part is not."""
    settings = DataSettings(
        name="adult",
        source="parquet",
        path=str(test_data / "datasets/adult/adult.parquet"),
        label="income",
        classes=["<=50K", ">50K"],
        private=30_000,
        public=12_000,
        test=3_000,
    )
    encoder = table_encoder(settings, 0)
    private, public, test = load_private(settings, 0, encoder), load_public(settings, 0), load_test(settings, 0)
    assert test is not None
    assert len(private.labels) + len(public.ids) + len(test.ids) == 45_222
    assert len(np.unique(private.units)) < len(private.units)
    assert public.labels is None
    assert test.labels is not None
    assert 0.2 < test.labels.mean() < 0.3
    assert np.abs(public.features.mean(axis=0)[:1]).max() < 1e-3
