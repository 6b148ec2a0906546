"""Image files to uint8 arrays of one shape.

Deterministic, each file by itself: what orientation EXIF gives is applied, transparent pixels show white, 16 bits a
pixel become their upper 8, of several frames the first counts; then grey or RGB, then resized with antialiasing, sides
apart. Which shape is decided by the caller, from public images alone.

Pillow reads PNG, JPEG, BMP and WebP here whatever a file is called, TIFF where it is called so, and nothing else. All
that it and libtiff say is silenced: what they say about a private file would tell of it.
"""

import contextlib
import functools
import hashlib
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image, ImageOps

from data.arrays import new_array
from data.errors import UserError
from data.imagefolder import Listing

FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
_TIFF = (".tif", ".tiff")
MOST_PIXELS = 64_000_000
_GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N")
_THREADS = 8
_CHUNK = 256
_ORIENTATION, _TURNED = 0x0112, (5, 6, 7, 8)
_PROCESS_WIDE = threading.Lock()
_T = TypeVar("_T")

Shape = tuple[int, int, int]


class _Unreadable(Exception):
    """The rule that a file breaks; never shown with a private file's name."""


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    try:
        formats = (*FORMATS, "TIFF") if path.suffix.lower() in _TIFF else FORMATS
        with Image.open(path, formats=formats) as image:
            if image.width * image.height > MOST_PIXELS:
                raise _Unreadable(f"must have at most {MOST_PIXELS:,} pixels")
            if image.mode == "F":
                raise _Unreadable("must have 8 or 16 bits a pixel, not floating-point ones")
            yield image
    except (_Unreadable, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise _Unreadable(f"must have at most {MOST_PIXELS:,} pixels") from None
    except Exception:
        # Pillow raises of many kinds on broken files.
        raise _Unreadable("must be a whole, readable PNG, JPEG, BMP, TIFF or WebP image") from None


def _plain(image: Image.Image) -> Image.Image:
    """The image in mode L or RGB."""
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):
        values = np.clip(np.asarray(upright).astype(np.int64), 0, 65535)
        return Image.fromarray((values >> 8).astype(np.uint8))
    if upright.mode in ("1", "L"):
        return upright.convert("L")
    if upright.has_transparency_data:
        solid = upright.convert("RGBA")
        white = Image.new("RGBA", solid.size, (255, 255, 255, 255))
        upright = Image.alpha_composite(white, solid)
    return upright.convert("L" if image.mode in _GREY else "RGB")


def _shaped(path: Path, shape: Shape) -> np.ndarray:
    channels, height, width = shape
    with _opened(path) as image:
        plain = _plain(image).convert("L" if channels == 1 else "RGB")
        if plain.size != (width, height):
            plain = plain.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(plain, dtype=np.uint8)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _content(path: Path) -> bytes:
    with _opened(path) as image:
        plain = _plain(image).convert("RGB")
        state = hashlib.blake2b(repr(plain.size).encode(), digest_size=32)
        state.update(plain.tobytes())
        return state.digest()


def _form(path: Path) -> tuple[bool, int, int]:
    """Whether a file is grey, and its height and width, from its header."""
    with _opened(path) as image:
        width, height = image.size
        if image.getexif().get(_ORIENTATION) in _TURNED:
            width, height = height, width
        return image.mode in _GREY, height, width


def _each(function: Callable[[Path], _T], listing: Listing, *, public: bool) -> Iterator[tuple[int, list[_T]]]:
    """(first row, results) in chunks of rows, several files at a time."""

    def result(path: Path) -> _T | _Unreadable:
        try:
            return function(path)
        except _Unreadable as problem:
            return problem

    paths = list(listing.paths())
    tiff = any(path.suffix.lower() in _TIFF for path in paths)
    with _silent(tiff=tiff), ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        for start in range(0, len(paths), _CHUNK):
            chunk = paths[start : start + _CHUNK]
            results: list[_T] = []
            for path, found in zip(chunk, pool.map(result, chunk), strict=True):
                if isinstance(found, _Unreadable):
                    shown = f"{str(path)!r}" if public else f"every image of {str(listing.folder)!r}"
                    raise UserError(f"{shown}: {found}")
                results.append(found)
            yield start, results


@contextlib.contextmanager
def _silent(*, tiff: bool) -> Iterator[None]:
    """No warning, no log record, and no line of libtiff, which writes to the process's standard error by itself.

    All three belong to the process: set here, around all threads, by one caller at a time.
    """
    logger = logging.getLogger("PIL")
    level = logger.level
    with _PROCESS_WIDE, warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore")
        logger.setLevel(logging.CRITICAL + 1)
        stack.callback(logger.setLevel, level)
        if tiff:
            with contextlib.suppress(OSError):
                kept = os.dup(2)
                stack.callback(os.close, kept)
                stack.callback(os.dup2, kept, 2)
                with Path(os.devnull).open("wb") as nowhere:
                    os.dup2(nowhere.fileno(), 2)
        yield


def decode(listing: Listing, shape: Shape, *, public: bool, scratch: Path | None = None) -> np.ndarray:
    """All files as (N, *shape) uint8. An error names the file only where ``public``."""
    out = new_array((len(listing.names), *shape), np.dtype(np.uint8), scratch)
    for start, images in _each(functools.partial(_shaped, shape=shape), listing, public=public):
        out[start : start + len(images)] = np.stack(images)
    return out


def contents(listing: Listing) -> list[bytes]:
    """A digest of each image's pixels in its own size: equal pictures, whatever their format, give equal ones."""
    return [digest for _, chunk in _each(_content, listing, public=False) for digest in chunk]


def public_shape(listing: Listing, size: int | None) -> Shape:
    """The shape that every image is given: 1 channel if all public images are grey, else 3; their one size, or
    ``size`` pixels a side."""
    forms = [form for _, chunk in _each(_form, listing, public=True) for form in chunk]
    channels = 1 if all(grey for grey, _, _ in forms) else 3
    if size is not None:
        return channels, size, size
    sizes = {(height, width) for _, height, width in forms}
    if len(sizes) != 1:
        raise UserError(f"data.image_size: must be set: the public images in {str(listing.folder)!r} differ in size")
    return channels, *sizes.pop()


def read_images(paths: Sequence[Path], shape: Shape) -> np.ndarray:
    """Public files (N, *shape) uint8."""
    return decode(Listing(Path(), tuple(str(path) for path in paths)), shape, public=True)
