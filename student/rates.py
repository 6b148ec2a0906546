"""Shares of test inputs, with an interval that says how sure they are."""

from dataclasses import dataclass

from scipy.stats import beta

from data.errors import UserError

CONFIDENCE = 0.95
CLOPPER_PEARSON = "Clopper-Pearson"
NONE = "none"
# A group of fewer test inputs is marked: its interval is so wide that the figure says little.
FEW = 10


@dataclass(frozen=True)
class Rate:
    """``correct`` of ``total`` and the Clopper-Pearson interval [low, high]; all None where total is 0."""

    correct: int
    total: int
    accuracy: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Estimate:
    """A measured value, its 95% interval [low, high], how many test inputs it rests on, and the interval's method.

    ``low`` and ``high`` are None, and the method is "none", where no interval can be vouched for.
    """

    value: float
    low: float | None
    high: float | None
    count: int
    interval: str


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


def share(number: int, total: int) -> Estimate | None:
    """``number`` of ``total`` with its exact interval; None of nothing."""
    found = rate(number, total)
    if found.accuracy is None or found.low is None or found.high is None:
        return None
    return Estimate(found.accuracy, found.low, found.high, total, CLOPPER_PEARSON)
