"""Whatever bytes a table's file holds, reading it succeeds or ends in one line for the user: no other exception."""

import io
import tempfile
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.encoding import TableEncoder
from data.errors import UserError
from data.private import load_private
from data.public import load_public, load_test, table_encoder
from data.settings import DataSettings

FEW = settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
HEADER = b"n,d,t,who,y\n"
ROWS = b"".join(
    b'%d.5,2020-01-0%d,"a ""b"",%d",p%d,%s\r\n' % (n, n + 1, n, n % 3, [b"no", b"yes"][n % 2]) for n in range(6)
)


def _columns() -> dict[str, pa.Array]:
    return {
        "n": pa.array([1.5, None, 2.0]),
        "d": pa.array([date(2020, 1, 1), None, date(2021, 1, 1)]),
        "t": pa.array(["a", "b", None]).dictionary_encode(),
        "who": pa.array([1, 2, 2]),
        "y": pa.array(["no", "yes", "no"]),
    }


def _parquet(columns: dict[str, pa.Array]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


def read_everything(source: str, valid: bytes, hostile: bytes, part: str, unit: str | None = "who") -> bool:
    """Read three files, one of them hostile; whether that succeeded. Raises for anything but a one-line UserError."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / name for name in ("private", "public", "test")}
        for name, path in paths.items():
            path.write_bytes(hostile if name == part else valid)
        try:
            data = DataSettings(
                name="t",
                source=source,
                label="y",
                unit=unit,
                subgroup=["t"],
                classes=["no", "yes"],
                **{name: str(path) for name, path in paths.items()},
            )
            encoder = table_encoder(data, 0)
            assert encoder is not None
            assert TableEncoder.from_dict(encoder.to_dict()) == encoder
            load_private(data, 0, encoder)
            load_public(data, 0)
            load_test(data, 0)
        except UserError as error:
            refusal = str(error)
        else:
            return True
    assert "\n" not in refusal
    assert len(refusal) < 1_000
    return False


PARTS = st.sampled_from(["private", "public", "test"])
UNITS = st.sampled_from(["who", None])


@st.composite
def mutated(draw: st.DrawFn, valid: bytes) -> bytes:
    """The bytes with some of them replaced, removed or repeated."""
    raw = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(raw) - 1)) if raw else 0
        length = draw(st.integers(0, 12))
        raw[at : at + length] = draw(
            st.binary(max_size=8) | st.sampled_from([b'"', b"\n", b"\r", b",", b"\0", b"\xff"])
        )
    return bytes(raw)


@FEW
@given(st.binary(max_size=200) | st.text(alphabet='a1,;"\n\r .-ny\t', max_size=60).map(str.encode), PARTS, UNITS)
def test_any_bytes_as_csv(raw: bytes, part: str, unit: str | None) -> None:
    """Random bytes, and text of the marks that CSV gives a meaning, under a header or not."""
    read_everything("csv", HEADER + ROWS, raw, part, unit)
    read_everything("csv", HEADER + ROWS, HEADER + raw, part, unit)


@FEW
@given(mutated(HEADER + ROWS), PARTS, UNITS)
def test_damaged_csv(raw: bytes, part: str, unit: str | None) -> None:
    """A valid file with a few changed bytes."""
    read_everything("csv", HEADER + ROWS, raw, part, unit)


@FEW
@given(mutated(_parquet(_columns())), PARTS, UNITS)
def test_damaged_parquet(raw: bytes, part: str, unit: str | None) -> None:
    """A valid file with a few changed bytes: in its pages, its metadata, its lengths."""
    read_everything("parquet", _parquet(_columns()), raw, part, unit)


CELLS: dict[pa.DataType, st.SearchStrategy] = {
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=5),
    pa.large_string(): st.text(max_size=5),
    pa.dictionary(pa.int8(), pa.string()): st.sampled_from(["a", "b", "no", "yes"]),
    pa.date32(): st.dates(),
    pa.timestamp("ns"): st.datetimes(min_value=datetime(1700, 1, 1), max_value=datetime(2200, 1, 1)),
    pa.timestamp("s", "Europe/Paris"): st.datetimes(timezones=st.just(UTC)),
    pa.decimal128(30, 3): st.decimals(-1000, 1000, places=3),
    pa.binary(): st.binary(max_size=3),
    pa.list_(pa.int8()): st.lists(st.integers(0, 9), max_size=2),
    pa.struct([("a", pa.int8())]): st.just({"a": 1}),
    pa.null(): st.none(),
    pa.time32("s"): st.times(),
}


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """A Parquet file whose columns have any types, some of them those that the other parts have."""
    rows = draw(st.integers(0, 4))
    columns = _columns()
    out = {}
    for name in draw(st.lists(st.sampled_from([*columns, "x"]), min_size=1, max_size=6, unique=True)):
        kind = draw(st.sampled_from(list(CELLS)))
        if name in columns and draw(st.booleans()):
            out[name] = columns[name].take(pa.array([n % 3 for n in range(rows)], pa.int64()))
        else:
            out[name] = pa.array([draw(st.none() | CELLS[kind]) for _ in range(rows)], kind)
    return _parquet(out)


@FEW
@given(tables(), PARTS, UNITS)
def test_any_schema(raw: bytes, part: str, unit: str | None) -> None:
    """Columns of any type under the names that settings give a meaning."""
    read_everything("parquet", _parquet(_columns()), raw, part, unit)


def test_the_files_that_are_damaged_are_valid() -> None:
    """Else every example would be refused for one and the same reason."""
    assert read_everything("csv", HEADER + ROWS, HEADER + ROWS, "private")
    assert read_everything("parquet", _parquet(_columns()), _parquet(_columns()), "private", None)
