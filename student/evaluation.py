"""How good the student is on labelled public test inputs, with an interval that says how sure that is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import beta

from data.errors import UserError

CONFIDENCE = 0.95
MOST_GROUPS = 50


@dataclass(frozen=True)
class Rate:
    """``correct`` of ``total`` and the Clopper-Pearson interval [low, high]; all None where total is 0."""

    correct: int
    total: int
    accuracy: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Subgroups:
    """Accuracy by the values of one column, in order, and the gap between its best and its worst value.

    ``gap`` with [gap_low, gap_high] covers the true gap with at least 95%: see :func:`by_group`.
    """

    column: str
    values: tuple[str, ...]
    rates: tuple[Rate, ...]
    gap: float
    gap_low: float
    gap_high: float


@dataclass(frozen=True)
class Evaluation:
    """Accuracy over the whole test part, for each of the C classes in their order, and by subgroups."""

    overall: Rate
    per_class: tuple[Rate, ...]
    subgroups: tuple[Subgroups, ...] = ()


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


def check_groups(groups: Mapping[str, np.ndarray]) -> None:
    """Refuse a column of too many values: one that numbers its rows says nothing of any group."""
    for column, values in groups.items():
        if len(np.unique(values)) > MOST_GROUPS:
            raise UserError(f"data.subgroup = {column!r}: has over {MOST_GROUPS} values in data.test; group them")


def by_group(right: np.ndarray, column: str, values: np.ndarray) -> Subgroups:
    """Accuracy of each of the k values of a column (N,), where ``right`` (N,) says which predictions are.

    The gap's interval: with k exact intervals that hold together with probability 95% (each at 1 - 5%/k, Bonferroni),
    the best true accuracy is at least the largest lower end and the worst at most the smallest upper end, so the gap
    lies between the largest lower end less the smallest upper end (or 0) and the largest upper less the smallest lower.
    """
    names = np.unique(values)
    counts = [(int(right[values == name].sum()), int((values == name).sum())) for name in names]
    rates = tuple(rate(*each) for each in counts)
    joint = [rate(*each, confidence=1 - (1 - CONFIDENCE) / len(counts)) for each in counts]
    lows, highs = [each.low or 0.0 for each in joint], [each.high or 0.0 for each in joint]
    accuracies = [each.accuracy or 0.0 for each in rates]
    return Subgroups(
        column,
        tuple(str(name) for name in names),
        rates,
        max(accuracies) - min(accuracies),
        max(max(lows) - min(highs), 0.0),
        max(highs) - min(lows) if len(counts) > 1 else 0.0,
    )


def evaluate(
    probabilities: np.ndarray, labels: np.ndarray, groups: Mapping[str, np.ndarray] | None = None
) -> Evaluation:
    """Compare the most probable class of each row of probabilities (N, C) with labels (N,).

    groups: for each column of subgroups the values (N,).
    """
    if probabilities.ndim != 2 or len(probabilities) != len(labels):
        raise UserError(
            f"probabilities of shape {probabilities.shape}: must be (N, C) for the N = {len(labels)} labels"
        )
    right = probabilities.argmax(1) == labels
    classes = range(probabilities.shape[1])
    per_class = tuple(rate(int(right[labels == c].sum()), int((labels == c).sum())) for c in classes)
    subgroups = tuple(by_group(right, column, values) for column, values in (groups or {}).items() if len(right))
    return Evaluation(rate(int(right.sum()), len(labels)), per_class, subgroups)


def as_record(found: Evaluation) -> dict[str, Any]:
    """The evaluation as a model's JSON page holds it."""
    return {
        "accuracy": found.overall.accuracy,
        "low": found.overall.low,
        "high": found.overall.high,
        "count": found.overall.total,
        "per_class": [each.accuracy for each in found.per_class],
        "subgroups": [
            {
                "column": group.column,
                "values": [
                    {"value": value, "count": each.total, "accuracy": each.accuracy, "low": each.low, "high": each.high}
                    for value, each in zip(group.values, group.rates, strict=True)
                ],
                "gap": group.gap,
                "gap_low": group.gap_low,
                "gap_high": group.gap_high,
            }
            for group in found.subgroups
        ],
    }
