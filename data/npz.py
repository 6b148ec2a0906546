"""NumPy archives (.npz): an array of features beside arrays of labels, ids, units and subgroups, a row a record.

Arrays are read one member at a time, in blocks of rows, so a member larger than memory is never held whole (one in
Fortran's order is). Nothing is unpickled. Before anything is decompressed the size that the array's header declares
must be the size that the archive declares, and that must be one that its compressed bytes can hold.

The private file is read here too: errors name file, array and rule, never a value, a row or a count.
"""

import contextlib
import math
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from data.errors import UserError

_SUFFIX = ".npy"
_BLOCK_BYTES = 8 << 20
# No compressed byte of a zip's usual method makes more than 1,032 (zlib's documentation); 64 for the ends.
_MOST_EXPANSION = 1032
_NUMBERS, _TEXT = "biuf", "US"
_LARGEST_ID = 2**63 - 1
# NumPy reads a header with Python's parser, which in Python 3.11 fails when two threads use it at once.
_HEADERS = threading.Lock()


@dataclass(frozen=True)
class Member:
    """An array in an archive, as its header declares it."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool
    header: int

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Whatever a broken archive raises is one line; the cause could hold values of the file."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception:
        raise UserError(
            f"{str(path)!r}: is not a readable .npz file of arrays (broken, or not written by NumPy)"
        ) from None


def members(path: Path) -> dict[str, Member]:
    """The arrays of an archive by name, from headers alone."""
    if not path.is_file():
        raise UserError(f"{str(path)!r}: no such file")
    found: dict[str, Member] = {}
    with _readable(path), zipfile.ZipFile(path) as archive:
        size = path.stat().st_size
        for info in archive.infolist():
            if info.is_dir():
                continue
            name = info.filename.removesuffix(_SUFFIX)
            if name == info.filename or name in found:
                raise UserError(f"{str(path)!r}: must hold .npy arrays of different names only")
            if info.compress_size > size or info.file_size > info.compress_size * _MOST_EXPANSION + 64:
                raise UserError(f"{str(path)!r}: array {name!r} declares a size that the file cannot hold")
            with archive.open(info) as stream:
                found[name] = _member(path, name, stream, info.file_size)
    return found


def _member(path: Path, name: str, stream: IO[bytes], size: int) -> Member:
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
    with _HEADERS:
        shape, fortran, dtype = read(stream)
    if dtype.kind not in _NUMBERS + _TEXT or (dtype.kind == "f" and dtype.itemsize > 8):
        raise UserError(f"{str(path)!r}: array {name!r} must hold numbers, true/false or text (no objects)")
    header = stream.tell()
    if any(length < 0 for length in shape) or header + math.prod(shape) * dtype.itemsize != size:
        raise UserError(f"{str(path)!r}: array {name!r} is not as long as its header declares")
    if not shape:
        raise UserError(f"{str(path)!r}: array {name!r} must have a row for each record, and is a single value")
    return Member(path, name, shape, dtype, fortran and len(shape) > 1, header)


def member(path: Path, found: dict[str, Member], name: str, field: str) -> Member:
    """The array of that name; the error names the setting ``field``."""
    if name not in found:
        raise UserError(f"{field} = {name!r}: {path} has no such array")
    return found[name]


def features_of(path: Path, found: dict[str, Member], apart: set[str]) -> Member:
    """The one array that is neither label, id, unit nor subgroup."""
    left = sorted(set(found) - apart)
    if len(left) != 1:
        held = f"holds {', '.join(map(repr, left))}" if left else "holds none"
        raise UserError(
            f"{str(path)!r}: must hold one array of features besides label, id, unit and subgroup, and {held}"
        )
    features = found[left[0]]
    if features.dtype.kind not in _NUMBERS:
        raise UserError(f"{str(path)!r}: array {features.name!r} must hold numbers")
    if len(features.shape) not in (2, 3, 4) or 0 in features.shape[1:]:
        raise UserError(
            f"{str(path)!r}: array {features.name!r} must be vectors (N, D) or images (N, H, W), (N, H, W, C), "
            "(N, C, H, W) with C = 1 or 3"
        )
    return features


def blocks(array: Member) -> Iterator[tuple[int, np.ndarray]]:
    """(first row, rows) of the array, block by block, in its own type."""
    rows = array.shape[0]
    with _readable(array.path), zipfile.ZipFile(array.path) as archive, archive.open(array.name + _SUFFIX) as stream:
        stream.seek(array.header)
        whole = array.fortran or not array.row_bytes
        step = rows if whole else max(1, _BLOCK_BYTES // array.row_bytes)
        for start in range(0, rows, max(step, 1)):
            here = min(step, rows - start)
            flat = np.frombuffer(_exactly(stream, here * array.row_bytes), array.dtype) if array.row_bytes else None
            if flat is None:
                yield start, np.zeros((here, *array.shape[1:]), array.dtype)
            elif array.fortran:
                yield start, flat.reshape(array.shape[::-1]).T
            else:
                yield start, flat.reshape(here, *array.shape[1:])
        # The end of the stream: the archive's checksum is compared there.
        if stream.read(1):
            raise ValueError("more bytes than declared")


def _exactly(stream: IO[bytes], size: int) -> bytearray:
    out = bytearray()
    while len(out) < size:
        part = stream.read(min(size - len(out), _BLOCK_BYTES))
        if not part:
            raise EOFError
        out += part
    return out


def vector(array: Member, rows: int) -> np.ndarray:
    """A whole array (N,); ``rows`` is the number of records that the features have."""
    if len(array.shape) != 1 or array.shape[0] != rows:
        raise UserError(f"{str(array.path)!r}: array {array.name!r} must hold one value for each record")
    parts = [block for _, block in blocks(array)]
    return np.concatenate(parts) if parts else np.zeros(0, array.dtype)


def names(array: Member, rows: int) -> list[int] | list[str]:
    """Ids or units: integers or text, one for each record."""
    values = vector(array, rows)
    if array.dtype.kind in "iu":
        if array.dtype == np.uint64 and len(values) and values.max() > _LARGEST_ID:
            raise UserError(f"{str(array.path)!r}: array {array.name!r} must hold ids below 2^63")
        return [int(value) for value in values.tolist()]
    text = _text(array, values) if array.dtype.kind in _TEXT else []
    if array.dtype.kind not in _TEXT or "" in text:
        raise UserError(
            f"{str(array.path)!r}: array {array.name!r} must name an id or unit, integer or text, in every row"
        )
    return text


def text(array: Member, total: int, rows: np.ndarray) -> np.ndarray:
    """The given of ``total`` values as text (N,)."""
    values = vector(array, total)[rows]
    return np.array(_text(array, values) if array.dtype.kind in _TEXT else values.astype(str).tolist(), dtype=str)


def _text(array: Member, values: np.ndarray) -> list[str]:
    try:
        text = np.char.decode(values, "utf-8").tolist() if array.dtype.kind == "S" else values.tolist()
        "".join(text).encode()
    except ValueError:
        raise UserError(f"{str(array.path)!r}: array {array.name!r} must hold text in UTF-8") from None
    return list(text)


def label_numbers(array: Member, total: int, rows: np.ndarray, classes: tuple[str, ...]) -> np.ndarray:
    """Labels (N,) int32 of the given of ``total`` rows as positions in ``classes``.

    Text names a class. Integers and true/false are the classes' numbers 0 to C − 1, or, where every class is named by
    an integer, those names.
    """
    values = vector(array, total)[rows]
    rule = f"{str(array.path)!r}: array {array.name!r} must hold only "
    if array.dtype.kind in _TEXT:
        positions = {name: position for position, name in enumerate(classes)}
        found = [positions.get(name, -1) for name in _text(array, values)]
        allowed = f"the labels of data.classes: {', '.join(classes)}"
    elif array.dtype.kind in "biu":
        numbers = [_integer(name) for name in classes]
        by_name = all(number is not None for number in numbers)
        positions_of = {number: at for at, number in enumerate(numbers if by_name else range(len(classes)))}
        found = [positions_of.get(int(value), -1) for value in values.tolist()]
        allowed = (
            f"the labels of data.classes: {', '.join(classes)}"
            if by_name
            else f"class numbers 0 to {len(classes) - 1}, in the order of data.classes"
        )
    else:
        raise UserError(f"{str(array.path)!r}: array {array.name!r} must hold integers, true/false or text: labels")
    labels = np.array(found, dtype=np.int32)
    if (labels < 0).any():
        raise UserError(rule + allowed)
    return labels


def _integer(name: str) -> int | None:
    try:
        return int(name) if str(int(name)) == name else None
    except ValueError:
        return None
