"""Reading private records. Private zone: nothing here may be imported by the student side.

Neighbouring datasets: one unit of the private part added or removed, with all its records. Released here: nothing.
Types, columns and encodings are fixed by settings and the public part (:mod:`data.encoding`); a record's id is a keyed
hash of its own bytes. Errors name file, column and rule, never a value, a row or a count.
"""

import hmac
from pathlib import Path

import numpy as np

from data import images, tables
from data.encoding import TableEncoder, encode
from data.errors import UserError
from data.examples import PrivateRecords
from data.identity import unit_ids
from data.selectors import select
from data.settings import TABLES, DataSettings
from data.split import path_of, rows_of, unit_names

_CHUNK = 1 << 20


def load_private(settings: DataSettings, seed: int, encoder: TableEncoder | None) -> PrivateRecords:
    """All private records, with the keyed hash of the unit each belongs to."""
    chosen = rows_of(settings, seed, "private")
    if chosen is None:
        raise UserError("data.private: must be set")
    names = unit_names(settings, chosen.part)
    units = unit_ids([names[row] for row in chosen.rows], seed)
    if encoder is None:
        pixels, labels = images.read(settings, chosen.part)
        return PrivateRecords(pixels[chosen.rows], labels[chosen.rows], units, units)
    path = path_of(settings, chosen.part)
    schema = encoder.schema()
    file_schema = tables.schema_of(path, "data.private")
    if settings.label not in file_schema.names:
        raise UserError(f"data.label = {settings.label!r}: {path} has no such column")
    label = settings.label or ""
    schema = schema.append(file_schema.field(label))
    features, labels_, content = [], [], []
    for batch in tables.batches(path, "data.private", schema):
        features.append(encode(encoder, batch.drop_columns([label]), path))
        labels_.append(tables.label_numbers(batch[label], settings.class_names, path, label))
        content.append(unit_ids(tables.row_bytes(batch), seed))
    rows = chosen.rows
    return PrivateRecords(
        np.concatenate(features)[rows], np.concatenate(labels_)[rows], units, np.concatenate(content)[rows]
    )


def ignored_columns(settings: DataSettings, encoder: TableEncoder | None) -> tuple[str, ...]:
    """Names of the private file's columns that are not used, since the public file does not have them."""
    chosen = select(settings, "private")
    if encoder is None or chosen is None:
        return ()
    used = {column.name for column in encoder.columns} | {settings.label, settings.unit, settings.id}
    names = tables.schema_of(path_of(settings, chosen.part), "data.private").names
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
    """HMAC-SHA256 of the files' bytes. Keyed: a plain hash of private data tells anybody who guesses it right."""
    digest = hmac.new(key, digestmod="sha256")
    for file in files:
        try:
            digest.update(file.stat().st_size.to_bytes(8, "little"))
            with file.open("rb") as stream:
                while block := stream.read(_CHUNK):
                    digest.update(block)
        except OSError as error:
            raise UserError(f"data: {str(file)!r}: cannot be read ({error.strerror})") from None
    return digest.hexdigest()
