"""A folder of image files: which files it holds, in which order, and what labels and units their paths name.

``folder/<class>/…`` for labelled parts: the first folder of a path is a name of ``data.classes``; deeper folders group
files at will. Files count by their suffix (SUFFIXES, in upper case too); others, and what begins with a dot, are
ignored. Links are followed. Rows are in the order of the relative paths' bytes.

The private folder is listed here too. Errors about it name folder and rule, never a file, a value or a count.
"""

import hashlib
import os
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")


@dataclass(frozen=True)
class Listing:
    """The image files of a folder: relative paths, with /, in the order of their bytes."""

    folder: Path
    names: tuple[str, ...]

    def take(self, rows: np.ndarray) -> "Listing":
        """Only these rows."""
        return Listing(self.folder, tuple(self.names[row] for row in rows.tolist()))

    def paths(self) -> Iterator[Path]:
        return (self.folder / name for name in self.names)

    def signature(self) -> str:
        """A digest of names, sizes and times: the same while no file has changed."""
        state = hashlib.sha256()
        for name in self.names:
            status = (self.folder / name).stat()
            state.update(os.fsencode(name) + f"\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        return state.hexdigest()


def list_images(folder: Path) -> Listing:
    """All image files below the folder."""
    if not folder.is_dir():
        raise UserError(f"{str(folder)!r}: no such folder")
    found: list[str] = []
    try:
        _walk(folder, "", found, ())
    except OSError as error:
        raise UserError(f"{str(folder)!r}: cannot be listed ({error.strerror})") from None
    return Listing(folder, tuple(sorted(found, key=os.fsencode)))


def _walk(folder: Path, prefix: str, found: list[str], above: tuple[tuple[int, int], ...]) -> None:
    status = folder.stat()
    here = (status.st_dev, status.st_ino)
    if here in above:
        raise UserError(f"{str(folder)!r}: is a link to a folder that it lies in")
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                _walk(folder / entry.name, f"{prefix}{entry.name}/", found, (*above, here))
            elif entry.name.lower().endswith(SUFFIXES) and entry.is_file():
                found.append(prefix + entry.name)


def labels(listing: Listing, classes: tuple[str, ...]) -> np.ndarray:
    """Labels (N,) int32: the position in ``classes`` of each path's first folder."""
    positions = {unicodedata.normalize("NFC", name): position for position, name in enumerate(classes)}
    found = [
        positions.get(unicodedata.normalize("NFC", name.partition("/")[0]), -1) if "/" in name else -1
        for name in listing.names
    ]
    if -1 in found:
        raise UserError(
            f"{str(listing.folder)!r}: every image must lie in a folder named as one of data.classes: "
            f"{', '.join(classes)}"
        )
    return np.array(found, dtype=np.int32)


def public_ids(listing: Listing) -> np.ndarray:
    """Relative paths (N,) as ids, which must be text that any reader takes."""
    for name in listing.names:
        try:
            name.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(name).decode(errors="replace")
            raise UserError(f"data.id = 'path': {shown!r} in {str(listing.folder)!r}: must be UTF-8") from None
    return np.array(listing.names, dtype=str)


def units(listing: Listing, rule: str) -> list[bytes]:
    """What names each image's unit: group 1 of the regular expression ``rule``, searched in the file's name."""
    pattern = re.compile(rule)
    found = []
    for name in listing.names:
        match = pattern.search(name.rpartition("/")[2])
        if match is None or not match[1]:
            raise UserError(
                f"data.unit = {rule!r}: its group must be found, and not empty, in the name of every image file of "
                f"{str(listing.folder)!r}"
            )
        found.append(os.fsencode(match[1]))
    return found
