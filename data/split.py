"""Which rows of which part are private, public and test."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from data import content, csv_files, images, tables
from data.csv_files import Dialect
from data.errors import UserError
from data.identity import UNIT_DTYPE, split_by_count, unit_ids
from data.selectors import WHOLE, Selection, select
from data.settings import FILES, TABLES, DataSettings
from data.tables import TableFile


@dataclass(frozen=True)
class Rows:
    """Rows of one part of a source. ``part`` is a part's name or a file; ``rows`` are 0-based, before any split."""

    part: str
    rows: np.ndarray


def path_of(settings: DataSettings, part: str) -> Path:
    """The file (imagefolder: the folder) behind a part."""
    return Path(settings.path).expanduser() if part == WHOLE and settings.path else Path(part)


def dialect_of(settings: DataSettings) -> Dialect | None:
    """How CSV files are read: as declared, the delimiter else as the *public* file's header has it. None: no CSV."""
    if settings.source != "csv":
        return None
    encoding = settings.encoding or "utf-8"
    if settings.delimiter is not None:
        return Dialect(settings.delimiter, encoding, settings.decimal)
    public = select(settings, "public")
    if public is None:
        raise UserError("data.public: must be set")
    return csv_files.find_dialect(path_of(settings, public.part), "data.public", encoding, settings.decimal)


def table_of(settings: DataSettings, part: str, field: str) -> TableFile:
    """The table behind a part of data.``field``, or behind data.path: what errors name."""
    shown = "data.path" if part == WHOLE and settings.path else f"data.{field}"
    return TableFile(path_of(settings, part), shown, dialect_of(settings))


def row_count(settings: DataSettings, part: str, field: str) -> int:
    """Rows of a part that data.``field`` names."""
    if settings.source in TABLES:
        return tables.row_count(table_of(settings, part, field))
    return images.count(settings, part)


def units_of(settings: DataSettings, part: str, seed: int) -> np.ndarray:
    """Keyed hashes (N,) of the unit of each row: of the unit column, else the id column, else the whole record."""
    if settings.source not in TABLES:
        return unit_ids(images.unit_names(settings, part), seed)
    file = table_of(settings, part, "private")
    names = tables.schema_of(file).names
    column = settings.unit or settings.id
    if column is not None and column not in names:
        raise UserError(f"data.{'unit' if settings.unit else 'id'} = {column!r}: {file.path} has no such column")
    found = file.path.stat()
    return _hashed(file, column, seed, (found.st_ino, found.st_size, found.st_mtime_ns))


def units_at(settings: DataSettings, chosen: Rows, seed: int) -> np.ndarray:
    """Keyed hashes of the unit of each chosen row."""
    units = units_of(settings, chosen.part, seed)
    if chosen.rows[-1] >= len(units):
        raise UserError(f"data: {chosen.part!r}: holds fewer rows than it did, or than it says")
    return units[chosen.rows]


# One set split by unit is asked for its units by every part of every stage, and hashing a large one takes minutes.
@functools.lru_cache(maxsize=2)
def _hashed(file: TableFile, column: str | None, seed: int, state: tuple[int, ...]) -> np.ndarray:
    """Keyed hashes (N,) of a column, or of whole records; ``state``: a changed file is read anew."""
    schema = tables.schema_of(file)
    if column is None:
        blocks = (unit_ids(content.row_bytes(batch), seed) for batch in _records(file, schema))
    else:
        only = pa.schema([schema.field(column)])
        ids = (tables.typed(batch, only, file).column(0) for batch in tables.batches(file, [column]))
        blocks = (unit_ids(content.id_bytes(each, file.path, column), seed) for each in ids)
    hashes = np.concatenate([np.zeros(0, UNIT_DTYPE), *blocks])
    hashes.flags.writeable = False
    return hashes


def _records(file: TableFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Whole records as they are hashed: of CSV the raw cells, of Parquet the plain types that writers agree on."""
    for batch in tables.batches(file, schema.names):
        yield batch if file.dialect is not None else tables.typed(batch, schema, file)


def _counted(settings: DataSettings, seed: int, field: str) -> Rows:
    """Counts of *units* of the one set: public first, then test; every other unit is private.

    A count for the private part says what the curator expects; it never drops units, since a unit added or removed
    would then displace another and touch two teachers. A count that is far off is refused as a likely mistake.
    """
    public, test = int(settings.public), int(settings.test or 0)
    ids = units_of(settings, WHOLE, seed)
    units = len(np.unique(ids))
    if public + test >= units:
        raise UserError("data.public, data.test: ask for as many units as the set holds: none is left to be private")
    remaining = units - public - test
    if not remaining / 2 <= int(settings.private) <= remaining * 2:
        raise UserError(
            "data.private: all units that are neither public nor test are private; the count given is far from theirs"
        )
    parts = dict(zip(("public", "test", "private"), split_by_count(ids, (public, test, remaining), seed), strict=True))
    return Rows(WHOLE, parts[field])


def rows_of(settings: DataSettings, seed: int, field: str) -> Rows | None:
    """The rows that ``data.<field>`` (private, public or test) names; None for an absent test part."""
    chosen: Selection | None = select(settings, field)
    if chosen is None:
        return None
    if chosen.count is not None:
        return _counted(settings, seed, field)
    total = row_count(settings, chosen.part, field)
    rows = np.arange(chosen.start, total if chosen.stop is None else min(chosen.stop, total))
    if len(rows) == 0:
        raise UserError(f"data.{field} = {getattr(settings, field)!r}: holds no row")
    _disjoint(settings, field, chosen)
    return Rows(chosen.part, rows)


def _same_file(settings: DataSettings, one: str, other: str) -> bool:
    if one == other or settings.source not in FILES:
        return one == other
    first, second = path_of(settings, one), path_of(settings, other)
    if not (first.exists() and second.exists()):
        return False
    return first.samefile(second) or _nested(first, second)


def _nested(one: Path, other: Path) -> bool:
    """Whether one is a folder that holds the other: whatever is sliced of them, their files are the same."""
    first, second = one.resolve(), other.resolve()
    return first in second.parents or second in first.parents


def _disjoint(settings: DataSettings, field: str, chosen: Selection) -> None:
    """The private part must not overlap another part of the same file: a private label would be read as public."""
    for other in ("private", "public", "test"):
        rival = select(settings, other) if other != field else None
        if rival is None or rival.count is not None or not _same_file(settings, rival.part, chosen.part):
            continue
        nested = settings.source in FILES and _nested(path_of(settings, rival.part), path_of(settings, chosen.part))
        if nested or max(chosen.start, rival.start) < min(chosen.stop or 2**62, rival.stop or 2**62):
            raise UserError(f"data.{field} = {getattr(settings, field)!r}: overlaps data.{other}")
