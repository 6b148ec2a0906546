"""A first look at a user's file or folder: names, types and counts, never a value of a private row.

The curator's: what is found is printed to whoever runs `pate init` and goes into a config, which is theirs too.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from data import csv_files, csv_values, imagefolder, npz, tables
from data.csv_files import Dialect
from data.errors import UserError
from data.settings import Source
from data.tables import TableFile

ENCODINGS = ("utf-8", "cp1252")
_PARTS = {
    "private": ("private", "train"),
    "public": ("public", "unlabelled", "unlabeled"),
    "test": ("test", "valid", "validation"),
}


@dataclass(frozen=True)
class Table:
    """A table's dialect (None: Parquet), rows, and columns with their types as text."""

    file: TableFile
    rows: int
    columns: dict[str, str]


def source_of(path: Path) -> Source:
    """The kind of source that a path is, by its suffix; UserError for another."""
    if path.is_dir():
        return "imagefolder"
    kinds: dict[str, Source] = {".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".txt": "csv", ".npz": "npz"}
    if not path.exists():
        raise UserError(f"FILE = {str(path)!r}: no such file or folder")
    if path.suffix.lower() not in kinds:
        raise UserError(f"FILE = {str(path)!r}: must be a folder of images, or end in {', '.join(kinds)}")
    return kinds[path.suffix.lower()]


def table(path: Path, field: str, encoding: str | None = None) -> Table:
    """A table's columns and rows. Of CSV the dialect is found: encoding, delimiter and decimal mark.

    The types of CSV columns are looked for in all rows; they are shown and not kept: a run infers them from public
    rows alone.
    """
    if path.suffix.lower() == ".parquet":
        file = TableFile(path, field)
        return Table(file, tables.row_count(file), {f.name: _named(f.type) for f in tables.schema_of(file)})
    if encoding is not None and not csv_files.is_text_encoding(encoding):
        raise UserError(f"--encoding = {encoding!r}: must be a text encoding, e.g. utf-8 or cp1252")
    tried = ENCODINGS if encoding is None else (encoding,)
    for each in tried:
        try:
            return _csv(path, field, each)
        except UserError as error:
            if each == tried[-1] or "text: declare" not in str(error):
                raise
    raise AssertionError(tried)


def _csv(path: Path, field: str, encoding: str) -> Table:
    found = csv_files.find_dialect(path, field, encoding)
    names = csv_files.column_names(path, field, found)
    rows = tables.row_count(TableFile(path, field, found))
    try:
        file, schema = _typed(path, field, found, names)
    except UserError:
        # Numbers that the decimal point does not read.
        file, schema = _typed(path, field, Dialect(found.delimiter, found.encoding, ","), names)
    return Table(file, rows, {f.name: _named(f.type) for f in schema})


def _typed(path: Path, field: str, dialect: Dialect, names: tuple[str, ...]) -> tuple[TableFile, pa.Schema]:
    file = TableFile(path, field, dialect)
    # Columns that no run uses are here too: what is wrong with a date is said where it is read.
    return file, csv_values.infer(tables.batches(file, names), names, dialect.decimal, path, only_iso=False)


def _named(kind: pa.DataType) -> str:
    if pa.types.is_string(kind):
        return "text"
    if pa.types.is_boolean(kind):
        return "true/false"
    if pa.types.is_timestamp(kind):
        return "date"
    return "whole number" if pa.types.is_integer(kind) else "number"


def distinct(found: Table, column: str) -> int:
    """How many different values a column has: a count, not the values."""
    seen: set[object] = set()
    for batch in tables.batches(found.file, [column]):
        seen.update(batch.column(0).unique().to_pylist())
    return len(seen - {None, ""})


def label_names(found: Table, column: str) -> list[str]:
    """The values of a label column of a *public* file, as class names, sorted."""
    if column not in found.columns:
        raise UserError(f"--test = {str(found.file.path)!r}: has no column {column!r}")
    schema = tables.schema_of(found.file)
    seen: set[str] = set()
    for batch in tables.batches(found.file, [column]):
        values = tables.typed(batch, pa.schema([schema.field(column)]), found.file).column(0)
        seen.update(str(value) for value in values.cast(pa.string()).unique().to_pylist() if value is not None)
    return sorted(seen)


def parts_of_folder(folder: Path) -> dict[str, Path]:
    """private, public and test where a folder holds them by name; else the folder is the private part."""
    inside = {entry.name.lower(): entry for entry in sorted(folder.iterdir()) if entry.is_dir()}
    found = {part: inside[name] for part, names in _PARTS.items() for name in reversed(names) if name in inside}
    return found if "private" in found else {"private": folder}


def class_folders(folder: Path) -> list[str]:
    """The names of the folders in a folder of images: its classes."""
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def images(folder: Path) -> int:
    """Image files below a folder."""
    return len(imagefolder.list_images(folder).names)


def arrays(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of an archive's arrays."""
    return {name: member.shape for name, member in npz.members(path).items()}


_ID_WORDS = r"(patient|person|subject|user|customer|client|member|individual|household|employee|student|participant)"
_ID = re.compile(rf"^({_ID_WORDS}s?([ _-]?(id|no|nr|num|number|key|code))?|.*[ _-]id|id)$", re.IGNORECASE)
_LABEL = re.compile(r"^(label|class|target|outcome|diagnosis|y)$", re.IGNORECASE)


def looks_like_unit(column: str) -> bool:
    """Whether a column's name suggests that it names a person.

    >>> [looks_like_unit(name) for name in ("patient_id", "person", "ID", "paid", "valid", "user number")]
    [True, True, True, False, False, True]
    """
    return _ID.match(column) is not None


def looks_like_label(column: str) -> bool:
    """Whether a column's name suggests that it is what is to be predicted."""
    return _LABEL.match(column) is not None
