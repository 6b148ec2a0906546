"""Scaling of feature vectors by the moments of the public part.

Neighbouring datasets differ in one unit of the private part. The scaling is a function of the public part, so it is
the same for both; nothing that it holds needs an event on the ledger.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from data.encoding import CLIP
from data.errors import UserError

_LEAST_STD = 1e-12


@dataclass(frozen=True)
class VectorEncoder:
    """Columns (D,) scaled to (x − mean) / std, then clipped to ±CLIP. ``std`` is 1 where the public column is constant.

    >>> VectorEncoder((1.0,), (2.0,)).encode(np.array([[3.0], [1e9]])).ravel().tolist()
    [1.0, 10.0]
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def width(self) -> int:
        return len(self.mean)

    def encode(self, rows: np.ndarray) -> np.ndarray:
        """(N, D) numbers as float32; float16 stays float16, so that what is small on the disk stays small."""
        kind = np.float16 if rows.dtype == np.float16 else np.float32
        with np.errstate(over="ignore"):
            scaled = (rows.astype(np.float64) - np.array(self.mean)) / np.array(self.std)
        return np.clip(scaled, -CLIP, CLIP).astype(kind)

    def to_dict(self) -> dict[str, Any]:
        return {"mean": list(self.mean), "std": list(self.std)}

    @staticmethod
    def from_dict(record: dict[str, Any]) -> "VectorEncoder":
        mean, std = (tuple(float(value) for value in record[name]) for name in ("mean", "std"))
        if len(mean) != len(std):
            raise ValueError("mean and std differ in length")
        return VectorEncoder(mean, std)


def fit_vectors(blocks: Iterable[np.ndarray], width: int, shown: str) -> VectorEncoder:
    """The scaling from public blocks (n, D) of finite numbers; ``shown`` names the array in an error.

    Moments are updated block by block (Chan, Golub and LeVeque 1983): no cancellation for columns far from 0.
    """
    count, mean, squares = 0, np.zeros(width), np.zeros(width)
    with np.errstate(over="ignore", invalid="ignore"):
        for block in blocks:
            rows = block.astype(np.float64)
            total = count + len(rows)
            if not len(rows):
                continue
            here = rows.mean(0)
            squares += np.square(rows - here).sum(0) + np.square(here - mean) * (count * len(rows) / total)
            mean += (here - mean) * (len(rows) / total)
            count = total
        std = np.sqrt(squares / max(count, 1))
    if not (np.isfinite(mean).all() and np.isfinite(std).all()):
        raise UserError(f"{shown}: holds numbers too large to be scaled")
    std = np.where(std > _LEAST_STD * np.maximum(1.0, np.abs(mean)), std, 1.0)
    return VectorEncoder(tuple(mean.tolist()), tuple(std.tolist()))
