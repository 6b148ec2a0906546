"""Principal components of public inputs: the space in which inputs are compared.

Neighbouring datasets differ in one private unit; nothing here depends on private data. Deterministic: an exact
eigendecomposition of the covariance, with the sign of every component fixed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from data.examples import as_matrix

_CHUNK = 8_192


@dataclass(frozen=True)
class Components:
    """The mean (D,) and the first K principal axes (D, K) of public inputs. Columns are centred, not rescaled."""

    mean: np.ndarray
    axes: np.ndarray

    def project(self, features: np.ndarray) -> np.ndarray:
        """(N, K) float32 coordinates of inputs as in :class:`data.examples.Examples`."""
        parts = [(chunk - self.mean) @ self.axes for chunk in _chunks(features)]
        return np.concatenate(parts).astype(np.float32)


def principal_components(features: np.ndarray, components: int) -> Components:
    """The first K = min(components, N, D) components of N inputs. Memory: N·K + D², never N·D in floating point."""
    rows, width = len(features), int(np.prod(features.shape[1:]))
    mean, second = np.zeros(width), np.zeros((width, width))
    for chunk in _chunks(features):
        mean += chunk.sum(0) / rows
    for chunk in _chunks(features):
        centred = chunk - mean
        second += centred.T @ centred / rows
    _, vectors = np.linalg.eigh(second)
    axes = vectors[:, ::-1][:, : min(components, rows, width)]
    largest = np.abs(axes).argmax(0)
    return Components(mean, axes * np.where(axes[largest, np.arange(axes.shape[1])] < 0, -1.0, 1.0))


def _chunks(features: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(features), _CHUNK):
        yield as_matrix(features[start : start + _CHUNK]).astype(np.float64)
