"""Public inputs: features and ids of the public part, features, ids and labels of the test part.

The public part's labels, where a source has them, are never returned: a public label would be free information that
a user's own public data does not have.
"""

import functools
import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from data import csv_values, images, tables
from data.content import id_bytes
from data.encoding import TableEncoder, encode, fit_encoder
from data.errors import UserError
from data.examples import Examples
from data.settings import TABLES, DataSettings
from data.split import Rows, path_of, rows_of, table_of
from data.tables import TableFile

_WHOLE_NUMBER = re.compile(r"^(0|-?[1-9]\d{0,17})$", re.ASCII)


def _feature_schema(settings: DataSettings, file: TableFile) -> pa.Schema:
    schema = tables.schema_of(file)
    # Public rows need neither label nor unit; ids they need to be joined by.
    if settings.id is not None and settings.id not in schema.names:
        raise UserError(f"data.id = {settings.id!r}: {file.path} has no such column")
    apart = {settings.label, settings.unit, settings.id}
    # Whole numbers are encoded as the floats that they are exactly, or refused.
    floats = [f.with_type(pa.float64()) if pa.types.is_integer(f.type) else f for f in schema]
    columns = [f for f in floats if f.name not in apart]
    if not columns:
        raise UserError(f"{file.path}: has no feature column besides label, unit and id")
    return pa.schema(columns)


def _rows(settings: DataSettings, seed: int, field: str) -> Rows:
    rows = rows_of(settings, seed, field)
    if rows is None:
        raise UserError(f"data.{field}: is not set")
    return rows


def table_encoder(settings: DataSettings, seed: int) -> TableEncoder | None:
    """The encoder fitted on the public part's features; None for images."""
    if settings.source not in TABLES:
        return None
    public = _rows(settings, seed, "public")
    found = path_of(settings, public.part).stat()
    return _fitted(settings.model_dump_json(), seed, (found.st_ino, found.st_size, found.st_mtime_ns))


# Every part of every stage asks for the one encoder, and fitting it reads the public part twice.
@functools.lru_cache(maxsize=2)
def _fitted(settings_json: str, seed: int, state: tuple[int, ...]) -> TableEncoder:
    """The encoder that settings and the public file determine; ``state``: a changed file is read anew."""
    settings = DataSettings.model_validate_json(settings_json)
    public = _rows(settings, seed, "public")
    file = table_of(settings, public.part, "public")
    schema = _feature_schema(settings, file)
    names = tuple(schema.names)

    def batches() -> Iterator[pa.RecordBatch]:
        return (batch for batch, _ in tables.rows_in(file, names, public.rows))

    if file.dialect is not None:
        # Read twice: only when every public cell is known is it known what the columns are.
        schema = csv_values.infer(batches(), names, file.dialect.decimal, file.path)
    return fit_encoder((tables.typed(batch, schema, file) for batch in batches()), schema, file.path, file.dialect)


def image_form(settings: DataSettings, seed: int) -> images.Form:
    """What records of a source other than tables are read as, fitted on the public part."""
    public = _rows(settings, seed, "public")
    return images.fit(settings, public.part, public.rows)


def load_public(settings: DataSettings, seed: int) -> Examples:
    """The public part, unlabelled, in the source's order."""
    return _load(settings, seed, "public", labelled=False)


def load_test(settings: DataSettings, seed: int) -> Examples | None:
    """The test part with its (public) labels; None where the settings name none."""
    return None if settings.test is None else _load(settings, seed, "test", labelled=True)


def _load(settings: DataSettings, seed: int, field: str, *, labelled: bool) -> Examples:
    chosen = _rows(settings, seed, field)
    if settings.source not in TABLES:
        ids = images.ids(settings, chosen.part)[chosen.rows]
        if len(np.unique(ids)) != len(ids):
            raise UserError(f"data.id = {settings.id!r}: {chosen.part} repeats an id; public ids must be unique")
        features = images.read(settings, chosen.part, chosen.rows, image_form(settings, seed))
        if not labelled:
            return Examples(features, ids)
        groups = images.subgroups(settings, chosen.part, chosen.rows)
        return Examples(features, ids, images.labels(settings, chosen.part, chosen.rows), groups)
    encoder = table_encoder(settings, seed)
    if encoder is None:
        raise UserError("data.source: must be a table here")
    return _load_table(settings, encoder, table_of(settings, chosen.part, field), chosen.rows, labelled=labelled)


def _load_table(
    settings: DataSettings, encoder: TableEncoder, file: TableFile, rows: np.ndarray, *, labelled: bool
) -> Examples:
    columns = tables.schema_of(file)
    groups = tuple(settings.subgroup) if labelled else ()
    for field, given in (("id", [settings.id]), ("label", [settings.label] if labelled else []), ("subgroup", groups)):
        for name in given:
            if name is not None and name not in columns.names:
                raise UserError(f"data.{field} = {name!r}: {file.path} has no column {name!r}")
    schema = encoder.schema(file)
    wanted = (settings.id, settings.label if labelled else None, *groups)
    extra = list(dict.fromkeys(name for name in wanted if name is not None))
    names = list(dict.fromkeys([*schema.names, *extra]))
    features = np.empty((len(rows), encoder.width), np.float32)
    labels = np.empty(len(rows), np.int32)
    ids: list[int | str] = []
    found: dict[str, list[str]] = {name: [] for name in groups}
    at = 0
    for batch, numbers in tables.rows_in(file, names, rows):
        apart = tables.typed(batch, pa.schema([columns.field(name) for name in extra]), file)
        if labelled and settings.label:
            labels[at : at + len(numbers)] = tables.label_numbers(
                apart[settings.label], settings.class_names, file.path, settings.label
            )
        for name in groups:
            found[name] += apart[name].cast(pa.string()).fill_null("").to_pylist()
        if settings.id:
            id_bytes(apart[settings.id], file.path, settings.id)
            ids += apart[settings.id].to_pylist()
        else:
            ids += numbers.tolist()
        for piece in tables.pieces(tables.typed(batch, schema, file), encoder.width):
            features[at : at + piece.num_rows] = encode(encoder, piece, file.path)
            at += piece.num_rows
    public_ids = _public_ids(ids, file)
    if len(set(ids)) != len(ids):
        raise UserError(f"data.id = {settings.id!r}: {file.path} repeats an id; public ids must be unique")
    return Examples(
        features, public_ids, labels if labelled else None, {name: np.array(found[name]) for name in groups}
    )


def _public_ids(ids: list[int | str], file: TableFile) -> np.ndarray:
    """Ids as they join the user's own rows: in CSV, where all are text, whole numbers become what other readers see."""
    if file.dialect is not None and all(_WHOLE_NUMBER.match(str(name)) for name in ids):
        return np.array([int(name) for name in ids], dtype=np.int64)
    return np.array(ids)
