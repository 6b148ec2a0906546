"""Public inputs: features and ids of the public part, features, ids and labels of the test part.

The public part's labels, where a source has them, are never returned: a public label would be free information that
a user's own public data does not have.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa

from data import images, tables
from data.encoding import TableEncoder, encode, fit_encoder
from data.errors import UserError
from data.examples import Examples
from data.settings import TABLES, DataSettings
from data.split import Rows, path_of, rows_of


def _feature_schema(settings: DataSettings, path: Path) -> pa.Schema:
    schema = tables.schema_of(path, "data.public")
    for field in ("label", "unit", "id"):
        name = getattr(settings, field)
        # Public rows need neither label nor unit; ids they need to be joined by.
        if field == "id" and name is not None and name not in schema.names:
            raise UserError(f"data.id = {name!r}: {path} has no such column")
    apart = {settings.label, settings.unit, settings.id}
    columns = [f for f in schema if f.name not in apart]
    if not columns:
        raise UserError(f"{path}: has no feature column besides label, unit and id")
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
    path = path_of(settings, public.part)
    schema = _feature_schema(settings, path)
    kept = (batch for batch, _ in _selected(path, schema, public.rows))
    return fit_encoder(kept, schema, path)


def image_form(settings: DataSettings, seed: int) -> images.Form:
    """What records of a source other than tables are read as, fitted on the public part."""
    public = _rows(settings, seed, "public")
    return images.fit(settings, public.part, public.rows)


def _selected(path: Path, schema: pa.Schema, rows: np.ndarray):  # type: ignore[no-untyped-def]
    """Batches reduced to ``rows`` (sorted), with their row numbers."""
    start = 0
    for batch in tables.batches(path, "data", schema):
        here = rows[(rows >= start) & (rows < start + batch.num_rows)] - start
        if len(here):
            yield batch.take(pa.array(here)), here + start
        start += batch.num_rows


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
        return Examples(features, ids, images.labels(settings, chosen.part, chosen.rows) if labelled else None)
    encoder = table_encoder(settings, seed)
    if encoder is None:
        raise UserError("data.source: must be a table here")
    path = path_of(settings, chosen.part)
    return _load_table(settings, encoder, path, chosen.rows, labelled=labelled)


def _load_table(
    settings: DataSettings, encoder: TableEncoder, path: Path, rows: np.ndarray, *, labelled: bool
) -> Examples:
    schema = encoder.schema()
    file_schema = tables.schema_of(path, "data")
    for name in (settings.id, settings.label if labelled else None):
        if name is not None:
            if name not in file_schema.names:
                raise UserError(f"{path}: has no column {name!r}")
            schema = schema.append(file_schema.field(name))
    features, labels, ids = [], [], []
    for batch, numbers in _selected(path, schema, rows):
        features.append(encode(encoder, batch, path))
        if labelled and settings.label:
            labels.append(tables.label_numbers(batch[settings.label], settings.class_names, path, settings.label))
        if settings.id:
            tables.id_bytes(batch[settings.id], path, settings.id)
            ids.extend(batch[settings.id].to_pylist())
        else:
            ids.extend(numbers.tolist())
    names = np.array(ids)
    if len(np.unique(names)) != len(names):
        raise UserError(f"data.id = {settings.id!r}: {path} repeats an id; public ids must be unique")
    return Examples(np.concatenate(features), names, np.concatenate(labels) if labelled else None)
