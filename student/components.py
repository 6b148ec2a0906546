"""Principal components of public inputs: the space in which inputs are compared.

Neighbouring datasets differ in one private unit; nothing here depends on private data. Deterministic: an exact
eigendecomposition of the covariance up to EXACT_WIDTH numbers an input; beyond, where that takes minutes, subspace
iteration (Halko, Martinsson and Tropp 2011, "Finding Structure with Randomness", section 4.5) from one fixed start. The
sign of every component is fixed.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from data.examples import as_matrix

EXACT_WIDTH = 1_024
_CHUNK_NUMBERS = 8_192 * 784
_OVERSAMPLING = 10
_ITERATIONS = 8


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
    """The first K = min(components, N, D) components of N inputs.

    Memory: N·K + min(D, EXACT_WIDTH)² + D·K, never N·D in floating point.
    """
    rows, width = len(features), math.prod(features.shape[1:])
    mean = np.zeros(width)
    for chunk in _chunks(features):
        mean += chunk.sum(0) / rows
    wanted = min(components, rows, width)
    axes = (_exact if width <= EXACT_WIDTH else _iterated)(features, mean, wanted)
    largest = np.abs(axes).argmax(0)
    return Components(mean, axes * np.where(axes[largest, np.arange(axes.shape[1])] < 0, -1.0, 1.0))


def _exact(features: np.ndarray, mean: np.ndarray, wanted: int) -> np.ndarray:
    second = np.zeros((len(mean), len(mean)))
    for chunk in _chunks(features):
        centred = chunk - mean
        second += centred.T @ centred / len(features)
    return np.linalg.eigh(second)[1][:, ::-1][:, :wanted]


def _iterated(features: np.ndarray, mean: np.ndarray, wanted: int) -> np.ndarray:
    """The leading eigenvectors (D, wanted) of the covariance, which is never formed."""
    start = np.random.default_rng(0).standard_normal((len(mean), wanted + _OVERSAMPLING))
    basis = np.linalg.qr(start)[0]
    for _ in range(_ITERATIONS):
        product = np.zeros_like(basis)
        for chunk in _chunks(features):
            centred = chunk - mean
            product += centred.T @ (centred @ basis) / len(features)
        basis = np.linalg.qr(product)[0]
    within = np.zeros((basis.shape[1], basis.shape[1]))
    for chunk in _chunks(features):
        coordinates = (chunk - mean) @ basis
        within += coordinates.T @ coordinates / len(features)
    return basis @ np.linalg.eigh(within)[1][:, ::-1][:, :wanted]


def _chunks(features: np.ndarray) -> Iterator[np.ndarray]:
    rows = max(1, _CHUNK_NUMBERS // max(math.prod(features.shape[1:]), 784))
    for start in range(0, len(features), rows):
        yield as_matrix(features[start : start + rows]).astype(np.float64)
