"""Files that people have by accident: each is one line that says what is wrong, or is read as it was meant."""

import gzip
import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.errors import UserError
from data.private import load_private
from data.public import load_public, load_test, table_encoder
from data.settings import DataSettings

PARTS = ("private", "public", "test")
GOOD = "a,b,y\n1,x,no\n2.5,y,yes\n"
WIDE = 100_000


def _data(folder: Path, source: str) -> DataSettings:
    paths = {part: str(folder / part) for part in PARTS}
    return DataSettings(name="t", source=source, label="y", classes=["no", "yes"], **paths)


def _read(data: DataSettings) -> int:
    """Read every part; private records read."""
    encoder = table_encoder(data, 0)
    records = load_private(data, 0, encoder)
    load_public(data, 0)
    test = load_test(data, 0)
    assert test is not None
    assert np.isfinite(records.features).all()
    return len(records.labels)


def _zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("sheet.xml", "x")
    return out.getvalue()


def _parquet(**columns: object) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


REFUSED: dict[str, tuple[bytes, str]] = {
    "cp1252": ("a,b,y\n1,é,no\n".encode("cp1252"), "is not utf-8 text: declare data.encoding"),
    "cp1252 header": ("a,é,y\n1,x,no\n".encode("cp1252"), "is not utf-8 text: declare data.encoding"),
    "utf-16": (GOOD.encode("utf-16"), "is not utf-8 text: declare data.encoding"),
    "utf-16, no mark": (GOOD.encode("utf-16-le"), "is not utf-8 text: declare data.encoding"),
    "gzip": (gzip.compress(GOOD.encode()), "is compressed by gzip"),
    "spreadsheet": (_zip(), "is a ZIP archive or a spreadsheet"),
    "parquet": (_parquet(a=[1.0], y=["no"]), "is a Parquet file: set data.source"),
    "binary": (bytes(range(256)) * 20, "is not utf-8 text"),
    "zeros": (bytes(1000), "is not utf-8 text"),
    "empty": (b"", "is empty; it must open with a header line"),
    "blank": (b"\n \n\n", "is empty; it must open with a header line"),
    "header": (b"a,b,y\n", "holds no row"),
    "header, no line end": (b"a,b,y", "holds no row"),
    "short row": (b"a,b,y\n1,x,no\n2,no\n", "every row must have as many cells as the header, 3"),
    "long row": (b"a,b,y\n1,x,no\n2,x,no,CANARY\n", "every row must have as many cells as the header, 3"),
    "repeated column": (b"a,b,y,a\n1,x,no,1\n", "column 'a' appears more than once"),
    "repeated but for space": (b"a,b,y, a \n1,x,no,1\n", "column 'a' appears more than once"),
    "index of pandas": (b",a,b,y\n0,1,x,no\n", "the header does not name column 1"),
    "trailing delimiter": (b"a,b,y,\n1,x,no,\n", "the header does not name column 4"),
    "wide": (",".join(f"c{n}" for n in range(WIDE)).encode() + b"\n", "has 100000 columns; at most 4096 are read"),
    "long header": (b"a" * (8 << 20), "a line is longer than 8 MiB"),
    "open quote": (b'a,b,y\n1,"x,no\n', "every row must have as many cells"),
    "open quote in the header": (b'a,"b,y\n' + b"1,x,no\n" * 9, ""),
}
CELLS: dict[str, tuple[str, str]] = {
    "grouped": ('"1,234"', "column 'a' must hold numbers only, with decimal mark '.' and no other separator"),
    "infinite": ("inf", "column 'a' must hold finite numbers only"),
    "beyond float": ("1e999", "column 'a' must hold finite numbers only"),
    "word": ("CANARY", "column 'a' must hold numbers only"),
    "hexadecimal": ("0x1F", "column 'a' must hold numbers only"),
    "null byte": ("1\0", "column 'a' must hold numbers only"),
    "date": ("2020-01-01", "column 'a' must hold numbers only"),
}
READ: dict[str, bytes] = {
    "byte order mark": b"\xef\xbb\xbf" + GOOD.encode(),
    "CRLF": GOOD.replace("\n", "\r\n").encode(),
    "CR": GOOD.replace("\n", "\r").encode(),
    "no last line end": GOOD.strip().encode(),
    "empty last lines": (GOOD + "\n\n").encode(),
    "spaces": b" a , b , y \n 1 , x , no \n 2.5 , y , yes \n",
    "huge integer": GOOD.replace("2.5", "9" * 40).encode(),
    "null byte in text": GOOD.replace("x", "x\0").encode(),
    "more columns": b"z,a,b,y\nCANARY,1,x,no\n,2,x,yes\n",
    "one class": GOOD.replace("yes", "no").encode(),
    "one row": b"a,b,y\n1,x,no\n",
    "quoted line ends": b'a,b,y\n1,"x\r\n""q""",no\n2,y,yes\n',
}


def _refusal(data: DataSettings) -> str:
    with pytest.raises(UserError) as caught:
        _read(data)
    text = str(caught.value)
    assert "\n" not in text
    assert "CANARY" not in text
    assert len(text) < 500
    return text


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", REFUSED)
def test_files_refused(tmp_path: Path, name: str, part: str) -> None:
    """In any part: the setting that names the file, and the rule."""
    raw, rule = REFUSED[name]
    for each in PARTS:
        (tmp_path / each).write_bytes(raw if each == part else GOOD.encode())
    text = _refusal(_data(tmp_path, "csv"))
    assert rule in text
    assert str(tmp_path / part) in text or f"data.{part}" in text


@pytest.mark.parametrize("name", CELLS)
def test_cells_refused(tmp_path: Path, name: str) -> None:
    """A cell of a private or test row that is not of its column's type: the column, never the cell."""
    cell, rule = CELLS[name]
    for part in ("private", "test"):
        for each in PARTS:
            text = GOOD.replace("2.5", cell) if each == part else GOOD
            (tmp_path / each).write_text(text, newline="")
        assert rule in _refusal(_data(tmp_path, "csv"))


@pytest.mark.parametrize("name", READ)
def test_files_read(tmp_path: Path, name: str) -> None:
    """As private and as test file."""
    for part in ("private", "test"):
        for each in PARTS:
            (tmp_path / each).write_bytes(READ[name] if each == part else GOOD.encode())
        assert _read(_data(tmp_path, "csv")) == (1 if name == "one row" and part == "private" else 2)


def _grid(columns: int, rows: int, cell: str) -> bytes:
    names = [*(f"c{n}" for n in range(columns - 1)), "y"]
    return "\n".join([",".join(names), *[",".join([cell] * (columns - 1) + ["no"])] * rows]).encode()


PUBLIC: dict[str, tuple[bytes, str]] = {
    "mixed": (b"a,b,y\n1,x,no\nword,y,no\n", ""),
    "all missing": (b"a,b,y\n,,no\nNA,,no\n", ""),
    "nothing at all": (b"a,b,y\n,,no\n,,no\n", "its columns make 0 features; must be 1 to 65536"),
    "label alone": (b"y\nno\nyes\n", "has no feature column"),
    "grouped": (b'a,b,y\n"1,000",x,no\n1,y,no\n', "column 'a' looks like numbers with a thousands separator"),
    "infinite": (b"a,b,y\n1,x,no\ninf,y,no\n", "column 'a' must hold finite numbers only"),
    "huge": (b"a,b,y\n1e200,x,no\n-1e200,y,no\n", "column 'a' holds numbers too large to be scaled"),
    "names": ("a,b,y\n" + "".join(f"1,name {n},no\n" for n in range(1_001)), "text column 'b' has over 1000 values"),
    "impossible dates": (b"a,b,y\n2020-02-30,x,no\n1,y,no\n", ""),
    "tie": (b"a,b;y\n1,2;no\n", "the header line leaves the delimiter open: declare data.delimiter"),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_files(tmp_path: Path, name: str) -> None:
    """What decides types and scaling is refused where it cannot; mixed columns are text."""
    raw, rule = PUBLIC[name]
    (tmp_path / "public").write_bytes(raw if isinstance(raw, bytes) else raw.encode())
    for part in ("private", "test"):
        (tmp_path / part).write_text(GOOD)
    data = _data(tmp_path, "csv")
    if rule:
        assert rule in _refusal(data)
    else:
        assert _read(data) == 2


def test_a_line_longer_than_a_block(tmp_path: Path) -> None:
    """Arrow needs a whole line in two blocks at most."""
    for part in PARTS:
        (tmp_path / part).write_bytes(GOOD.encode())
    (tmp_path / "private").write_bytes(GOOD.encode() + b"1," + b"x" * (17 << 20) + b",no\n")
    assert "a line is longer than 8 MiB, or a quote is not closed" in _refusal(_data(tmp_path, "csv"))


@pytest.mark.slow
def test_as_many_columns_as_are_allowed(tmp_path: Path) -> None:
    """The widest table that is read, in seconds."""
    for part in PARTS:
        (tmp_path / part).write_bytes(_grid(4_096, 3, "1.5"))
    assert _read(_data(tmp_path, "csv")) == 3


def test_dates_out_of_range_in_parquet(tmp_path: Path) -> None:
    """Arrow's days reach further than its times: a line, no overflow."""
    for part, day in (("private", 2**31 - 1), ("public", 1), ("test", 2)):
        columns = {"a": pa.array([1, day], pa.int32()).cast(pa.date32()), "y": ["no", "yes"]}
        (tmp_path / part).write_bytes(_parquet(**columns))
    assert "column 'a' must hold" in _refusal(_data(tmp_path, "parquet"))


@pytest.mark.parametrize("part", ["private", "public"])
def test_integers_beyond_floats_in_parquet(tmp_path: Path, part: str) -> None:
    """A number that would be rounded is refused."""
    for each in PARTS:
        (tmp_path / each).write_bytes(_parquet(a=[1, 2**53 + 1 if each == part else 2], y=["no", "yes"]))
    assert "column 'a' must hold double values only" in _refusal(_data(tmp_path, "parquet"))


def test_wide_parquet(tmp_path: Path) -> None:
    """Too many columns: told from the file's metadata."""
    names = [f"c{n}" for n in range(5_000)]
    for part in PARTS:
        (tmp_path / part).write_bytes(_parquet(**{name: [1.0] for name in names}, y=["no"]))
    assert "has 5001 columns; at most 4096 are read" in _refusal(_data(tmp_path, "parquet"))


def test_repeated_columns_in_parquet(tmp_path: Path) -> None:
    """A name must mean one column."""
    for part in PARTS:
        pq.write_table(
            pa.Table.from_arrays([pa.array([1.0]), pa.array([1.0]), pa.array(["no"])], ["a", "a", "y"]), tmp_path / part
        )
    assert "column 'a' appears more than once" in _refusal(_data(tmp_path, "parquet"))


@pytest.mark.parametrize("source", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda path: path.mkdir(), "must be a file"),
        (lambda path: None, "no such file"),
        (lambda path: path.symlink_to(path.with_name("nowhere")), "no such file"),
        (lambda path: os.mkfifo(path), "no such file"),
    ],
)
def test_what_is_no_file(tmp_path: Path, make: Callable[[Path], None], rule: str, source: str) -> None:
    """A folder, nothing, a broken link, a pipe, in the place of the public file."""
    valid = GOOD.encode() if source == "csv" else _parquet(a=[1.0], y=["no"])
    for part in ("private", "test"):
        (tmp_path / part).write_bytes(valid)
    make(tmp_path / "public")
    assert rule in _refusal(_data(tmp_path, source))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything: this needs another user")
@pytest.mark.parametrize("source", ["csv", "parquet"])
def test_files_that_may_not_be_read(tmp_path: Path, source: str) -> None:
    """Told by name."""
    for part in PARTS:
        (tmp_path / part).write_bytes(GOOD.encode() if source == "csv" else _parquet(a=[1.0], y=["no"]))
    (tmp_path / "public").chmod(0)
    assert "cannot be read" in _refusal(_data(tmp_path, source))
