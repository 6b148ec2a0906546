"""CSV files as streams of text cells: the dialect, the header line, the rows.

Every cell is read as text; what it means is decided elsewhere, from public rows (:mod:`data.csv_values`). Cells may be
quoted, with doubled quotes and line ends inside; lines end in LF, CRLF or CR; empty lines are skipped. The parser is
Arrow's, which streams and drops nothing silently: a row of more or fewer cells than the header is an error.
"""

import codecs
import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pyarrow as pa
import pyarrow.csv as arrow_csv

from data.errors import UserError

DELIMITERS = (",", ";", "\t", "|")
# One line, in bytes; Arrow needs a whole line in a block.
LONGEST_LINE = 8 << 20
# Every batch costs each column a few calls: wider data belongs in an array (npz).
MOST_COLUMNS = 4_096
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_OTHER_FILES = {
    b"\x1f\x8b": "is compressed by gzip: unpack it",
    b"PK\x03\x04": "is a ZIP archive or a spreadsheet: export it as CSV",
    b"PAR1": "is a Parquet file: set data.source to parquet",
}


@dataclass(frozen=True)
class Dialect:
    """How the text of a CSV file is to be read. ``decimal``: the mark in its numbers."""

    delimiter: str = ","
    encoding: str = "utf-8"
    decimal: str = "."


def is_text_encoding(name: str) -> bool:
    """Whether Python knows ``name`` as an encoding of text."""
    try:
        "".encode(name)
        return isinstance("a,1".encode(name).decode(name), str)
    except (LookupError, UnicodeError, ValueError):
        return False


def find_dialect(path: Path, field: str, encoding: str = "utf-8", decimal: str = ".") -> Dialect:
    """The dialect whose delimiter occurs most often, outside quotes, in the header line."""
    bare = _QUOTED.sub("", _header_line(path, field, encoding))
    counts = {delimiter: bare.count(delimiter) for delimiter in DELIMITERS}
    best = max(counts.values())
    found = [delimiter for delimiter, count in counts.items() if count == best]
    if best and len(found) > 1:
        raise UserError(f"{field} = {str(path)!r}: the header line leaves the delimiter open: declare data.delimiter")
    return Dialect(found[0], encoding, decimal)


def column_names(path: Path, field: str, dialect: Dialect) -> tuple[str, ...]:
    """The header's names, with white space around them dropped and line ends in them made spaces."""
    return tuple(" ".join(name.split()) for name in _raw_names(path, field, dialect))


def _header_line(path: Path, field: str, encoding: str) -> str:
    if not path.is_file():
        raise UserError(f"{field} = {str(path)!r}: no such file")
    try:
        with path.open("rb") as raw:
            start = raw.read(4)
        for magic, what in _OTHER_FILES.items():
            if start.startswith(magic):
                raise UserError(f"{field} = {str(path)!r}: {what}")
        # An empty ``newline`` ends lines at CR, LF and CRLF and leaves them as they are.
        with path.open(encoding=encoding, newline="") as stream:
            line = _first_record(stream)
    except UnicodeError:
        raise _not_text(path, field, encoding) from None
    except OSError as error:
        raise UserError(f"{field} = {str(path)!r}: cannot be read ({error.strerror})") from None
    if not line.strip():
        raise UserError(f"{field} = {str(path)!r}: is empty; it must open with a header line that names the columns")
    if len(line) >= LONGEST_LINE:
        raise UserError(f"{field} = {str(path)!r}: a line is longer than {LONGEST_LINE >> 20} MiB")
    if "\0" in line:
        raise _not_text(path, field, encoding)
    return line


def _first_record(stream: TextIO) -> str:
    lines: list[str] = []
    size = quotes = 0
    while size < LONGEST_LINE and (line := stream.readline(LONGEST_LINE)):
        if not lines and not line.strip("\ufeff\r\n"):
            continue
        lines.append(line if lines else line.removeprefix("\ufeff"))
        size += len(line)
        quotes += line.count('"')
        if quotes % 2 == 0:
            break
    return "".join(lines)


def _not_text(path: Path, field: str, encoding: str) -> UserError:
    return UserError(f"{field} = {str(path)!r}: is not {encoding} text: declare data.encoding, e.g. cp1252")


def _raw_names(path: Path, field: str, dialect: Dialect) -> tuple[str, ...]:
    line = _header_line(path, field, dialect.encoding)
    try:
        raw = next(csv.reader(io.StringIO(line, newline=""), delimiter=dialect.delimiter))
    except csv.Error:
        raise UserError(f"{field} = {str(path)!r}: has no readable header line") from None
    if len(raw) > MOST_COLUMNS:
        raise UserError(f"{field} = {str(path)!r}: has {len(raw)} columns; at most {MOST_COLUMNS} are read (use npz)")
    seen = set()
    for position, name in enumerate(raw, start=1):
        plain = " ".join(name.split())
        if not plain:
            raise UserError(f"{field} = {str(path)!r}: the header does not name column {position}: name it or drop it")
        if plain in seen:
            raise UserError(f"{field} = {str(path)!r}: column {plain!r} appears more than once")
        seen.add(plain)
    return tuple(raw)


def batches(path: Path, field: str, dialect: Dialect, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The cells of the named columns as text, raw: no cell is missing, an empty one is ''."""
    raw = dict(zip(column_names(path, field, dialect), _raw_names(path, field, dialect), strict=True))
    missing = [name for name in names if name not in raw]
    if missing:
        raise UserError(f"{field} = {str(path)!r}: has no column {missing[0]!r}")
    wanted = [raw[name] for name in names]
    try:
        with pa.OSFile(str(path)) as source:
            reader = arrow_csv.open_csv(
                source,
                arrow_csv.ReadOptions(block_size=LONGEST_LINE, encoding=_arrow_encoding(dialect.encoding)),
                arrow_csv.ParseOptions(delimiter=dialect.delimiter, newlines_in_values=True),
                arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(wanted, pa.string()), include_columns=wanted, strings_can_be_null=False
                ),
            )
            for batch in reader:
                yield pa.RecordBatch.from_arrays(batch.columns, names=list(names))
    except MemoryError:
        raise
    except UnicodeError:
        raise _not_text(path, field, dialect.encoding) from None
    except (pa.ArrowException, OSError) as error:
        # The cause may hold a row's text: only its kind is kept.
        rule = _rule(str(error), len(raw))
        if rule is None:
            return
        if not rule:
            raise _not_text(path, field, dialect.encoding) from None
        raise UserError(f"{field} = {str(path)!r}: {rule}") from None


def _arrow_encoding(encoding: str) -> str:
    # Arrow reads UTF-8 itself, past a byte order mark; others go through Python's codecs.
    return "utf8" if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig") else encoding


def _rule(message: str, columns: int) -> str | None:
    """What a file breaks, by Arrow's message; '' for bytes that are not text, None for a file without rows."""
    if "Empty CSV file" in message:
        return None
    if "invalid UTF8" in message:
        return ""
    if "straddling" in message:
        return f"a line is longer than {LONGEST_LINE >> 20} MiB, or a quote is not closed"
    if "Expected" in message:
        if columns == 1:
            return "rows hold more cells than the header, 1: is data.delimiter the file's?"
        return f"every row must have as many cells as the header, {columns}"
    return "is not a readable CSV file"
