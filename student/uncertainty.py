"""Which public inputs a later round asks about: those that the student is unsure of, spread over the inputs.

Diverse mini-batch active learning (Zhdanov 2019, arXiv 1901.05954): of the inputs with the smallest margins between
the student's two likeliest classes, weighted by that uncertainty, the ones nearest to the centres of k-means clusters.
Margins alone would ask near-copies of one hard input many times.

Neighbouring datasets differ in one private unit. Everything here is a function of public inputs, of a student that was
trained on released labels, and of the seed: post-processing, which costs no privacy.
"""

import numpy as np

from student.components import principal_components
from student.queries import COMPONENTS, nearest_to_centres

CANDIDATES = 10
"""Inputs that are looked at for each that is asked: of more, some would hardly be uncertain."""
_LEAST_WEIGHT = 1e-6


def uncertainty(probabilities: np.ndarray) -> np.ndarray:
    """1 - margin of (N, C) class probabilities, in [0, 1]: the margin is between the two likeliest classes.

    >>> uncertainty(np.array([[0.5, 0.5], [1.0, 0.0], [0.25, 0.75]])).tolist()
    [1.0, 0.0, 0.5]
    """
    ordered = np.sort(np.asarray(probabilities, dtype=np.float64), axis=1)
    return np.clip(1 - (ordered[:, -1] - ordered[:, -2]), 0.0, 1.0)


def unsure_and_diverse(features: np.ndarray, probabilities: np.ndarray, count: int, draw: int) -> np.ndarray:
    """Rows (count,) int64 of the N inputs: the cluster with most uncertainty first, as a cap may end the round early.

    ``probabilities``: (N, C) of the student. Deterministic, given the seed ``draw``.
    """
    unsure = uncertainty(probabilities)
    candidates = np.argsort(-unsure, kind="stable")[: CANDIDATES * count]
    if count >= len(candidates):
        return candidates.astype(np.int64)
    points = principal_components(features, COMPONENTS).project(features)[candidates]
    chosen = candidates[nearest_to_centres(points, count, draw, np.maximum(unsure[candidates], _LEAST_WEIGHT))]
    # Repeated inputs leave clusters empty: the rest are the most uncertain ones.
    spare = candidates[~np.isin(candidates, chosen)]
    return np.concatenate([chosen, spare[: count - len(chosen)]]).astype(np.int64)
