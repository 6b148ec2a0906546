"""Arrays that models read: uint8 images or encoded tables, with the ids of public rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Examples:
    """N public examples.

    features: (N, channels, height, width) uint8 images, 0-255, or (N, D) float32 or float16 encoded columns.
    ids: (N,) public ids, int64 rows of the source or the values of the id column.
    labels: (N,) int32 in [0, C), or None where labels must not be read (the public part).
    groups: of each column of data.subgroup the values (N,) as text, '' where missing; of the test part alone.
    """

    features: np.ndarray
    ids: np.ndarray
    labels: np.ndarray | None = None
    groups: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class PrivateRecords:
    """N private records. Never leaves the private zone.

    features: as in :class:`Examples`. labels: (N,) int32. units: (N,) keyed hashes of the unit each belongs to.
    content: (N,) keyed hashes of the records, the order in which a shard is read.
    """

    features: np.ndarray
    labels: np.ndarray
    units: np.ndarray
    content: np.ndarray


def as_matrix(features: np.ndarray) -> np.ndarray:
    """(N, D) float32 rows for estimators that want vectors: images flattened and scaled to [0, 1]."""
    flat = features.reshape(len(features), -1)
    return flat.astype(np.float32) / 255.0 if features.dtype == np.uint8 else flat.astype(np.float32)
