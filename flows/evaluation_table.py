"""``release/evaluation.parquet``: every measured number of a run, a row each, from released models and public inputs.

Written by the report stage, the only one that has both models, so that they are compared on the same inputs.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa

from accounting.statement import Statement, parquet_metadata
from data.artifacts import read_table, write_table
from data.public import load_test
from data.streams import stream
from flows import encoding
from flows.settings import Settings
from student.measures import Row, measure
from student.rates import CONFIDENCE
from teachers.saved import Loaded

NAME = "evaluation.parquet"
SCHEMA = pa.schema(
    [
        ("model", pa.string()),
        ("measure", pa.string()),
        ("scope", pa.string()),
        ("column", pa.string()),
        ("value", pa.string()),
        ("class", pa.string()),
        ("estimate", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("count", pa.int64()),
        ("interval", pa.string()),
    ]
)


def rows_of(settings: Settings, release: Path, student: Loaded, baseline: Loaded | None) -> list[Row]:
    """Every row of the released models of a folder; none where the settings name no labelled test part."""
    test = load_test(settings.data, settings.seed)
    if test is None or test.labels is None:
        return []
    probabilities: dict[str, np.ndarray] = {"student": student.probabilities(test.features)}
    if baseline is not None:
        seen = encoding.inputs_for_baseline(settings, release / "encoder", test.features)
        probabilities["baseline"] = baseline.probabilities(seen)
    return measure(
        probabilities, test.labels, test.groups, settings.data.class_names, stream(settings.seed, "evaluation")
    )


def write(path: Path, rows: list[Row], statement: Statement) -> None:
    """The table with the privacy of the labels, and of the baseline where it has rows, in its metadata.

    Without rows there is no file, nor is one of a former run left.
    """
    if not rows:
        path.unlink(missing_ok=True)
        return
    columns = zip(*(dataclasses.astuple(row) for row in rows), strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    write_table(path, pa.table(arrays, schema=SCHEMA.with_metadata(_metadata(statement))))


def _metadata(statement: Statement) -> dict[str, str]:
    metadata = parquet_metadata(statement) | {"pate.confidence": repr(CONFIDENCE)}
    if statement.baseline is None:
        return metadata
    return metadata | {
        "pate.baseline.epsilon": repr(float(statement.baseline.epsilon)),
        "pate.baseline.delta": repr(float(statement.baseline.delta)),
    }


def read(path: Path) -> list[Row]:
    """The rows of a written table; none where there is no file."""
    if not path.exists():
        return []
    table = read_table(path, tuple(SCHEMA.names))
    return [Row(*values) for values in zip(*(table[name].to_pylist() for name in SCHEMA.names), strict=True)]
