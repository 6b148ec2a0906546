"""All that is measured of a run's models on the labelled public test inputs, as rows of one long table.

A row is one number: whose it is (``student``, ``baseline``, ``difference``: the student's less the baseline's, or
``labels``: of the test labels themselves), what it measures and of which part of the test inputs. Post-processing of
released models and public data.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from data.errors import UserError
from student.calibration import brier_score, calibration
from student.comparison import paired_difference
from student.fairness import largest_gap, worst
from student.rates import NONE, Estimate, Rate, share


@dataclass(frozen=True)
class Row:
    """One number. ``scope``: overall, class, subgroup or bin; ``column`` and ``value`` say which subgroup or bin.

    ``class_name``: the class that it is of, None for all. ``estimate`` has the 95% interval [low, high] of method
    ``interval`` (None, None and "none" where there is none) and rests on ``count`` test inputs.
    """

    model: str
    measure: str
    scope: str
    column: str | None
    value: str | None
    class_name: str | None
    estimate: float
    low: float | None
    high: float | None
    count: int
    interval: str


@dataclass(frozen=True)
class _Part:
    """Some of the test inputs: ``rows`` (N,) says which."""

    scope: str
    column: str | None
    value: str | None
    rows: np.ndarray


def measure(
    models: Mapping[str, np.ndarray],
    labels: np.ndarray,
    groups: Mapping[str, np.ndarray],
    class_names: tuple[str, ...],
    seed: int,
) -> list[Row]:
    """Every row, for each model's probabilities (N, C) of the test inputs with labels (N,).

    ``groups``: for each column of subgroups the values (N,). ``seed``: of the intervals that are simulated. Where
    ``models`` holds both "student" and "baseline", they are compared on the same inputs.
    """
    if not len(labels) or any(each.shape != (len(labels), len(class_names)) for each in models.values()):
        raise UserError(f"probabilities: must be (N, {len(class_names)}) for the N = {len(labels)} ≥ 1 labels")
    whole = _Part("overall", None, None, np.ones(len(labels), bool))
    parts = [
        _Part("subgroup", column, str(value), values == value)
        for column, values in groups.items()
        for value in np.unique(values)
    ]
    rows: list[Row] = []
    for name, probabilities in models.items():
        rows += _of_model(name, probabilities, labels, [whole, *parts], class_names, seed)
        for column in groups:
            mine = [part for part in parts if part.column == column]
            rows += _gaps(name, probabilities.argmax(1), labels, mine, class_names)
    rows += _differences(models, labels, [whole, *parts], class_names)
    rows += _base_rates(labels, [whole, *parts], class_names)
    return rows


def _row(
    model: str, name: str, part: _Part, found: Estimate | None, class_name: str | None = None, scope: str | None = None
) -> Iterator[Row]:
    if found is not None:
        at = (model, name, scope or part.scope, part.column, part.value, class_name)
        yield Row(*at, found.value, found.low, found.high, found.count, found.interval)


def _of_model(
    model: str, probabilities: np.ndarray, labels: np.ndarray, parts: list[_Part], names: tuple[str, ...], seed: int
) -> Iterator[Row]:
    predicted = probabilities.argmax(1)
    for part in parts:
        here, truth = predicted[part.rows], labels[part.rows]
        found = calibration(probabilities[part.rows], truth, seed)
        yield from _row(model, "accuracy", part, share(int((here == truth).sum()), len(truth)))
        yield from _row(model, "expected_calibration_error", part, found.error)
        yield from _row(model, "brier_score", part, brier_score(probabilities[part.rows], truth, seed))
        for c, name in enumerate(names):
            yield from _class_rates(model, part, here == c, truth == c, name)
        if part.scope == "overall":
            for number, each in enumerate(found.bins):
                yield from _bin(model, number, each.confidence, each.right)
            yield from _confusions(model, here, truth, names)


def _class_rates(model: str, part: _Part, named: np.ndarray, true: np.ndarray, class_name: str) -> Iterator[Row]:
    """One class against the rest, where ``named`` and ``true`` (N,) say which inputs are put in it and belong to it."""
    scope = "class" if part.scope == "overall" else part.scope
    both = int((named & true).sum())
    rates = {
        "recall": share(both, int(true.sum())),
        "precision": share(both, int(named.sum())),
        "selection_rate": share(int(named.sum()), len(named)),
        "false_positive_rate": share(int((named & ~true).sum()), int((~true).sum())),
    }
    for name, found in rates.items():
        yield from _row(model, name, part, found, class_name, scope)


def _bin(model: str, number: int, confidence: float, right: Rate) -> Iterator[Row]:
    part = _Part("bin", "confidence", str(number), np.zeros(0, bool))
    yield from _row(model, "confidence", part, Estimate(confidence, None, None, right.total, NONE))
    yield from _row(model, "accuracy", part, share(right.correct, right.total))


def _confusions(model: str, predicted: np.ndarray, labels: np.ndarray, names: tuple[str, ...]) -> Iterator[Row]:
    """Of each class's inputs the share that is put in each class; what never happened has no row."""
    counts = np.bincount(labels * len(names) + predicted, minlength=len(names) ** 2).reshape(len(names), -1)
    for true, named in np.argwhere(counts):
        part = _Part("class", "predicted", names[named], np.zeros(0, bool))
        yield from _row(model, "confusion", part, share(int(counts[true, named]), int(counts[true].sum())), names[true])


def _gaps(
    model: str, predicted: np.ndarray, labels: np.ndarray, groups: list[_Part], names: tuple[str, ...]
) -> Iterator[Row]:
    whole = _Part("subgroup", groups[0].column, None, np.zeros(0, bool))
    right = [(int((predicted[g.rows] == labels[g.rows]).sum()), int(g.rows.sum())) for g in groups]
    yield from _row(model, "accuracy_difference", whole, largest_gap(right))
    least = worst(right)
    if least is not None:
        yield from _row(model, "worst_group_accuracy", groups[least[0]], least[1])
    for c, name in enumerate(names):
        named, true = predicted == c, labels == c
        selected = [(int(named[g.rows].sum()), int(g.rows.sum())) for g in groups]
        found = [(int((named & true)[g.rows].sum()), int(true[g.rows].sum())) for g in groups]
        taken = [(int((named & ~true)[g.rows].sum()), int((~true)[g.rows].sum())) for g in groups]
        yield from _row(model, "demographic_parity_difference", whole, largest_gap(selected), name)
        yield from _row(model, "equal_opportunity_difference", whole, largest_gap(found), name)
        yield from _row(model, "equalized_odds_difference", whole, largest_gap(found, taken), name)


def _differences(
    models: Mapping[str, np.ndarray], labels: np.ndarray, parts: list[_Part], names: tuple[str, ...]
) -> Iterator[Row]:
    """The student's accuracy less the baseline's on the same inputs: of all, of each subgroup, of each class."""
    if not {"student", "baseline"} <= set(models):
        return
    student, baseline = (models[name].argmax(1) == labels for name in ("student", "baseline"))
    for part in parts:
        yield from _row("difference", "accuracy", part, _paired(student[part.rows], baseline[part.rows]))
    for c, name in enumerate(names):
        here = labels == c
        if here.any():
            part = _Part("class", None, None, here)
            yield from _row("difference", "recall", part, _paired(student[here], baseline[here]), name)


def _paired(first: np.ndarray, second: np.ndarray) -> Estimate:
    return paired_difference(int((first & ~second).sum()), int((second & ~first).sum()), len(first))


def _base_rates(labels: np.ndarray, parts: list[_Part], names: tuple[str, ...]) -> Iterator[Row]:
    """How common each class is in the test labels: what selection rates are to be read against."""
    for part in parts:
        scope = "class" if part.scope == "overall" else part.scope
        for c, name in enumerate(names):
            here = labels[part.rows] == c
            yield from _row("labels", "base_rate", part, share(int(here.sum()), len(here)), name, scope)
