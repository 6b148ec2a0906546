"""Predicting with a released student: no private data, no settings, no run but its release folder.

Reads tables with the columns that the student was trained on, arrays (.npy, .npz), and image files or folders of them,
which are decoded as :mod:`data.decoding` says and resized to the student's inputs.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from data import npz, tables
from data.csv_files import Dialect, column_names, find_dialect
from data.encoding import TableEncoder, encode
from data.errors import UserError
from data.imagefolder import SUFFIXES, list_images
from data.vectors import VectorEncoder
from student.release import class_names, encoder_of, load_student
from teachers.saved import Loaded

_ARRAYS = (".npy", ".npz")
_TEXT = (".csv", ".tsv", ".txt")


@dataclass(frozen=True)
class _Inputs:
    """Features (N, *shape), and of a folder of images the relative paths."""

    features: np.ndarray
    paths: tuple[str, ...] | None = None


def predict(release_folder: str | Path, source: np.ndarray | str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Labels (N,) int64 and probabilities (N, C) float32 of ``source``.

    source: an array, a file, or a folder of images. Images in an array are whole numbers 0-255 of shape (N, H, W),
    (N, H, W, channels), (N, channels, H, W), or flat (N, channels·H·W), in the student's size. Vectors are (N, D);
    tables are files, or arrays (N, D) of columns already encoded. Raises UserError for another shape or type, a missing
    column, an unreadable image, or a value that the encoder does not take.
    """
    student = load_student(Path(release_folder))
    probabilities = student.probabilities(_inputs(student, source).features)
    return probabilities.argmax(1), probabilities


def predictions_table(release_folder: str | Path, source: np.ndarray | str | Path) -> pa.Table:
    """``row`` (0-based), ``label`` (a class's name) and ``probability`` (of that class), in the source's order.

    For a folder of images also ``path``, relative to it; its order is that of the paths' bytes.
    """
    student = load_student(Path(release_folder))
    inputs = _inputs(student, source)
    probabilities = student.probabilities(inputs.features)
    names = np.array(class_names(student), dtype=object)
    columns = {
        "row": pa.array(np.arange(len(probabilities))),
        "label": pa.array(names[probabilities.argmax(1)].tolist(), pa.string()),
        "probability": pa.array(probabilities.max(1).astype(np.float64)),
    }
    if inputs.paths is not None:
        columns["path"] = pa.array([path.encode(errors="replace").decode() for path in inputs.paths], pa.string())
    return pa.table(columns)


def _inputs(student: Loaded, source: np.ndarray | str | Path) -> _Inputs:
    encoder = encoder_of(student)
    if isinstance(source, np.ndarray):
        return _Inputs(_shaped(student, source, "features"))
    path = Path(source).expanduser()
    if path.suffix.lower() in _ARRAYS:
        return _Inputs(_shaped(student, _read_array(path), str(path)))
    if path.is_dir() or path.suffix.lower() in SUFFIXES:
        return _images(student, path)
    if not isinstance(encoder, TableEncoder):
        what = "images" if encoder is None else "vectors"
        kinds = ".npy or .npz file" + (" of images, an image, or a folder of images" if encoder is None else "")
        raise UserError(f"FILE = {str(path)!r}: must be a {kinds}: this student reads {what}")
    return _Inputs(_encoded(encoder, path))


def _images(student: Loaded, path: Path) -> _Inputs:
    # Imported here: students of tables need no Pillow.
    from data.decoding import decode, read_images

    if len(student.description.shape) != 3:
        raise UserError(f"FILE = {str(path)!r}: this student does not read images")
    channels, height, width = student.description.shape
    if channels not in (1, 3):
        raise UserError(f"FILE = {str(path)!r}: image files have 1 or 3 channels, this student's inputs {channels}")
    if not path.is_dir():
        if not path.is_file():
            raise UserError(f"FILE = {str(path)!r}: no such file")
        return _Inputs(read_images([path], (channels, height, width)))
    listing = list_images(path)
    if not listing.names:
        raise UserError(f"FILE = {str(path)!r}: holds no image ({', '.join(SUFFIXES)})")
    return _Inputs(decode(listing, (channels, height, width), public=True), listing.names)


def _table(encoder: TableEncoder, path: Path) -> tables.TableFile:
    """The table of the kind that its name says, else that the student was trained on; its delimiter may be another."""
    suffix = path.suffix.lower()
    if suffix not in _TEXT and (suffix == ".parquet" or encoder.dialect is None):
        return tables.TableFile(path, "FILE")
    known = encoder.dialect or Dialect()
    if {column.name for column in encoder.columns} <= set(column_names(path, "FILE", known)):
        return tables.TableFile(path, "FILE", known)
    return tables.TableFile(path, "FILE", find_dialect(path, "FILE", known.encoding, known.decimal))


def _encoded(encoder: TableEncoder, path: Path) -> np.ndarray:
    file = _table(encoder, path)
    schema = encoder.schema(file)
    parts = [np.zeros((0, encoder.width), np.float32)]
    for batch in tables.batches(file, schema.names):
        typed = tables.typed(batch, schema, file)
        parts += [encode(encoder, piece, path) for piece in tables.pieces(typed, encoder.width)]
    return np.concatenate(parts)


def _read_array(path: Path) -> np.ndarray:
    if not path.is_file():
        raise UserError(f"FILE = {str(path)!r}: no such file")
    if path.suffix.lower() == ".npz":
        return _read_archive(path)
    try:
        # Mapped: a header that declares more than the file holds allocates nothing.
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except MemoryError:
        raise
    except Exception:
        raise UserError(f"FILE = {str(path)!r}: is not a readable array of numbers") from None


def _read_archive(path: Path) -> np.ndarray:
    """The one array of an archive; beside labels, ids and the like the one that has more than one dimension."""
    found = list(npz.members(path).values())
    features = found if len(found) == 1 else [array for array in found if len(array.shape) > 1]
    if len(features) != 1:
        names = ", ".join(repr(array.name) for array in features) or "none"
        raise UserError(f"FILE = {str(path)!r}: must hold one array of inputs (N, ...), and holds {names}")
    parts = [block for _, block in npz.blocks(features[0])]
    return np.concatenate(parts) if parts else np.zeros(features[0].shape, features[0].dtype)


def _shaped(student: Loaded, array: np.ndarray, shown: str) -> np.ndarray:
    """``array`` as the features of the model, or a UserError that says what it takes."""
    shape = student.description.shape
    accepted: list[tuple[int, ...]] = [shape, (math.prod(shape),)]
    if len(shape) == 3 and shape[0] in (1, 3):
        accepted.append((*shape[1:], shape[0]))
    if len(shape) == 3 and shape[0] == 1:
        accepted.append(shape[1:])
    if array.shape[1:] not in accepted or array.ndim < 2:
        allowed = ", ".join(str(("N", *one)).replace("'", "") for one in dict.fromkeys(accepted))
        raise UserError(f"{shown}: has shape {array.shape}; must be one of {allowed}")
    if len(shape) == 1:
        encoder = encoder_of(student)
        if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
            kind = "vectors" if isinstance(encoder, VectorEncoder) else "encoded columns"
            raise UserError(f"{shown}: must hold finite numbers: {kind}")
        return encoder.encode(array) if isinstance(encoder, VectorEncoder) else array.astype(np.float32)
    if not np.issubdtype(array.dtype, np.integer) or (array.size and not (array.min() >= 0 and array.max() <= 255)):
        raise UserError(f"{shown}: has type {array.dtype}; pixels must be whole numbers from 0 to 255 (uint8)")
    # Channels last only where the shape can be nothing else.
    last = array.ndim == 4 and array.shape[1:] != shape
    return (array.transpose(0, 3, 1, 2) if last else array.reshape(len(array), *shape)).astype(np.uint8)
