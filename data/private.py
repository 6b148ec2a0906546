"""Reading private records. Private zone: nothing here may be imported by the student side.

Neighbouring datasets: one unit of the private part added or removed, with all its records. Released here: nothing.
Types, columns and encodings are fixed by settings and the public part (:mod:`data.encoding`); a record's id is a keyed
hash of its own bytes. Errors name file, column and rule, never a value, a row or a count.
"""

import hmac
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from data import imagefolder, images, tables
from data.arrays import new_array
from data.content import row_bytes
from data.encoding import TableEncoder, encode
from data.errors import UserError
from data.examples import PrivateRecords
from data.identity import UNIT_DTYPE, unit_ids
from data.public import image_form
from data.selectors import select
from data.settings import TABLES, DataSettings
from data.split import Rows, path_of, rows_of, table_of, units_at

_CHUNK = 1 << 20


def load_private(
    settings: DataSettings, seed: int, encoder: TableEncoder | None, scratch: Path | None = None
) -> PrivateRecords:
    """All private records, with the keyed hash of the unit each belongs to.

    Read in batches. Features of many records lie in a nameless file in ``scratch``, a folder of the private zone, that
    is gone when they are.
    """
    chosen = rows_of(settings, seed, "private")
    if chosen is None:
        raise UserError("data.private: must be set")
    units = units_at(settings, chosen, seed)
    if encoder is None:
        return _load_images(settings, seed, chosen, units, scratch)
    return _load_table(settings, seed, encoder, chosen, units, scratch)


def _load_table(
    settings: DataSettings, seed: int, encoder: TableEncoder, chosen: Rows, units: np.ndarray, scratch: Path | None
) -> PrivateRecords:
    file = table_of(settings, chosen.part, "private")
    columns = tables.schema_of(file)
    label = settings.label or ""
    if label not in columns.names:
        raise UserError(f"data.label = {label!r}: {file.path} has no such column")
    schema = encoder.schema(file).append(columns.field(label))
    count = len(chosen.rows)
    features = new_array((count, encoder.width), np.dtype(np.float32), scratch)
    labels = np.empty(count, np.int32)
    content = np.empty(count, UNIT_DTYPE)
    at = 0
    for batch, _ in tables.rows_in(file, schema.names, chosen.rows):
        values = tables.typed(batch, schema, file)
        rows = slice(at, at + batch.num_rows)
        labels[rows] = tables.label_numbers(values[label], settings.class_names, file.path, label)
        # Of CSV the raw cells, so that no reading of them can move a record.
        content[rows] = unit_ids(row_bytes(values if file.dialect is None else batch), seed)
        for piece in tables.pieces(values, encoder.width):
            features[at : at + piece.num_rows] = encode(encoder, piece, file.path)
            at += piece.num_rows
    return PrivateRecords(features, labels, units, content)


def _load_images(
    settings: DataSettings, seed: int, chosen: Rows, units: np.ndarray, scratch: Path | None
) -> PrivateRecords:
    part, rows = chosen.part, chosen.rows
    features = images.read(settings, part, rows, image_form(settings, seed), public=False, scratch=scratch)
    named = settings.unit or settings.id
    # Without a name a unit is its content.
    content = unit_ids(images.content_names(settings, part, rows), seed) if named else units
    return PrivateRecords(features, images.labels(settings, part, rows), units, content)


def ignored_columns(settings: DataSettings, encoder: TableEncoder | None) -> tuple[str, ...]:
    """Names of the private file's columns that are not used, since the public file does not have them."""
    chosen = select(settings, "private")
    if encoder is None or chosen is None:
        return ()
    used = {column.name for column in encoder.columns} | {settings.label, settings.unit, settings.id}
    names = tables.schema_of(table_of(settings, chosen.part, "private")).names
    return tuple(name for name in names if name not in used)


def source_files(settings: DataSettings, field: str) -> tuple[Path, ...]:
    """The files behind data.<field>; empty for an absent test part."""
    chosen = select(settings, field)
    if chosen is None:
        return ()
    if settings.source in TABLES:
        return (path_of(settings, chosen.part),)
    return images.files(settings, chosen.part)


def keyed_digest(files: tuple[Path, ...], key: bytes) -> str:
    """HMAC-SHA256 of the files' bytes. Keyed: a plain hash of private data tells anybody who guesses it right.

    Of a folder: of its image files' relative names, which hold their labels, and bytes.
    """
    digest = hmac.new(key, digestmod="sha256")
    for file in _each_file(files, digest.update):
        try:
            digest.update(file.stat().st_size.to_bytes(8, "little"))
            with file.open("rb") as stream:
                while block := stream.read(_CHUNK):
                    digest.update(block)
        except OSError as error:
            raise UserError(f"data: {str(file)!r}: cannot be read ({error.strerror})") from None
    return digest.hexdigest()


def _each_file(files: tuple[Path, ...], name: Callable[[bytes], object]) -> Iterator[Path]:
    """The files, and those in folders, of which ``name`` is told the relative names."""
    for file in files:
        if not file.is_dir():
            yield file
            continue
        listing = imagefolder.list_images(file)
        for relative, path in zip(listing.names, listing.paths(), strict=True):
            raw = os.fsencode(relative)
            name(len(raw).to_bytes(8, "little") + raw)
            yield path
