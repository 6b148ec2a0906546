"""Sources of images and arrays behind one set of functions: digits, torchvision's datasets, npz, imagefolder.

Features are uint8 (N, channels, height, width) or vectors (N, D). Every part is read in the form that the *public*
part has or that settings declare (:func:`fit`), never one that private records have: neighbouring datasets differ in
one unit of the private part and are read alike.
"""

import functools
import hashlib
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data import decoding, imagefolder, npz, torchvision_sets
from data.arrays import chosen, new_array
from data.errors import UserError
from data.imagefolder import Listing
from data.selectors import WHOLE
from data.settings import DataSettings
from data.vectors import VectorEncoder, fit_vectors

# Longer contents are named by a digest: the names of a large set fit in memory.
_LONGEST_NAME = 1_000


@dataclass(frozen=True)
class Form:
    """What every part is read as: the shape of one input; for vectors also their scaling by public moments.

    ``stored`` is the shape of one row in an npz file, e.g. with its channels last.
    """

    shape: tuple[int, ...]
    vectors: VectorEncoder | None = None
    stored: tuple[int, ...] = ()


def _path(settings: DataSettings, part: str) -> Path:
    return Path(settings.path).expanduser() if part == WHOLE and settings.path else Path(part)


def files(settings: DataSettings, part: str) -> tuple[Path, ...]:
    """The files that hold a part: what a digest of it reads. Of an imagefolder the folder."""
    if settings.source in ("npz", "imagefolder"):
        return (_path(settings, part),)
    if settings.source != "digits":
        return torchvision_sets.files(settings.source, settings.root, part)
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise UserError("data.source = 'digits': scikit-learn is not installed")
    return (Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz",)


def count(settings: DataSettings, part: str) -> int:
    """Records of a part."""
    if settings.source == "npz":
        return _features_of(settings, _path(settings, part)).shape[0]
    if settings.source == "imagefolder":
        return len(imagefolder.list_images(_path(settings, part)).names)
    return len(_bundled(settings, part)[1])


def ids(settings: DataSettings, part: str) -> np.ndarray:
    """Public ids (N,) of a part: 0-based rows of the source, or what ``data.id`` says."""
    if settings.id is None:
        return np.arange(count(settings, part), dtype=np.int64)
    path = _path(settings, part)
    if settings.source == "imagefolder":
        return imagefolder.public_ids(imagefolder.list_images(path))
    return np.array(_names_in(settings, path, settings.id, "data.id"))


def unit_names(settings: DataSettings, part: str) -> list[bytes]:
    """What names the unit of each record: ``data.unit``, else ``data.id``, else its whole content with its label."""
    path = _path(settings, part)
    column = settings.unit or settings.id
    if column is None:
        return content_names(settings, part, np.arange(count(settings, part)))
    if settings.source == "npz":
        field = "data.unit" if settings.unit else "data.id"
        return [str(name).encode() for name in _names_in(settings, path, column, field)]
    listing = imagefolder.list_images(path)
    return imagefolder.units(listing, column) if settings.unit else [os.fsencode(name) for name in listing.names]


def content_names(settings: DataSettings, part: str, rows: np.ndarray) -> list[bytes]:
    """What names the given rows (sorted) by their content, pixels or numbers and label: equal records share one."""
    numbers = labels(settings, part, rows).tolist()
    if settings.source == "imagefolder":
        listing = imagefolder.list_images(_path(settings, part)).take(rows)
        found = iter(_digests(listing, listing.signature()))
    elif settings.source == "npz":
        blocks = _blocks_of(_features_of(settings, _path(settings, part)), rows)
        # 0 is added: -0.0 is 0.0.
        found = (_content(row) for block, kept, _ in blocks for row in block[kept] + np.zeros((), block.dtype))
    else:
        pixels = _bundled(settings, part)[0]
        found = (_content(pixels[row]) for row in rows.tolist())
    return [content + _label_bytes(label) for content, label in zip(found, numbers, strict=True)]


def fit(settings: DataSettings, part: str, rows: np.ndarray) -> Form:
    """The form of all parts, from the rows of the *public* part."""
    path = _path(settings, part)
    if settings.source == "imagefolder":
        listing = imagefolder.list_images(path).take(rows)
        return Form(_public_shape(listing, listing.signature(), settings.image_size))
    if settings.source != "npz":
        return Form(_bundled(settings, part)[0].shape[1:])
    features = _features_of(settings, path)
    stored = features.shape[1:]
    if len(stored) > 1:
        return Form(_channels_first(features), None, stored)
    blocks = (_finite(features, block[kept]) for block, kept, _ in _blocks_of(features, rows))
    return Form(stored, fit_vectors(blocks, stored[0], f"{str(path)!r}: array {features.name!r}"), stored)


def read(
    settings: DataSettings,
    part: str,
    rows: np.ndarray,
    form: Form,
    *,
    public: bool = True,
    scratch: Path | None = None,
) -> np.ndarray:
    """Features (N, *form.shape) of the given rows (sorted): uint8 images, or float32 or float16 vectors.

    Unless ``public``, an error names no file of an imagefolder. ``scratch`` is where a large array may lie.
    """
    path = _path(settings, part)
    if settings.source == "imagefolder":
        listing = imagefolder.list_images(path).take(rows)
        channels, height, width = form.shape
        return _decoded(listing, listing.signature(), (channels, height, width), public, scratch)
    if settings.source != "npz":
        return chosen(_bundled(settings, part)[0], rows)
    features = _features_of(settings, path)
    if features.shape[1:] != form.stored:
        raise UserError(
            f"{str(path)!r}: array {features.name!r} must have rows of shape {form.stored}, as in data.public"
        )
    small = features.dtype == np.float16 and form.vectors is not None
    kind = np.dtype(np.uint8 if form.vectors is None else np.float16 if small else np.float32)
    out = new_array((len(rows), *form.shape), kind, scratch)
    for block, kept, start in _blocks_of(features, rows):
        part_of = block[kept]
        if form.vectors is None:
            out[start : start + len(part_of)] = _pixels(features, part_of, form)
        else:
            out[start : start + len(part_of)] = form.vectors.encode(_finite(features, part_of))
    return out


def labels(settings: DataSettings, part: str, rows: np.ndarray) -> np.ndarray:
    """Labels (N,) int32 in [0, C) of the given rows."""
    path = _path(settings, part)
    if settings.source == "imagefolder":
        return imagefolder.labels(imagefolder.list_images(path).take(rows), settings.class_names)
    if settings.source != "npz":
        return _bundled(settings, part)[1][rows]
    found = npz.members(path)
    array = npz.member(path, found, _label_name(settings), "data.label")
    return npz.label_numbers(array, _features_of(settings, path).shape[0], rows, settings.class_names)


def subgroups(settings: DataSettings, part: str, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The values (N,), as text, of each array of an npz file that ``data.subgroup`` names."""
    if settings.source != "npz":
        return {}
    path = _path(settings, part)
    found = npz.members(path)
    total = _features_of(settings, path).shape[0]
    return {name: npz.text(npz.member(path, found, name, "data.subgroup"), total, rows) for name in settings.subgroup}


def _label_name(settings: DataSettings) -> str:
    return settings.label or "labels"


def _features_of(settings: DataSettings, path: Path) -> npz.Member:
    apart = {_label_name(settings), settings.id, settings.unit, *settings.subgroup} - {None}
    return npz.features_of(path, npz.members(path), {str(name) for name in apart})


def _names_in(settings: DataSettings, path: Path, name: str, field: str) -> list[int] | list[str]:
    array = npz.member(path, npz.members(path), name, field)
    return npz.names(array, _features_of(settings, path).shape[0])


def _blocks_of(features: npz.Member, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """(block, its rows that are among ``rows``, how many of ``rows`` came before) of every block."""
    for first, block in npz.blocks(features):
        start, stop = np.searchsorted(rows, (first, first + len(block)))
        yield block, rows[start:stop] - first, int(start)


def _finite(features: npz.Member, block: np.ndarray) -> np.ndarray:
    if not np.isfinite(block).all():
        raise UserError(
            f"{str(features.path)!r}: array {features.name!r} must hold finite numbers only (no NaN, no infinity)"
        )
    return block


def _channels_first(features: npz.Member) -> tuple[int, ...]:
    """The shape (channels, height, width) of images: two dimensions are grey ones; channels, 1 or 3, are the last
    dimension if it can be, else the first."""
    stored = features.shape[1:]
    if len(stored) == 2:
        return (1, *stored)
    if stored[2] in (1, 3):
        return (stored[2], stored[0], stored[1])
    if stored[0] in (1, 3):
        return stored
    raise UserError(
        f"{str(features.path)!r}: array {features.name!r} must be images of 1 or 3 channels: (N, H, W, C), (N, C, H, W)"
    )


def _pixels(features: npz.Member, block: np.ndarray, form: Form) -> np.ndarray:
    if block.dtype.kind not in "iu" or (len(block) and (block.min() < 0 or block.max() > 255)):
        raise UserError(
            f"{str(features.path)!r}: array {features.name!r}: pixels must be whole numbers from 0 to 255 (uint8)"
        )
    last = len(form.stored) == 3 and form.stored != form.shape
    images = block.transpose(0, 3, 1, 2) if last else block
    return images.reshape(len(block), *form.shape).astype(np.uint8)


def _content(row: np.ndarray) -> bytes:
    content = row.tobytes()
    return content if len(content) <= _LONGEST_NAME else hashlib.blake2b(content, digest_size=32).digest()


def _label_bytes(label: int) -> bytes:
    return bytes([label]) if label < 256 else label.to_bytes(4, "little")


def _bundled(settings: DataSettings, part: str) -> tuple[np.ndarray, np.ndarray]:
    """All images and labels of digits or of a part of one of torchvision's datasets."""
    if settings.source == "digits":
        return _digits()
    times = tuple(file.stat().st_mtime_ns for file in torchvision_sets.files(settings.source, settings.root, part))
    return _of_torchvision(settings.source, settings.root, part, times)


# A process reads and decodes a part once: its stages ask for the same ones. The arrays are not to be written to.


@functools.lru_cache(maxsize=1)
def _digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    # 17 grey levels spread over 0..255, so that one rule (uint8 means /255) holds for every image source.
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]
    return _closed(images), _closed(digits.target.astype(np.int32))


@functools.lru_cache(maxsize=2)
def _of_torchvision(source: str, root: str, part: str, times: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    images, numbers = torchvision_sets.read(source, root, part)
    return _closed(images), _closed(numbers)


@functools.lru_cache(maxsize=3)
def _decoded(
    listing: Listing, signature: str, shape: tuple[int, int, int], public: bool, scratch: Path | None
) -> np.ndarray:
    return _closed(decoding.decode(listing, shape, public=public, scratch=scratch))


@functools.lru_cache(maxsize=2)
def _digests(listing: Listing, signature: str) -> list[bytes]:
    return decoding.contents(listing)


@functools.lru_cache(maxsize=2)
def _public_shape(listing: Listing, signature: str, size: int | None) -> tuple[int, int, int]:
    return decoding.public_shape(listing, size)


def _closed(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
