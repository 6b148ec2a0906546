"""How good the student is on labelled public test inputs, with an interval that says how sure that is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from data.errors import UserError
from student.fairness import largest_gap
from student.rates import Rate, rate

MOST_GROUPS = 50


@dataclass(frozen=True)
class Subgroups:
    """Accuracy by the values of one column, in order, and the gap between its best and its worst value.

    ``gap`` with [gap_low, gap_high] covers the true gap with at least 95%: see :func:`student.fairness.largest_gap`.
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


def check_groups(groups: Mapping[str, np.ndarray]) -> None:
    """Refuse a column of too many values: one that numbers its rows says nothing of any group."""
    for column, values in groups.items():
        if len(np.unique(values)) > MOST_GROUPS:
            raise UserError(f"data.subgroup = {column!r}: has over {MOST_GROUPS} values in data.test; group them")


def by_group(right: np.ndarray, column: str, values: np.ndarray) -> Subgroups:
    """Accuracy of each of the values of a column (N,), N ≥ 1, where ``right`` (N,) says which predictions are.

    The gap's interval is that of :func:`student.fairness.largest_gap`; one value alone has no gap.
    """
    names = np.unique(values)
    counts = [(int(right[values == name].sum()), int((values == name).sum())) for name in names]
    rates = tuple(rate(*each) for each in counts)
    gap = largest_gap(counts)
    difference = (gap.value, gap.low or 0.0, gap.high or 0.0) if gap is not None else (0.0, 0.0, 0.0)
    return Subgroups(column, tuple(str(name) for name in names), rates, *difference)


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
