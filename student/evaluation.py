"""How good the student is on labelled public test inputs, with an interval that says how sure that is."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import beta

from data.errors import UserError

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Rate:
    """``correct`` of ``total`` and the Clopper-Pearson interval [low, high]; all None where total is 0."""

    correct: int
    total: int
    accuracy: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Evaluation:
    """Accuracy over the whole test part and for each of the C classes, in the order of the classes."""

    overall: Rate
    per_class: tuple[Rate, ...]


def rate(correct: int, total: int, confidence: float = CONFIDENCE) -> Rate:
    """The exact (Clopper-Pearson 1934) interval: it covers the true accuracy with at least ``confidence``.

    >>> rate(9, 10).low < 0.6 < 0.99 < rate(9, 10).high
    True
    """
    if not 0 <= correct <= total:
        raise UserError(f"correct = {correct}: must be between 0 and total = {total}")
    if not 0 < confidence < 1:
        raise UserError(f"confidence = {confidence}: must lie strictly between 0 and 1")
    if total == 0:
        return Rate(0, 0, None, None, None)
    tail = (1 - confidence) / 2
    low = 0.0 if correct == 0 else float(beta.ppf(tail, correct, total - correct + 1))
    high = 1.0 if correct == total else float(beta.ppf(1 - tail, correct + 1, total - correct))
    return Rate(correct, total, correct / total, low, high)


def evaluate(probabilities: np.ndarray, labels: np.ndarray) -> Evaluation:
    """Compare the most probable class of each row of probabilities (N, C) with labels (N,)."""
    if probabilities.ndim != 2 or len(probabilities) != len(labels):
        raise UserError(
            f"probabilities of shape {probabilities.shape}: must be (N, C) for the N = {len(labels)} labels"
        )
    right = probabilities.argmax(1) == labels
    classes = range(probabilities.shape[1])
    per_class = tuple(rate(int(right[labels == c].sum()), int((labels == c).sum())) for c in classes)
    return Evaluation(rate(int(right.sum()), len(labels)), per_class)
