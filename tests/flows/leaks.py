"""The detector of the zone proof: is anything that is known to be private to be found in what may be seen?

``leaks(surfaces, canaries)`` searches bytes. A text canary or a run of numbers is long enough never to occur by chance,
so it is looked for anywhere: plain, UTF-16, hex, base64 at every alignment, as a plain SHA-256/MD5 of itself, as
float32/float64/int32/int64 in either byte order, as decimal text. A single number is looked for as a word of its own
in text, once times, ports, line numbers, identifiers and digests are taken out of it, and only where it has at least
four digits: fewer cannot be told from chance. A sequence of numbers is also compared with every numeric column of
every table found (Parquet, SQLite), whatever its type.
"""

import base64
import contextlib
import gzip
import hashlib
import html
import io
import math
import re
import sqlite3
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_SHORTEST = 8  # bytes that are looked for anywhere
_NOISE = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d([.,]\d+)?"  # times
    r"|\b[0-9a-f]{64}\b[^0-9]{0,30}[\d,]+"  # a file's digest, with its size beside it
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}\b|\b[0-9a-f]{16,}\b"  # identifiers and digests
    r"|content-length\W+b?\W?\d+|\[\d+ bytes\]|\bid=\d+|run_time\W{1,4}[\d.]+|\([\d.]+/s"  # of requests, rates
    r"|(?<=[a-z0-9\])]):\d{2,5}\b|\bport\W{1,3}\d+|\b(?:pid|process|PID)\W{1,3}\d+"  # where a process is
    r"|\bline \d+|\b0x[0-9a-f]+|\bd=\"[^\"]*\"|\b(?:x|y|points|transform)=\"[^\"]*\"",  # tracebacks, shapes of charts
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(?<![\w.-])\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?!\w|\.\d|-\w)")


@dataclass(frozen=True)
class Canary:
    """Something private: a text, one number, or a sequence of numbers (N,), under a name for the message."""

    name: str
    value: str | bytes | int | float | np.ndarray


def leaks(surfaces: Mapping[str, bytes], canaries: Sequence[Canary]) -> list[str]:
    """``"canary in surface"`` for everything found; empty when nothing private is to be seen."""
    anywhere = [(canary.name, needle) for canary in canaries for needle in set(_needles(canary.value))]
    words = [(canary.name, word) for canary in canaries for word in set(_words(canary.value))]
    columns = {c.name: np.asarray(c.value, float) for c in canaries if isinstance(c.value, np.ndarray)}
    found = []
    for name, data in surfaces.items():
        for part, content in _opened(name, data):
            found += [f"{canary} in {part}" for canary, needle in anywhere if needle in content]
            text = _NOISE.sub(" ", content.decode("utf-8", "replace")) if _is_text(content) else ""
            tokens = set(_NUMBER.findall(text))
            found += [f"{canary} in {part}" for canary, word in words if word in tokens]
        for part, column in _columns(name, data):
            found += [f"{canary} in {part}" for canary, value in columns.items() if _same(column, value)]
    return sorted(set(found))


def files_under(*folders: Path) -> dict[str, bytes]:
    """Every file under the folders, hidden ones too."""
    files = [file for folder in folders for file in sorted(folder.rglob("*")) if file.is_file()]
    return {str(file): file.read_bytes() for file in files}


def _needles(value: str | bytes | int | float | np.ndarray) -> Iterator[bytes]:
    if isinstance(value, np.ndarray):
        for raw in _binary(value):
            yield from _encoded(raw)
        whole = np.array_equal(value, np.rint(value))
        for texts in ([repr(v) for v in value.tolist()], [f"{v:.0f}" for v in value.tolist() if whole]):
            for glue in (", ", ",", " ", "\n", "/", "\t") if texts else ():
                yield glue.join(texts).encode()
    elif isinstance(value, float):
        # As decimals cut after 8 significant digits, so that what stands behind them does not hide it.
        whole = f"{value:.17f}"
        yield whole[: len(whole) - len(whole.lstrip("0.")) + 9].encode()
        yield from (raw for raw in _binary(np.array([value])) if len(raw) >= _SHORTEST)
    elif not isinstance(value, int):
        raw = value.encode() if isinstance(value, str) else value
        yield from _encoded(raw)
        if isinstance(value, str):
            yield value.encode("utf-16-le")
            yield value.encode("utf-16-be")
        for digest in (hashlib.sha256, hashlib.md5, hashlib.sha1, hashlib.blake2b):
            yield digest(raw).hexdigest().encode()
            yield digest(raw).digest()


def _words(value: str | bytes | int | float | np.ndarray) -> Iterator[str]:
    if isinstance(value, int) and value >= 1000:
        yield from (str(value), f"{value:,}")
    elif isinstance(value, float):
        # Rounded up is how ε is written.
        up = f"{math.ceil(value * 1e4) / 1e4:.4f}".rstrip("0") if math.isfinite(value) else ""
        words = (up, f"{value:.4f}", f"{value:.5f}", f"{value:.5g}", f"{value:.6g}", f"{100 * value:.3f}")
        yield from (word for word in words if len(re.sub(r"\D", "", word).lstrip("0")) >= 5)


def _binary(values: np.ndarray) -> list[bytes]:
    kinds = ["<f4", "<f8", ">f4", ">f8"]
    if np.array_equal(values, np.rint(values)):
        kinds += ["<i4", "<i8", ">i4", ">i8", *(["<i2"] if np.abs(values).max(initial=0) < 2**15 else [])]
        kinds += ["u1"] if values.min(initial=0) >= 0 and values.max(initial=0) < 256 else []
    return [values.astype(kind).tobytes() for kind in kinds]


def _encoded(raw: bytes) -> Iterator[bytes]:
    if len(raw) < _SHORTEST:
        return
    yield from (raw, raw.hex().encode(), raw.hex().upper().encode())
    for shift in range(3):
        # Of the characters that the canary alone decides, whatever stands before and after it.
        middle = base64.b64encode(b"\0" * shift + raw)[(shift * 8 + 5) // 6 : (shift + len(raw)) * 8 // 6]
        yield from (middle, middle.translate(bytes.maketrans(b"+/", b"-_")))


def _is_text(content: bytes) -> bool:
    return b"\0" not in content[:4096]


def _opened(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """The bytes themselves, and what is packed inside of them."""
    yield name, data
    if data[:2] == b"\x1f\x8b":
        yield from _opened(f"{name} (gunzip)", gzip.decompress(data))
    elif data[:4] == b"PK\x03\x04":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.namelist():
                yield from _opened(f"{name}/{entry}", archive.read(entry))
    elif data[:4] == b"PAR1":
        table = pq.read_table(io.BytesIO(data))
        yield f"{name} (rows)", f"{table.schema.metadata}\n{table.to_pylist()}".encode()
        for column in table.column_names:
            yield f"{name} ({column})", str(table[column].to_pylist()).encode()
    elif data[:15] == b"SQLite format 3":
        for table_name, rows in _tables(data).items():
            yield f"{name} ({table_name})", "\n".join(map(repr, rows)).encode()
    elif b"<html" in data[:400]:
        yield f"{name} (text)", html.unescape(re.sub(r"<[^>]*>", " ", data.decode())).encode()


def _tables(data: bytes) -> dict[str, list[tuple[object, ...]]]:
    # Bytes 18 and 19 say "write-ahead log", which a database in memory cannot have; the log is a surface of its own.
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(data[:18] + b"\1\1" + data[20:])
        names = [row[0] for row in database.execute("select name from sqlite_master where type = 'table'")]
        return {name: database.execute(f'select * from "{name}"').fetchall() for name in names}


def _columns(name: str, data: bytes) -> Iterator[tuple[str, np.ndarray]]:
    """Every numeric column of a table, lists flattened."""
    if data[:4] == b"PAR1":
        table = pq.read_table(io.BytesIO(data))
        for column in table.column_names:
            values = table[column].combine_chunks()
            while isinstance(values, pa.ListArray | pa.FixedSizeListArray | pa.LargeListArray):
                values = values.flatten()
            if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
                yield f"{name} (column {column})", np.asarray(values.to_pylist(), float)


def _same(column: np.ndarray, value: np.ndarray) -> bool:
    """Whether a column is the sequence, its first rows, or the same values in another order."""
    shorter = min(len(column), len(value))
    if shorter < _SHORTEST or len(np.unique(value[:shorter])) < 3 or len(column) > len(value):
        return False
    return np.array_equal(column, value[:shorter]) or np.array_equal(np.sort(column), np.sort(value[:shorter]))
