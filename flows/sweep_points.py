"""The points of a sweep: one run's settings at several ε, and what was measured at each.

A point keeps the config's data, teachers, queries, caps, threshold T and ratio σ_T/σ. Only the noise changes: it is the
least whose published ε (data-independent, at these caps) is at most the point's, found as ``pate plan --epsilon`` finds
it. There, too, σ_T is in proportion to σ, so that the tests keep their share of the cost, and T stays, as it says how
many teachers should agree and not how noisy the count of them is. The DP-SGD baseline is calibrated to the labels' ε.
"""

import dataclasses
import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student_t

from accounting.calibration import sigma_for
from accounting.cost import guarantee
from accounting.events import DPSGD, NoisyMax
from accounting.mechanism_calibration import noise_for
from aggregation.settings import AggregationSettings
from aggregation.settings import event as noisy_max
from data.errors import UserError
from flows import charges, config
from flows.settings import Settings

OPTION = "--epsilon"
USUAL = "0.2,0.5,1,2,4"
CONFIDENCE = 0.95
# Calibration mostly ends within 0.1% below its target. A point is drawn at the ε that it costs, so a little less is no
# harm; one much further away is not the one that was asked for.
_NEAR = 0.8


@dataclass(frozen=True)
class Point:
    """``target`` ε; the settings of a run at it; ``event`` and ``baseline`` with the ε that each is published with."""

    target: float
    settings: Settings
    event: NoisyMax
    epsilon: float
    baseline: DPSGD | None
    baseline_epsilon: float | None


@dataclass(frozen=True)
class Score:
    """Accuracy on ``count`` test inputs with [low, high], the mean of so many ``repetitions``.

    ``interval``: "clopper-pearson" (of one model, over test inputs) or "student-t" (of the mean over repetitions, for
    these teachers and these test inputs).
    """

    accuracy: float
    low: float
    high: float
    count: int
    repetitions: int
    interval: str


@dataclass(frozen=True)
class Measured:
    """A point's queries asked and answered (means over repetitions), its scores, and its release folder if any."""

    point: Point
    asked: float
    answered: float
    student: Score | None
    baseline: Score | None
    release: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """All points, in order of ε; ``nonprivate``: what the data give without privacy, of public benchmarks alone."""

    measured: tuple[Measured, ...]
    nonprivate: Score | None


def parse_epsilons(text: str) -> tuple[float, ...]:
    """The ε of ``--epsilon 0.2,0.5,1``, in increasing order.

    >>> parse_epsilons("2, 0.5,1")
    (0.5, 1.0, 2.0)
    """
    found = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise UserError(
                f"{OPTION} = {text!r}: {part.strip()!r} must be a finite number above 0; numbers are separated by "
                "commas, as in 0.2,0.5,1"
            )
        found.append(value)
    # By name: two numbers that are written alike would share a run directory.
    names = [f"{value:g}" for value in sorted(found)]
    twice = next((name for name, following in itertools.pairwise(names) if name == following), None)
    if twice is not None:
        raise UserError(f"{OPTION} = {text!r}: holds {twice} more than once (six digits are told apart)")
    return tuple(sorted(found))


def require_public(settings: Settings) -> None:
    """Refuse to simulate on anything but a declared public benchmark."""
    if not settings.data.public_benchmark:
        raise UserError(
            "data.public_benchmark = false: --simulate needs true, which only data that are really public may have; "
            "without --simulate every point is a release that is charged"
        )


def points(settings: Settings, targets: Sequence[float]) -> tuple[Point, ...]:
    """The points of a sweep, of runs named ``<name>-eps-<ε>``. Reads public data at most.

    Raises:
        UserError: a target that no noise meets, or that the least or the most noise misses.
    """
    asked = charges.queries_asked(settings)
    return tuple(_point(settings, asked, target) for target in targets)


def _point(settings: Settings, asked: int, target: float) -> Point:
    record = settings.model_dump()
    record["name"] = f"{settings.name}-eps-{target:g}".replace("+", "")
    record["baseline"]["epsilon"] = None
    delta = settings.aggregation.delta
    with warnings.catch_warnings():
        # Few answers end at the grid's last order: the ε is valid.
        warnings.simplefilter("ignore")
        try:
            record["aggregation"] = _calibrated(settings.aggregation, asked, target).model_dump()
            at = config.build(record)
            event = noisy_max(at.aggregation, asked)
            epsilon = guarantee(event, delta).epsilon
            baseline = charges.baseline_event(at) if at.baseline.enabled and epsilon > 0 else None
        except UserError as error:
            raise UserError(f"{OPTION}: {error}") from None
        if not target * _NEAR <= epsilon <= target:
            raise UserError(
                f"{OPTION}: {target:g} cannot be reached with these caps at δ = {delta:g}: the nearest noise costs ε = "
                f"{epsilon:.4g}"
            )
        paid = None if baseline is None else guarantee(baseline, at.ledger_delta).epsilon
    return Point(target, at, event, epsilon, baseline, paid)


def _calibrated(settings: AggregationSettings, asked: int, target: float) -> AggregationSettings:
    scaled = scaled_noise(settings)
    if settings.mechanism == "gnmax":
        return scaled(sigma_for(target, settings.delta, noisy_max(settings, asked).answers))
    return scaled(noise_for(lambda noise: noisy_max(scaled(noise), asked), target, settings.delta))


def scaled_noise(settings: AggregationSettings) -> Callable[[float], AggregationSettings]:
    """The settings with another noise, σ or Laplace's b, and a test's noise in the proportion that they have."""

    def at(noise: float) -> AggregationSettings:
        if settings.mechanism == "lnmax":
            return settings.model_copy(update={"scale": noise})
        changed: dict[str, Any] = {"sigma": noise}
        if settings.threshold_sigma is not None and settings.sigma is not None:
            changed["threshold_sigma"] = float(f"{settings.threshold_sigma / settings.sigma * noise:.6g}")
        return settings.model_copy(update=changed)

    return at


def score(records: Sequence[dict[str, Any]]) -> Score | None:
    """The score of evaluations as :func:`student.evaluation.as_record` makes them; None without an accuracy in each.

    Of one its own interval. Of K ≥ 2 the mean m and Student's interval m ± t s/√K, t the 97.5% quantile at K - 1
    degrees of freedom and s the standard deviation of the K accuracies: it covers the expected accuracy over noise and
    training on this test part; that the test part is finite is not in it.
    """
    if not records or any(record.get("accuracy") is None for record in records):
        return None
    if len(records) == 1:
        one = records[0]
        return Score(one["accuracy"], one["low"], one["high"], one["count"], 1, "clopper-pearson")
    accuracies = np.array([record["accuracy"] for record in records])
    half = student_t.ppf((1 + CONFIDENCE) / 2, len(records) - 1) * accuracies.std(ddof=1) / math.sqrt(len(records))
    mean = float(accuracies.mean())
    low, high = max(mean - float(half), 0.0), min(mean + float(half), 1.0)
    return Score(mean, low, high, records[0]["count"], len(records), "student-t")


def as_record(found: Score | None) -> dict[str, Any] | None:
    """A score as a plain mapping."""
    return None if found is None else dataclasses.asdict(found)
