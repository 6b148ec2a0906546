"""Arrays of records: in memory, or on the disk where they are large."""

import os
import secrets
from pathlib import Path

import numpy as np

IN_MEMORY_BYTES = 1 << 30


def new_array(shape: tuple[int, ...], dtype: np.dtype, scratch: Path | None) -> np.ndarray:
    """An array to be filled; beyond IN_MEMORY_BYTES and with a ``scratch`` folder, a memory-mapped file in it.

    The file has mode 0600 and no name: the disk forgets it when the process ends, killed or not.
    """
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if scratch is None or size <= IN_MEMORY_BYTES:
        return np.empty(shape, dtype)
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = scratch / f"records-{secrets.token_hex(4)}.npy"
    path.touch(mode=0o600)
    try:
        array = np.lib.format.open_memmap(path, "w+", dtype, shape)
        # A full disk is an error now, not the end of the process at some later write.
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return array
    finally:
        path.unlink()


def chosen(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """``array[rows]``; consecutive rows are a view, since a copy of all of a large array would double its memory."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows) and (np.diff(rows) == 1).all():
        return array[int(rows[0]) : int(rows[-1]) + 1]
    return array[rows]
