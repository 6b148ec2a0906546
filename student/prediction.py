"""Predicting with a released student: no private data, no settings, no run but its release folder.

Reads arrays of images (.npy, .npz) and Parquet tables with the columns that the student was trained on.
"""

import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from data import tables
from data.encoding import TableEncoder, encode
from data.errors import UserError
from student.release import class_names, encoder_of, load_student
from teachers.saved import Loaded

_ARRAYS = (".npy", ".npz")


def predict(release_folder: str | Path, source: np.ndarray | str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Labels (N,) int64 and probabilities (N, C) float32 of ``source``.

    source: an array, or a file with one. Images are whole numbers 0-255 of shape (N, H, W), (N, channels, H, W), or
    flat (N, channels·H·W); tables are Parquet files, or arrays (N, D) of columns already encoded. Raises UserError for
    another shape or type, a missing column, or a value that the encoder does not take.
    """
    student = load_student(Path(release_folder))
    probabilities = student.probabilities(_features(student, source))
    return probabilities.argmax(1), probabilities


def predictions_table(release_folder: str | Path, source: np.ndarray | str | Path) -> pa.Table:
    """``row`` (0-based), ``label`` (a class's name) and ``probability`` (of that class), in the source's order."""
    labels, probabilities = predict(release_folder, source)
    names = np.array(class_names(load_student(Path(release_folder))), dtype=object)
    return pa.table(
        {
            "row": pa.array(np.arange(len(labels))),
            "label": pa.array(names[labels].tolist(), pa.string()),
            "probability": pa.array(probabilities.max(1).astype(np.float64)),
        }
    )


def _features(student: Loaded, source: np.ndarray | str | Path) -> np.ndarray:
    encoder = encoder_of(student)
    if isinstance(source, np.ndarray):
        return _shaped(student, source, "features")
    path = Path(source).expanduser()
    if path.suffix in _ARRAYS:
        return _shaped(student, _read_array(path), str(path))
    if encoder is None:
        raise UserError(f"FILE = {str(path)!r}: must be a .npy or .npz file of images: this student reads images")
    return _encoded(encoder, path)


def _encoded(encoder: TableEncoder, path: Path) -> np.ndarray:
    parts = [np.zeros((0, encoder.width), np.float32)]
    parts += [encode(encoder, batch, path) for batch in tables.batches(path, "FILE", encoder.schema())]
    return np.concatenate(parts)


def _read_array(path: Path) -> np.ndarray:
    if not path.is_file():
        raise UserError(f"FILE = {str(path)!r}: no such file")
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            if len(loaded.files) != 1:
                raise UserError(f"FILE = {str(path)!r}: must hold one array, not {len(loaded.files)}")
            return np.asarray(loaded[loaded.files[0]])
    except (ValueError, OSError, EOFError, zipfile.BadZipFile):
        raise UserError(f"FILE = {str(path)!r}: is not a readable array of numbers") from None


def _shaped(student: Loaded, array: np.ndarray, shown: str) -> np.ndarray:
    """``array`` as the features of the model, or a UserError that says what it takes."""
    shape = student.description.shape
    accepted = [shape, (int(np.prod(shape)),)]
    if len(shape) == 3 and shape[0] == 1:
        accepted.append(shape[1:])
    if array.shape[1:] not in accepted or array.ndim < 2:
        allowed = ", ".join(str(("N", *one)).replace("'", "") for one in dict.fromkeys(accepted))
        raise UserError(f"{shown}: has shape {array.shape}; must be one of {allowed}")
    if len(shape) == 1:
        if not np.issubdtype(array.dtype, np.number) or not np.isfinite(array).all():
            raise UserError(f"{shown}: must hold finite numbers: encoded columns")
        return array.astype(np.float32)
    if not np.issubdtype(array.dtype, np.integer) or (array.size and not (array.min() >= 0 and array.max() <= 255)):
        raise UserError(f"{shown}: has type {array.dtype}; pixels must be whole numbers from 0 to 255 (uint8)")
    return array.reshape(len(array), *shape).astype(np.uint8)
