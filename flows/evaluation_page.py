"""What the report shows of the evaluation: the table's rows by name, and where dots and intervals of groups stand."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from flows import figures
from student.measures import Row
from student.rates import FEW

MODELS = (("student", "Student", figures.BLUE), ("baseline", "DP-SGD baseline", figures.ORANGE))
# More classes than these are too wide for a matrix; then the commonest confusions are listed.
_MATRIX = 12
_CONFUSIONS = 12
# The rates of groups that a gap is the largest difference of.
_BEHIND = {
    "accuracy_difference": ("accuracy",),
    "demographic_parity_difference": ("selection_rate",),
    "equal_opportunity_difference": ("recall",),
    "equalized_odds_difference": ("recall", "false_positive_rate"),
}


@dataclass(frozen=True)
class Mark:
    """A dot and its interval, in per cent of the axis' width. ``second``: of the second model."""

    dot: float
    left: float
    width: float
    second: bool


@dataclass(frozen=True)
class Strip:
    """The marks of one group on the common axis."""

    value: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Group:
    """A column of subgroups: its values, and their accuracies drawn on an axis from ``low`` to ``high``."""

    column: str
    values: tuple[str, ...]
    strips: tuple[Strip, ...]
    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class Evaluation:
    """The rows of a run's table as the report's template asks for them."""

    rows: dict[tuple[Any, ...], Row]
    classes: tuple[str, ...]
    groups: tuple[Group, ...]
    reliability_figure: Markup

    def get(
        self,
        model: str,
        measure: str,
        scope: str = "overall",
        column: str | None = None,
        value: str | None = None,
        of: str | None = None,
    ) -> Row | None:
        """The row of that name, None where nothing was measured; ``of``: the class."""
        return self.rows.get((model, measure, scope, column, value, of))

    @property
    def models(self) -> list[tuple[str, str]]:
        """Name and title of each model that was measured."""
        return [(name, title) for name, title, _ in MODELS if self.get(name, "accuracy") is not None]

    @property
    def matrix(self) -> bool:
        """Whether the confusions fit into a matrix."""
        return len(self.classes) <= _MATRIX

    def confused(self, true: str, predicted: str) -> tuple[int, float]:
        """How many test inputs of a class the student puts in another (or the same), and which share of the class."""
        row = self.get("student", "confusion", "class", "predicted", predicted, true)
        return (0, 0.0) if row is None else (round(row.estimate * row.count), row.estimate)

    @property
    def confusions(self) -> list[tuple[str, str, int, float]]:
        """The commonest mistakes of the student: class, taken for, number, share of the class."""
        pairs = [(a, b, *self.confused(a, b)) for a in self.classes for b in self.classes if a != b]
        return sorted((pair for pair in pairs if pair[2]), key=lambda pair: -pair[2])[:_CONFUSIONS]

    def size(self, column: str | None = None, value: str | None = None, of: str | None = None) -> int:
        """How many test inputs a subgroup or a class has."""
        scope = "class" if column is None else "subgroup"
        row = self.get("student", "recall" if column is None else "accuracy", scope, column, value, of)
        return 0 if row is None else row.count

    def worst(self, model: str, column: str) -> Row | None:
        """The row of the group with the model's lowest accuracy."""
        mine = (model, "worst_group_accuracy", column)
        return next((r for r in self.rows.values() if (r.model, r.measure, r.column) == mine), None)

    @property
    def few(self) -> int:
        """What rests on fewer test inputs is marked."""
        return FEW

    @property
    def small(self) -> bool:
        """Whether anything is."""
        marked = {rate for rates in _BEHIND.values() for rate in rates} | {"precision", "base_rate"}
        return any(
            r.measure in marked and r.scope in ("class", "subgroup") and r.count < FEW for r in self.rows.values()
        )

    def thin(self, model: str, gap: str, column: str, of: str | None = None) -> bool:
        """Whether a gap between the groups of a column may be that of a group whose rate rests on few inputs."""
        found = (
            r
            for r in self.rows.values()
            if (r.model, r.scope, r.column, r.class_name) == (model, "subgroup", column, of)
        )
        return any(r.measure in _BEHIND[gap] and r.count < FEW for r in found)


def evaluation(rows: Sequence[Row], classes: tuple[str, ...]) -> Evaluation | None:
    """The rows by name, None where nothing was measured."""
    if not rows:
        return None
    named = {(r.model, r.measure, r.scope, r.column, r.value, r.class_name): r for r in rows}
    columns = dict.fromkeys(r.column for r in rows if r.scope == "subgroup" and r.column is not None)
    return Evaluation(named, classes, tuple(_group(rows, column) for column in columns), _reliability(rows))


def _group(rows: Sequence[Row], column: str) -> Group:
    mine = [r for r in rows if (r.measure, r.scope, r.column) == ("accuracy", "subgroup", column)]
    drawn = [r for r in mine if r.model != "difference" and r.value is not None]
    lowest = min(r.estimate if r.low is None else r.low for r in drawn)
    highest = max(r.estimate if r.high is None else r.high for r in drawn)
    low, high = math.floor(10 * lowest) / 10, math.ceil(10 * highest) / 10
    wide = max(high - low, 0.1)
    values = tuple(dict.fromkeys(r.value for r in drawn if r.value is not None))
    strips = tuple(Strip(value, tuple(_mark(r, low, wide) for r in drawn if r.value == value)) for value in values)
    return Group(column, values, strips, low, low + wide / 2, low + wide)


def _mark(row: Row, low: float, wide: float) -> Mark:
    first, last = (row.estimate if end is None else end for end in (row.low, row.high))
    return Mark(
        100 * (row.estimate - low) / wide,
        100 * (first - low) / wide,
        100 * (last - first) / wide,
        row.model == "baseline",
    )


def _reliability(rows: Sequence[Row]) -> Markup:
    lines = []
    for model, title, colour in MODELS:
        bins = [r for r in rows if r.model == model and r.scope == "bin"]
        confidence = [r for r in bins if r.measure == "confidence"]
        right = [r for r in bins if r.measure == "accuracy"]
        points = [
            (c.estimate, a.estimate, a.low or 0.0, 1.0 if a.high is None else a.high)
            for c, a in zip(confidence, right, strict=True)
        ]
        if points:
            lines.append(figures.Reliability(title, tuple(points), colour))
    return figures.reliability(lines)
